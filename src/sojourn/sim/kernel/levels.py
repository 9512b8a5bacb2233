"""Times that a level multiplies: drift of a station by time, of a front end by load."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import factors, tables
from sojourn.sim.kernel.compiled import Number, World, compiled


@compiled
def at_level(
    w: World, time: Number, starts: Number, count: Number, factor: Number, now: Number
) -> Number:
    """`time` (ticks) times the factor of the last level begun at `now`, the first one's before;
    to the nearest tick. `starts` is a place in `tables`, `factor` one in `factors`."""
    if count == 0:
        return np.int64(time)
    low, high = np.int64(0), np.int64(count)
    begins = tables(w)
    while high - low > 1:
        middle = (low + high) >> 1
        if begins[starts + middle] <= now:
            low = middle
        else:
            high = middle
    return np.int64(np.rint(time * factors(w)[factor + low]))
