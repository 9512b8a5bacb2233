"""A deployment as the roofline sees it: one data-parallel rank, its shards and its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import (
    BYTES_PER_PARAMETER,
    UNQUANTISED_BYTES,
    kv_value_bytes,
    weight_dtype,
)
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, ModelSpec
from sojourn.capacity.roofline_constants import Constants, Engine, engine_kind
from sojourn.capacity.roofline_families import Family, Kernel, family_of, kernel_class
from sojourn.config import Deployment

MEAN_CONTEXT: Final = 1024.0
"""Context at which sliding windows are linearised where the caller names none."""


@dataclass(frozen=True)
class Setting:
    """One rank: what it multiplies, in which format, with which kernels.

    `tp` shards each layer of a rank; `dp` ranks share the routed experts (over `tp` x `dp`
    accelerators), whole where `ep`. `pp` stages only add hops: a step takes the whole depth.
    """

    model: ModelSpec
    gpu: Gpu
    family: Family
    tp: int
    dp: int
    pp: int
    ep: bool
    dtype: str
    value_bytes: int
    context: float
    engine: Engine
    eager: bool
    constants: Constants

    @property
    def ranks(self) -> int:
        """Accelerators that the routed experts lie on."""
        return self.tp * self.dp

    def format(self, *, part: str, layer: AttentionLayers | None = None) -> str:
        """Format of the weights of a part: `attention`, `dense`, `experts` or `head`."""
        if part == "head":
            return "bf16"
        if self.dtype == "mxfp4" and part != "experts":
            return "bf16"
        latent = layer is not None and layer.kind is AttentionKind.LATENT
        if self.dtype in ("nvfp4", "int4") and part == "attention" and latent:
            return "bf16"  # published FP4 and INT4 checkpoints of latent models: experts only
        return self.dtype

    def kernel(self, dtype: str, *, experts: bool = False) -> Kernel:
        """The kernel that multiplies weights of `dtype`, slowed to what a served model reaches."""
        kind = kernel_class(self.gpu, dtype)
        table = self.family.experts if experts else self.family.gemm
        kernel = table.get(kind) or table["wo"]
        memory = self.constants.experts_memory if experts else self.constants.memory
        compute = self.constants.experts_compute if experts else self.constants.compute
        return Kernel(
            kernel.launch_s * self.constants.launch,
            kernel.memory * memory,
            kernel.compute * compute,
            kernel.blend,
        )

    def read_s(self, size: float) -> float:
        """Reading `size` bytes at full bandwidth."""
        return size / self.gpu.bandwidth_bytes_per_s

    def compute_s(self, flops: float, dtype: str) -> float:
        """Doing `flops` at the peak of `dtype`."""
        return flops / self.gpu.flops(dtype)


def parameter_bytes(dtype: str) -> float:
    """Bytes of one matrix parameter of a block."""
    return BYTES_PER_PARAMETER.get(dtype, UNQUANTISED_BYTES)


def setting_of(
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    mean_context: float | None,
    constants: Constants,
) -> Setting:
    """What the roofline needs of a model on a deployment.

    Raises:
        UsageError: the deployment names a dtype nobody knows.
    """
    return Setting(
        model=model,
        gpu=gpu,
        family=family_of(gpu),
        tp=deployment.tensor_parallel,
        dp=deployment.data_parallel,
        pp=deployment.pipeline_parallel,
        ep=deployment.expert_parallel,
        dtype=weight_dtype(model, deployment),
        value_bytes=kv_value_bytes(deployment),
        context=MEAN_CONTEXT if mean_context is None else mean_context,
        engine=constants.engines[engine_kind(deployment.engine)],
        eager=deployment.enforce_eager,
        constants=constants,
    )
