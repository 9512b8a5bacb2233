"""Rules for the chain around the engine: one shape for every stage. The table is in `rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sojourn.attribution.facts import (
    NEITHER,
    PERSISTENT,
    SHARE_HIGH,
    SHARE_LOW,
    SURE_REQUESTS,
    Facts,
)
from sojourn.attribution.scoring import (
    HINT,
    SIGN,
    Finding,
    Reading,
    above,
    carries,
    finding,
    holds,
    only_for,
)
from sojourn.records import Bottleneck, Stage
from sojourn.units import format_seconds, format_share

GROWS: Final = 1.25
"""A stage whose share of the P99 is a quarter larger than of the P50 makes the tail, not just the
level."""

STAGES_OF: Final[dict[Bottleneck, tuple[Stage, ...]]] = {
    Bottleneck.GATEWAY: (Stage.GATEWAY, Stage.GUARDRAIL, Stage.POSTPROCESS),
    Bottleneck.RETRIEVAL: (Stage.RETRIEVAL,),
    Bottleneck.RERANK: (Stage.RERANK,),
    Bottleneck.TOOL: (Stage.TOOL,),
    Bottleneck.NETWORK: (Stage.NETWORK,),
    Bottleneck.ENCODER: (Stage.ENCODE,),
    Bottleneck.INTERCONNECT: (Stage.KV_TRANSFER,),
}


def _slack(facts: Facts, share: float) -> Reading | None:
    """Whether the engine leaves this stage to be the cause."""
    if facts.occupied is False:
        return Reading("the engine has slack at the peak", None, SIGN)
    if facts.occupied is True and facts.engine_share > share:
        return Reading("the engine is full at the peak and carries more", None, -SIGN)
    return None


def _largest(facts: Facts, share: float) -> Reading:
    named = set(facts.tail.stages) - NEITHER
    own = max((facts.share(name) for name in named), default=0.0)
    return Reading(
        "it is the largest stage" if share >= own else "another stage carries more",
        None,
        SIGN if share >= own else -HINT,
    )


def _station_facts(facts: Facts, stages: tuple[Stage, ...]) -> list[Reading | None]:
    """What the visits themselves say: timers that cut them, waits for a worker, their lengths."""
    names = [name for stage in stages for name in facts.names_of(stage)]
    readings: list[Reading | None] = []
    if names:
        figures = facts.stations[names[0]]
        wait = figures.get("wait_mean")
        part = wait / figures["mean"] if wait is not None and figures["mean"] > 0 else None
        readings.append(
            only_for(
                above(
                    f"{part or 0:.0%} of a visit to {names[0]} is waiting for a worker",
                    part,
                    SHARE_HIGH,
                    SHARE_LOW,
                    SIGN,
                )
            )
        )
    marks = facts.retries.timeouts if facts.retries is not None else ()
    readings += [
        Reading(
            f"{mark.count} visits to {mark.where} end at {format_seconds(mark.value_s)}:"
            " a timer cuts them",
            mark.share,
            HINT,
        )
        for mark in marks
        if mark.where in names
    ]
    return readings


def _label(facts: Facts, bottleneck: Bottleneck, stages: tuple[Stage, ...]) -> str:
    names = [name for stage in stages for name in facts.names_of(stage)]
    if not names:
        return bottleneck.value
    slowest = format_seconds(facts.stations[names[0]]["p95"])
    return f"{bottleneck.value} ({names[0]}, P95 {slowest})"


def _outside(bottleneck: Bottleneck) -> Callable[[Facts], Finding | None]:
    stages = STAGES_OF[bottleneck]

    def rule(facts: Facts) -> Finding | None:
        share = facts.share(*stages)
        if share <= 0:
            return None
        at_peak = facts.peak_share(*stages)
        middle = facts.median
        grows = None
        if middle is not None and sum(middle.stages.values()) > 0:
            before = sum(middle.stages.get(s, 0.0) for s in stages) / sum(middle.stages.values())
            grows = share >= GROWS * before
        return finding(
            bottleneck.value,
            bottleneck,
            (
                carries(_label(facts, bottleneck, stages), share),
                _largest(facts, share),
                only_for(holds("it carries more than half", share >= PERSISTENT, SIGN)),
                _slack(facts, share),
                only_for(holds("its share grows from the P50 to the P99", grows, HINT)),
                None
                if at_peak is None
                else above(
                    f"{format_share(at_peak)} of the P99 in the peak window",
                    at_peak,
                    SHARE_HIGH,
                    SHARE_LOW,
                    HINT,
                ),
                _few(facts),
                *_station_facts(facts, stages),
            ),
            share=share,
        )

    rule.__name__ = bottleneck.value
    rule.__doc__ = f"The {bottleneck.value} stage carries the tail."
    return rule


def _few(facts: Facts) -> Reading | None:
    count = facts.tail.requests
    if count >= SURE_REQUESTS:
        return None
    return Reading(f"only {count} requests: the P99 is nearly the largest", float(count), -HINT)


RULES: Final = tuple(_outside(bottleneck) for bottleneck in STAGES_OF)
