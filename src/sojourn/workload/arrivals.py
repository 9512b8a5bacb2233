"""How requests arrive: rate by window, burstiness, the peak window."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.trace.arrays import Floats
from sojourn.workload.profile_records import Arrivals, Window

SCALES_S: Final = {"1s": 1.0, "10s": 10.0, "60s": 60.0}
MAX_WINDOWS: Final = 1500
"""Windows listed in a profile: a day of minutes; longer recordings get longer windows."""
MIN_WINDOWS: Final = 30
"""Shorter recordings get shorter windows, down to a second: a few bars show no shape."""
SHORT_WIDTHS_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)


def describe(
    arrival_s: Floats, *, peak_window_s: float, buckets: npt.NDArray[np.str_] | None = None
) -> Arrivals:
    """Arrivals of a recording. `buckets` (aligned with `arrival_s`) adds the mix by window."""
    order = np.argsort(arrival_s, kind="stable")
    times = arrival_s[order]
    duration = float(times[-1] - times[0]) if times.size else 0.0
    names = None if buckets is None else buckets[order]
    return Arrivals(
        requests=int(times.size),
        duration_s=duration,
        rate_per_s=times.size / duration if duration > 0 else 0.0,
        peak=peak_window(times, peak_window_s),
        cv_interarrival=cv_interarrival(times),
        dispersion={name: dispersion(times, width) for name, width in SCALES_S.items()},
        windows=windows(times, peak_window_s, names),
    )


def cv_interarrival(times: Floats) -> float:
    """Standard deviation over mean of the gaps between sorted arrivals; 1 for Poisson.

    Wrong when: the rate drifts. The drift then counts as burstiness (compare `dispersion`).
    """
    gaps = np.diff(times)
    mean = float(gaps.mean()) if gaps.size else 0.0
    return float(gaps.std()) / mean if mean > 0 else math.nan


def dispersion(times: Floats, width_s: float, *, cut_window: bool = False) -> float:
    """Index of dispersion of counts: Var(N) / E(N), N arrivals per window of `width_s`.

    1 for Poisson at every width; growth with the width means drift or long bursts. Windows start
    at the first arrival; empty ones count; NaN below two windows.
    Source: Cox and Lewis, The Statistical Analysis of Series of Events, 1966.
    Wrong when: a window is shorter than the rest. The last one usually is, so it is left out; a
    steady stream cut in mid-window would look bursty otherwise. `cut_window` counts it all the
    same, for comparison with figures made that way.
    """
    if times.size == 0:
        return math.nan
    offset = times - times[0]
    whole = math.floor(offset[-1] / width_s)
    number = whole + 1 if cut_window else whole
    if number < 2:
        return math.nan
    index = (offset // width_s).astype(np.int64)
    counts = np.bincount(index[index < number], minlength=number)
    return float(counts.var() / counts.mean())


def peak_window(times: Floats, width_s: float) -> Window:
    """The window of `width_s` with most arrivals, wherever it starts (it slides).

    Wrong when: read as a rate to expect. The maximum over many windows is biased upwards by
    chance: for Poisson with m per window by about sqrt(2 m ln(windows)).
    """
    if times.size == 0:
        return Window(start_s=0.0, length_s=width_s, requests=0)
    duration = float(times[-1] - times[0])
    if duration <= width_s:
        return Window(start_s=float(times[0]), length_s=duration or width_s, requests=times.size)
    counts = np.searchsorted(times, times + width_s, side="left") - np.arange(times.size)
    best = int(np.argmax(counts))
    return Window(start_s=float(times[best]), length_s=width_s, requests=int(counts[best]))


def inside(times: Floats, window: Window) -> npt.NDArray[np.bool_]:
    """Which arrivals lie in a window of theirs (all, where it has counted all)."""
    if window.requests == times.size:
        return np.ones(times.size, dtype=np.bool_)
    found: npt.NDArray[np.bool_] = (times >= window.start_s) & (
        times < window.start_s + window.length_s
    )
    return found


def windows(
    times: Floats, width_s: float, names: npt.NDArray[np.str_] | None = None
) -> tuple[Window, ...]:
    """Windows side by side from the first arrival to the last; the last may be shorter. Of
    `width_s`, longer or shorter where that would give too many or too few."""
    if times.size == 0:
        return ()
    offset = times - times[0]
    duration = float(offset[-1])
    width = width_s * max(1, math.ceil(duration / width_s / MAX_WINDOWS))
    if 0 < duration < MIN_WINDOWS * width_s:
        fitting = [short for short in SHORT_WIDTHS_S if short * MIN_WINDOWS <= duration]
        width = min(width_s, max(fitting, default=SHORT_WIDTHS_S[0]))
    number = max(1, math.ceil(duration / width))
    index = np.minimum((offset // width).astype(np.int64), number - 1)
    vocabulary, codes = np.unique(
        np.full(times.size, "") if names is None else names, return_inverse=True
    )
    cells = np.bincount(index * len(vocabulary) + codes, minlength=number * len(vocabulary))
    grid = cells.reshape(number, len(vocabulary))
    return tuple(
        Window(
            start_s=float(times[0] + place * width),
            length_s=float(min(width, duration - place * width)) if duration else width,
            requests=int(row.sum()),
            buckets={}
            if names is None
            else {str(n): int(c) for n, c in zip(vocabulary, row, strict=True) if c},
        )
        for place, row in enumerate(grid)
    )
