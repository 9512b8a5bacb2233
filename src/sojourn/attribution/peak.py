"""When it was busy and when it was calm: the two windows that a comparison needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sojourn.attribution.infer import Floats

WINDOWS_MIN: Final = 3
"""A recording shorter than three windows is cut into three: one of them cannot be the peak and
the calm at once."""

CLEARLY_BUSIER: Final = 1.2
"""A peak rate within 20% of the calm one is no peak: counts of 100 requests vary as much."""


@dataclass(frozen=True)
class Windows:
    """`peak_s` = [start, end) with the most arrivals; masks over the requests given.

    `calm` are requests of the windows with at most the median count. Where the load does not
    vary (`varies` False), calm and peak say the same and nothing follows from comparing them.
    """

    peak_s: tuple[float, float]
    peak: NDArray[np.bool_]
    calm: NDArray[np.bool_]
    varies: bool


def windows(arrival_s: Floats, window_s: float) -> Windows:
    """The busiest window of length `window_s` (sliding) and the calm ones (tiled)."""
    count = len(arrival_s)
    if count == 0:
        none = np.zeros(0, dtype=np.bool_)
        return Windows((0.0, 0.0), none, none, False)
    ordered = np.sort(arrival_s)
    start, duration = float(ordered[0]), float(ordered[-1] - ordered[0])
    if duration <= 0:
        every = np.ones(count, dtype=np.bool_)
        return Windows((start, start), every, every, False)
    length = min(window_s, duration / WINDOWS_MIN)
    inside = np.searchsorted(ordered, ordered + length, side="left") - np.arange(count)
    begin = float(ordered[int(inside.argmax())])
    peak = (arrival_s >= begin) & (arrival_s < begin + length)

    tile = np.minimum((arrival_s - start) // length, duration // length).astype(np.int64)
    whole = max(int(duration // length), 1)
    counts = np.bincount(tile, minlength=whole)
    quiet = counts <= np.median(counts[:whole])
    calm = quiet[tile] & ~peak & (tile < whole)
    if not calm.any():
        calm = ~peak if (~peak).any() else peak
    rate_calm = float(np.mean(counts[:whole][quiet[:whole]]))
    return Windows(
        (begin, begin + length), peak, calm, int(inside.max()) > CLEARLY_BUSIER * rate_calm
    )
