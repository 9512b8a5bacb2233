"""Actions on caches (prefix, KV, results) and on kernels and the host path."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.interval import Excuse
from sojourn.plan.action import (
    Action,
    Changed,
    Context,
    fixed,
    integers,
    is_call,
    not_modelled,
    with_engine,
    with_step,
    with_steps,
)
from sojourn.records import Bottleneck, Layer
from sojourn.units import format_share
from sojourn.workload.stream import Stream

MIN_HIT_GAP: Final = 0.05
"""Prefix hits to be won, as a share of prompt tokens, below which routing is not worth touching."""
FP8_DEQUANTISE_S: Final = 0.14e-3
"""Added to a step by fp8 KV on H100, Llama-3.1-8B (vLLM blog, 2026-04-22)."""
HOLE_RECOVERED: Final = 0.5
"""Assumed part of the device's idle holes that a better host path closes."""
MIN_HOLES: Final = 0.1


def _prefix(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """Cached tokens of every call raised evenly, so that the hit share becomes the ideal one."""
    reuse = context.profile.prefix
    if reuse is None or reuse.ideal is None:
        return Excuse(
            reason="How much of the prompts repeats is unknown",
            collect=("record prefix block hashes, or cached tokens per call",),
        )
    tokens, cached = integers(stream, "input_tokens"), integers(stream, "cached_tokens")
    calls = is_call(stream)
    total = int(tokens[calls].sum())
    share = cached[calls].sum() / total if total else 0.0
    if reuse.ideal - share < MIN_HIT_GAP:
        return Excuse(
            reason=f"Little is left: {format_share(share)} of the prompt tokens hit today, an"
            f" unlimited cache would reach {format_share(reuse.ideal)}"
        )
    factor = (reuse.ideal - share) / (1 - share)
    more = cached + np.where(calls, np.floor((tokens - cached) * factor), 0).astype(np.int64)
    return with_steps(
        stream, cached_tokens=np.clip(more, cached, np.maximum(tokens - 1, cached))
    ), (fleet)


def _kv_fp8(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    if context.config.deployment.kv_dtype.lower() == "fp8":
        return Excuse(reason="The KV cache is fp8 today")
    step = fleet.engine.step
    base = tuple(
        value + (FP8_DEQUANTISE_S if batch else 0.0)
        for batch, value in zip(step.batches, step.base_s, strict=True)
    )
    return stream, with_engine(with_step(fleet, base_s=base), kv_blocks=2 * fleet.engine.kv_blocks)


def _host_path(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """Steps shorten by part of the device's idle share; bound of the gain: 1 / busy share."""
    busy = context.load.gpu_share
    if busy is None:
        return Excuse(
            reason="The idle share of the device inside a step is unknown",
            collect=("record a GPU trace (Nsight Systems or the PyTorch profiler) of one minute",),
        )
    if 1 - busy < MIN_HOLES:
        return Excuse(reason=f"The device is busy {format_share(busy)} of the traced time")
    factor = 1 - HOLE_RECOVERED * (1 - busy)
    return stream, with_engine(fleet, step=fleet.engine.step.scaled(factor))


CACHE_ACTIONS: Final = (
    Action(
        name="prefix_reuse",
        title="Route by prefix and keep prefixes cached, up to the reuse there is",
        layer=Layer.CACHE,
        opens_for=frozenset({Bottleneck.CACHE_MISS, Bottleneck.PREFILL_COMPUTE}),
        apply=_prefix,
        price=fixed(
            quality="none", risk="medium", effort="days", note="routing must heed load too"
        ),
        source="Prefill saved l(a p^2 d + b p d^2), Mooncake, FAST'25, eq. 2;"
        " llm-d blog, 2026-08-17",
        wrong_when="decode or the host is the limit (no gain), or affinity overloads one replica;"
        " an unlimited cache is the upper bound",
    ),
    Action(
        name="kv_fp8",
        title="Keep the KV cache in fp8",
        layer=Layer.CACHE,
        opens_for=frozenset({Bottleneck.KV_CAPACITY}),
        apply=_kv_fp8,
        price=fixed(quality="slight", risk="medium", effort="hours"),
        source="vLLM blog, 2026-04-22: KV tokens x2, +0.14 ms per step; reading gain not counted",
        wrong_when="contexts below about 7,000 tokens on H100, or head size 256",
    ),
    Action(
        name="kv_tier",
        title="Keep evicted prefixes in CPU memory",
        layer=Layer.CACHE,
        opens_for=frozenset({Bottleneck.CACHE_MISS, Bottleneck.KV_CAPACITY}),
        apply=not_modelled("the simulated cache has one tier; transfers are not timed"),
        source="vLLM blog, 2026-01-08: TTFT 2 to 22 times lower on a hit",
        wrong_when="device memory is not full: nothing is evicted",
        simulated=False,
    ),
    Action(
        name="result_cache",
        title="Cache answers of retrieval and tools",
        layer=Layer.CACHE,
        opens_for=frozenset({Bottleneck.TOOL, Bottleneck.RETRIEVAL, Bottleneck.RERANK}),
        apply=not_modelled(
            "T = h T_hit + (1-h)(T_miss + T_lookup) needs the hit share h of your own questions",
            "log a hash of each retrieval query and tool call, and count repeats",
        ),
        source="T = h T_hit + (1-h)(T_miss + T_lookup)",
        wrong_when="answers go stale",
        simulated=False,
    ),
)

KERNEL_ACTIONS: Final = (
    Action(
        name="host_path",
        title="Close the device's idle holes (CUDA graphs, asynchronous scheduling)",
        layer=Layer.KERNEL,
        opens_for=frozenset({Bottleneck.HOST_CPU, Bottleneck.KERNEL}),
        apply=_host_path,
        price=fixed(risk="medium", effort="days", note="always compare both ways on your hardware"),
        source="vLLM blog, 2024-09-05 (v0.6.0): 62% of the time outside the GPU on 8B/H100, fixed"
        " for 2.7x; bound 1/(GPU share). Assumed here: half of the holes close",
        wrong_when="the holes are waits for work, not for the host",
    ),
    Action(
        name="kernel_backend",
        title="Another attention or GEMM kernel",
        layer=Layer.KERNEL,
        opens_for=frozenset({Bottleneck.KERNEL}),
        apply=not_modelled(
            "a kernel's gain on your shapes cannot be derived", "benchmark both back ends"
        ),
        source="Public comparisons contradict one another: always compare both ways",
        wrong_when="the step is not bound by that kernel",
        simulated=False,
    ),
)
