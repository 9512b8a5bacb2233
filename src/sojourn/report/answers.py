"""The answers in one plain sentence each, and the verdict with its exit code.

Exit codes: 0 the SLO is met or the change accepted, 3 the SLO is missed or a regression,
4 the evidence is too thin to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sojourn.interval import Excuse
from sojourn.plan.records import Outcome, Plan, Ranked, Refused
from sojourn.records import Bottleneck
from sojourn.report.charts import engine_share, largest
from sojourn.units import format_seconds, format_share, format_usd
from sojourn.verify.records import Acceptance

if TYPE_CHECKING:
    from sojourn.report.compose import Findings

OK: Final = 0
MISSED: Final = 3
THIN: Final = 4
SCALE_OUT: Final = "scale_out"


def words(name: str) -> str:
    """An identifier as words."""
    return name.replace("_", " ")


def where(item: Findings) -> str:
    """Where the time goes, at the P99 over all requests."""
    tail = item.breakdown.tail("all", 0.99)
    top = item.diagnosis.top
    if tail is None:
        return item.diagnosis.excuse.reason if item.diagnosis.excuse else "No latency was recorded."
    parts = ", ".join(
        f"{words(name)} {format_share(share)}" for name, share in largest(tail.stages)
    )
    bound = (
        ""
        if top.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE
        else (f" Bottleneck: {words(top.bottleneck.value)} ({format_share(top.confidence)} sure).")
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
    if isinstance(plan.holding, Excuse):
        return str(plan.holding)
    factor = plan.holding.load_factor
    share = plan.baseline.attainment.get("all")
    met = (
        "" if share is None else f" Today {format_share(share.mid)} of requests meet every target."
    )
    if factor.mid < 1:
        lead = f"Today's load is past it: the SLO holds to {factor.mid:.2f}× of it"
    else:
        lead = f"To {factor.mid:.2f}× today's load"
    rate = plan.holding.rate_per_s.mid
    return (
        f"{lead} ({rate:.2g} requests/s); then {plan.holding.breaks} breaks,"
        f" bound by {words(plan.holding.binds)}.{met}"
    )


def add_engines(plan: Plan) -> str:
    """What adding engine replicas would bring, recommended or not."""
    items: tuple[Ranked | Refused, ...] = (*plan.ranked, *plan.refused)
    for item in items:
        if item.name == SCALE_OUT and item.p99_change_s is not None:
            base = plan.baseline.e2e_s["all"]["p99"].mid
            change = item.p99_change_s.mid
            tail = (
                f"P99 {format_seconds(base)} → {format_seconds(base + change)}"
                f" for {format_usd(item.price.usd_per_hour)}/h more"
            )
            if isinstance(item, Refused):
                return f"Adding engine replicas is not recommended: {tail}."
            return f"Adding engine replicas: {tail}."
    return ""


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
    base = plan.baseline.e2e_s["all"]["p99"].mid
    text = (
        f"{first.title}: P99 {format_seconds(base)} →"
        f" {format_seconds(base + first.p99_change_s.mid)}."
    )
    bundle = plan.bundle
    if bundle is not None and bundle.name != first.name:
        text += f" All together: {format_seconds(base + bundle.p99_change_s.mid)}."
    return text if first.name == SCALE_OUT else f"{text} {add_engines(plan)}".strip()


def verdict(item: Findings) -> tuple[str, int]:
    """The one sentence and the exit code of a round of the loop."""
    if item.diagnosis.top.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE:
        reason = item.diagnosis.excuse or Excuse(reason="The evidence is too thin to decide")
        return str(reason), THIN
    sentence = (
        f"The bottleneck is {words(item.diagnosis.top.bottleneck.value)}"
        f" ({format_share(item.diagnosis.top.confidence)} sure)."
    )
    if isinstance(item.plan, Plan):
        return f"{sentence} {first_fix(item)}", outcome_code(item.plan.measured, item)
    return sentence, OK


def outcome_code(outcome: Outcome, item: Findings) -> int:
    """0 when the measured attainment reaches the SLO's percentile, 3 when not, 4 when unknown."""
    if not isinstance(item.plan, Plan) or isinstance(item.plan.holding, Excuse):
        return THIN
    if not outcome.attainment:
        return THIN
    return OK if item.plan.holding.load_factor.mid >= 1 else MISSED


def acceptance_verdict(acceptance: Acceptance) -> tuple[str, int]:
    """Sentence and exit code of a before/after pair."""
    code = THIN if acceptance.accepted is None else OK if acceptance.accepted else MISSED
    return acceptance.reason, code
