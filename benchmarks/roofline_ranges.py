"""80% ranges of real / told by class, from rows left out of a fit, and whether they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from roofline_rows import Measured

from sojourn.capacity import catalogue
from sojourn.capacity.roofline_families import family_of
from sojourn.capacity.roofline_spread import LARGE_BATCH, kind_of, place_of

Floats = npt.NDArray[np.float64]
Key = tuple[str, str, str]
TAILS = (0.1, 0.9)
FEWEST = 30
"""Rows a class needs for a range of its own."""


def key_of(row: Measured) -> Key:
    """Kind of model, kind of card, and regime of a row."""
    place = place_of(family_of(catalogue.gpu(row.gpu)))
    if row.kind in ("ttft", "prefill"):
        return "any", place, "prefill"
    kind = kind_of(catalogue.model(row.model))
    return kind, place, "small" if row.batch < LARGE_BATCH else "large"


def weights(rows: Sequence[Measured]) -> Floats:
    """A deployment counts as the root of its rows: neither rows nor deployments rule alone."""
    count: dict[tuple[str, str, str], int] = defaultdict(int)
    for r in rows:
        count[r.set, r.shape, r.kind] += 1
    return np.array([count[r.set, r.shape, r.kind] ** -0.5 for r in rows])


def quantiles(values: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted quantiles at `TAILS`."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    low, high = (float(np.exp(np.interp(q, share, values[order]))) for q in TAILS)
    return low, high


def table(rows: Sequence[Measured], log_real: Floats) -> dict[Key, tuple[float, float]]:
    """A range for each class that has rows enough."""
    keys = [key_of(r) for r in rows]
    weight = weights(rows)
    found = {}
    for key in sorted(set(keys)):
        own = np.array([k == key for k in keys])
        if own.sum() >= FEWEST:
            found[key] = quantiles(log_real[own], weight[own])
    return found


def report(rows: Sequence[Measured], log_real: Floats, folds: Iterable[int]) -> None:
    """Ranges from all held-out rows, and coverage of each fold by the others' ranges."""
    fold = np.array(list(folds))
    keys = [key_of(r) for r in rows]
    held: dict[Key, list[bool]] = defaultdict(list)
    for number in sorted(set(fold.tolist())):
        other = np.flatnonzero(fold != number)
        ranges = table([rows[i] for i in other], log_real[other])
        for i in np.flatnonzero(fold == number):
            if keys[i] in ranges:
                low, high = ranges[keys[i]]
                held[keys[i]].append(bool(low <= np.exp(log_real[i]) <= high))
    print("\n80% ranges of real / told; rows of a fold within the range of the other folds")
    for key, (low, high) in table(rows, log_real).items():
        inside = held[key]
        told = f"coverage {np.mean(inside):.0%}" if inside else "in one fold only"
        print(f"  {'|'.join(key):24} ({low:.2f}, {high:.2f})  n={len(inside):4} {told}")
    for regimes in (("small", "large"), ("prefill",)):
        inside = [x for k, v in held.items() if k[2] in regimes for x in v]
        print(f"  all {'/'.join(regimes):20} n={len(inside):4} coverage {np.mean(inside):.0%}")
