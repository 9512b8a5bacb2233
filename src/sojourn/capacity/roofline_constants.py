"""What no operator table tells: host time by engine and version, and how far a served model is
from its kernels run alone. Fitted by `benchmarks/fit_roofline.py`, which prints them in this form;
these come from several rounds, each started at the last, the first at assumed values. One round
with all engines alike at the start gives the same errors within two points: single numbers trade
against each other.
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
    tokenising and detokenising of a call. `kernels`: normalisations, rotations, activations and the like per layer (fewer where they are fused), in
    `Family.small_s`. `reduce`: an all-reduce of a small message takes so many times
    `Family.reduce_s` (fused ones less, ranks that wait for one another more). `routing_s`: gating
    and sorting of a routed layer.
    """

    step_s: float
    sequence_s: float
    overlap: float
    launch_s: float
    front_s: float
    kernels: float = 5.0
    reduce: float = 1.1
    routing_s: float = 7e-6
    graphs: bool = True


ENGINES: Final = {
    "vllm 2023": Engine(0.0163, 2.9e-05, 0.0, 0.00015, 0.01, 6.1, 1.15, 7e-06, graphs=False),
    "vllm v0": Engine(0.00118, 0.0001, 0.0, 0.00022, 0.01, 10.4, 1.57, 6.9e-06),
    "vllm v1": Engine(0.00064, 4.8e-05, 0.0, 7.8e-05, 0.0077, 9.45, 1.33, 8.8e-06),
    "vllm async": Engine(0.000516, 1.16e-05, 0.7, 7.9e-05, 0.0236, 2.89, 0.819, 7.0e-06),
    "sglang": Engine(0.00091, 2.1e-05, 0.7, 0.00045, 0.018, 9.64, 1.21, 2.7e-05),
    "sglang old": Engine(0.002, 2e-05, 0.0, 0.0004, 0.01, 8, 1.2, 1e-05),
    "trtllm": Engine(0.000437, 6.0e-06, 0.7, 0.000123, 0.0212, 2.03, 0.516, 3.45e-06),
    "trtllm c++": Engine(0.00078, 9e-06, 0.0, 0.0001, 0.005, 5.97, 1.23, 5e-06),
}


@dataclass(frozen=True)
class Constants:
    """End-to-end constants. Shares lie in (0, 1], times are >= 0: nothing beats the peaks.

    `memory`, `compute`: what is left of a kernel's share in a served model (clocks under power
    limits, cold caches). `experts_memory`, `experts_compute`: the same for grouped expert products,
    with padding and uneven routing. `launch`: of a kernel's own launch time, what is left where
    the next one is fetched early, or more where ranks wait.
    `routing`: exponent on tokens in `distinct_experts`. `sampler_passes`: times that the logits
    (fp32) are read or written. `link`: what is left of a link's measured share. `front_token_s`:
    front end's time per prompt token (tokenising, copying). `quantise`:
    share of `Kernel.input_bytes` left where quantising is fused with what comes before.
    `skew`: how much more than the mean the busiest rank has under expert
    parallelism, in standard deviations. `state`: share of bandwidth on linear-attention states.
    """

    memory: float = 0.99
    compute: float = 0.825
    kv: float = 0.922
    experts_memory: float = 0.872
    experts_compute: float = 0.99
    prefill_attention: float = 0.79
    launch: float = 1.05
    routing: float = 0.817
    sampler_passes: float = 6.46
    link: float = 0.587
    skew: float = 1.03
    state: float = 0.745
    linear_flops: float = 0.0995
    quantise: float = 0.727
    front_token_s: float = 3.4e-6
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


def is_older(engine: str, version: tuple[int, int]) -> bool:
    """Whether an engine string names a version below this one."""
    named = _version(engine)
    return named is not None and named < version


def _version(engine: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", engine)
    return (int(found[1]), int(found[2])) if found else None
