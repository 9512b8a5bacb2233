"""Two windows compared: block-bootstrap intervals, and findings from them.

A change is `better` or `worse` when its interval excludes no change *and* it is at least
`MIN_EFFECT` (times) or `MIN_SHARE` (shares): smaller changes lie within what two recordings of
one and the same system differ by. It is `same` when the interval lies within `SAME_WITHIN`
(`SAME_SHARE`) of no change, and `unknown` otherwise: the windows are too short to tell.

Wrong when: the two windows differ in load or outside conditions; that is told apart by
`sojourn.verify.mix` and stated with the answers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.interval import Interval
from sojourn.plan.estimates import block_indices
from sojourn.verify.records import Figure, Finding

Floats = npt.NDArray[np.float64]

MIN_EFFECT: Final = 0.05
SAME_WITHIN: Final = 0.20
MIN_SHARE: Final = 0.005
SAME_SHARE: Final = 0.02
MIN_TAIL: Final = 5
"""Requests beyond a percentile without which its interval is not trusted: P99 needs 500."""


def known(values: Floats) -> Floats:
    """Without the NaN, order kept."""
    kept: Floats = values[~np.isnan(values)]
    return kept


def enough(values: Floats, q: float) -> bool:
    """Whether at least `MIN_TAIL` requests lie beyond the q-quantile."""
    return known(values).size * (1 - q) >= MIN_TAIL


def quantile_samples(values: Floats, q: float, seed: int) -> Floats:
    """Block-bootstrap samples of a quantile; values in arrival order, NaN left out."""
    kept = known(values)
    samples: Floats = np.quantile(kept[block_indices(kept.size, seed)], q, axis=1)
    return samples


def mean_samples(values: Floats, seed: int) -> Floats:
    """Block-bootstrap samples of a mean; values in arrival order, NaN left out."""
    kept = known(values)
    samples: Floats = kept[block_indices(kept.size, seed)].mean(axis=1)
    return samples


def bounds(point: float, samples: Floats, confidence: float) -> Interval:
    """The central `confidence` range of samples around a point estimate."""
    tail = (1 - confidence) / 2
    low, high = (float(v) for v in np.quantile(samples, [tail, 1 - tail]))
    return Interval(low=min(low, point), mid=point, high=max(high, point), confidence=confidence)


def ratio_change(old: Interval, new: Interval, old_s: Floats, new_s: Floats) -> Interval | None:
    """after/before - 1 with its range, from independent resamples; None when before is 0."""
    if old.mid <= 0 or (old_s <= 0).any():
        return None
    size = min(old_s.size, new_s.size)
    return bounds(new.mid / old.mid - 1, new_s[:size] / old_s[:size] - 1, old.confidence)


def finding(change: Interval, *, higher_is_better: bool, least: float, within: float) -> Finding:
    """Better, worse, same or unknown, as the module's docstring says."""
    clear = change.low > 0 or change.high < 0
    if clear and abs(change.mid) >= least:
        return Finding.BETTER if (change.mid > 0) == higher_is_better else Finding.WORSE
    if max(abs(change.low), abs(change.high)) <= within:
        return Finding.SAME
    return Finding.UNKNOWN


def time_figure(
    name: str, before: Floats, after: Floats, q: float, *, seed: int, confidence: float
) -> Figure | None:
    """A percentile of a duration, before and after; None where one side has none."""
    if not known(before).size or not known(after).size:
        return None
    sides = []
    for values, salt in ((before, 0), (after, 1)):
        samples = quantile_samples(values, q, seed + salt)
        sides.append((bounds(float(np.quantile(known(values), q)), samples, confidence), samples))
    (old, old_s), (new, new_s) = sides
    change = ratio_change(old, new, old_s, new_s)
    found = Finding.UNKNOWN
    if change is not None and enough(before, q) and enough(after, q):
        found = finding(change, higher_is_better=False, least=MIN_EFFECT, within=SAME_WITHIN)
    return Figure(name=name, unit="s", before=old, after=new, change=change, finding=found)


def share_figure(
    name: str,
    before: Floats,
    after: Floats,
    *,
    higher_is_better: bool,
    seed: int,
    confidence: float,
) -> Figure | None:
    """A share (mean of zeros and ones) before and after; its finding rests on the difference."""
    if not known(before).size or not known(after).size:
        return None
    old_s, new_s = mean_samples(before, seed), mean_samples(after, seed + 1)
    old = bounds(float(known(before).mean()), old_s, confidence)
    new = bounds(float(known(after).mean()), new_s, confidence)
    size = min(old_s.size, new_s.size)
    change = bounds(new.mid - old.mid, new_s[:size] - old_s[:size], confidence)
    found = finding(change, higher_is_better=higher_is_better, least=MIN_SHARE, within=SAME_SHARE)
    return Figure(name=name, unit="share", before=old, after=new, finding=found)


def plain_figure(
    name: str,
    unit: str,
    before: float | None,
    after: float | None,
    *,
    higher_is_better: bool | None,
) -> Figure:
    """A figure without an interval of its own (a counter's rate, a price).

    `higher_is_better` None: it has no good direction and is only shown.
    """
    old = None if before is None else Interval.exact(before)
    new = None if after is None else Interval.exact(after)
    change, found = None, Finding.UNKNOWN
    if before is not None and after is not None:
        found = Finding.SAME
        if before > 0:
            relative = after / before - 1
            change = Interval.exact(relative)
            if higher_is_better is not None and abs(relative) >= MIN_EFFECT:
                found = Finding.BETTER if (relative > 0) == higher_is_better else Finding.WORSE
    return Figure(name=name, unit=unit, before=old, after=new, change=change, finding=found)


def worst(findings: list[Finding]) -> Finding:
    """One finding for several: worse, then better, then same; unknown where nothing is known."""
    for candidate in (Finding.WORSE, Finding.BETTER, Finding.SAME):
        if candidate in findings:
            return candidate
    return Finding.UNKNOWN
