"""Whether a run was stable, or requests piled up while it lasted.

An unstable system has no mean latency: what a run shows grows with the length of the run. So
whoever reports a latency asks here first.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import numpy as np
from pydantic import Field

from sojourn.interval import Interval
from sojourn.records import Record
from sojourn.sim.estimates import student
from sojourn.sim.scenario import SimRun
from sojourn.trace.arrays import Floats

BLOCKS: Final = 20
"""Of the arrival period; the first quarter, in which an empty system fills, is left out."""
FEWEST: Final = 200
"""Requests below which nothing is said: ten a block."""
MATERIAL: Final = 0.02
"""A system that keeps less than a fiftieth of what arrives counts as one that keeps up: loads are
searched to 2% as well."""
LONGER: Final = 2.0
"""A backlog shows in the stay of those who come last; more arrivals alone do not."""


class Trend(StrEnum):
    """What the number in flight did while requests arrived."""

    STABLE = "stable"
    GROWING = "growing"
    TOO_SHORT = "too_short"


class Stability(Record):
    """Whether the system kept up with its arrivals."""

    trend: Trend
    growth_per_s: Interval | None = Field(
        description="Requests per second by which the number in flight grew; None: too few."
    )
    arrival_per_s: float = Field(description="Over the whole arrival period.")
    in_flight: int = Field(description="At the last arrival.")
    drain_s: float = Field(description="From the last arrival to the last end.")
    longer: float | None = Field(
        description="Mean stay of the last third of arrivals over that of the first third."
    )

    def describe(self) -> str:
        """In a sentence, for people."""
        if self.trend is Trend.GROWING and self.growth_per_s is not None:
            growth, rate = self.growth_per_s, f"{self.arrival_per_s:.3g}"
            return (
                f"UNSTABLE: the number in flight grows by {growth.format()} requests a second"
                f" ({growth.confidence:.0%} interval) while {rate} a second arrive;"
                f" {self.in_flight:,} were in flight at the last arrival and took"
                f" {self.drain_s:.3g} s to drain. Latencies of this run grow with its length and"
                " mean nothing"
            )
        if self.trend is Trend.STABLE:
            return f"Stable: {self.in_flight:,} in flight at the last arrival"
        return (
            "Too short to say whether the system is stable: simulate more requests, or look at a"
            " load that differs more from its capacity"
        )


def stability(run: SimRun, *, confidence: float = 0.95) -> Stability:
    """Of a simulated run."""
    ends = run.outcomes
    return stability_of(ends.arrival_s, ends.end_s, confidence=confidence)


def stability_of(
    arrival_s: Floats,
    end_s: Floats,
    *,
    confidence: float = 0.95,
    edges_s: Floats | None = None,
    material: float = MATERIAL,
) -> Stability:
    """Of requests by arrival and end (NaN: has not ended), seconds, in any order.

    `edges_s`: of the blocks (three at least), where the load comes in periods: a peak within one
    counts for nothing. `material`: share of the arrivals below which growth does not count.

    N(t), the number in flight, is read at the edges of equal blocks of the arrival period. Its
    mean increment per block over the block's length is the growth; Student's t over the blocks
    gives the interval (batch means: Law & Kelton, Simulation Modeling and Analysis, ch. 9.5.3).
    Of an unstable system (arrivals faster than work is done: Loynes 1962) the increments are about
    independent with mean lambda - mu; of a stable one they cancel, so the interval is too wide
    rather than too narrow.

    Growing: the interval is above 0 in the whole and the growth above 0 in both halves, and the
    last third stays at least `LONGER` times as long as the first: that leaves out systems that
    hold more only because more arrive. Stable: the growth is surely less than `material` of the
    arrivals. Else too short to say. Wrong when: a slow swing of the load (a day's) is cut in its
    rise, or time limits cut every stay: such a system keeps up by failing.
    """
    order = np.argsort(arrival_s, kind="stable")
    arrival, end = arrival_s[order], end_s[order]
    count = len(arrival)
    period = float(arrival[-1] - arrival[0]) if count else 0.0
    ended = np.sort(end[~np.isnan(end)])
    at_last = count - int(np.searchsorted(ended, arrival[-1], side="right")) if count else 0
    drain = max(0.0, float(ended[-1] - arrival[-1])) if ended.size else 0.0
    growth = longer = None
    trend = Trend.TOO_SHORT
    if count >= FEWEST and period > 0:
        rates = _growth_per_s(arrival, ended, edges_s)
        growth = student(rates, confidence)
        longer = _longer(end - arrival)
        middle = len(rates) // 2
        halves = float(rates[:middle].mean()), float(rates[middle:].mean())
        trend = _trend(growth, halves, longer, material * count / period)
    return Stability(
        trend=trend,
        growth_per_s=growth,
        arrival_per_s=count / period if period > 0 else 0.0,
        in_flight=at_last,
        drain_s=drain,
        longer=longer,
    )


def _growth_per_s(arrival: Floats, ended: Floats, edges: Floats | None) -> Floats:
    """Increments of the number in flight by block, per second (both inputs ascending)."""
    if edges is None:
        first, last = arrival[0], arrival[-1]
        edges = np.linspace(first + (last - first) / 4, last, BLOCKS + 1)
    came, gone = (np.searchsorted(times, edges, side="right") for times in (arrival, ended))
    return np.asarray(np.diff(came - gone) / np.diff(edges), dtype=np.float64)


def _longer(stay: Floats) -> float | None:
    """Stay of the last third over that of the first; infinite where some have not ended."""
    third = len(stay) // 3
    first, last = stay[:third], stay[-third:]
    if np.isnan(last).any():
        return math.inf
    mean = float(np.nanmean(first)) if not np.isnan(first).all() else 0.0
    return float(last.mean()) / mean if mean > 0 else None


def _trend(
    growth: Interval, halves: tuple[float, float], longer: float | None, least: float
) -> Trend:
    stays_longer = longer is None or longer >= LONGER
    if growth.low > 0 and min(halves) > 0 and stays_longer:
        return Trend.GROWING
    if growth.high < least and not (growth.low > 0 and stays_longer):
        return Trend.STABLE
    return Trend.TOO_SHORT
