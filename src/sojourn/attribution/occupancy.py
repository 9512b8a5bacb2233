"""How many requests were where at each instant: step functions from intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.trace.arrays import Floats


@dataclass(frozen=True)
class Steps:
    """A count over time: `count[k]` holds on [time[k], time[k+1]); 0 before and after."""

    time: Floats
    count: Floats

    @classmethod
    def of(cls, start: Floats, end: Floats) -> Steps:
        """The number of intervals [start, end) that hold at each instant."""
        use = np.isfinite(start) & np.isfinite(end) & (end > start)
        moments = np.r_[start[use], end[use]]
        change = np.r_[np.ones(int(use.sum())), -np.ones(int(use.sum()))]
        if not len(moments):
            return cls(np.zeros(1), np.zeros(1))
        time, inverse = np.unique(moments, return_inverse=True)
        return cls(time, np.cumsum(np.bincount(inverse, weights=change)))

    def integral(self, at: Floats) -> Floats:
        """Integral of the count up to each moment (count-seconds)."""
        area = np.r_[0.0, np.cumsum(self.count[:-1] * np.diff(self.time))]
        out: Floats = np.interp(at, self.time, area)
        return out

    def mean(self, start: Floats, end: Floats) -> Floats:
        """Mean count over each interval; NaN for an empty one."""
        length = end - start
        area = self.integral(end) - self.integral(start)
        return np.where(length > 0, area / np.where(length > 0, length, 1.0), np.nan)

    def within(self, start: float, end: float) -> tuple[Floats, Floats]:
        """Counts that hold in [start, end) and for how many seconds each."""
        inner = self.time[(self.time > start) & (self.time < end)]
        edges = np.r_[start, inner, end]
        at = np.searchsorted(self.time, edges[:-1], side="right") - 1
        count = np.where(at >= 0, self.count[np.maximum(at, 0)], 0.0)
        return count, np.diff(edges)


def share(seconds: Floats, where: NDArray[np.bool_]) -> float:
    """Share of time in which a condition holds."""
    total = float(seconds.sum())
    return float(seconds[where].sum()) / total if total > 0 else 0.0


def time_quantile(values: Floats, seconds: Floats, quantile: float) -> float:
    """Quantile of a value over time."""
    order = np.argsort(values)
    reached = np.cumsum(seconds[order]) / seconds.sum()
    return float(values[order][min(int(np.searchsorted(reached, quantile)), len(values) - 1)])
