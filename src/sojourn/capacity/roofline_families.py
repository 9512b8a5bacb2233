"""How kernels behave on each generation of accelerators: measured shapes, no end-to-end fit.

Every kernel is told by a few numbers (`Kernel`), rounded from fits to the operator tables of
aiconfigurator-core 0.12.0 (Apache-2.0; vLLM 0.14 and 0.24, SGLang 0.5.10 and 0.5.14, TensorRT-LLM
1.0 and 1.3 on A100, L40S, H100, H200, B200, B300, GB200, RTX PRO 6000); where engines differ, a
number between theirs. `benchmarks/fit_kernels.py` prints the fits with their errors. Launches of
grouped products are the shortest times at one token (its part `shortest`): a fit over all shapes
blurs them. Weight-only products, and CDNA, have no table there: theirs are assumed, near those of
Marlin on Hopper, and with the launch times and shares that rows of MI300X servers allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu


@dataclass(frozen=True)
class Kernel:
    """t = launch + ((bytes/(bandwidth memory))^p + (flops/(peak compute))^p)^(1/p) + quantising.

    `launch_s`: shortest it takes inside a CUDA graph. `memory`, `compute`: shares of peak reached
    by big shapes. `blend` p: 1 where reading and computing follow each other, large where they
    overlap. Small shapes fall short of the shares because of `launch_s`: that is the saturating
    efficiency. `input_bytes`: memory traffic per value multiplied in, beside the product itself
    (activations brought to 8 or 4 bits, which is why narrow matrices reach so little of an FP8
    peak). `padding`: rows that a grouped product computes in vain for each expert it reads.
    Source: module docstring; median error 6 to 10% (16 bit), 12 to 16% (8 and 4 bit).
    Wrong when: an engine picks a kernel that does not suit the shape (up to 2 x).
    """

    launch_s: float
    memory: float
    compute: float
    blend: float
    input_bytes: float = 0.0
    padding: float = 0.0

    def time_s(self, memory_s: float, compute_s: float) -> float:
        """Time of one launch, given the times at full bandwidth and at peak."""
        return self.launch_s + self.work_s(memory_s, compute_s)

    def work_s(self, memory_s: float, compute_s: float) -> float:
        """The same without the launch."""
        read, computed = memory_s / self.memory, compute_s / self.compute
        longer = max(read, computed)
        if longer <= 0:
            return 0.0
        shorter = min(read, computed) / longer
        return float(longer * (1 + shorter**self.blend) ** (1 / self.blend))


@dataclass(frozen=True)
class Family:
    """A generation of accelerators. Keys of the kernels: `16` (bf16, fp16), `8` (fp8, int8), `4`
    (fp4), `wo` (weight-only: fewer bytes, multiplied in 16 bits).

    `small_s`: a normalisation, rotation or activation at decode sizes. `attention`: decode, by bits
    of the KV cache. `prefill_attention`: share of the 16-bit peak. `reduce_s`: all-reduce of a
    small message over two GPUs, `reduce_step_s` more for each doubling; `direct`, `ring`: shares
    of one direction of the link that an all-reduce reaches by direct reads (small messages), and
    by NCCL or RCCL at its largest ones.
    """

    name: str
    small_s: float
    gemm: Mapping[str, Kernel]
    experts: Mapping[str, Kernel]
    attention: Mapping[str, Kernel]
    prefill_attention: float
    reduce_s: float
    reduce_step_s: float
    direct: float
    ring: float


US: Final = 1e-6
AMPERE: Final = Family(
    name="Ampere",
    small_s=3.0 * US,
    gemm={
        "16": Kernel(5.9 * US, 0.76, 0.81, 1.5, 2.0),
        "8": Kernel(8.0 * US, 0.80, 0.70, 1.5, 4.0),
        "wo": Kernel(9.0 * US, 0.80, 0.80, 1.2, 3.0),
    },
    experts={
        "16": Kernel(38 * US, 0.83, 0.30, 1.2),
        "8": Kernel(38 * US, 0.83, 0.30, 1.2),
        "wo": Kernel(40 * US, 0.80, 0.22, 1.2),
    },
    attention={"16": Kernel(17 * US, 0.75, 0.50, 1.2), "8": Kernel(18 * US, 0.60, 0.40, 1.2)},
    prefill_attention=0.55,
    reduce_s=6.5 * US,
    reduce_step_s=0.6 * US,
    direct=0.3,
    ring=0.72,
)
ADA: Final = Family(
    name="Ada",
    small_s=1.6 * US,
    gemm={
        "16": Kernel(1.5 * US, 0.84, 0.59, 1.8, 0.3),
        "8": Kernel(3.5 * US, 0.81, 0.52, 1.8, 4.5),
        "wo": Kernel(5.0 * US, 0.80, 0.55, 1.2, 1.0),
    },
    experts={
        "16": Kernel(18 * US, 0.84, 0.38, 1.2),
        "8": Kernel(20 * US, 0.85, 0.50, 1.1, padding=10),
        "wo": Kernel(25 * US, 0.76, 0.40, 1.5),
    },
    attention={"16": Kernel(8 * US, 0.93, 0.40, 2.0), "8": Kernel(10 * US, 0.80, 0.20, 2.0)},
    prefill_attention=0.47,
    reduce_s=15 * US,
    reduce_step_s=5 * US,
    direct=0.4,
    ring=0.6,
)
HOPPER: Final = Family(
    name="Hopper",
    small_s=2.0 * US,
    gemm={
        "16": Kernel(3.8 * US, 0.85, 0.78, 2.4, 0.3),
        "8": Kernel(5.9 * US, 0.80, 0.77, 1.27, 9.2),
        "wo": Kernel(6.5 * US, 0.80, 0.65, 1.2, 1.0),
    },
    experts={
        "16": Kernel(24 * US, 0.91, 0.40, 1.2, padding=8),
        "8": Kernel(28 * US, 0.87, 0.58, 4.0, padding=100),
        "wo": Kernel(36 * US, 0.77, 0.40, 1.5),
    },
    attention={"16": Kernel(11.5 * US, 0.86, 0.28, 2.0), "8": Kernel(13 * US, 0.70, 0.30, 2.0)},
    prefill_attention=0.60,
    reduce_s=4.4 * US,
    reduce_step_s=0.3 * US,
    direct=0.3,
    ring=0.85,
)
BLACKWELL: Final = Family(
    name="Blackwell",
    small_s=1.8 * US,
    gemm={
        "16": Kernel(3.4 * US, 0.77, 0.71, 2.2, 0.8),
        "8": Kernel(6.5 * US, 0.71, 0.76, 1.42, 8.5),
        "4": Kernel(7.3 * US, 0.58, 0.52, 1.44, 5.8),
        "wo": Kernel(6.5 * US, 0.70, 0.60, 1.2, 1.0),
    },
    experts={
        "16": Kernel(24 * US, 0.84, 0.42, 1.5),
        "8": Kernel(27 * US, 0.80, 0.37, 2.3, padding=23),
        "4": Kernel(17 * US, 0.80, 0.60, 1.3),
        "wo": Kernel(19 * US, 0.62, 0.25, 1.5),
    },
    attention={"16": Kernel(10 * US, 0.88, 0.28, 1.5), "8": Kernel(11 * US, 0.84, 0.25, 1.5)},
    prefill_attention=0.50,
    reduce_s=6.5 * US,
    reduce_step_s=0.4 * US,
    direct=0.22,
    ring=0.75,
)
BLACKWELL_RTX: Final = Family(
    name="Blackwell workstation",
    small_s=1.8 * US,
    gemm={
        "16": Kernel(2.4 * US, 0.98, 0.83, 1.4, 1.5),
        "8": Kernel(8.0 * US, 0.89, 0.82, 1.7, 5.1),
        "4": Kernel(8.9 * US, 0.69, 0.68, 3.0, 2.7),
        "wo": Kernel(6.5 * US, 0.80, 0.65, 1.2, 1.0),
    },
    experts={
        "16": Kernel(26 * US, 0.98, 0.45, 1.8, padding=34),
        "8": Kernel(31 * US, 0.92, 0.33, 1.5),
        "4": Kernel(48 * US, 0.88, 0.70, 1.8),
        "wo": Kernel(28 * US, 0.85, 0.45, 2.0),
    },
    attention={"16": Kernel(9 * US, 0.95, 0.36, 3.0), "8": Kernel(11 * US, 0.90, 0.18, 3.0)},
    prefill_attention=0.55,
    reduce_s=15 * US,
    reduce_step_s=5 * US,
    direct=0.3,
    ring=0.6,
)
CDNA: Final = Family(
    name="CDNA",
    small_s=4.0 * US,
    gemm={
        "16": Kernel(8.0 * US, 0.75, 0.55, 1.8),
        "8": Kernel(9.0 * US, 0.70, 0.55, 1.4, 9.0),
        "4": Kernel(10 * US, 0.60, 0.45, 1.4, 6.0),
        "wo": Kernel(10 * US, 0.65, 0.45, 1.2),
    },
    experts={
        "16": Kernel(60 * US, 0.75, 0.30, 1.3),
        "8": Kernel(60 * US, 0.72, 0.28, 1.3),
        "4": Kernel(60 * US, 0.65, 0.30, 1.3),
        "wo": Kernel(60 * US, 0.65, 0.25, 1.3),
    },
    attention={"16": Kernel(20 * US, 0.70, 0.25, 1.5), "8": Kernel(22 * US, 0.60, 0.25, 1.5)},
    prefill_attention=0.40,
    reduce_s=10 * US,
    reduce_step_s=1.5 * US,
    direct=0.25,
    ring=0.6,
)
WORKSTATION_BYTES_PER_S: Final = 2.5e12
"""FP4 cards below this bandwidth have GDDR memory: workstation Blackwell."""
_PREFIXES: Final = (
    (("mi2", "mi3", "mi4", "instinct", "amd"), CDNA),
    (("a100", "a800", "a30", "a10", "a40", "rtxa6000"), AMPERE),
    (("l4", "l20", "l2", "rtx4", "rtx6000ada"), ADA),
    (("h100", "h200", "h800", "h20", "gh200"), HOPPER),
    (("rtxpro", "rtx5", "gb10"), BLACKWELL_RTX),
    (("b100", "b200", "b300", "gb200", "gb300"), BLACKWELL),
)


def family_of(gpu: Gpu) -> Family:
    """The generation of a card: by its name, else by the formats and the bandwidth it has."""
    name = "".join(c for c in gpu.name.casefold() if c.isalnum())
    for prefixes, family in _PREFIXES:
        if name.startswith(prefixes):
            return family
    if gpu.fp4_flops:
        slow = gpu.bandwidth_bytes_per_s < WORKSTATION_BYTES_PER_S
        return BLACKWELL_RTX if slow else BLACKWELL
    if gpu.fp8_flops:
        return HOPPER if gpu.bandwidth_bytes_per_s >= 1.2e12 else ADA
    return AMPERE


def kernel_class(gpu: Gpu, dtype: str) -> str:
    """Which kernels multiply weights of `dtype` on this card: a key of `Family.gemm`."""
    own = gpu.flops(dtype)
    if dtype in ("bf16", "fp16", "fp32"):
        return "16"
    if dtype in ("nvfp4", "mxfp4") and gpu.fp4_flops:
        return "4"
    if dtype in ("fp8", "int8") and own > gpu.bf16_flops:
        return "8"
    return "wo"
