"""Whether a load can be carried for longer than it was looked at: runs lengthened until they tell.

A run that ends before its queue shows is no evidence of capacity: a fleet slightly over its limit
looks fine for a thousand requests. So a load that counts as held is run again, longer each
time, until the number in flight is seen to stay or to grow, or the budget of requests is used up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sojourn.capacity.records import Fleet
from sojourn.interval import Interval
from sojourn.plan.holding_records import Settled
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.sim.stability import Stability, Trend, stability_of
from sojourn.sim.ticks import LONGEST_S
from sojourn.trace.arrays import Floats
from sojourn.workload.likeness import repeated, steady
from sojourn.workload.stream import Stream

MATERIAL: Final = 0.01
"""A queue that keeps less than a hundredth of what arrives does not count as growing: loads are
found to 1%."""
DAYS: Final = (8, 32, 96)
"""How often a recording is run in a row; the first quarter is left out."""
LENGTHS: Final = (8_000, 32_000, 96_000)
"""Requests of a steady run: from about 15,000 a growth of 2% of the arrivals shows."""
BUDGET: Final = 100_000
"""Requests of one lengthened run, at most."""
LEAST_DAYS: Final = 4
LOWERINGS: Final = 10
TEST: Final = 0.95
"""Confidence of the trend test."""


@dataclass(frozen=True)
class Longer:
    """A lengthened run and what it shows."""

    run: SimRun
    settled: Settled


def of_days(stream: Stream, fleet: Fleet, seed: int, *, budget: int = BUDGET) -> Iterator[Longer]:
    """The stream many times in a row, ever longer; the last one may still be undecided.

    The number in flight is compared where days meet, so a peak that drains within its day
    does not count. Station drift is repeated with the day.
    """
    count = max(stream.requests.num_rows, 1)
    least = min(-(-budget // count), DAYS[0])
    lengths = [d for d in DAYS if d * count <= budget] or [max(LEAST_DAYS, least)]
    for days in lengths:
        longest = int(LONGEST_S / 2 / max(stream.duration_s, 1e-9))
        if longest < LEAST_DAYS:
            return
        longer, edges = repeated(stream, min(days, longest), seed)
        run = simulate(Scenario(longer, _repeated_drift(fleet, edges), seed))
        yield Longer(run, _settled(run, edges[len(edges) // 4 :], days=len(edges) - 1))


def of_rate(
    stream: Stream, fleet: Fleet, rate_per_s: float, seed: int, *, budget: int = BUDGET
) -> Iterator[Longer]:
    """Steady traffic of the stream's mix at a rate, ever longer."""
    for count in LENGTHS:
        if count > budget or count / rate_per_s > LONGEST_S / 2:
            return
        run = simulate(
            Scenario(steady(stream, rate_per_s, count, seed), without_drift(fleet), seed)
        )
        yield Longer(run, _settled(run, None, days=0))


def first_decided(runs: Iterator[Longer]) -> Longer | None:
    """The first run that tells, else the longest; None where there is none.

    A queue that grows must grow in the next longer run as well: retries can hold a system in an
    overload that it leaves again.
    """
    last, growing = None, False
    for last in runs:
        trend = last.settled.trend
        if trend is Trend.STABLE or (trend is Trend.GROWING and growing):
            return last
        growing = trend is Trend.GROWING
    return last


def lowered(
    look: Callable[[float], tuple[bool, Settled | None]], load: float, tolerance: float
) -> tuple[Settled | None, float]:
    """The largest load, not above `load`, of which `look` says yes; and what it saw there.

    A queue that keeps a share g of what arrives has none at 1 - g of the load, were the rest
    carried alike: that is tried, and lowered on while it is no; then what was jumped over is
    halved to the tolerance. Most loads are a yes at once.
    """
    fine, settled = look(load)
    if fine:
        return settled, load
    high, found = load, settled
    low = load
    for _ in range(LOWERINGS):
        growth = found.growth.mid if found is not None and found.growth is not None else 0.0
        high, low = low, low * (1 - min(max(growth, tolerance), 0.5))
        fine, found = look(low)
        if fine:
            break
    settled = found
    while fine and high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        yes, found = look(middle)
        if yes:
            low, settled = middle, found
        else:
            high = middle
    return settled, low


def without_drift(fleet: Fleet) -> Fleet:
    """Stations as they are on average: what a rate without a time of day meets."""
    stations = {
        name: station.model_copy(update={"drift": ()}) for name, station in fleet.stations.items()
    }
    return fleet.model_copy(update={"stations": stations})


def _repeated_drift(fleet: Fleet, edges: Floats) -> Fleet:
    day = float(edges[1] - edges[0])
    stations = {
        name: station.model_copy(
            update={
                "drift": tuple(
                    (start + number * day, level)
                    for number in range(len(edges) - 1)
                    for start, level in station.drift
                    if start < day
                )
            }
        )
        for name, station in fleet.stations.items()
    }
    return fleet.model_copy(update={"stations": stations})


def _settled(run: SimRun, edges: Floats | None, *, days: int) -> Settled:
    ends = run.outcomes
    found = stability_of(
        ends.arrival_s, ends.end_s, confidence=TEST, edges_s=edges, material=MATERIAL
    )
    growth = _relative(found)
    trend = found.trend
    if growth is not None and growth.low > 0:  # arrivals are even: more in flight is a backlog
        trend = Trend.GROWING
    return Settled(
        trend=trend,
        requests=run.counts["arrived"],
        days=days,
        arrival_per_s=found.arrival_per_s,
        growth=growth,
        in_flight=found.in_flight,
    )


def _relative(found: Stability) -> Interval | None:
    """Growth as a share of the arrivals."""
    if found.growth_per_s is None or found.arrival_per_s <= 0:
        return None
    return found.growth_per_s.scale(1 / found.arrival_per_s)
