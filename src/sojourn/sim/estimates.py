"""Figures of runs with their intervals: across replications, of one long run, of two scenarios.

Replications of one scenario under several seeds are independent, requests of one run are not:
those that meet in a queue share its luck. So an interval counts replications, or batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sojourn.interval import Excuse, Interval
from sojourn.sim.log import SHED
from sojourn.sim.scenario import SimRun
from sojourn.trace.arrays import Floats

BATCHES: Final = 20
"""Of one long run: 10 to 30 are advised (Schmeiser 1982); fewer are longer, and less dependent."""
BATCH_LEAST: Final = 10
"""Values a batch needs at least."""
MSER: Final = 5


def student(values: Floats, confidence: float) -> Interval:
    """Mean of independent values with its interval.

    mean +- t(n - 1, (1 + confidence)/2) s / sqrt(n). Source: Student 1908; for replications Law &
    Kelton, Simulation Modeling and Analysis, ch. 9.4. Wrong when: n is small and the values are
    skewed, or they depend on each other.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("an interval across values needs two of them")
    from scipy.special import stdtrit  # noqa: PLC0415  scipy loads 0.1 s: only where asked

    n = len(values)
    mean = float(values.mean())
    half = float(stdtrit(n - 1, 0.5 + confidence / 2) * values.std(ddof=1) / np.sqrt(n))
    return Interval(low=mean - half, mid=mean, high=mean + half, confidence=confidence)


def across(values: Sequence[float], *, confidence: float = 0.95) -> Interval | Excuse:
    """A figure over replications, one value each (a mean, a P99, a share of misses).

    The interval is that of the figure of one run, averaged: a P99 of short runs is biased, and
    more replications do not mend that, longer ones do. An `Excuse` with fewer than two replications
    or where one of them has no such figure (NaN).
    """
    known = np.asarray(values, dtype=np.float64)
    if np.isnan(known).any():
        return Excuse(reason=f"{int(np.isnan(known).sum())} of {len(known)} runs have no figure")
    if len(known) < 2:
        return Excuse(
            reason="One run says nothing about its own error", collect=("two replications or more",)
        )
    return student(known, confidence)


def paired(
    before: Sequence[float], after: Sequence[float], *, confidence: float = 0.95
) -> Interval | Excuse:
    """After minus before of a figure, over replications of equal seeds.

    With common random numbers what both scenarios share cancels in each difference, so the
    interval is narrower than that of two means. Source: Law & Kelton, ch. 10.2.1 (paired t).

    Raises:
        ValueError: not as many before as after.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} runs before, {len(after)} after: pairs need equal seeds")
    return across(np.subtract(after, before).tolist(), confidence=confidence)


def batch_means(
    values: Floats, q: float | None = None, *, confidence: float = 0.95
) -> Interval | Excuse:
    """The mean (or the q-quantile) of one long run, its values in time order.

    The run is cut in `BATCHES` equal stretches; the figure of each is taken as independent.
    Source: Law & Kelton, ch. 9.5.3; for quantiles sectioning, Asmussen & Glynn, Stochastic
    Simulation, ch. III.5: the middle is the whole run's figure. Wrong when: a batch is not
    much longer than the time over which the system remembers (then too narrow).
    """
    known = values[~np.isnan(values)]
    least = BATCH_LEAST if q is None else int(np.ceil(BATCH_LEAST / min(q, 1 - q)))
    if len(known) < BATCHES * least:
        return Excuse(
            reason=f"{len(known):,} values are too few for {BATCHES} batches of {least}",
            collect=("a longer run, or several replications",),
        )
    size = len(known) // BATCHES
    batches = known[len(known) - BATCHES * size :].reshape(BATCHES, size)
    if q is None:
        return student(batches.mean(axis=1), confidence)
    spread = student(np.quantile(batches, q, axis=1), confidence)
    mid, half = float(np.quantile(known, q)), spread.width / 2
    return Interval(low=mid - half, mid=mid, high=mid + half, confidence=confidence)


def mser5(values: Floats) -> int:
    """How many values at the front belong to the warm-up, by MSER-5.

    Means of 5 values each; cut the d first of n that make s^2 / (n - d) least, s^2 the variance
    of the rest: what is cut costs precision, what is left in costs bias. d is looked for in the
    first half only. Source: White 1997, An effective truncation heuristic for bias reduction in
    simulation output, SIMULATION 69(6). Wrong when: the run is so short that its half is still
    warming up (the answer is then about half), or the system is unstable.
    """
    known = np.nan_to_num(values[: len(values) // MSER * MSER])
    means = known.reshape(-1, MSER).mean(axis=1)
    n = len(means)
    if n < 2 * MSER:
        return 0
    means = means - means.mean()
    left = n - np.arange(n)
    sums, squares = (np.cumsum(v[::-1])[::-1] for v in (means, means**2))
    spread = np.maximum(squares - sums**2 / left, 0.0) / left.astype(np.float64) ** 2
    return int(np.argmin(spread[: n // 2])) * MSER


def stays(run: SimRun, *, warm_up_s: float | None = 0.0) -> Floats:
    """Arrival to end of the requests that were let in, seconds, in the stream's order.

    Those that arrive within `warm_up_s` of the first are left out; None: as many as MSER-5 says.
    """
    ends = run.outcomes
    served = ends.status != SHED
    stay, arrival = (ends.end_s - ends.arrival_s)[served], ends.arrival_s[served]
    if warm_up_s is None:
        kept = stay[mser5(stay) :]
    else:
        kept = stay[arrival >= ends.arrival_s[:1].sum() + warm_up_s]
    return np.asarray(kept, dtype=np.float64)
