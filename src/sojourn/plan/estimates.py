"""Estimates with their uncertainty: quantiles, shares, and paired changes of both."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.attribution import euler
from sojourn.interval import Interval
from sojourn.trace.arrays import Floats

RESAMPLES: Final = 200
"""Bootstrap resamples: the 5% and 95% bounds then rest on ten samples each."""
MAX_DRAWS: Final = 5_000_000
"""Upper bound of resamples x requests, so that a large run costs seconds, not minutes."""


def quantile(values: Floats, q: float) -> float:
    """The q-quantile without the NaN (linear between order statistics), NaN where none is left."""
    known = values[~np.isnan(values)]
    return float(np.quantile(known, q)) if known.size else math.nan


def quantile_interval(values: Floats, q: float, confidence: float = 0.9) -> Interval | None:
    """Distribution-free interval of a quantile (`attribution.euler`); NaN are left out, None
    without samples."""
    known = np.sort(values[~np.isnan(values)])
    return euler.quantile_interval(known, q, confidence) if known.size else None


def share_interval(count: int, total: int, confidence: float = 0.9) -> Interval:
    """Wilson interval of a share `count/total`.

    With z the normal quantile: centre (p + z^2/2n)/(1 + z^2/n), half-width
    z sqrt(p(1-p)/n + z^2/4n^2)/(1 + z^2/n). Source: Wilson 1927, JASA 22.
    Wrong when: the trials depend on each other (misses come in bursts): too narrow.
    """
    if total <= 0:
        return Interval(low=0.0, mid=0.0, high=1.0, confidence=confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = count / total
    scale = 1 + z * z / total
    centre = (p + z * z / (2 * total)) / scale
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / scale
    low, high = max(0.0, min(centre - half, p)), min(1.0, max(centre + half, p))
    return Interval(low=low, mid=p, high=high, confidence=confidence)


def mean_interval(intervals: list[Interval]) -> Interval:
    """Bounds averaged over replications of one scenario.

    Replications share their arrivals, so pooling them would claim more requests than there are.
    """
    low, mid, high = (
        float(np.mean([getattr(item, bound) for item in intervals]))
        for bound in ("low", "mid", "high")
    )
    return Interval(
        low=min(low, mid), mid=mid, high=max(high, mid), confidence=intervals[0].confidence
    )


def block_indices(n: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows of circular-block bootstrap resamples of n requests in arrival order.

    Blocks of ceil(sqrt(n)) neighbours keep the dependence inside a burst.
    Source: Politis & Romano 1992; block length of order n^(1/3) to n^(1/2).
    """
    length = max(1, math.ceil(math.sqrt(n)))
    blocks = math.ceil(n / length)
    resamples = int(np.clip(MAX_DRAWS // max(n, 1), 40, RESAMPLES))
    starts = np.random.default_rng(seed).integers(0, n, size=(resamples, blocks))
    rows = (starts[:, :, None] + np.arange(length)) % n
    return rows.reshape(resamples, blocks * length)[:, :n].astype(np.int64)


def _row_quantiles(values: Floats, q: float) -> Floats:
    """The q-quantile of each row without its NaN (which sort to the end)."""
    ordered = np.sort(values, axis=1)
    known = (~np.isnan(ordered)).sum(axis=1)
    position = q * np.maximum(known - 1, 0)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    rows = np.arange(len(ordered))
    part = position - low
    found: Floats = ordered[rows, low] * (1 - part) + ordered[rows, high] * part
    return found


def quantile_change(
    before: Floats, after: Floats, q: float, *, seed: int = 0
) -> tuple[float, Floats]:
    """After minus before of a quantile: the figure, and its bootstrap samples.

    Both runs hold the same requests in the same order (common random numbers), so one resample
    of requests serves both and what they share cancels.
    """
    point = quantile(after, q) - quantile(before, q)
    rows = block_indices(len(before), seed)
    samples = _row_quantiles(after[rows], q) - _row_quantiles(before[rows], q)
    return point, samples[~np.isnan(samples)]


def mean_change(before: Floats, after: Floats, *, seed: int = 0) -> tuple[float, Floats]:
    """After minus before of a mean over the requests known in both; and its bootstrap samples."""
    known = ~(np.isnan(before) | np.isnan(after))
    if not known.any():
        return math.nan, np.empty(0)
    gap = after[known] - before[known]
    return float(gap.mean()), gap[block_indices(len(gap), seed)].mean(axis=1)


def interval_of(points: list[float], samples: list[Floats], confidence: float) -> Interval | None:
    """Mean of the replications' figures, with the bootstrap range over all of them."""
    known = [point for point in points if not math.isnan(point)]
    pooled = np.concatenate(samples) if samples else np.empty(0)
    if not known or not pooled.size:
        return None
    mid = float(np.mean(known))
    tail = (1 - confidence) / 2
    low, high = (float(v) for v in np.quantile(pooled, [tail, 1 - tail]))
    return Interval(low=min(low, mid), mid=mid, high=max(high, mid), confidence=confidence)
