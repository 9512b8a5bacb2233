"""Step time from physics: each kernel of a step by its bytes and FLOPs, links, and the host.

The last of three sources (fit from telemetry, measured operator tables, this): it works with
nothing but a config.json and an accelerator row. Shapes of kernels are in `roofline_families`,
end-to-end constants in `roofline_constants`; `benchmarks/fit_roofline.py` fits the latter again
and prints the errors on models and cards left out of the fit.
"""

from __future__ import annotations

from typing import Final

from sojourn.capacity import roofline_attention as attention
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.capacity.roofline_constants import CONSTANTS, Constants
from sojourn.capacity.roofline_links import all_reduce_s, hops_s
from sojourn.capacity.roofline_matrices import blocks_s, distinct_experts, head_s, launched
from sojourn.capacity.roofline_setting import MEAN_CONTEXT, Setting, parameter_bytes, setting_of
from sojourn.capacity.roofline_spread import spread
from sojourn.config import Deployment
from sojourn.interval import Provenance

__all__ = ["MEAN_CONTEXT", "distinct_experts", "physical_floor_s", "step_model"]

BATCHES: Final = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
)  # fmt: skip
PROMPTS: Final = (0, 1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Prompt tokens of a step at which its cost is given; linear between and beyond."""
GRAPH_TOKENS: Final = 512
"""Steps with more tokens than this run without a CUDA graph (default of vLLM and SGLang)."""


def step_model(
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    mean_context: float | None = None,
    constants: Constants = CONSTANTS,
) -> StepModel:
    """Step time tables of one data-parallel rank, seconds.

    base(B): matrix products of B tokens (weights read once, or FLOPs), kernels' launches,
    all-reduces, sampler, and the host time that does not overlap; slope: KV bytes per context
    token; prompts: what n more tokens cost, by table, and their attention per token x context.
    base(0) is a step of one token without a sequence. Windows shorter than `mean_context` count
    as closed (constant), longer ones as open (growing).
    Source: roofline (Williams 2009), kernel by kernel; constants as told in their modules.
    Wrong when: contexts straddle a window, an engine's kernels do not suit the shape, decode is
    speculative, or ranks are unequally busy.
    """
    s = setting_of(model, gpu, deployment, mean_context=mean_context, constants=constants)
    slope = attention.slope_s(s)
    kinds = f"{s.tp} x {gpu.name}" + (f", {s.dp} ranks" if s.dp > 1 else "")
    return StepModel(
        batches=BATCHES,
        base_s=tuple(base_s(s, batch) for batch in BATCHES),
        slope_s_per_token=tuple(slope for _ in BATCHES),
        prefill_s_per_token=0.0,
        prefill_s_per_token_context=attention.prefill_context_s(s),
        prefill_tokens=PROMPTS,
        prefill_base_s=tuple(prompt_s(s, tokens) for tokens in PROMPTS),
        front_s=front_s(s, s.context),
        provenance=Provenance.CATALOGUE,
        source=f"roofline: {model.name} in {s.dtype} on {kinds}, {deployment.engine};"
        " measured kernel shapes, end-to-end constants fitted on public measurements",
        valid_batch=(0, BATCHES[-1]),
        valid_context=(0, model.max_model_len or 0),
        valid_chunk=(1, PROMPTS[-1]),
        spread=spread(model, s.family, BATCHES),
        to_narrow="Record request rows of this deployment: a fit to them replaces this estimate.",
    )


def front_s(s: Setting, tokens: float) -> float:
    """Front end of a call with a prompt of so many tokens, before it is queued. `step_model` gives
    it for its mean context: a step model has one front for all calls."""
    return s.engine.front_s + s.constants.front_token_s * tokens


def _blocks_s(s: Setting, tokens: float) -> float:
    """Blocks, all-reduces and hops of a step with `tokens` tokens on this rank."""
    reduces = 2 * s.model.layers * all_reduce_s(s, tokens)
    return blocks_s(s, tokens) + reduces + hops_s(s, tokens)


def gpu_decode_s(s: Setting, batch: float) -> float:
    """GPU time of a decode step, contexts (open ones) left out."""
    return (
        _blocks_s(s, batch)
        + attention.launches_s(s)
        + batch * attention.sequence_s(s)
        + head_s(s, batch)
    )


def base_s(s: Setting, batch: int) -> float:
    """A decode step without the part that grows with contexts."""
    tokens = max(batch, 1)
    looks = tokens * s.context * attention.slope_s(s)
    busy = gpu_decode_s(s, tokens) + looks
    host = s.engine.step_s + s.engine.sequence_s * batch
    if s.eager or not s.engine.graphs:
        busy = max(busy, s.engine.launch_s * launched(s))
    hidden = s.engine.overlap * host
    return max(busy, hidden) + host - hidden - looks


def prompt_s(s: Setting, tokens: int) -> float:
    """What `tokens` prompt tokens add to a step, but for attention over their contexts."""
    if tokens == 0:
        return 0.0
    one = base_s(s, 0)
    head = head_s(s, 1)
    host = s.engine.step_s
    hidden = s.engine.overlap * host
    busy = (
        _blocks_s(s, tokens)
        + attention.launches_s(s)
        + tokens * attention.prefill_token_s(s)
        + head
    )
    busy = max(busy, s.engine.launch_s * launched(s))
    return max(max(busy, hidden) + host - hidden - one, 0.0)


def physical_floor_s(  # noqa: PLR0913  one argument each for what a step holds
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    batch: int,
    context_sum: float,
    tokens: int = 0,
    token_context: float = 0.0,
) -> float:
    """No step can be shorter, s: bytes at full bandwidth or FLOPs at peak, the longer.

    `batch` decodes whose contexts sum to `context_sum`, and `tokens` prompt tokens that attend to
    `token_context` tokens in all (as `StepModel.step_s`), on one data-parallel rank. Weights are
    read once; of routed experts only those that one token needs, split over all that hold them.
    Source: definition of the peaks in the catalogue. Wrong when: weights stay in on-chip cache
    (models of a few hundred MB), or a speculative draft skips the model.
    """
    s = setting_of(model, gpu, deployment, mean_context=0.0, constants=CONSTANTS)
    rows = batch + tokens
    moved = computed = 0.0
    for a in model.attention:
        dtype = s.format("attention")
        share = a.layers * a.parameters / s.tp
        moved += share * parameter_bytes(dtype)
        computed += 2 * rows * share / gpu.flops(dtype)
        if attention.reach(a) is None:
            moved += attention.kv_bytes(s, a) * context_sum
            scores = a.score_decode * context_sum + a.score_prefill * token_context
            computed += 2 * a.layers * scores / s.tp / gpu.bf16_flops
    for m in model.mlp:
        dense, routed = s.format("dense"), s.format("experts")
        best = max(gpu.flops(dense), gpu.bf16_flops)
        moved += m.layers * m.dense_parameters / s.tp * min(parameter_bytes(dense), 2)
        computed += 2 * rows * m.layers * m.dense_parameters / s.tp / best
        chosen = m.layers * m.experts_per_token * m.expert_parameters / s.ranks
        moved += chosen * parameter_bytes(routed)
        computed += 2 * rows * s.dp * chosen / gpu.flops(routed)
    if batch:
        moved += model.output_parameters / s.tp * parameter_bytes("bf16")
        computed += 2 * batch * model.output_parameters / s.tp / gpu.bf16_flops
    return max(moved / gpu.bandwidth_bytes_per_s, computed) if rows else 0.0
