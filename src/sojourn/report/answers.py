"""The answers in one plain sentence each, and the verdict with its exit code.

Exit codes: 0 the SLO is met or the change accepted, 3 the SLO is missed or a regression,
4 the evidence is too thin to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sojourn.attribution.records import ALL, Breakdown, Diagnosis, Tail
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.plan.estimates import share_interval
from sojourn.plan.records import Holding, Plan, Ranked, Refused
from sojourn.plan.slo import Judged, standings
from sojourn.records import ENGINE_STAGES, Bottleneck, words
from sojourn.units import format_seconds, format_share, format_usd
from sojourn.verify.records import Acceptance

if TYPE_CHECKING:
    from sojourn.report.compose import Findings

OK: Final = 0
MISSED: Final = 3
THIN: Final = 4
SCALE_OUT: Final = "scale_out"


def largest(stages: Mapping[str, float], count: int = 3) -> list[tuple[str, float]]:
    """The largest stages of a tail, as (name, share of the sum)."""
    total = sum(stages.values()) or 1.0
    ordered = sorted(stages.items(), key=lambda item: -item[1])
    return [(name, seconds / total) for name, seconds in ordered[:count]]


def engine_share(tail: Tail) -> float:
    """Share of a tail spent in the engine: queue, prefill, decode, KV transfer, encode."""
    total = sum(tail.stages.values()) or 1.0
    return sum(part for name, part in tail.stages.items() if name in ENGINE_STAGES) / total


def where(item: Findings) -> str:
    """Where the time goes, at the P99 over all requests."""
    return _where(item.breakdown, item.diagnosis)


def _where(breakdown: Breakdown, diagnosis: Diagnosis) -> str:
    tail = breakdown.tail(ALL, 0.99)
    top = diagnosis.top
    if tail is None:
        return diagnosis.excuse.reason if diagnosis.excuse else "No latency was recorded."
    parts = ", ".join(
        f"{words(name)} {format_share(share)}" for name, share in largest(tail.stages)
    )
    bound = (
        ""
        if top.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE
        else (f" Bottleneck: {words(top.bottleneck.value)} (score {top.confidence:.2f}).")
    )
    return (
        f"Of a P99 of {format_seconds(tail.e2e_s.mid)}: {parts};"
        f" the engine in all {format_share(engine_share(tail))}.{bound}"
    )


def how_long(item: Findings) -> str:
    """How long the fleet holds."""
    plan = item.plan
    if plan is None:
        return "Not asked."
    if isinstance(plan, Excuse):
        return str(plan)
    share = plan.measured.attainment.get(ALL)
    met = (
        "" if share is None else f" Today {format_share(share.mid)} of requests meet every target."
    )
    return f"{held(plan.holding)[0]}{met}"


def held(holding: Holding | Excuse) -> tuple[str, int]:
    """The load at which the SLO breaks, in a sentence, and the exit code."""
    if isinstance(holding, Excuse):
        return str(holding), THIN
    factor = holding.load_factor.mid
    if factor == 0:
        sentence = (
            f"At no level of load: {words(holding.breaks.split(':')[0])} misses its targets even"
            f" when its requests are nearly alone ({holding.binds})."
        )
        return sentence, MISSED
    if factor < 1:
        lead = f"Today's load is past it: the SLO holds to {factor:.2f}× of it"
    else:
        lead = f"To {factor:.2f}× today's load"
    sentence = (
        f"{lead} ({holding.rate_per_s.mid:.2g} requests/s on average). First to miss it beyond:"
        f" {words(holding.breaks.split(':')[0])}; least room: {words(holding.binds)}."
    )
    return sentence, OK if factor >= 1 else MISSED


def attributed(breakdown: Breakdown, diagnosis: Diagnosis) -> tuple[str, int]:
    """Where the time goes and what limits it, in a sentence, and the exit code."""
    if diagnosis.top.bottleneck is not Bottleneck.INSUFFICIENT_EVIDENCE:
        return _where(breakdown, diagnosis), OK
    excuse = diagnosis.excuse or Excuse(reason="The evidence is too thin to decide")
    if breakdown.tail(ALL, 0.99) is None:
        return str(excuse), THIN
    return f"{_where(breakdown, diagnosis)} {excuse}", THIN


def checked(judged: Judged, config: Config) -> tuple[str, int]:
    """Whether every bucket meets its SLO, in a sentence, and the exit code.

    A bucket meets it when the whole interval of its attainment lies at or above the SLO's
    percentile, misses it when the whole interval lies below, and is undecided between. It misses
    it as well when its failures are surely more than `max_error_share`, and is undecided when
    they are more but not surely. A bucket whose targets were not measured is undecided.
    """
    confidence = config.analysis.confidence
    found = standings(judged, config)
    missed, open_ = [], []
    wanted = [bucket for bucket in judged.buckets if config.slo_of(bucket) is not None]
    for bucket in wanted:
        stand = found.get(bucket)
        if stand is None:
            open_.append(f"{words(bucket)} not measured")
            continue
        share = share_interval(stand.requests - stand.missed, stand.requests, confidence)
        errors = share_interval(stand.failed, stand.requests, confidence)
        target, most = stand.slo.percentile, stand.slo.max_error_share
        text = f"{words(bucket)} {format_share(share.mid)} of {format_share(target)}"
        if errors.mid > most:
            text += f", {format_share(errors.mid)} failed (at most {format_share(most)})"
        if share.high < target or errors.low > most:
            missed.append(text)
        elif share.low < target or errors.mid > most:
            open_.append(text)
    if missed:
        return f"The SLO is missed: {', '.join(missed)}.", MISSED
    if not wanted:
        return "No SLO is set. Write one under `slo:` in sojourn.yaml.", THIN
    if open_:
        return f"Not decidable: {', '.join(open_)}. Record more requests, and their ends.", THIN
    return "The SLO is met in every bucket.", OK


def add_engines(plan: Plan) -> str:
    """What adding engine replicas would bring, recommended or not."""
    items: tuple[Ranked | Refused, ...] = (*plan.ranked, *plan.refused)
    for item in items:
        if item.name == SCALE_OUT and item.p99_change_s is not None:
            base = plan.baseline.e2e_s[ALL]["p99"].mid
            change = item.p99_change_s.mid
            price = f"{format_usd(item.price.usd_per_hour)}/h more"
            if item.price.unpriced:
                price = "a price that sojourn.yaml does not tell"
            tail = f"P99 {format_seconds(base)} → {format_seconds(base + change)} for {price}"
            if isinstance(item, Refused):
                return f"Adding engine replicas is not recommended: {tail}."
            return f"Adding engine replicas is recommended as well: {tail}."
    return ""


def places(plan: Plan, bundle: Ranked) -> str:
    """The places in the ranking of a bundle's actions: `1 + 3`."""
    names = [item.name for item in plan.ranked]
    return " + ".join(str(names.index(part) + 1) for part in bundle.name.split("+"))


def first_fix(item: Findings) -> str:
    """What to fix first, and whether more engines are the answer."""
    plan = item.plan
    if plan is None:
        return "Not asked."
    if isinstance(plan, Excuse):
        return str(plan)
    if not plan.ranked:
        return f"No action is called for by the evidence. {add_engines(plan)}".strip()
    first = plan.ranked[0]
    base = plan.baseline.e2e_s[ALL]["p99"].mid
    text = (
        f"{first.title}: P99 {format_seconds(base)} →"
        f" {format_seconds(base + first.p99_change_s.mid)}."
    )
    bundle = plan.bundle
    if bundle is not None and bundle.name != first.name:
        parts = places(plan, bundle)
        text += f" With {parts}: {format_seconds(base + bundle.p99_change_s.mid)}."
    return text if first.name == SCALE_OUT else f"{text} {add_engines(plan)}".strip()


def headline(item: Findings) -> str:
    """Bottleneck, and whether more engines are the answer, in the shortest words."""
    top = item.diagnosis.top.bottleneck
    text = f"the bottleneck is {words(top.value)}"
    if isinstance(item.plan, Plan):
        bought = any(ranked.name == SCALE_OUT for ranked in item.plan.ranked)
        text += f"; adding engine replicas is {'' if bought else 'not '}recommended"
    return f"{text}."


def verdict(item: Findings) -> tuple[str, int]:
    """The one sentence and the exit code of a round of the loop."""
    if item.diagnosis.top.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE:
        reason = item.diagnosis.excuse or Excuse(reason="The evidence is too thin to decide")
        return str(reason), THIN
    sentence = (
        f"The bottleneck is {words(item.diagnosis.top.bottleneck.value)}"
        f" (score {item.diagnosis.top.confidence:.2f})."
    )
    if isinstance(item.plan, Plan):
        return f"{sentence} {first_fix(item)}", held(item.plan.holding)[1]
    return sentence, OK


def acceptance_verdict(acceptance: Acceptance) -> tuple[str, int]:
    """Sentence and exit code of a before/after pair."""
    code = THIN if acceptance.accepted is None else OK if acceptance.accepted else MISSED
    return acceptance.reason, code
