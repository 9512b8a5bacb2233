"""A distribution of times that are known to lie between two bounds only.

An engine looks into its input between steps: a call found there came at some time since it looked
last. So its time in the front end is not waiting for the step, and not without it either: it lies
in an interval, and the distribution behind many such intervals is what one wants.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.trace.arrays import Floats

ROUNDS: Final = 2000
SETTLED: Final = 1e-7
FINEST_S: Final = 1e-4
"""Grid on which the distribution is told: a tenth of a millisecond, or coarser so that there are
at most `MOST_PLACES`."""
MOST_PLACES: Final = 2000


def distribution(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Places (s, >= 0) and shares of the distribution behind times in (low, high].

    Non-parametric maximum likelihood by self-consistency (EM).
    Source: Turnbull, The empirical distribution function with arbitrarily grouped, censored and
    truncated data, JRSS B 38 (1976). Bounds below 0 count as 0.
    Wrong when: a bound depends on the time itself (a front end that the engine waits for).

    Raises:
        ValueError: no interval, or one whose end is before its begin.
    """
    low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    if not len(low) or (low > high).any():
        raise ValueError("intervals need a begin that is not after the end, and there must be one")
    step = max(FINEST_S, float(high.max()) / MOST_PLACES)
    first = np.floor(low / step + 0.5).astype(np.int64)
    last = np.maximum(np.floor(high / step - 0.5).astype(np.int64), first)  # centres inside
    count = int(last.max()) + 1
    shares = np.full(count, 1.0 / count)
    for _ in range(ROUNDS):
        below = np.concatenate([[0.0], np.cumsum(shares)])
        weight = 1.0 / np.maximum(below[last + 1] - below[first], 1e-300)
        edges = np.bincount(first, weight, count + 1) - np.bincount(last + 1, weight, count + 1)
        new = shares * np.cumsum(edges)[:count] / len(low)
        moved = float(np.abs(new - shares).sum())
        shares = new
        if moved < SETTLED:
            break
    places = np.asarray((np.arange(count) + 0.5) * step, dtype=np.float64)
    return places, np.asarray(shares / shares.sum(), dtype=np.float64)


def expected(low: Floats, high: Floats, places: Floats, shares: Floats) -> Floats:
    """Mean of each time, given its interval and the distribution; the interval's middle where the
    distribution has nothing in it."""
    low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    below = np.concatenate([[0.0], np.cumsum(shares)])
    moment = np.concatenate([[0.0], np.cumsum(shares * places)])
    first = np.searchsorted(places, low, side="left")
    last = np.maximum(np.searchsorted(places, high, side="right"), first)
    mass = below[last] - below[first]
    inside = (moment[last] - moment[first]) / np.maximum(mass, 1e-300)
    return np.where(mass > 0, inside, (low + high) / 2)


def quantiles(places: Floats, shares: Floats, count: int) -> Floats:
    """`count` equally likely times that stand for the distribution."""
    at = (np.arange(count) + 0.5) / count
    return places[np.minimum(np.searchsorted(np.cumsum(shares), at), len(places) - 1)]
