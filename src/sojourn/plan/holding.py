"""How long the fleet holds: the largest load at which every bucket's SLO is held, jointly.

Loads are today's stream times a factor (`workload.scaling.scale`: nested streams, so a higher
load holds every request of a lower one). Under the first seed the factor is bracketed, then
bisected to 2%; the other seeds start from what it found. A seed draws the simulator's luck and
which requests are thinned or doubled; the interval spans what the seeds say, its middle is their
median. A load breaks the SLO where a bucket misses it by more than chance explains
(`Standing.surely_missed`): a bucket that is a hair under its target at any load is no knee.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow.compute as pc

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.plan.estimates import quantile
from sojourn.plan.records import Holding
from sojourn.plan.slo import Judged, Standing, judge, standings
from sojourn.plan.utilisation import utilisations
from sojourn.progress import Progress, silent
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import LONGEST_S
from sojourn.workload.scaling import repeated_steps, scale
from sojourn.workload.stream import Stream

TOLERANCE: Final = 0.02
UP: Final = 1.5
DOWN: Final = 1 / 0.6
NEARBY: Final = 1.08
"""Steps of the first search upwards and downwards, and of the other seeds' around what it found."""
MAX_FACTOR: Final = 16.0
MIN_FACTOR: Final = 0.05
CURVE_POINTS: Final = (0.25, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.5)
"""Of the curve, as multiples of the load held: denser at the knee."""
MATTERS: Final = 0.1
"""Drifting stations a tenth as long as the longest are named with it; shorter ones do not count."""
APART: Final = 5.0
"""Mean gap over mean stay at which requests count as alone: a fifth in the system on average."""
EXPECTED_RUNS: Final = 28


@dataclass
class _Search:
    """Loads tried so far: every run is kept, none is run twice."""

    stream: Stream
    fleet: Fleet
    config: Config
    progress: Progress
    judged: dict[tuple[float, int], Judged] = field(default_factory=dict)

    def at(self, factor: float, seed: int) -> Judged:
        """The run at a load under a seed, judged."""
        key = (factor, seed)
        if key not in self.judged:
            part = min(0.99, len(self.judged) / EXPECTED_RUNS)
            self.progress(f"simulating {factor:.2f} times the load", part)
            self.judged[key] = judge(self._run(factor, seed), self.config)
        return self.judged[key]

    def used(self, factor: float, seed: int) -> dict[str, float]:
        """Share of each resource used at a load; the run is made again (it is the same), since
        this is asked of one load only and needs the spans of that."""
        return utilisations(self._run(factor, seed).tables, self.fleet, self.config)

    def _run(self, factor: float, seed: int) -> SimRun:
        return simulate(Scenario(scale(self.stream, factor, seed=seed), self.fleet, seed))

    def standings(self, factor: float, seed: int) -> dict[str, Standing]:
        """How each bucket stands at a load under a seed."""
        return standings(self.at(factor, seed), self.config)

    def held(self, factor: float, seed: int) -> bool:
        """Whether no bucket surely misses its SLO at a load."""
        confidence = self.config.analysis.confidence
        found = self.standings(factor, seed).values()
        return not any(standing.surely_missed(confidence) for standing in found)

    def alone(self, seed: int) -> dict[str, Standing]:
        """How each bucket stands when its very requests come so far apart that hardly two meet.

        All requests are judged, so a bucket that misses here misses for what its work takes.
        Arrivals, and what drifts with time, are stretched alike.
        """
        today = self.at(1.0, seed)
        gap = self.stream.duration_s / max(self.stream.requests.num_rows, 1)
        stay = float(np.nanmean(today.e2e_s)) if not np.isnan(today.e2e_s).all() else gap
        stretch = max(1.0, APART * stay / gap) if gap > 0 else 1.0
        return _together(
            standings(judge(simulate(part), self.config), self.config)
            for part in _parts(_stretched(self.stream, self.fleet, stretch, seed))
        )

    def bracket(self, start: float, seed: int, *, up: float, down: float) -> tuple[float, float]:
        """A load held and a higher one broken, adjacent steps from `start`. At the ends of the
        range one of the two is the end itself, whatever it is."""
        factor = start
        if self.held(factor, seed):
            while factor < MAX_FACTOR:
                higher = min(round(factor * up, 4), MAX_FACTOR)
                if not self.held(higher, seed):
                    return factor, higher
                factor = higher
            return MAX_FACTOR, MAX_FACTOR
        while factor > MIN_FACTOR:
            lower = max(round(factor / down, 4), MIN_FACTOR)
            if self.held(lower, seed):
                return lower, factor
            factor = lower
        return MIN_FACTOR, MIN_FACTOR

    def bisected(self, low: float, high: float, seed: int) -> tuple[float, float]:
        """The bracket narrowed to the tolerance."""
        while high > low * (1 + TOLERANCE):
            middle = round((low * high) ** 0.5, 4)
            if self.held(middle, seed):
                low = middle
            else:
                high = middle
        return low, high


def holding(
    stream: Stream,
    fleet: Fleet,
    config: Config,
    *,
    progress: Progress | None = None,
    seeds: Sequence[int] | None = None,
) -> Holding | Excuse:
    """The largest load factor with the SLO held jointly, and the knee around it.

    Factor 0 where the SLO is missed even by requests nearly alone: no load helps. An `Excuse`
    where no SLO is set, where none can be judged, or where it holds at every load tried.
    """
    if not config.slo or not stream.requests.num_rows:
        return _nothing_to_hold(config)
    if seeds is None:
        seeds = range(config.analysis.seed, config.analysis.seed + config.analysis.replications)
    first, *others = seeds
    search = _Search(stream, fleet, config, progress or silent)
    if not search.standings(1.0, first):
        notes = "; ".join(search.at(1.0, first).notes)
        return Excuse(reason=f"No bucket could be judged against an SLO ({notes})")
    if not search.held(1.0, first):
        alone = search.alone(first)
        if any(standing.surely_missed(config.analysis.confidence) for standing in alone.values()):
            return _at_no_load(search, alone, first)
    low, high = search.bracket(1.0, first, up=UP, down=DOWN)
    if low == high == MAX_FACTOR:
        return Excuse(
            reason=f"The SLO is held even at {MAX_FACTOR:g} times today's load: the model sees no"
            " limit near",
            collect=("check the fleet's numbers: servers of stations, batch slots, KV blocks",),
        )
    if low == high:
        return _at_no_load(search, search.standings(low, first), first)
    brackets = [search.bisected(low, high, first)]
    start = brackets[0][0]
    for seed in others:
        near = search.bracket(start, seed, up=NEARBY, down=NEARBY)
        brackets.append(search.bisected(*near, seed))
    return _found(search, brackets, first)


def _stretched(stream: Stream, fleet: Fleet, stretch: float, seed: int) -> Scenario:
    """The same requests, `stretch` times as far apart."""
    index = stream.requests.column_names.index("arrival_s")
    arrivals = pc.multiply(stream.requests.column("arrival_s"), stretch)
    requests = stream.requests.set_column(index, "arrival_s", arrivals)
    stations = {
        name: station.model_copy(
            update={"drift": tuple((start * stretch, level) for start, level in station.drift)}
        )
        for name, station in fleet.stations.items()
    }
    slow = fleet.model_copy(update={"stations": stations})
    return Scenario(Stream(requests, stream.steps), slow, seed)


def _parts(scenario: Scenario) -> Iterator[Scenario]:
    """A scenario cut in time, no part longer than a run may be. Requests that are far apart do not
    miss those of the part before."""
    stream = scenario.stream
    arrivals = stream.requests.column("arrival_s").to_numpy()
    part = ((arrivals - arrivals[0]) // (LONGEST_S / 2)).astype(np.int64)
    for number in np.unique(part):
        rows = np.flatnonzero(part == number)
        requests = stream.requests.slice(rows[0], len(rows))
        yield replace(scenario, stream=Stream(requests, repeated_steps(stream.steps, rows)))


def _together(parts: Iterable[dict[str, Standing]]) -> dict[str, Standing]:
    """Standings of parts as that of the whole."""
    found: dict[str, Standing] = {}
    for bucket, part in ((name, s) for standing in parts for name, s in standing.items()):
        known = found.get(bucket)
        found[bucket] = part if known is None else known.plus(part)
    return found


def _own_time(fleet: Fleet) -> str:
    drifting = [station for station in fleet.stations.values() if station.drift]
    longest = max((station.service_s.mean for station in drifting), default=0.0)
    slow = [s.name for s in drifting if s.service_s.mean >= MATTERS * longest]
    hours = f", with {', '.join(slow)} as slow as at its slow hours" if slow else ""
    return f"the time the work itself takes{hours}"


def _nothing_to_hold(config: Config) -> Excuse:
    if config.slo:
        return Excuse(reason="There are no requests to scale")
    return Excuse(
        reason="No SLO is set, so there is nothing to hold",
        collect=("set `slo` in sojourn.yaml: ttft_s, tpot_s or e2e_s per bucket",),
    )


def _at_no_load(search: _Search, found: dict[str, Standing], seed: int) -> Holding:
    """The SLO is missed by requests nearly alone, so that no load factor helps."""
    return Holding(
        load_factor=Interval.exact(0.0),
        rate_per_s=Interval.exact(0.0),
        breaks=_worst(found).describe(),
        binds=_own_time(search.fleet),
        curve=_curve(search, 1.0, seed),
        note="Missed even by requests nearly alone: the service time is too long for the target,"
        " or the target too tight",
    )


def _excess(standing: Standing) -> float:
    """Misses over those allowed (or failures over theirs, where that is more)."""
    n = max(standing.requests, 1)
    late = standing.missed / n / max(1 - standing.slo.percentile, 1 / n)
    broken = standing.failed / n / max(standing.slo.max_error_share, 1 / n)
    return max(late, broken)


def _worst(found: dict[str, Standing]) -> Standing:
    """The bucket with the most misses for those it is allowed."""
    return max(found.values(), key=_excess)


def _found(search: _Search, brackets: list[tuple[float, float]], seed: int) -> Holding:
    rate = search.stream.requests.num_rows / max(search.stream.duration_s, 1e-9)
    lows = [low for low, _ in brackets]
    interval = Interval(
        low=min(lows),
        mid=float(np.median(lows)),
        high=max(high for _, high in brackets),
        confidence=search.config.analysis.confidence,
    )
    low, high = brackets[0]
    used = search.used(high, seed)
    binds = max(used, key=lambda name: used[name])
    return Holding(
        load_factor=interval,
        rate_per_s=interval.scale(rate),
        breaks=_worst(search.standings(high, seed)).describe(),
        binds=f"{binds} ({used[binds]:.0%} used in the peak window)",
        curve=_curve(search, low, seed),
        note=_near_misses(search.standings(low, seed)),
    )


def _near_misses(found: dict[str, Standing]) -> str:
    """Buckets under their target at the load that counts as held, by no more than chance."""
    under = [standing.describe() for standing in found.values() if not standing.held]
    return f"Held by no more than chance: {'; '.join(under)}" if under else ""


def _curve(search: _Search, held: float, seed: int) -> tuple[tuple[float, float, float], ...]:
    """(load factor, P99, attainment) at the loads run under a seed and around the knee."""
    wanted = {round(held * part, 4) for part in CURVE_POINTS}
    wanted = {f for f in wanted if MIN_FACTOR <= f <= MAX_FACTOR}
    wanted |= {factor for factor, its_seed in search.judged if its_seed == seed}
    points = []
    for factor in sorted(wanted):
        judged = search.at(factor, seed)
        known = judged.good[~np.isnan(judged.good)]
        attained = float(known.mean()) if known.size else 0.0
        points.append((factor, quantile(judged.e2e_s, 0.99), attained))
    return tuple(points)
