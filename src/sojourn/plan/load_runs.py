"""The recording at a load under a seed, run once and judged: what the search for the knee asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.plan.estimates import quantile
from sojourn.plan.holding_records import KneePoint
from sojourn.plan.load_search import Limits
from sojourn.plan.slo import Judged, Standing, judge, standings
from sojourn.plan.utilisation import utilisations
from sojourn.progress import Progress
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.trace.arrays import Floats
from sojourn.workload.likeness import another
from sojourn.workload.scaling import scale
from sojourn.workload.stream import Stream

MOST_REQUESTS: Final = 400_000
"""Of one run: loads that would need more are not tried."""
MAX_FACTOR: Final = 1_000.0
LEAST_MAX_FACTOR: Final = 4.0
MIN_FACTOR: Final = 0.02
EXPECTED_RUNS: Final = 60


def onward(progress: Progress) -> Progress:
    """The same, never back: a search that takes a detour stands still meanwhile."""
    furthest = 0.0

    def tell(text: str, part: float) -> None:
        nonlocal furthest
        furthest = max(furthest, part)
        progress(text, furthest)

    return tell


@dataclass
class LoadRuns:
    """Runs made so far: every one is kept, none is made twice.

    The first seed runs the recording itself; every other one another day like it.
    `on_edge`: buckets that stand so near their target when alone that only more misses than
    chance explains count against a load (see `holding`).
    """

    stream: Stream
    fleet: Fleet
    config: Config
    progress: Progress
    first: int
    on_edge: frozenset[str] = frozenset()
    judged: dict[tuple[float, int], Judged] = field(default_factory=dict)
    _days: dict[int, Stream] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        """Loads that are tried."""
        most = MOST_REQUESTS / max(self.stream.requests.num_rows, 1)
        return Limits(MIN_FACTOR, float(np.clip(most, LEAST_MAX_FACTOR, MAX_FACTOR)))

    def at(self, factor: float, seed: int) -> Judged:
        """The run at a load under a seed, judged."""
        key = (factor, seed)
        if key not in self.judged:
            part = min(0.99, len(self.judged) / EXPECTED_RUNS)
            self.progress(f"simulating {factor:.2f} times the load", part)
            self.judged[key] = judge(self.run(factor, seed), self.config)
        return self.judged[key]

    def day(self, seed: int) -> Stream:
        """The traffic of a seed at today's load."""
        if seed == self.first:
            return self.stream
        if seed not in self._days:
            self._days[seed] = another(self.stream, seed)
        return self._days[seed]

    def run(self, factor: float, seed: int) -> SimRun:
        """The run itself."""
        return simulate(Scenario(self.stream_at(factor, seed), self.fleet, seed))

    def stream_at(self, factor: float, seed: int) -> Stream:
        """The traffic at a load."""
        return scale(self.day(seed), factor, seed=seed)

    def used(self, factor: float, seed: int) -> dict[str, float]:
        """Share of each resource used at a load; the run is made again (it is the same), since
        this is asked of one load only and needs the spans of that."""
        return utilisations(self.run(factor, seed).tables, self.fleet, self.config)

    def standings(self, factor: float, seed: int) -> dict[str, Standing]:
        """How each bucket stands at a load under a seed."""
        return standings(self.at(factor, seed), self.config)

    def held(self, factor: float, seed: int) -> bool:
        """Whether every bucket that can be judged holds its SLO at a load."""
        return all_held(self.standings(factor, seed), self.on_edge, self.config)

    def points(self, factors: list[float]) -> tuple[KneePoint, ...]:
        """Points of the knee, loads ascending, under the first seed."""
        if not factors:
            return ()
        stay = _known(self.at(factors[0], self.first).e2e_s, 0.5) or 0.0
        return tuple(point_of(self.at(f, self.first), f, stay) for f in factors)


def all_held(found: dict[str, Standing], on_edge: frozenset[str], config: Config) -> bool:
    """Whether every bucket holds its SLO; those on the edge: is not surely missed."""
    confidence = config.analysis.confidence
    return all(
        not standing.surely_missed(confidence) if name in on_edge else standing.held
        for name, standing in found.items()
    )


def point_of(judged: Judged, factor: float, stay_s: float) -> KneePoint:
    """What a run at a load came to. What ends is counted in the time in which requests arrive, put
    off by `stay_s`, the median stay at little load: so that a short run that keeps up shows it."""
    span = max(judged.duration_s, 1e-9)
    known = judged.good[~np.isnan(judged.good)]
    ended = judged.arrival_s + judged.e2e_s  # NaN: shed, or in flight for ever
    first, last = (judged.arrival_s[[0, -1]] + stay_s) if len(judged) else (0.0, 0.0)
    meanwhile = judged.succeeded & (ended > first) & (ended <= last)
    good = meanwhile & (judged.good == 1.0)
    return KneePoint(
        load_factor=factor,
        offered_per_s=len(judged) / span,
        p50_s=_known(judged.e2e_s, 0.5),
        p99_s=_known(judged.e2e_s, 0.99),
        ttft_p99_s=_known(judged.ttft_s, 0.99),
        attainment=float(known.mean()) if known.size else None,
        throughput_per_s=float(meanwhile.sum()) / span,
        good_per_s=float(good.sum()) / span,
    )


def _known(values: Floats, q: float) -> float | None:
    found = quantile(values, q)
    return None if np.isnan(found) else found
