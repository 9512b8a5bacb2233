"""The rate that can be held for ever: steady traffic of the recorded mix, no peak, no end.

Beside the load at today's pattern (`plan.holding`), whose peaks may be carried because they
drain. Poisson arrivals at one rate, programs in rounds (`workload.likeness.steady`), stations at
their average speed. Found as the knee is, by seed; every rate is judged after a warm-up, and the
answer is run longer until the queue is seen to stay, and lowered where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.plan.holding_records import Settled, Sustained
from sojourn.plan.load_runs import all_held
from sojourn.plan.load_search import TOLERANCE, Limits, capped, knees, over_seeds
from sojourn.plan.settling import BUDGET, first_decided, lowered, of_rate, without_drift
from sojourn.plan.slo import Judged, judge, standings
from sojourn.progress import Progress, silent
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.stability import Trend
from sojourn.sim.ticks import LONGEST_S
from sojourn.workload.likeness import faster, steady
from sojourn.workload.stream import Stream

REQUESTS: Final = 3_000
"""Of a run of the search; the first quarter is not judged. At a target of 95% the share of misses
is known to 0.5 points, and the search is repeated over seeds."""
WARM_UP: Final = 0.25
RANGE: Final = 10_000.0
"""Rates tried, up and down from where the search starts."""
RATE_SEEDS: Final = 6


@dataclass
class RateRuns:
    """Steady runs made so far, judged after their warm-up."""

    stream: Stream
    fleet: Fleet
    config: Config
    progress: Progress = silent
    on_edge: frozenset[str] = frozenset()
    requests: int = REQUESTS
    judged: dict[tuple[float, int], Judged] = field(default_factory=dict)
    _paced: dict[int, Stream] = field(default_factory=dict)

    def at(self, rate_per_s: float, seed: int) -> Judged:
        """The run at a rate under a seed."""
        key = (rate_per_s, seed)
        if key not in self.judged:
            self.progress(f"simulating {rate_per_s:.3g} requests/s for ever", 0.9)
            if seed not in self._paced:
                redrawn = seed != self.config.analysis.seed
                self._paced[seed] = steady(self.stream, 1.0, self.requests, seed, redrawn=redrawn)
            stream = faster(self._paced[seed], rate_per_s)
            run = simulate(Scenario(stream, without_drift(self.fleet), seed))
            self.judged[key] = warmed_up(judge(run, self.config))
        return self.judged[key]

    def held(self, rate_per_s: float, seed: int) -> bool:
        """Whether every bucket holds its SLO at a rate."""
        found = standings(self.at(rate_per_s, seed), self.config)
        return all_held(found, self.on_edge, self.config)


def warmed_up(judged: Judged) -> Judged:
    """Without the first quarter of the requests, which found an empty system."""
    return judged.rows(np.arange(len(judged)) >= int(len(judged) * WARM_UP))


def sustained(
    stream: Stream,
    fleet: Fleet,
    config: Config,
    *,
    start_per_s: float,
    on_edge: frozenset[str] = frozenset(),
    progress: Progress = silent,
) -> Sustained | Excuse:
    """The largest steady rate with the SLO held and a queue that stays, requests per second.

    `start_per_s`: where to look first. An `Excuse` where it holds, or is missed, at every rate.
    """
    seeds = range(config.analysis.seed, config.analysis.seed + RATE_SEEDS)
    runs = RateRuns(stream, fleet, config, progress, on_edge)
    brackets = knees(runs.held, seeds, start_per_s, rate_limits(runs.requests, start_per_s))
    if brackets[0].open:
        held = brackets[0].low > start_per_s
        what = "held at every steady rate tried" if held else "missed at every steady rate tried"
        return Excuse(reason=f"The SLO is {what} (down or up to {brackets[0].low:.3g} a second)")
    interval = over_seeds(brackets, config.analysis.confidence)
    settled, rate = settled_rate(runs, interval.mid, seeds[0])
    return Sustained(
        rate_per_s=capped(interval, rate),
        settled=settled,
        lowered=rate < interval.mid,
        replications=len(brackets),
    )


def rate_limits(requests: int, start_per_s: float) -> Limits:
    """Rates that are tried: none so slow that a run would outlast what a run may."""
    slowest = requests / (LONGEST_S / 4)
    return Limits(max(start_per_s / RANGE, slowest), max(start_per_s, slowest) * RANGE)


def settled_rate(
    runs: RateRuns, rate_per_s: float, seed: int, *, budget: int = BUDGET
) -> tuple[Settled | None, float]:
    """The rate run ever longer, and lowered while its queue grows or the longer run surely misses
    the SLO: what was seen at the last one, and that rate."""

    def look(rate: float) -> tuple[bool, Settled | None]:
        runs.progress(f"lengthening the run at {rate:.3g} requests/s", 0.95)
        longer = first_decided(of_rate(runs.stream, runs.fleet, rate, seed, budget=budget))
        if longer is None:
            return True, None
        if longer.settled.trend is Trend.GROWING:
            return False, longer.settled
        found = standings(warmed_up(judge(longer.run, runs.config)), runs.config)
        confidence = runs.config.analysis.confidence
        held = not any(standing.surely_missed(confidence) for standing in found.values())
        return held, longer.settled

    return lowered(look, rate_per_s, TOLERANCE)
