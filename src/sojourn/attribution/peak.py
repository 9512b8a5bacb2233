"""When it was busy and when it was calm: the two windows that a comparison needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sojourn.attribution.occupancy import Steps
from sojourn.trace.arrays import Floats

WINDOWS_MIN: Final = 3
"""A recording shorter than three windows is cut into three: one of them cannot be the peak and
the calm at once."""

TILES: Final = 4
"""Tiles per window for the calm: a quarter still holds many requests, and fits between peaks."""

CALM_SHARE: Final = 1 / 3
"""The calmest third of the tiles is called calm."""

CLEARLY_BUSIER: Final = 1.5
"""The peak must hold half as many requests again as the calm: counts of a hundred vary by a fifth
without any cause."""


@dataclass(frozen=True)
class Windows:
    """`peak_s` = [start, end) with the most requests in the system; masks by arrival over the
    requests given. Where the load does not vary (`varies` False) calm and peak say the same and
    nothing follows from comparing them.
    """

    peak_s: tuple[float, float]
    peak: NDArray[np.bool_]
    calm: NDArray[np.bool_]
    varies: bool


def windows(arrival_s: Floats, end_s: Floats, *, window_s: float) -> Windows:
    """The busiest window of length `window_s` (sliding) and the calm tiles.

    Busy is measured by requests in the system, L = lambda W: a backlog makes a moment busy as
    much as arrivals do, and on a plateau of arrivals it shows where the trouble is. A request
    without an end counts from its arrival for a window.
    """
    count = len(arrival_s)
    none = np.zeros(count, dtype=np.bool_)
    if count == 0:
        return Windows((0.0, 0.0), none, none, False)
    start, last = float(arrival_s.min()), float(arrival_s.max())
    duration = last - start
    if duration <= 0:
        return Windows((start, start), ~none, ~none, False)
    length = min(window_s, duration / WINDOWS_MIN)
    present = Steps.of(arrival_s, np.where(np.isfinite(end_s), end_s, arrival_s + length))
    starts = np.unique(np.clip(arrival_s, start, last - length))
    load = present.mean(starts, starts + length)
    begin = float(starts[int(load.argmax())])
    peak = (arrival_s >= begin) & (arrival_s < begin + length)

    edges = np.linspace(start, last, max(round(TILES * duration / length), 2) + 1)
    tiles = present.mean(edges[:-1], edges[1:])
    quiet = tiles <= np.quantile(tiles, CALM_SHARE)
    at = np.clip(np.searchsorted(edges, arrival_s, side="right") - 1, 0, len(tiles) - 1)
    calm = quiet[at] & ~peak
    varies = bool(calm.any()) and float(load.max()) >= CLEARLY_BUSIER * float(tiles[quiet].mean())
    if not calm.any():
        calm = ~peak if (~peak).any() else peak
    return Windows((begin, begin + length), peak, calm, varies)
