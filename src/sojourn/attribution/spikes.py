"""Timeouts seen in durations: many that end at nearly the same value, and few beyond it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sojourn.attribution.records import TimeoutMass
from sojourn.trace.arrays import Floats, Ints

HALF_WIDTH: Final = 0.02
"""A timer fires within a few milliseconds of a value of seconds; 2% also holds the time of
tearing the work down, and is narrower than the spread of any served work."""

NEIGHBOUR: Final = 0.10
"""The density to compare with is that of durations up to 10% away on either side."""

MIN_COUNT: Final = 10
"""Fewer equal durations happen by chance: where two are expected, ten come once in 20,000 looks,
and every duration is a place to look at."""

MIN_RATIO: Final = 5.0
"""Density in the spike over the neighbours'. Unimodal latency distributions (log-normal with a
coefficient of variation of 0.2 and more) stay below 2."""

MIN_SHARE_FAILED: Final = 0.1
"""Of failures: a tenth must end there for a timer to be among the causes."""

MIN_SHARE_SERVED: Final = 0.005
MAX_BEYOND: Final = 0.02
MIN_OVER_MEDIAN: Final = 1.5
"""Of visits that did not fail: the spike stands at the upper end (at most 2% beyond it) and well
above the median, else it is a service of constant length and no timer."""

ROUND: Final = (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 7.5, 8, 9, 10)


def find(
    durations_s: Floats, where: str, *, failed: bool, served_s: Floats | None = None
) -> TimeoutMass | None:
    """The strongest spike, or None. `failed`: the durations are of failed work only; then
    `served_s` are those of the work that succeeded, and hardly any may last longer: a timer
    that cuts at T lets nothing through beyond T (an error that comes at once is none)."""
    values = np.sort(durations_s[np.isfinite(durations_s) & (durations_s > 0)])
    if len(values) < MIN_COUNT:
        return None
    low = np.searchsorted(values, values * (1 - HALF_WIDTH), side="left")
    high = np.searchsorted(values, values * (1 + HALF_WIDTH), side="right")
    counts: Ints = high - low
    for at in np.argsort(-counts, kind="stable")[:1] if failed else _from_the_top(values, counts):
        inside = values[low[at] : high[at]]
        passed = served_s is not None and len(served_s) > 0
        if passed and float(np.mean(served_s > inside[-1] * (1 + HALF_WIDTH))) > MAX_BEYOND:
            continue
        if _is_spike(values, inside, failed=failed):
            return TimeoutMass(
                value_s=round_value(float(np.median(inside))),
                share=len(inside) / len(values),
                count=len(inside),
                where=where,
            )
    return None


def _from_the_top(values: Floats, counts: Ints) -> Ints:
    """Fullest windows among the durations at the upper end, where a timer cuts."""
    first = max(0, math.floor(len(values) * (1 - MAX_BEYOND)) - 1)
    top = np.arange(first, len(values))
    best: Ints = top[np.argsort(-counts[top], kind="stable")][:1]
    return best


def _is_spike(values: Floats, inside: Floats, *, failed: bool) -> bool:
    count, total = len(inside), len(values)
    centre = float(np.median(inside))
    least = MIN_SHARE_FAILED if failed else MIN_SHARE_SERVED
    if count < MIN_COUNT or count / total < least:
        return False
    if not failed:
        beyond = float(np.mean(values > centre * (1 + HALF_WIDTH)))
        if beyond > MAX_BEYOND or centre < MIN_OVER_MEDIAN * float(np.median(values)):
            return False
    wide = np.searchsorted(values, [centre * (1 - NEIGHBOUR), centre * (1 + NEIGHBOUR)])
    narrow = np.searchsorted(
        values, [centre * (1 - HALF_WIDTH), centre * (1 + HALF_WIDTH)], side="right"
    )
    beside = int(wide[1] - wide[0]) - int(narrow[1] - narrow[0])
    density = count / (2 * HALF_WIDTH)
    return density >= MIN_RATIO * max(beside, 1) / (2 * (NEIGHBOUR - HALF_WIDTH))


def round_value(seconds: float) -> float:
    """The round number people would have set, where the duration lies within 2% of one."""
    scale = 10.0 ** math.floor(math.log10(seconds))
    nearest = min(ROUND, key=lambda r: abs(r * scale - seconds))
    return nearest * scale if abs(nearest * scale / seconds - 1) <= HALF_WIDTH else seconds
