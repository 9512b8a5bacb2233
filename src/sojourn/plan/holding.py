"""How long the fleet holds: the largest load at which every bucket's SLO is held, jointly.

Loads are today's stream times a factor (`workload.scaling.scale`: nested streams, so a higher
load holds every request of a lower one). Under the first seed the recording itself is bracketed
and bisected to 1%; the other seeds take another day like it (`workload.likeness.another`) and start
from what the first found. The middle is the mean over seeds, the interval Student's.

A load is held where no bucket misses more than its SLO allows. A bucket whose requests miss even
*alone*, so that chance alone may bring it under its target, is on its edge at any load: against it
only more misses than chance explains count (`Standing.surely_missed`), else a hair would be a knee.

A load that holds only because the recording ends is none: at the knee the recording is run many
times in a row, and the answer lowered until the queue does not grow from day to day
(`plan.settling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.plan.alone import alone, own_time
from sojourn.plan.estimates import quantile
from sojourn.plan.holding_records import Settled
from sojourn.plan.load_runs import LoadRuns, onward
from sojourn.plan.load_search import NEARBY, TOLERANCE, Bracket, capped, knees, over_seeds
from sojourn.plan.records import Holding
from sojourn.plan.settling import first_decided, lowered, of_days
from sojourn.plan.slo import Standing, judge, standings
from sojourn.progress import Progress, silent
from sojourn.sim.stability import Trend
from sojourn.workload.stream import Stream

CURVE_POINTS: Final = (0.25, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.5, 1.8)
"""Of the curve, as multiples of the load held: denser at the knee."""
MOST_SEEDS: Final = 8
WORK: Final = 120_000
"""Requests simulated for further seeds beyond those of `analysis.replications`, about: a second."""
RUNS_A_SEED: Final = 7
SIDE_BY_SIDE: Final = 30_000
"""Requests of a recording from which starting processes (a second or two) pays."""


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
    `seeds`: one replication each; else as `replications` has it.
    """
    if not config.slo or not stream.requests.num_rows:
        return _nothing_to_hold(config)
    if seeds is None:
        seeds = replications(stream, config)
    first = seeds[0]
    runs = LoadRuns(stream, fleet, config, onward(progress or silent), first)
    if not runs.standings(1.0, first):
        notes = "; ".join(runs.at(1.0, first).notes)
        return Excuse(reason=f"No bucket could be judged against an SLO ({notes})")
    by_itself = alone(stream, fleet, config, today=runs.at(1.0, first), seed=first)
    confidence = config.analysis.confidence
    if any(standing.surely_missed(confidence) for standing in by_itself.values()):
        return _at_no_load(runs, by_itself, own_time(fleet))
    runs.on_edge = edges_of(by_itself, confidence)
    brackets = _brackets(runs, seeds)
    if brackets[0].open:
        if brackets[0].low == runs.limits.most:
            return _no_limit(runs.limits.most)
        return _at_no_load(runs, runs.standings(runs.limits.least, first), own_time(fleet))
    return _found(runs, brackets, seeds)


def _brackets(runs: LoadRuns, seeds: Sequence[int]) -> list[Bracket]:
    """The knee of each seed; those of a long recording side by side, over cores."""
    first, *others = seeds
    if not others or runs.stream.requests.num_rows < SIDE_BY_SIDE:
        return knees(runs.held, seeds, 1.0, runs.limits)
    found = knees(runs.held, [first], 1.0, runs.limits)
    if found[0].open:
        return found
    from joblib import Parallel, delayed  # noqa: PLC0415  (processes only where they pay)

    bare = replace(runs, progress=silent, judged={}, _days={})
    runs.progress(f"simulating {len(others)} days like it, side by side", 0.4)
    work = (delayed(_one)(bare, seed, found[0].low) for seed in others)
    return [*found, *Parallel(n_jobs=-1)(work)]


def _one(runs: LoadRuns, seed: int, start: float) -> Bracket:
    return knees(runs.held, [seed], start, runs.limits, step=NEARBY)[0]


def edges_of(by_itself: dict[str, Standing], confidence: float) -> frozenset[str]:
    """Buckets that miss their targets even alone, so often that it may be too often."""
    return frozenset(
        name
        for name, standing in by_itself.items()
        if standing.missed + standing.failed > 0 and not standing.surely_held(confidence)
    )


def replications(stream: Stream, config: Config) -> range:
    """The seeds of an answer: as many as `analysis.replications` says where sojourn.yaml sets it,
    else more while the recording is short."""
    analysis = config.analysis
    count = analysis.replications
    if "replications" not in analysis.model_fields_set:
        work = max(stream.requests.num_rows, 1) * RUNS_A_SEED
        count = max(count, min(MOST_SEEDS, WORK // work))
    return range(analysis.seed, analysis.seed + count)


def _no_limit(most: float) -> Excuse:
    return Excuse(
        reason=f"The SLO is held even at {most:g} times today's load: the model sees no limit near",
        collect=("check the fleet's numbers: servers of stations, batch slots, KV blocks",),
    )


def _nothing_to_hold(config: Config) -> Excuse:
    if config.slo:
        return Excuse(reason="There are no requests to scale")
    return Excuse(
        reason="No SLO is set, so there is nothing to hold",
        collect=("set `slo` in sojourn.yaml: ttft_s, tpot_s or e2e_s per bucket",),
    )


def _at_no_load(runs: LoadRuns, found: dict[str, Standing], binds: str) -> Holding:
    """The SLO is missed by requests nearly alone, so that no load factor helps."""
    points = _points(runs, 1.0)
    return Holding(
        load_factor=Interval.exact(0.0),
        rate_per_s=Interval.exact(0.0),
        breaks=worst(found).describe(),
        binds=binds,
        curve=_curve(runs, points),
        points=runs.points(points),
        note="Missed even by requests nearly alone: the service time is too long for the target,"
        " or the target too tight",
    )


def _excess(standing: Standing) -> float:
    """Misses over those allowed (or failures over theirs, where that is more)."""
    n = max(standing.requests, 1)
    late = standing.missed / n / max(1 - standing.slo.percentile, 1 / n)
    broken = standing.failed / n / max(standing.slo.max_error_share, 1 / n)
    return max(late, broken)


def worst(found: dict[str, Standing]) -> Standing:
    """The bucket with the most misses for those it is allowed."""
    return max(found.values(), key=_excess)


def _found(runs: LoadRuns, brackets: list[Bracket], seeds: Sequence[int]) -> Holding:
    rate = runs.stream.requests.num_rows / max(runs.stream.duration_s, 1e-9)
    interval = over_seeds(brackets, runs.config.analysis.confidence)
    low, high = brackets[0]
    breaks, note = worst(runs.standings(high, runs.first)).describe(), ""
    used = runs.used(high, runs.first)
    binds = max(used, key=lambda name: used[name])
    before, settled, load = _settled(runs, interval.mid)
    if load < interval.mid and before is not None:
        breaks = f"the queue: at {interval.mid:.3g} times the load {before.describe()}"
        interval = capped(interval, load)
        note = (
            "The recording holds more only because it ends: repeated, its queue grows from day to"
            " day, so the load is lowered to where it does not"
        )
    points = _points(runs, interval.mid)
    return Holding(
        load_factor=interval,
        rate_per_s=interval.scale(rate),
        breaks=breaks,
        binds=f"{binds} ({used[binds]:.0%} used in the peak window)",
        curve=_curve(runs, points),
        points=runs.points(points),
        settled=settled,
        replications=len(seeds),
        on_edge=tuple(sorted(runs.on_edge)),
        note=note or _near_misses(runs.standings(low, runs.first)),
    )


def _settled(runs: LoadRuns, factor: float) -> tuple[Settled | None, Settled | None, float]:
    """Whether the queue settles at a load. Where it grows: the load at which it no longer does, and
    the SLO is held in the longer run as well.

    What was seen at the load asked for, at that of the answer, and that load.
    """
    seen: list[Settled | None] = []

    def look(load: float) -> tuple[bool, Settled | None]:
        runs.progress(f"lengthening the run at {load:.2f} times the load", 0.9)
        days = of_days(runs.stream_at(load, runs.first), runs.fleet, runs.first)
        longer = first_decided(days)
        seen.append(None if longer is None else longer.settled)
        if longer is None:
            return True, None
        fine = longer.settled.trend is not Trend.GROWING
        if fine and load < factor:  # what was too much is found by its queue, and by its SLO
            found = standings(judge(longer.run, runs.config), runs.config).values()
            confidence = runs.config.analysis.confidence
            fine = not any(standing.surely_missed(confidence) for standing in found)
        return fine, longer.settled

    last, load = lowered(look, factor, TOLERANCE)
    return seen[0], last, load


def _near_misses(found: dict[str, Standing]) -> str:
    """Buckets under their target at the load that counts as held, by no more than chance."""
    under = [standing.describe() for standing in found.values() if not standing.held]
    return f"Held by no more than chance: {'; '.join(under)}" if under else ""


def _points(runs: LoadRuns, held: float) -> list[float]:
    """Loads around the knee, and today's."""
    least, most = runs.limits
    wanted = {float(f"{held * part:.4g}") for part in CURVE_POINTS} | {1.0}
    return sorted(factor for factor in wanted if least <= factor <= most)


def _curve(runs: LoadRuns, factors: list[float]) -> tuple[tuple[float, float, float], ...]:
    """(load factor, P99, attainment) at loads, under the first seed."""
    points = []
    for factor in factors:
        judged = runs.at(factor, runs.first)
        known = judged.good[~np.isnan(judged.good)]
        attained = float(known.mean()) if known.size else 0.0
        points.append((factor, quantile(judged.e2e_s, 0.99), attained))
    return tuple(points)
