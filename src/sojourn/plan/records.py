"""`Plan`: what to fix first, what it would bring and cost, and why not the others."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sojourn.interval import Excuse, Interval
from sojourn.plan.holding_records import KneePoint, Settled
from sojourn.records import Layer, Record

NOT_CALLED_FOR: Final = "Not called for"
"""How the excuse of an action begins that no verdict opens."""


class Outcome(Record):
    """What a (simulated or measured) run came to. Seconds; shares 0..1; `all` is every bucket.

    `attainment` is the share of requests that meet every target of their bucket, failed ones
    counted as misses; None where no SLO is set.
    """

    requests: int
    rate_per_s: float
    e2e_s: dict[str, dict[str, Interval]] = Field(description="bucket -> p50, p95, p99")
    ttft_s: dict[str, dict[str, Interval]]
    attainment: dict[str, Interval] = Field(default_factory=dict)
    error_share: Interval
    degraded_share: float
    attempts_per_request: float
    usd_per_hour: float | None = None
    usd_per_success: float | None = None
    engine_busy: float | None = None
    notes: tuple[str, ...] = ()


class Price(Record):
    """What an action costs besides its effect."""

    usd_per_hour: float = 0.0
    quality: str = Field("none", description="none, slight, visible: what users may notice.")
    risk: str = Field("low", description="low, medium, high.")
    effort: str = Field("hours", description="minutes, hours, days, weeks.")
    note: str = ""
    unpriced: bool = Field(False, description="Something is to be bought whose price is unknown.")


class Ranked(Record):
    """An action that the attribution calls for, with its simulated effect."""

    name: str
    title: str
    layer: Layer
    calls_for: str = Field(description="The verdict that opens it, in words.")
    outcome: Outcome
    p99_change_s: Interval = Field(description="After minus before, all requests.")
    attainment_change: float | None = None
    usd_per_success_change: float | None = None
    price: Price
    score: float
    worth_it: bool
    source: str
    why: str


class Refused(Record):
    """An action not recommended, and why; with the simulated effect where one was computed."""

    name: str
    title: str
    layer: Layer
    excuse: Excuse
    outcome: Outcome | None = None
    p99_change_s: Interval | None = None
    price: Price = Field(default_factory=Price)
    source: str = ""


class Holding(Record):
    """How long the fleet holds: the largest load with the SLO held jointly.

    `load_factor` multiplies today's arrival rate; below 1 the SLO is missed today, and 0 says that
    it is missed even by requests nearly alone: no load is small enough.
    """

    load_factor: Interval
    rate_per_s: Interval
    breaks: str = Field(description="Bucket and target that break first.")
    binds: str = Field(description="Resource with the least headroom there.")
    curve: tuple[tuple[float, float, float], ...] = Field(
        description="(load factor, P99 E2E seconds, attainment): the knee, for plotting."
    )
    points: tuple[KneePoint, ...] = Field((), description="The same loads, in full.")
    settled: Settled | None = Field(
        None, description="Whether the queue stays at the load held; None: not looked at."
    )
    replications: int = Field(1, description="Days like today, this one included.")
    on_edge: tuple[str, ...] = Field(
        (), description="Buckets that miss so often even alone that only surely more misses count."
    )
    note: str = ""


class Rung(Record):
    """One step of the degrade ladder: on from `on_rate_per_s` arrivals, off from `off_rate_per_s`.

    `load_share` is that rate over the rate the fleet holds.
    """

    order: int
    action: str
    title: str
    load_share: float
    on_rate_per_s: float | None
    off_rate_per_s: float | None
    watch: str = Field(description="What to watch, and the value that also turns it on.")
    note: str = ""


class Runway(Record):
    """When demand that grows steadily crosses what the fleet holds."""

    weeks: Interval
    growth_per_week: float
    load_factor: Interval
    order_by_weeks: float = Field(description="Weeks left to decide, lead time taken off.")
    note: str = ""


class Plan(Record):
    """What to fix first."""

    baseline: Outcome
    measured: Outcome
    holding: Holding | Excuse
    ranked: tuple[Ranked, ...]
    refused: tuple[Refused, ...]
    bundle: Ranked | None = Field(None, description="The recommended actions together.")
    ladder: tuple[Rung, ...] = Field((), description="What to switch off as load grows, in order.")
    notes: tuple[str, ...] = ()
