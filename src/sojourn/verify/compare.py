"""Two windows compared: block-bootstrap intervals, and findings from them.

A change is `better` or `worse` when its interval excludes no change *and* it is at least
`MIN_EFFECT` (ratios) or `MIN_SHARE` (shares): smaller changes lie within what two recordings of
one and the same system differ by. It is `same` when the interval lies within `SAME_WITHIN`
(`SAME_SHARE`) of no change, and `unknown` otherwise: the windows are too short to tell.
Ratios are judged by their logarithm, so that exchanging the windows exchanges better and worse.

Wrong when: the two windows differ in load or outside conditions (the mix is told apart by
`sojourn.verify.mix`, the load by `sojourn.verify.acceptance`); or when many figures are read at
once: each is right with the configured confidence, not all of them together.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.interval import Interval
from sojourn.plan.estimates import block_indices, share_interval
from sojourn.trace.arrays import Floats
from sojourn.verify.records import Figure, Finding

MIN_EFFECT: Final = 0.05
SAME_WITHIN: Final = 0.20
MIN_SHARE: Final = 0.005
SAME_SHARE: Final = 0.02
MIN_TAIL: Final = 5
"""Requests beyond a percentile without which its interval is not trusted: P99 needs 500."""
MIN_SHARED: Final = 30
"""Requests on a side without which no share is judged."""


@dataclass(frozen=True)
class Estimate:
    """A figure of one window: the point, and its bootstrap samples."""

    point: float
    samples: Floats


def known(values: Floats) -> Floats:
    """Without the NaN, order kept."""
    kept: Floats = values[~np.isnan(values)]
    return kept


def enough(size: float, q: float) -> bool:
    """Whether at least `MIN_TAIL` of `size` requests lie beyond the q-quantile."""
    return size * (1 - q) >= MIN_TAIL - 1e-9


def salted(values: Floats, seed: int) -> int:
    """A seed of its own for each set of values: two windows are resampled independently, and
    exchanging them exchanges their samples."""
    return (seed + zlib.crc32(np.ascontiguousarray(values).tobytes())) % 2**32


def quantile_estimate(values: Floats, q: float, seed: int) -> Estimate:
    """A quantile with block-bootstrap samples; values in arrival order, without NaN."""
    rows = block_indices(values.size, salted(values, seed))
    samples: Floats = np.quantile(values[rows], q, axis=1)
    return Estimate(float(np.quantile(values, q)), samples)


def mean_estimate(values: Floats, seed: int) -> Estimate:
    """A mean with block-bootstrap samples; values in arrival order, without NaN."""
    rows = block_indices(values.size, salted(values, seed))
    samples: Floats = values[rows].mean(axis=1)
    return Estimate(float(values.mean()), samples)


def bounds(point: float, samples: Floats, confidence: float) -> Interval:
    """The central `confidence` range of samples around a point estimate."""
    tail = (1 - confidence) / 2
    low, high = (float(v) for v in np.quantile(samples, [tail, 1 - tail]))
    return Interval(low=min(low, point), mid=point, high=max(high, point), confidence=confidence)


def ratio_change(old: Estimate, new: Estimate, confidence: float) -> Interval | None:
    """after/before - 1 with its range, from independent resamples; None where one is not above 0.

    The range is taken of the logarithm: the range of before/after is then its exact mirror.
    """
    size = min(old.samples.size, new.samples.size)
    first, second = old.samples[:size], new.samples[:size]
    if not size or min(old.point, new.point, first.min(), second.min()) <= 0:
        return None
    point = math.log(new.point / old.point)
    return bounds(point, np.log(second / first), confidence).map(math.expm1)


def finding(change: Interval, *, higher_is_better: bool) -> Finding:
    """Better, worse, same or unknown for a relative change, as the module's docstring says."""
    low, mid, high = (
        math.log1p(max(bound, -1 + 1e-12)) for bound in (change.low, change.mid, change.high)
    )
    if (low > 0 or high < 0) and abs(mid) >= math.log1p(MIN_EFFECT):
        return Finding.BETTER if (mid > 0) == higher_is_better else Finding.WORSE
    within = max(abs(low), abs(high)) <= math.log1p(SAME_WITHIN)
    return Finding.SAME if within else Finding.UNKNOWN


def ratio_figure(
    name: str, unit: str, old: Estimate, new: Estimate, *, confidence: float, decidable: bool = True
) -> Figure:
    """Two estimates of something that is better when smaller (seconds, dollars)."""
    change = ratio_change(old, new, confidence)
    found = Finding.UNKNOWN
    if change is not None and decidable:
        found = finding(change, higher_is_better=False)
    return Figure(
        name=name,
        unit=unit,
        before=bounds(old.point, old.samples, confidence),
        after=bounds(new.point, new.samples, confidence),
        change=change,
        finding=found,
    )


def time_figure(
    name: str, before: Floats, after: Floats, q: float, *, seed: int, confidence: float
) -> Figure | None:
    """A percentile of a duration, before and after; None where one side has none."""
    first, second = known(before), known(after)
    if not first.size or not second.size:
        return None
    old, new = quantile_estimate(first, q, seed), quantile_estimate(second, q, seed)
    sure = enough(min(first.size, second.size), q)
    return ratio_figure(name, "s", old, new, confidence=confidence, decidable=sure)


def share_bounds(estimate: Estimate, size: float, confidence: float) -> Interval:
    """Range of a share: the wider of the block bootstrap and Wilson's interval.

    The bootstrap sees bursts but is blind to what never happened (0 of 40); Wilson's is the
    other way round. Values outside 0..1 (no shares) have the bootstrap alone.
    """
    drawn = bounds(estimate.point, estimate.samples, confidence)
    if not 0 <= estimate.point <= 1:
        return drawn
    total = max(1, round(size))
    wilson = share_interval(round(estimate.point * total), total, confidence)
    low, high = min(drawn.low, wilson.low), max(drawn.high, wilson.high)
    return Interval(low=low, mid=estimate.point, high=high, confidence=confidence)


def share_change(old: Interval, new: Interval) -> Interval:
    """After minus before of two shares, from the range of each.

    With p the shares and [l, u] their ranges: low = d - sqrt((p2 - l2)^2 + (u1 - p1)^2), high
    alike. Source: Newcombe 1998, Statistics in Medicine 17:873 (square and add).
    Wrong when: the windows depend on each other.
    """
    gap = new.mid - old.mid
    low = gap - math.hypot(new.mid - new.low, old.high - old.mid)
    high = gap + math.hypot(new.high - new.mid, old.mid - old.low)
    return Interval(low=low, mid=gap, high=high, confidence=old.confidence)


def share_finding(gap: Interval, *, higher_is_better: bool) -> Finding:
    """Better, worse, same or unknown for a difference of shares."""
    if (gap.low > 0 or gap.high < 0) and abs(gap.mid) >= MIN_SHARE:
        return Finding.BETTER if (gap.mid > 0) == higher_is_better else Finding.WORSE
    within = max(abs(gap.low), abs(gap.high)) <= SAME_SHARE
    return Finding.SAME if within else Finding.UNKNOWN


def shares_compared(
    name: str, old: Interval, new: Interval, *, higher_is_better: bool, size: float
) -> Figure:
    """Two shares with their ranges, judged by their difference."""
    found = Finding.UNKNOWN
    if size >= MIN_SHARED:
        found = share_finding(share_change(old, new), higher_is_better=higher_is_better)
    return Figure(name=name, unit="share", before=old, after=new, finding=found)


def share_figure(
    name: str,
    before: Floats,
    after: Floats,
    *,
    higher_is_better: bool,
    seed: int,
    confidence: float,
) -> Figure | None:
    """A share (mean of values in 0..1) before and after; None where one side has none."""
    first, second = known(before), known(after)
    if not first.size or not second.size:
        return None
    old = share_bounds(mean_estimate(first, seed), first.size, confidence)
    new = share_bounds(mean_estimate(second, seed), second.size, confidence)
    size = min(first.size, second.size)
    return shares_compared(name, old, new, higher_is_better=higher_is_better, size=size)


def shown(name: str, unit: str, before: float | None, after: float | None) -> Figure:
    """A figure without a good direction or without known noise: shown, not judged."""
    change = None
    if before is not None and after is not None and before > 0:
        change = Interval.exact(after / before - 1)
    return Figure(
        name=name,
        unit=unit,
        before=None if before is None else Interval.exact(before),
        after=None if after is None else Interval.exact(after),
        change=change,
        finding=Finding.UNKNOWN,
        judged=False,
    )


def worst(figures: tuple[Figure, ...]) -> Finding:
    """One finding for several: worse, then better, then same; unknown where nothing is known."""
    found = {figure.finding for figure in figures if figure.judged}
    for candidate in (Finding.WORSE, Finding.BETTER, Finding.SAME):
        if candidate in found:
            return candidate
    return Finding.UNKNOWN
