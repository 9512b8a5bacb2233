"""How long the fleet holds: the largest load at which every bucket's SLO is held, jointly.

Loads are today's stream times a factor (`workload.scaling.scale`: nested streams, so a higher
load holds every request of a lower one). The factor is bracketed, then bisected to 2%, each load
run under every seed and their requests judged together; the interval spans what each seed alone
would say. A seed draws the simulator's luck and which requests are thinned or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.plan.estimates import quantile
from sojourn.plan.records import Holding
from sojourn.plan.slo import Judged, Standing, judge, standings
from sojourn.plan.trial import Progress, silent
from sojourn.plan.utilisation import utilisations
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.scaling import scale
from sojourn.workload.stream import Stream

TOLERANCE: Final = 0.02
UP: Final = 1.5
DOWN: Final = 0.6
MAX_FACTOR: Final = 16.0
MIN_FACTOR: Final = 0.05
CURVE_POINTS: Final = (0.25, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.5)
"""Of the curve, as multiples of the load held: denser at the knee."""
EXPECTED_RUNS: Final = 16


@dataclass
class _Search:
    """Loads tried so far: every run is kept, none is run twice."""

    stream: Stream
    fleet: Fleet
    config: Config
    seeds: Sequence[int]
    progress: Progress
    judged: dict[tuple[float, int], Judged] = field(default_factory=dict)
    used: dict[tuple[float, int], dict[str, float]] = field(default_factory=dict)

    def at(self, factor: float, seed: int) -> Judged:
        """The run at a load under a seed, judged."""
        key = (factor, seed)
        if key not in self.judged:
            part = min(0.99, len(self.judged) / (EXPECTED_RUNS * len(self.seeds)))
            self.progress(f"simulating {factor:.2f} times the load", part)
            scaled = scale(self.stream, factor, seed=seed)
            run = simulate(Scenario(scaled, self.fleet, seed))
            self.judged[key] = judge(run.tables, self.config)
            self.used[key] = utilisations(run.tables, self.fleet, self.config)
        return self.judged[key]

    def standings(self, factor: float, seeds: Sequence[int]) -> dict[str, Standing]:
        """Standings of the buckets, over the seeds together."""
        each = [standings(self.at(factor, seed), self.config) for seed in seeds]
        return {
            name: _together([found[name] for found in each if name in found])
            for name in sorted({name for found in each for name in found})
        }

    def held(self, factor: float, seeds: Sequence[int] | None = None) -> bool:
        """Whether every bucket holds its SLO at a load."""
        found = self.standings(factor, self.seeds if seeds is None else seeds)
        return all(standing.held for standing in found.values())

    @property
    def factors(self) -> list[float]:
        """Loads run under every seed, ascending."""
        counts: dict[float, int] = {}
        for factor, _ in self.judged:
            counts[factor] = counts.get(factor, 0) + 1
        return sorted(factor for factor, count in counts.items() if count == len(self.seeds))


def _together(each: list[Standing]) -> Standing:
    first = each[0]
    return Standing(
        bucket=first.bucket,
        slo=first.slo,
        requests=sum(s.requests for s in each),
        missed=sum(s.missed for s in each),
        failed=sum(s.failed for s in each),
        by_target={t: sum(s.by_target[t] for s in each) for t in first.by_target},
    )


def holding(
    stream: Stream,
    fleet: Fleet,
    config: Config,
    *,
    progress: Progress | None = None,
    seeds: Sequence[int] | None = None,
) -> Holding | Excuse:
    """The largest load factor with the SLO held jointly, and the knee around it.

    An `Excuse` where no SLO is set, where none can be judged, where the SLO is missed even by
    requests nearly alone, or where it holds at every load tried.
    """
    if not config.slo:
        return Excuse(
            reason="No SLO is set, so there is nothing to hold",
            collect=("set `slo` in sojourn.yaml: ttft_s, tpot_s or e2e_s per bucket",),
        )
    if not stream.requests.num_rows:
        return Excuse(reason="There are no requests to scale")
    if seeds is None:
        seeds = range(config.analysis.seed, config.analysis.seed + config.analysis.replications)
    search = _Search(stream, fleet, config, list(seeds), progress or silent)
    if not search.standings(1.0, search.seeds):
        notes = "; ".join(search.at(1.0, search.seeds[0]).notes)
        return Excuse(reason=f"No bucket could be judged against an SLO ({notes})")
    bracket = _bracket(search)
    if isinstance(bracket, Excuse):
        return bracket
    low, high = bracket
    while high > low * (1 + TOLERANCE):
        middle = round((low * high) ** 0.5, 4)
        if search.held(middle):
            low = middle
        else:
            high = middle
    return _found(search, low, high)


def _bracket(search: _Search) -> tuple[float, float] | Excuse:
    """A load that is held and a higher one that is not."""
    factor = 1.0
    if search.held(factor):
        while factor < MAX_FACTOR:
            higher = min(round(factor * UP, 4), MAX_FACTOR)
            if not search.held(higher):
                return factor, higher
            factor = higher
        return Excuse(
            reason=f"The SLO is held even at {MAX_FACTOR:g} times today's load: the model sees no"
            " limit near",
            collect=("check the fleet's numbers: servers of stations, batch slots, KV blocks",),
        )
    while factor > MIN_FACTOR:
        lower = max(round(factor * DOWN, 4), MIN_FACTOR)
        if search.held(lower):
            return lower, factor
        factor = lower
    worst = _worst(search.standings(factor, search.seeds))
    return Excuse(
        reason=f"The SLO is missed even at {MIN_FACTOR:.0%} of today's load, where requests are"
        f" nearly alone ({worst.describe()}): no load factor helps, the service time itself is too"
        " long, or the target too tight"
    )


def _worst(found: dict[str, Standing]) -> Standing:
    """The bucket with the most misses for those it is allowed."""

    def excess(standing: Standing) -> float:
        allowed = max(1 - standing.slo.percentile, 1 / max(standing.requests, 1))
        errors = max(standing.slo.max_error_share, 1 / max(standing.requests, 1))
        n = max(standing.requests, 1)
        return max(standing.missed / n / allowed, standing.failed / n / errors)

    return max(found.values(), key=excess)


def _found(search: _Search, low: float, high: float) -> Holding:
    rate = search.stream.requests.num_rows / max(search.stream.duration_s, 1e-9)
    each = [_of_seed(search, seed, low=low, high=high) for seed in search.seeds]
    interval = Interval(
        low=min(low, *(pair[0] for pair in each)),
        mid=low,
        high=max(high, *(pair[1] for pair in each)),
        confidence=search.config.analysis.confidence,
    )
    worst = _worst(search.standings(high, search.seeds))
    uses = [search.used[high, seed] for seed in search.seeds]
    mean = {name: float(np.mean([u.get(name, 0.0) for u in uses])) for name in uses[0]}
    binds = max(mean, key=lambda name: mean[name])
    return Holding(
        load_factor=interval,
        rate_per_s=interval.scale(rate),
        breaks=worst.describe(),
        binds=f"{binds} ({mean[binds]:.0%} used in the peak window)",
        curve=_curve(search, low),
    )


def _of_seed(search: _Search, seed: int, *, low: float, high: float) -> tuple[float, float]:
    """The bracket of one seed alone: from the loads run, then bisected where that is wide."""
    held = {f: search.held(f, [seed]) for f in search.factors}
    above = min((f for f in held if not held[f] and f >= low), default=high)
    below = max((f for f in held if held[f] and f < above), default=min(held))
    if not held[below]:
        return below, above
    while above > below * (1 + TOLERANCE):
        middle = round((below * above) ** 0.5, 4)
        if search.held(middle, [seed]):
            below = middle
        else:
            above = middle
    return below, above


def _curve(search: _Search, held: float) -> tuple[tuple[float, float, float], ...]:
    """(load factor, P99, attainment) under the first seed, at the loads run and around the knee."""
    seed = search.seeds[0]
    wanted = {round(held * part, 4) for part in CURVE_POINTS} | set(search.factors)
    wanted = {f for f in wanted if MIN_FACTOR <= f <= MAX_FACTOR}
    points = []
    for factor in sorted(wanted):
        judged = search.at(factor, seed)
        known = judged.good[~np.isnan(judged.good)]
        attained = float(known.mean()) if known.size else 0.0
        points.append((factor, quantile(judged.e2e_s, 0.99), attained))
    return tuple(points)
