"""Tails: a quantile with its uncertainty, and its split over the stages.

Euler allocation: the share of stage i in the quantile q of a sum is E[stage_i | sum = q]; the
shares sum to q. Source: Tasche, "Capital allocation to business units and sub-portfolios: the
Euler principle" (2007). Estimated by a kernel over ranks near the quantile's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sojourn.attribution.records import Tail
from sojourn.interval import Interval
from sojourn.trace.arrays import Floats, Ints

NEAR_MIN: Final = 10
"""Requests a conditional mean is taken over, at least: below that one odd request decides it."""


def quantile_interval(ordered: Floats, quantile: float, confidence: float) -> Interval:
    """Quantile of a sample sorted ascending, with the distribution-free interval of order
    statistics: rank r covers with P(r_low <= Binomial(n, p) < r_high).

    Source: Hahn and Meeker, Statistical Intervals, section 5.2.
    Wrong when: neighbours in time share a cause (a burst): the true interval is then wider.
    """
    from scipy.special import bdtr  # noqa: PLC0415  keeps `import sojourn` light

    count = len(ordered)
    mid = float(np.quantile(ordered, quantile))
    spread = 6 * math.sqrt(count * quantile * (1 - quantile)) + 2
    first = max(0, math.floor(count * quantile - spread))
    ranks = np.arange(first, min(count, math.ceil(count * quantile + spread)) + 1)
    below = bdtr(ranks.astype(float), count, quantile)
    tail = (1 - confidence) / 2
    low = int(ranks[min(int(np.searchsorted(below, tail)), len(ranks) - 1)])
    high = int(ranks[min(int(np.searchsorted(below, 1 - tail)), len(ranks) - 1)])
    low_value = float(ordered[min(max(low - 1, 0), count - 1)])
    high_value = float(ordered[min(high, count - 1)])
    return Interval(
        low=min(low_value, mid), mid=mid, high=max(high_value, mid), confidence=confidence
    )


def near(count: int, quantile: float) -> tuple[Ints, Floats]:
    """Ranks near the quantile's own and their weights (triangular, sum 1).

    As many ranks as the quantile's rank is uncertain by: 2 x 1.645 x sqrt(n p (1 - p)), the 90%
    range of a binomial, and no fewer than `NEAR_MIN`.
    """
    centre = quantile * (count - 1)
    width = max(NEAR_MIN, math.ceil(2 * 1.645 * math.sqrt(count * quantile * (1 - quantile))))
    first = max(0, min(math.ceil(centre - width / 2), count - width))
    ranks = np.arange(first, min(count, first + width))
    reach = float(np.abs(ranks - centre).max()) + 1.0
    weights = 1.0 - np.abs(ranks - centre) / reach
    return ranks, weights / weights.sum()


class Sample:
    """Requests of one bucket, ordered by their total time."""

    def __init__(self, total_s: Floats, stages: Floats) -> None:
        """`total_s` (n,) finite, `stages` (n, stages) seconds."""
        self.order: NDArray[np.int64] = np.argsort(total_s, kind="stable")
        self.total = total_s[self.order]
        self.stages = stages[self.order]

    def __len__(self) -> int:
        return len(self.total)

    def mean_near(self, values: Floats, quantile: float) -> Floats:
        """Mean of per-request values (in the original order) over requests near a quantile."""
        ranks, weights = near(len(self), quantile)
        out: Floats = np.asarray(weights @ values[self.order[ranks]], dtype=np.float64)
        return out

    def tail(
        self, bucket: str, quantile: float, *, confidence: float, names: Sequence[str]
    ) -> Tail:
        """The quantile split over the stages; the parts sum to it exactly."""
        interval = quantile_interval(self.total, quantile, confidence)
        ranks, weights = near(len(self), quantile)
        parts = weights @ self.stages[ranks]
        whole = float(parts.sum())
        parts = parts * (interval.mid / whole) if whole > 0 else parts
        return Tail(
            bucket=bucket,
            percentile=quantile,
            requests=len(self),
            near=len(ranks),
            e2e_s=interval,
            stages={name: float(part) for name, part in zip(names, parts, strict=True)},
        )
