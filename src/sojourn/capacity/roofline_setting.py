"""A deployment as the roofline sees it: one data-parallel rank, its shards and its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory_kv import kv_value_bytes
from sojourn.capacity.memory_weights import (
    BYTES_PER_PARAMETER,
    UNQUANTISED_BYTES,
    held_dtypes,
    weight_dtype,
)
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.roofline_constants import Constants, Engine, engine_kind, is_older
from sojourn.capacity.roofline_families import CDNA, Family, Kernel, family_of, kernel_class
from sojourn.config import Deployment

MEAN_CONTEXT: Final = 1024.0
"""Context at which sliding windows are linearised where the caller names none."""


@dataclass(frozen=True)
class Untuned:
    """What engines of 2023 and 2024 did badly.

    `cache`: decode attention read the cache once per query head, not per KV head (vLLM's first
    paged kernel; on ROCm until 0.6). `products`: 16-bit products of more than a few rows reached
    a twentieth of the peak on ROCm before vLLM 0.6 (62 to 74 TFLOPS per MI300X over six models at
    TP 1 and 2, batches 16 to 256, in static batches of 2024). Wrong when: the vendor tuned it.
    """

    cache: bool
    products: bool


UNTUNED_COMPUTE: Final = 0.065


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
    untuned: Untuned
    eager: bool
    constants: Constants

    @property
    def ranks(self) -> int:
        """Accelerators that the routed experts lie on."""
        return self.tp * self.dp

    def format(self, part: str) -> str:
        """Format of the weights of a part: `attention`, `dense`, `experts` or `head`."""
        if part == "head":
            return "bf16"
        if part == "experts":
            return self.model.part_dtype("experts", self.dtype)
        attention, dense = held_dtypes(self.model, self.dtype)
        return attention if part == "attention" else dense

    def kernel(self, dtype: str, *, experts: bool = False) -> Kernel:
        """The kernel that multiplies weights of `dtype`, slowed to what a served model reaches."""
        kind = kernel_class(self.gpu, dtype)
        table = self.family.experts if experts else self.family.gemm
        kernel = table.get(kind) or table["wo"]
        memory = self.constants.experts_memory if experts else self.constants.memory
        compute = self.constants.experts_compute if experts else self.constants.compute
        if self.untuned.products and kind == "16" and not experts:
            compute = UNTUNED_COMPUTE / kernel.compute
        return Kernel(
            kernel.launch_s * self.constants.launch,
            kernel.memory * memory,
            kernel.compute * compute,
            kernel.blend,
            kernel.input_bytes * self.constants.quantise,
            kernel.padding,
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
    family, kind = family_of(gpu), engine_kind(deployment.engine)
    vllm = kind.startswith("vllm")
    old_rocm = vllm and family is CDNA and is_older(deployment.engine, (0, 6))
    return Setting(
        model=model,
        gpu=gpu,
        family=family,
        tp=deployment.tensor_parallel,
        dp=deployment.data_parallel,
        pp=deployment.pipeline_parallel,
        ep=deployment.expert_parallel,
        dtype=weight_dtype(model, deployment),
        value_bytes=kv_value_bytes(deployment),
        context=MEAN_CONTEXT if mean_context is None else mean_context,
        engine=constants.engines[kind],
        untuned=Untuned(cache=kind == "vllm 2023" or old_rocm, products=old_rocm),
        eager=deployment.enforce_eager,
        constants=constants,
    )
