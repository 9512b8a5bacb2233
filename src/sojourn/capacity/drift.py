"""Drift: a station whose work takes longer at some hours than at others, whatever our load."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.survival import kaplan_meier
from sojourn.trace.arrays import Bools, Floats

MIN_VISITS: Final = 40
"""Visits per window: the standard error of a median's logarithm is then about a fifth of the
spread of the logarithms."""
MAX_WINDOWS: Final = 24
SIGNIFICANCE: Final = 1e-3
"""Chance of a drift being seen where there is none; several stations are tested at once."""

Levels = tuple[tuple[float, float], ...]


def levels(at_s: Floats, service_s: Floats, cut: Bools) -> Levels:
    """Levels of a station's service times: (from this time on, factor); empty without drift.

    The visits (sorted by `at_s`) are cut into windows of equal count; a window's level is its
    median over the median of all, both by Kaplan and Meier, since visits cut by their caller are
    longer than seen. Levels are kept only if the windows differ by more than chance: the sum of
    squared standardised log medians against chi-square (k - 1), with the asymptotic standard
    error 1.2533 s / sqrt(n) of a median, s the standard deviation of the logarithms. Source:
    Kendall and Stuart, vol. 1, standard error of the median; Cochran's Q for heterogeneity.
    Wrong when: times grow because *we* load the station and its waits are not told apart (then
    the level is a wait and would not fall with fewer visits).
    """
    windows = min(MAX_WINDOWS, len(at_s) // MIN_VISITS)
    whole = kaplan_meier(service_s, cut)
    if windows < 2 or whole is None:
        return ()
    parts = np.array_split(np.arange(len(at_s)), windows)
    centre = whole.quantile(0.5)
    medians = np.array([_median(service_s[part], cut[part]) for part in parts])
    spread = _log_spread(service_s[~cut])
    if centre <= 0 or spread <= 0 or (medians <= 0).any():
        return ()
    from scipy.special import chdtri  # noqa: PLC0415  (scipy.stats takes half a second to load)

    logs = np.log(medians / centre)
    error = 1.2533 * spread / np.sqrt([len(part) for part in parts])
    weights = 1 / error**2
    mean = float(np.average(logs, weights=weights))
    heterogeneity = float((((logs - mean) / error) ** 2).sum())
    if heterogeneity < chdtri(windows - 1, SIGNIFICANCE):
        return ()
    starts = [float(at_s[part[0]]) for part in parts]
    return tuple(zip(starts, np.exp(logs).tolist(), strict=True))


def _median(service_s: Floats, cut: Bools) -> float:
    known = kaplan_meier(service_s, cut)
    return float(np.median(service_s)) if known is None else known.quantile(0.5)


def _log_spread(service_s: Floats) -> float:
    positive = service_s[service_s > 0]
    return float(np.log(positive).std()) if positive.size > 1 else 0.0


def level_at(drift: Levels, at_s: float) -> float:
    """The level at a time: that of the last window begun; 1 without drift."""
    if not drift:
        return 1.0
    index = int(np.searchsorted([start for start, _level in drift], at_s, side="right")) - 1
    return drift[max(index, 0)][1]


def level_of(drift: Levels, at_s: Floats) -> Floats:
    """`level_at` for many times."""
    if not drift:
        return np.ones(len(at_s))
    index = np.searchsorted([start for start, _level in drift], at_s, side="right") - 1
    factors = np.array([factor for _start, factor in drift])
    level: Floats = factors[np.maximum(index, 0)]
    return level
