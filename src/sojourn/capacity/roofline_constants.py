"""What no operator table tells: host time by engine and version, and how far a served model is
from its kernels run alone. Fitted by `benchmarks/fit_roofline.py`, which prints them in this form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Engine:
    """Host work of an engine, seconds. Fitted; wrong when the host's CPU is slow or shared.

    A step's host time is `step_s` + `sequence_s` per running sequence. `overlap`: the share of it
    that is done while the GPU works on the step before (asynchronous scheduling). Steps without a
    CUDA graph (prefill beyond the captured sizes, or all of them when eager) cannot be shorter
    than `launch_s` per block of a dense model (see `roofline_matrices.launched`). `front_s`: HTTP,
    tokenising and detokenising of a call. `kernels`:
    normalisations, rotations, activations and the like per layer (fewer where they are fused), in
    `Family.small_s`.
    """

    step_s: float
    sequence_s: float
    overlap: float
    launch_s: float
    front_s: float
    kernels: float = 5.0
    graphs: bool = True


ENGINES: Final = {
    "vllm 2023": Engine(6.5e-3, 3.7e-05, 0.0, 0.00022, 0.01, 5.9, graphs=False),
    "vllm v0": Engine(0.00175, 1.2e-4, 0.0, 0.000205, 0.01, 9.0),
    "vllm v1": Engine(0.00082, 4.0e-05, 0.0, 0.0002, 0.0087, 7.5),
    "vllm async": Engine(0.00066, 1.2e-05, 0.7, 0.00015, 0.01, 3.6),
    "sglang": Engine(0.001, 1.7e-05, 0.7, 0.00043, 0.01, 9.0),
    "sglang old": Engine(0.002, 2.0e-05, 0.0, 0.0004, 0.01, 7.0),
    "trtllm": Engine(0.00055, 6.9e-06, 0.7, 0.00015, 0.015, 2.6),
    "trtllm c++": Engine(0.0007, 5.4e-06, 0.0, 0.0001, 0.005, 7.0),
}


@dataclass(frozen=True)
class Constants:
    """End-to-end constants. Shares lie in (0, 1], times are >= 0: nothing beats the peaks.

    `memory`, `compute`: what is left of a kernel's share in a served model (clocks under power
    limits, cold caches). `experts_memory`, `experts_compute`: the same for grouped expert products,
    with padding and uneven routing. `launch`: of a kernel's own launch time, what is left where
    the next one is fetched early, or more where ranks wait; `routing_s`: gating and sorting of a
    routed layer.
    `routing`: exponent on tokens in `distinct_experts`. `sampler_passes`: times that the logits
    (fp32) are read or written. `link`: share of one direction of a link that a ring reaches.
    `reduce`: all-reduces in a served model take so many times `Family.reduce_s` (ranks wait for
    one another). `skew`: how much more than the mean the busiest rank has under expert
    parallelism, in standard deviations. `state`: share of bandwidth on linear-attention states.
    """

    memory: float = 0.97
    compute: float = 0.85
    kv: float = 0.92
    experts_memory: float = 0.82
    experts_compute: float = 0.9
    prefill_attention: float = 0.91
    launch: float = 0.97
    routing_s: float = 7e-6
    routing: float = 0.8
    sampler_passes: float = 6.0
    link: float = 0.28
    reduce: float = 1.05
    skew: float = 0.8
    state: float = 0.6
    linear_flops: float = 0.10
    engines: dict[str, Engine] = field(default_factory=lambda: dict(ENGINES))


CONSTANTS: Final = Constants()
_VLLM: Final = (
    ((0, 3), "vllm 2023"),  # no CUDA graphs before 0.3 (January 2024)
    ((0, 8), "vllm v0"),  # V1 is the default from 0.8.0 (March 2025)
    ((0, 14), "vllm v1"),  # asynchronous scheduling is the default from 0.14 (January 2026)
)


def engine_kind(engine: str) -> str:
    """Key of `ENGINES` for an engine string `name version`; without a version: of today.

    Unknown engines count as vLLM of today.
    """
    name = engine.casefold().replace("-", "").replace("_", "")
    version = _version(engine)
    if "sglang" in name:
        return "sglang old" if version and version < (0, 4) else "sglang"
    if "trt" in name or "tensorrt" in name:
        return "trtllm c++" if version and version < (0, 20) else "trtllm"
    if version:
        for below, kind in _VLLM:
            if version < below:
                return kind
    return "vllm async"


def _version(engine: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", engine)
    return (int(found[1]), int(found[2])) if found else None
