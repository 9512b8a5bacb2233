"""Time inside the simulator: whole ticks of 2^-42 s (a quarter of a picosecond).

Whole numbers add exactly, so a batch that advances in closed form ends at the very tick at which
the same steps end one by one, and two engines agree on which of two events came first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.trace.arrays import Floats

Ticks = npt.NDArray[np.int64]

PER_S: Final = 1 << 42
LONGEST_S: Final = float(1 << 19)
"""Six days: what a run may span. Four times that is just beyond a signed 64-bit number."""
NEVER: Final = (1 << 62) - 1
"""A time that does not come."""


def ticks(seconds: float) -> int:
    """Seconds to the nearest tick."""
    return int(np.rint(seconds * PER_S))


def ticks_of(seconds: Floats) -> Ticks:
    """`ticks` for an array."""
    return np.asarray(np.rint(np.asarray(seconds, dtype=np.float64) * PER_S), dtype=np.int64)


def seconds_of(values: Ticks, origin_s: float) -> Floats:
    """Ticks since the origin to seconds."""
    return np.asarray(values, dtype=np.float64) / PER_S + origin_s
