"""Interval arithmetic over many requests against the plain way, one request at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.workload import intervals

# on a grid of 10 ms, so that no overlap is near the tolerance
moment = st.integers(0, 60).map(lambda k: k / 100)
interval = st.tuples(st.integers(0, 3), moment, moment).map(lambda t: (t[0], *sorted(t[1:])))
many = st.lists(interval, max_size=25)
SIZE = 4


def columns(rows):
    keys = np.array([row[0] for row in rows], dtype=np.int64)
    starts, ends = (np.array([row[i] for row in rows], dtype=np.float64) for i in (1, 2))
    return keys, starts, ends


def covered(rows, key, at):
    return any(k == key and a < at < b for k, a, b in rows)


def test_running_max_by_key():
    key = np.array([0, 0, 0, 1, 1, 5])
    values = np.array([3.0, 1.0, 4.0, -2.0, -3.0, 0.0])
    assert intervals.running_max(key, values).tolist() == [3, 3, 4, -2, -2, 0]


@given(many)
def test_union_length(rows):
    found = intervals.union_length(*columns(rows), SIZE)
    grid = np.arange(0.005, 0.605, 0.01)
    for key in range(SIZE):
        brute = sum(0.01 for at in grid if covered(rows, key, at))
        assert found[key] == pytest.approx(brute, abs=1e-9)


@given(many)
def test_groups_do_not_overlap_and_hold_every_interval(rows):
    key, start, end = columns(rows)
    found = intervals.group(key, start, end)
    assert sorted(found.order.tolist()) == list(range(len(rows)))
    for place, row in enumerate(found.order):
        mine = found.group[place]
        assert found.key[mine] == key[row]
        assert found.start[mine] <= start[row] <= end[row] <= found.end[mine]
    for one, two in zip(range(len(found.key)), range(1, len(found.key)), strict=False):
        if found.key[one] == found.key[two]:
            assert found.start[two] >= found.end[one] - 1e-9
            assert found.place[two] == found.place[one] + 1
        else:
            assert found.place[two] == 0


@given(many, many, many)
def test_groups_and_pieces_of_gaps_fill_the_window_exactly(rows, one, two):
    groups = intervals.group(*columns(rows))
    start, end = np.zeros(SIZE), np.full(SIZE, 0.7)
    gaps = intervals.gaps(groups, start, end)
    pieces = intervals.cut(gaps, [columns(one), columns(two)])
    assert (pieces.length > 0).all()
    grid = np.arange(0.005, 0.705, 0.01)
    for key in range(SIZE):
        mine = gaps.key[pieces.gap] == key
        for label, wanted in ((-1, (False, False)), (0, (True, False)), (1, (None, True))):
            brute = sum(
                0.01
                for at in grid
                if not covered(rows, key, at)
                and covered(two, key, at) == wanted[1]
                and (wanted[0] is None or covered(one, key, at) == wanted[0])
            )
            got = pieces.length[mine & (pieces.label == label)].sum()
            assert got == pytest.approx(brute, abs=1e-9)


def test_a_window_without_end_has_no_last_gap():
    groups = intervals.group(np.array([0]), np.array([1.0]), np.array([2.0]))
    gaps = intervals.gaps(groups, np.array([0.0, 0.0]), np.array([np.nan, np.nan]))
    assert list(zip(gaps.key, gaps.start, gaps.end, strict=True)) == [(0, 0.0, 1.0)]


def test_millisecond_stamps_do_not_make_steps_parallel():
    groups = intervals.group(np.zeros(2, "i8"), np.array([0.0, 0.9995]), np.array([1.0, 2.0]))
    assert groups.place.tolist() == [0, 1]
