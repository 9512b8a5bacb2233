"""Actions on the model: quantisation, speculative decoding, tiers."""

from __future__ import annotations

from typing import Final

from sojourn.capacity.catalogue import gpu as catalogue_gpu
from sojourn.capacity.catalogue import model as catalogue_model
from sojourn.capacity.memory import memory
from sojourn.capacity.records import Fleet, StepModel
from sojourn.capacity.roofline import step_model
from sojourn.interval import Excuse
from sojourn.plan.action import (
    Action,
    Changed,
    Context,
    fixed,
    not_modelled,
    with_engine,
    with_step,
)
from sojourn.records import Bottleneck, Layer
from sojourn.workload.stream import Stream

BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
DRAFT_LENGTH: Final = 3
"""Tokens drafted per round. The first survives with over 70%, the seventh with under 10%."""
ACCEPTANCE: Final = 0.7
"""Assumed acceptance of a drafted token; measure your own before a rollout."""
DRAFT_COST: Final = 0.05
"""Assumed time of one draft step over one target step (a small head or model)."""
_SATURATED: Final = frozenset(
    {
        Bottleneck.QUEUE_ADMISSION,
        Bottleneck.BATCH_SLOTS,
        Bottleneck.PREFILL_COMPUTE,
        Bottleneck.KV_CAPACITY,
    }
)


def tokens_per_round(acceptance: float, drafted: int) -> float:
    """Expected tokens of one speculative round, the bonus token included.

    (1 - a^(g+1)) / (1 - a), a acceptance, g drafted tokens. Source: Leviathan et al.,
    arXiv:2211.17192, eq. 1. Wrong when: acceptances depend on each other or fall with position.
    """
    if acceptance >= 1:
        return float(drafted + 1)
    return float((1 - acceptance ** (drafted + 1)) / (1 - acceptance))


def speculative_step(step: StepModel) -> StepModel:
    """Step model per emitted token and sequence with speculative decoding.

    A round of B sequences verifies B(g+1) tokens in one step, priced as that batch, plus g draft
    steps, and emits (1-a^(g+1))/(1-a) tokens per sequence; contexts are read once per round.
    Wrong when: verification is not priced like more sequences (graph sizes make a staircase).
    """
    tokens = tokens_per_round(ACCEPTANCE, DRAFT_LENGTH)
    base = [step.base_s[0]]
    slope = [step.slope_s_per_token[0]]
    for batch in step.batches[1:] if step.batches[0] == 0 else step.batches:
        now = step.decode_step_s(batch, 0.0)
        verify = step.decode_step_s(batch * (DRAFT_LENGTH + 1), 0.0)
        base.append((verify + DRAFT_LENGTH * DRAFT_COST * now) / tokens)
        slope.append((step.decode_step_s(batch, 1.0) - now) / tokens)
    if step.batches[0] != 0:
        base, slope = base[1:], slope[1:]
    return step.model_copy(update={"base_s": tuple(base), "slope_s_per_token": tuple(slope)})


def _speculative(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    blocking = context.verdicts(_SATURATED)
    if blocking:
        names = ", ".join(sorted({v.bottleneck.value for v in blocking}))
        return Excuse(
            reason=f"The engine is saturated ({names}): at a full batch drafted tokens take the"
            " time of others (public measurements: 1.4 to 1.8 times slower at high load)"
        )
    faster = speculative_step(fleet.engine.step)
    batch = max(1, round(context.load.running_mean or 1))
    if faster.decode_step_s(batch, 0.0) >= fleet.engine.step.decode_step_s(batch, 0.0):
        return Excuse(
            reason=f"At a mean batch of {batch} verifying costs more than the accepted tokens save"
        )
    return stream, with_engine(fleet, step=faster)


def _quantise(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """T' = T x roofline(fp8 weights) / roofline(weights of today), batch by batch.

    The ratio of two rooflines knows where reading weights ends and computing begins, and what
    does not shrink (KV, all-reduce); the fitted step keeps its own level. Prefill is left as it
    is: it computes, and kernels that only store fp8 gain nothing there. Freed memory is KV.
    Wrong when: the kernel dequantises (slower at large batches), or the card has no fp8 units.
    """
    deployment = context.config.deployment
    dtype = deployment.weight_dtype.lower()
    if BYTES.get(dtype, 0.0) <= 1.0:
        return Excuse(reason=f"The weights are {dtype} already; a smaller one is not assumed")
    if deployment.model is None or deployment.accelerator is None:
        return Excuse(
            reason="The share of a step that reads weights is unknown",
            collect=("set deployment.model and deployment.accelerator",),
        )
    model, gpu = catalogue_model(deployment.model), catalogue_gpu(deployment.accelerator)
    smaller = deployment.model_copy(update={"weight_dtype": "fp8"})
    now = step_model(model, gpu, deployment)
    then = step_model(model, gpu, smaller)
    step = fleet.engine.step
    base = tuple(
        value * min(1.0, then.decode_step_s(batch, 0.0) / now.decode_step_s(batch, 0.0))
        if batch
        else value
        for batch, value in zip(step.batches, step.base_s, strict=True)
    )
    room = memory(model, gpu, smaller).kv_tokens
    room_now = max(memory(model, gpu, deployment).kv_tokens, 1)
    blocks = int(fleet.engine.kv_blocks * max(1.0, room / room_now))
    return stream, with_engine(with_step(fleet, base_s=base), kv_blocks=blocks)


MODEL_ACTIONS: Final = (
    Action(
        name="weight_quantisation",
        title="Serve fp8 weights",
        layer=Layer.MODEL,
        opens_for=frozenset({Bottleneck.DECODE_BANDWIDTH}),
        apply=_quantise,
        price=fixed(quality="slight", risk="medium", effort="days", note="check answer quality"),
        source="Memory-bound part scales with bytes: AutoAWQ issue 106 and vLLM issue 2551 (no gain"
        " once compute bound); vLLM docs, FP8 W8A8: up to 1.6x throughput",
        wrong_when="large batches, tensor parallelism (all-reduce does not shrink), no fp8 units",
    ),
    Action(
        name="speculative_decoding",
        title="Speculative decoding (3 drafted tokens)",
        layer=Layer.MODEL,
        opens_for=frozenset({Bottleneck.DECODE_BANDWIDTH}),
        apply=_speculative,
        price=fixed(quality="none", risk="medium", effort="days", note="switch off at high load"),
        source="Leviathan et al., arXiv:2211.17192: tokens per round (1-a^(g+1))/(1-a); assumed"
        " a=0.7, draft cost 0.05; Liu et al., arXiv:2406.14066 (goodput falls at load)",
        wrong_when="the batch is large (verification is then paid in full) or drafts are poor",
    ),
    Action(
        name="smaller_model_tier",
        title="Route easy requests to a smaller model",
        layer=Layer.MODEL,
        opens_for=frozenset(
            {Bottleneck.DECODE_BANDWIDTH, Bottleneck.PREFILL_COMPUTE, Bottleneck.QUEUE_ADMISSION}
        ),
        apply=not_modelled(
            "the smaller model's step times and the share of requests it may answer are unknown",
            "measure both on a sample of your requests",
        ),
        source="Effect = sum of share x cost, plus router and escalations",
        wrong_when="escalations are frequent: the small answer is then paid on top",
        simulated=False,
    ),
)
