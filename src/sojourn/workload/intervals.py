"""Intervals of many requests at once: what runs together, what lies between, and inside what.

Everything here works on flat arrays with a `key` (the request) and is exact: no time is scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.trace.arrays import Floats, Ints

TOLERANCE_S: Final = 1e-3
"""Steps that overlap by less follow each other: many exports have millisecond stamps."""


@dataclass(frozen=True)
class Groups:
    """Intervals put together where they overlap. Rows sorted by (key, start).

    `order` sorts the input into rows; `group` is the group of a row, counted through; per group:
    `key`, `start`, `end` and `place` (0, 1, ... within its key).
    """

    order: Ints
    group: Ints
    key: Ints
    start: Floats
    end: Floats
    place: Ints


@dataclass(frozen=True)
class Gaps:
    """Stretches of a key's window that no group covers. `place`: before the group of that place."""

    key: Ints
    place: Ints
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Pieces:
    """Gaps cut by what covers them: `label` is the place in the list of labels, -1 for nothing."""

    gap: Ints
    label: Ints
    length: Floats


def running_max(key: Ints, values: Floats) -> Floats:
    """Largest value so far within each run of equal keys (keys ascend)."""
    if values.size == 0:
        return values
    ordered = np.sort(values)
    rank = np.searchsorted(ordered, values)
    top: Floats = ordered[np.maximum.accumulate(key * values.size + rank) % values.size]
    return top


def group(key: Ints, start: Floats, end: Floats) -> Groups:
    """Put intervals of a key together that overlap, directly or through others."""
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    reach = running_max(key, end)
    opens = np.ones(key.size, dtype=np.bool_)
    opens[1:] = (key[1:] != key[:-1]) | (start[1:] >= reach[:-1] - TOLERANCE_S)
    first = np.flatnonzero(opens)
    last = np.append(first[1:], key.size) - 1 if key.size else first
    keys = key[first]
    runs = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if keys.size else first
    place = np.arange(keys.size) - np.repeat(runs, np.diff(np.append(runs, keys.size)))
    return Groups(order, np.cumsum(opens) - 1, keys, start[first], reach[last], place)


def gaps(groups: Groups, window_start: Floats, window_end: Floats) -> Gaps:
    """What lies before, between and after the groups inside each key's window.

    Keys index the two window arrays; a key without a group has its whole window as one gap; a
    window without an end (NaN) has nothing after its last group.
    """
    size = window_start.size
    number = np.bincount(groups.key, minlength=size)
    first = groups.place == 0
    before = np.where(first, window_start[groups.key], np.append(np.nan, groups.end[:-1]))
    last_end = window_start.copy()
    np.maximum.at(last_end, groups.key, groups.end)
    everyone = np.arange(size)
    key = np.concatenate([groups.key, everyone])
    place = np.concatenate([groups.place, number])
    start = np.concatenate([before, last_end])
    end = np.concatenate([groups.start, window_end])
    real = end > start
    order = np.lexsort((place[real], key[real]))
    return Gaps(*(column[real][order] for column in (key, place, start, end)))


def cut(found: Gaps, covers: list[tuple[Ints, Floats, Floats]]) -> Pieces:
    """Cut gaps by labelled intervals `(key, start, end)`; where several cover, the last wins.

    The pieces of a gap with the same label are joined, in the order of their first.
    """
    number = found.key.size
    keys = [found.key, found.key, *(c[0] for c in covers for _ in (0, 1))]
    times = [found.start, found.end, *(c[side] for c in covers for side in (1, 2))]
    sizes = [part.size for part in keys]
    key, time = np.concatenate(keys), np.concatenate(times)
    kind = np.repeat(np.arange(len(keys)), sizes)
    opened = np.full(key.size, -1, dtype=np.int64)
    opened[:number] = np.arange(number)
    # At one instant what ends goes before what starts: adjacent gaps must not count twice.
    order = np.lexsort((kind % 2 == 0, time, key))
    key, time, kind = key[order], time[order], kind[order]
    current = np.maximum.accumulate(opened[order])
    step = np.where(kind % 2 == 0, 1, -1)
    inside = np.cumsum(np.where(kind < 2, step, 0)) > 0
    label = np.full(key.size, -1, dtype=np.int64)
    for place in range(len(covers)):
        label[np.cumsum(np.where(kind // 2 == place + 1, step, 0)) > 0] = place
    length = np.diff(time, append=time[-1:])
    taken = inside & (length > 0)
    cell = current[taken] * (len(covers) + 1) + label[taken] + 1
    cells, first, member = np.unique(cell, return_index=True, return_inverse=True)
    total = np.bincount(member, length[taken], minlength=cells.size)
    by_time = np.lexsort((first, cells // (len(covers) + 1)))
    cells = cells[by_time]
    return Pieces(
        cells // (len(covers) + 1), cells % (len(covers) + 1) - 1, total[by_time].astype(np.float64)
    )


def union_length(key: Ints, start: Floats, end: Floats, size: int) -> Floats:
    """Time covered by at least one interval, per key in 0..size-1."""
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    reach = running_max(key, end)
    before = np.append(-np.inf, reach[:-1]) if key.size else reach
    if key.size:
        before[np.concatenate([[True], key[1:] != key[:-1]])] = -np.inf
    fresh = np.clip(end - np.maximum(start, before), 0.0, None)
    return np.bincount(key, fresh, minlength=size).astype(np.float64)
