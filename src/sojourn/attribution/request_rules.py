"""Rules for what clients and retries do, and for nothing being wrong. The table is in `rules`."""

from __future__ import annotations

from typing import Final

from sojourn.attribution.facts import (
    MIN_REQUESTS,
    OCCASIONAL,
    PERSISTENT,
    SHARE_HIGH,
    SHARE_LOW,
    Facts,
)
from sojourn.attribution.records import RetryReport
from sojourn.attribution.scoring import (
    DIRECT,
    HINT,
    SIGN,
    Finding,
    Reading,
    above,
    below,
    carries,
    finding,
    holds,
    only_against,
    only_for,
)
from sojourn.records import Bottleneck, Stage
from sojourn.units import format_seconds

AMPLIFIED: Final = 1.15
STEADY: Final = 1.05
"""Attempts per request at the peak over calm ones: a retry budget of 10 to 20% is the custom
(Finagle 20%, Google 10%), so 15% more at the peak is past what is meant to happen."""

MANY_RETRIES: Final = 0.10
FEW_RETRIES: Final = 0.02
"""Share of attempts that are retries: the same budgets; 2% is the background of any network."""

CALM_FAILURES: Final = 0.05
CALM_CLEAN: Final = 0.01
"""Attempts that fail when it is calm: a timeout is set to cut at most 0.1 to 1% of good work
(AWS), so 5% without load means the work does not fit in it."""

TIGHT: Final = 0.8
AMPLE: Final = 0.5
"""P95 of the attempts that succeed, over the timeout."""

IN_FLIGHT_MIN: Final = 4
"""A client that holds 1 to 3 calls open may simply be a light load."""


def _marks(report: RetryReport, *where: str) -> Reading | None:
    for mark in report.timeouts:
        if mark.where in where:
            text = (
                f"{mark.share:.0%} of failed {mark.where}s end at {format_seconds(mark.value_s)}:"
                " a timer cuts them"
            )
            return Reading(text, mark.share, SIGN)
    return None


def _late(report: RetryReport) -> Reading | None:
    """How much of its timeout an attempt has left when it reaches the engine."""
    left = report.budget_left_at_engine
    if not left:
        return None
    text = (
        f"requests reach the engine with {left['p50']:.0%} of their timeout left (median),"
        f" {left['p05']:.0%} at P05; {left['under_half']:.0%} with less than half"
    )
    return only_for(above(text, left["under_half"], PERSISTENT, SHARE_LOW, HINT))


def _waits(facts: Facts) -> Reading | None:
    """Retries that feed themselves do it through a queue: of workers outside, or of the engine."""
    outside = facts.extra.get("station_wait")
    if outside is None or facts.tail.e2e_s.mid <= 0:
        return None
    waited = outside + facts.tail.stages.get(Stage.QUEUE.value, 0.0) / facts.tail.e2e_s.mid
    text = f"waiting for workers and for the engine: {waited:.0%} of the P99"
    if waited < SHARE_LOW:
        text += "; retries repeat the work here, they lengthen hardly any queue"
    return above(text, waited, SHARE_HIGH, SHARE_LOW, SIGN)


def _beyond_one_attempt(facts: Facts, report: RetryReport) -> float:
    """Part of the P99 that fewer attempts could save, at most: the attempts tried again and the
    waits after them, but an attempt that was cut takes its whole timeout with or without them."""
    lost, whole = facts.extra.get("failed_attempts", 0.0), facts.tail.e2e_s.mid
    if report.timeout_s is None or whole <= 0:
        return lost
    return min(lost, max(1.0 - report.timeout_s / whole, 0.0))


def retry_amplification(facts: Facts) -> Finding | None:
    """Failed attempts are tried again and add to the load that made them fail."""
    report = facts.retries
    if report is None:
        return None
    ratio = report.peak_attempts_per_request / max(report.calm_attempts_per_request, 1e-9)
    lost = facts.extra.get("failed_attempts", 0.0)
    engine = facts.engine_share if facts.occupied else 0.0
    grow = (
        f"{report.peak_attempts_per_request:.2f} attempts per request at the peak,"
        f" {report.calm_attempts_per_request:.2f} when calm"
    )
    again = report.retry_share_of_attempts
    wasted = report.wasted_share_of_time
    return finding(
        "retry_amplification",
        Bottleneck.RETRY_AMPLIFICATION,
        (
            only_for(above(grow, ratio, AMPLIFIED, STEADY, DIRECT)),
            above(f"{again:.0%} of attempts are retries", again, MANY_RETRIES, FEW_RETRIES, DIRECT),
            above(
                f"{wasted:.0%} of attempt time ends in failure",
                wasted,
                MANY_RETRIES,
                FEW_RETRIES,
                SIGN,
            ),
            carries("attempts that were tried again, and the waits after them", lost, SIGN),
            _waits(facts),
            _marks(report, "attempt", "call"),
            _late(report),
            only_against(
                below("a full engine explains the timeouts", engine, OCCASIONAL, PERSISTENT, SIGN)
            ),
        ),
        share=_beyond_one_attempt(facts, report) * (1.0 - engine),
    )


def timeout_too_short(facts: Facts) -> Finding | None:
    """The timeout is below what the work takes even when nothing else goes on."""
    report = facts.retries
    if report is None or report.timeout_s is None or report.wasted_share_of_time <= 0:
        return None
    timeout, served = report.timeout_s, report.ok_attempt_p95_s
    calm = report.calm_failed_share
    close = served / timeout if served is not None else None
    ratio = report.peak_failed_share / calm if calm else None
    return finding(
        "timeout_too_short",
        Bottleneck.TIMEOUT_TOO_SHORT,
        (
            above(
                f"{calm or 0:.0%} of attempts fail even when it is calm",
                calm,
                CALM_FAILURES,
                CALM_CLEAN,
                DIRECT,
            ),
            above(
                f"attempts that succeed take {close or 0:.0%} of the timeout of"
                f" {format_seconds(timeout)} at P95",
                close,
                TIGHT,
                AMPLE,
                SIGN,
            ),
            _marks(report, "attempt", "call"),
            only_against(
                below(
                    f"failures rise {ratio or 0:.1f} times at the peak: load", ratio, 1.5, 3, DIRECT
                )
            ),
            carries(
                "attempts that were tried again", facts.extra.get("failed_attempts", 0.0), SIGN
            ),
        ),
        share=_beyond_one_attempt(facts, report),
    )


def client_limit(facts: Facts) -> Finding | None:
    """The client holds a fixed number of calls open: it is measured, not the fleet."""
    most, held = facts.engine.in_flight_max, facts.engine.in_flight_max_share
    if most is None or held is None or most < IN_FLIGHT_MIN:
        return None
    return finding(
        "client_limit",
        Bottleneck.CLIENT_LIMIT,
        (
            above(
                f"{most:.0f} calls in flight, never more, during {held:.0%} of the peak",
                held,
                PERSISTENT,
                OCCASIONAL,
                1.5 * DIRECT,
            ),
            *_engine_queue(facts),
            only_for(holds("the number is round", most % 5 == 0 or _power_of_two(most), HINT)),
            only_against(
                below(
                    "stages outside the engine carry the tail",
                    facts.outside_share,
                    SHARE_HIGH,
                    PERSISTENT,
                    SIGN,
                )
            ),
        ),
        share=None,
        importance=1.0,
    )


def _engine_queue(facts: Facts) -> tuple[Reading | None, ...]:
    """Against a limit of the client: requests queue in the engine, so they do get there."""
    waiting, full = facts.engine.waiting_share, facts.engine.slots_full_share
    return (
        only_against(
            below(
                f"requests wait in the engine during {waiting or 0:.0%} of the peak",
                waiting,
                0.05,
                OCCASIONAL,
                DIRECT,
            )
        ),
        only_against(
            below(f"every slot is taken during {full or 0:.0%}", full, 0.05, OCCASIONAL, SIGN)
        ),
        only_against(
            below(
                "waiting in the engine's queue",
                facts.share(Stage.QUEUE),
                SHARE_LOW,
                SHARE_HIGH,
                DIRECT,
            )
        ),
    )


def _power_of_two(value: float) -> bool:
    whole = int(value)
    return whole > 0 and whole & (whole - 1) == 0


def none(facts: Facts) -> Finding | None:
    """Nothing is short: no queue, no stretch, no retries; and the SLO, where set, is met."""
    queue, shared = facts.share(Stage.QUEUE), facts.extra.get("removable")
    again = facts.retries.retry_share_of_attempts if facts.retries is not None else None
    met = None
    if facts.slo_e2e_s is not None:
        met = facts.tail.e2e_s.mid <= facts.slo_e2e_s
    limit = f"the P99 is {format_seconds(facts.tail.e2e_s.mid)}, its target"
    return finding(
        "none",
        Bottleneck.NONE,
        (
            holds(f"{limit} {format_seconds(facts.slo_e2e_s)}", met, 1.5 * DIRECT),
            below(f"queue: {queue:.0%} of the P99", queue, 0.05, SHARE_LOW, SIGN),
            below(
                f"twice the engine would save {shared or 0:.0%} of the P99",
                shared,
                SHARE_LOW,
                2 * SHARE_LOW,
                SIGN,
            ),
            below(
                f"{again or 0:.0%} of attempts are retries", again, FEW_RETRIES, MANY_RETRIES, SIGN
            ),
            *_outside(facts, judged=met is not None),
            only_against(
                holds("the engine is full at the peak", facts.occupied is not True, DIRECT)
            ),
            only_against(
                below(
                    "time no stage explains",
                    facts.share(Stage.UNEXPLAINED),
                    SHARE_LOW,
                    SHARE_HIGH,
                    DIRECT,
                )
            ),
        ),
        share=None,
        importance=1.0 if met else 0.3,
    )


def _outside(facts: Facts, *, judged: bool) -> tuple[Reading | None, ...]:
    """Against nothing being short: waits for workers, and one stage that carries the tail where
    no target says (`judged`) that it may."""
    wait = facts.extra.get("station_wait")
    largest = max(
        facts.share(s) for s in (Stage.RETRIEVAL, Stage.RERANK, Stage.TOOL, Stage.NETWORK)
    )
    one_stage = only_against(
        below(f"one stage outside carries {largest:.0%}", largest, SHARE_HIGH, PERSISTENT, SIGN)
    )
    return (
        only_against(
            below(
                f"{wait or 0:.0%} of the P99 is waiting for workers",
                wait,
                SHARE_LOW,
                SHARE_HIGH,
                SIGN,
            )
        ),
        None if judged else one_stage,
    )


def insufficient_evidence(facts: Facts) -> Finding | None:
    """The recording does not show where the time is spent."""
    hidden = facts.share(Stage.UNEXPLAINED)
    return finding(
        "insufficient_evidence",
        Bottleneck.INSUFFICIENT_EVIDENCE,
        (
            carries("time no stage explains", hidden),
            only_for(holds("it is more than half of the P99", hidden >= PERSISTENT, DIRECT)),
            only_for(
                holds(
                    f"fewer than {MIN_REQUESTS} requests",
                    facts.tail.requests < MIN_REQUESTS,
                    2 * DIRECT,
                )
            ),
        ),
        share=hidden,
    )


RULES: Final = (retry_amplification, timeout_too_short, client_limit, none, insufficient_evidence)
