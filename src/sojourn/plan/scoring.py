"""How actions are weighed, and when adding GPUs is right.

    score = benefit / (1 + burden)

`benefit` is the share of today's SLO misses that the action removes (weight 0.75) and the relative
cut of P99 (weight 0.25), both simulated; where no SLO is set, or it is held already, the cut of
P99 less the points of errors added. `burden` is the relative rise of the cost per successful
request (half of it again where something must be bought whose price is unknown: settings come
before purchases), plus one mark each for quality, risk and effort, plus half the share of requests
that the action degrades. The marks order actions of like effect; none of them alone halves a
score, and weeks of work, high risk and visible harm weigh most.

Adding GPUs (`scale_out`) is recommended when all of these hold, and refused with numbers else:

1. The diagnosis stands, and says that the engine bounds the tail. Unknown is no yes.
2. The simulated gain is material: P99 at least a fifth shorter, or half the SLO misses gone.
   A fifth is what doubling can remove at most when four fifths of the tail are outside the
   engine (new P99 = outside + inside / 2, and less), so less than it is no engine problem.
3. No action that costs users nothing and money nothing brings at least as much: replicas are
   bought after the free settings, not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sojourn.attribution.records import ALL, Diagnosis
from sojourn.interval import Excuse
from sojourn.plan.effect import MATERIAL, Effect
from sojourn.plan.records import Outcome, Price
from sojourn.plan.system_layer import ENGINE_BOTTLENECKS
from sojourn.records import Bottleneck, words
from sojourn.units import format_seconds, format_share, format_usd

ATTAINMENT_WEIGHT: Final = 0.75
QUALITY: Final = {"none": 0.0, "slight": 0.15, "visible": 0.4}
RISK: Final = {"low": 0.0, "medium": 0.2, "high": 0.6}
EFFORT: Final = {"minutes": 0.0, "hours": 0.05, "days": 0.2, "weeks": 0.6}
DEGRADED_WEIGHT: Final = 0.5
UNPRICED: Final = 0.5
MATERIAL_P99: Final = 0.20
MATERIAL_MISSES: Final = 0.50
NEGLIGIBLE_COST: Final = 1.02
"""Cost per success up to a fiftieth higher counts as no cost."""


def benefit(found: Effect) -> float:
    """Gain, 0 for none, about 1 for everything; negative for a loss."""
    if found.misses_removed is None:
        return found.p99_reduction - max(0.0, found.error_change)
    rest = 1 - ATTAINMENT_WEIGHT
    return ATTAINMENT_WEIGHT * found.misses_removed + rest * found.p99_reduction


def burden(found: Effect, price: Price) -> float:
    """Relative rise of cost, and the marks."""
    cost = max(0.0, (found.cost_ratio or 1.0) - 1.0) + UNPRICED * price.unpriced
    marks = QUALITY[price.quality] + RISK[price.risk] + EFFORT[price.effort]
    return cost + marks + DEGRADED_WEIGHT * max(0.0, found.degraded_change)


def score(found: Effect, price: Price) -> float:
    """Benefit per burden; a loss is not softened by a low price."""
    gain = benefit(found)
    return gain / (1 + burden(found, price)) if gain > 0 else gain


def in_words(found: Effect, before: Outcome) -> str:
    """The effect in one sentence."""
    old = before.e2e_s[ALL]["p99"].mid
    new = found.outcome.e2e_s[ALL]["p99"].mid
    text = f"P99 {format_seconds(old)} to {format_seconds(new)}"
    if ALL in before.attainment and ALL in found.outcome.attainment:
        a, b = before.attainment[ALL].mid, found.outcome.attainment[ALL].mid
        text += f", attainment {format_share(a)} to {format_share(b)}"
    if abs(found.error_change) >= 0.001:
        a, b = before.error_share.mid, found.outcome.error_share.mid
        text += f", errors {format_share(a)} to {format_share(b)}"
    if found.degraded_change >= 0.001:
        text += f", {format_share(found.outcome.degraded_share)} of answers degraded"
    return text


def refusal(found: Effect, before: Outcome) -> Excuse | None:
    """Why a simulated action is not worth it, or None where it is."""
    if found.loses:
        return Excuse(reason=f"Simulated, it makes things worse: {in_words(found, before)}")
    if found.attainment_change is None and found.error_change > max(0.0, found.p99_reduction):
        return Excuse(reason="Simulated, it adds more errors than it cuts of the P99")
    if found.attains or found.shortens:
        return None
    return Excuse(
        reason="Simulated, its effect is within the noise: P99 changes by"
        f" {found.p99_change_s.format(format_seconds)} (less than {format_share(MATERIAL)}, or"
        " not surely)"
    )


def elsewhere(diagnosis: Diagnosis) -> str:
    """Where the time is, if not in the engine."""
    outside = [
        v
        for v in diagnosis.verdicts
        if v.bottleneck not in ENGINE_BOTTLENECKS
        and v.bottleneck not in (Bottleneck.NONE, Bottleneck.INSUFFICIENT_EVIDENCE)
    ]
    named = [
        words(v.bottleneck.value)
        + ("" if v.share_of_p99 is None else f" ({format_share(v.share_of_p99)} of P99)")
        for v in outside
    ]
    seen = list(dict.fromkeys(named))[:3]
    return f"The time is in {', '.join(seen)}" if seen else "No verdict names the engine"


def scale_out_refusal(
    found: Effect,
    before: Outcome,
    diagnosis: Diagnosis,
    *,
    price: Price,
    rivals: Iterable[tuple[str, Effect, Price]],
) -> Excuse | None:
    """Why adding GPUs is not right here, with its numbers; None where it is (module rule)."""
    figures = scale_out_figures(found, before, price)
    if diagnosis.engine_bound is None or (diagnosis.engine_bound and diagnosis.excuse is not None):
        collect = diagnosis.excuse.collect if diagnosis.excuse is not None else ()
        return Excuse(
            reason=f"{figures}. Whether the engine bounds the tail is not known", collect=collect
        )
    if not diagnosis.engine_bound:
        return Excuse(reason=f"{figures}. {elsewhere(diagnosis)}")
    misses = found.misses_removed if found.attains else None
    if found.p99_reduction < MATERIAL_P99 and (misses or 0.0) < MATERIAL_MISSES:
        return Excuse(reason=f"{figures}: too little for its price. {elsewhere(diagnosis)}")
    if found.loses:
        return Excuse(reason=f"{figures}, and it makes things worse")
    for title, other, its_price in rivals:
        free = its_price.quality == "none" and not its_price.unpriced
        if free and (other.cost_ratio or 1.0) > NEGLIGIBLE_COST:
            continue
        if free and other.degraded_change <= 0 and benefit(other) >= benefit(found):
            return Excuse(reason=f"{figures}. {title} brings as much and costs nothing")
    return None


def scale_out_figures(found: Effect, before: Outcome, price: Price) -> str:
    """What adding GPUs removes of the P99, and at what price."""
    old = before.e2e_s[ALL]["p99"].mid
    cut = -found.p99_change_s.mid
    effect = (
        f"removes {format_seconds(cut)} ({format_share(max(0.0, found.p99_reduction))}) of the"
        if cut > 0
        else "removes nothing of the"
    )
    text = f"Doubling the engine {effect} {format_seconds(old)} P99"
    after = found.outcome
    if after.usd_per_success is None or before.usd_per_success is None:
        return f"{text} for {price.note}"
    return (
        f"{text} for {format_usd(price.usd_per_hour)} more per hour; a successful request then"
        f" costs {format_usd(after.usd_per_success)} instead of"
        f" {format_usd(before.usd_per_success)}"
    )
