"""Donors and draws: likeness first, never a lonely donor, nothing shorter than what was seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.workload.hotdeck import Level, draw_above, pick, survival


def test_pick_prefers_likeness_but_not_a_lonely_donor():
    keys = np.array([1, 1, 1, 2], dtype=np.uint64)
    everyone = np.zeros(4, dtype=np.uint64)
    levels = [
        Level(keys, np.array([10, 11, 12, 20]), np.array([1, 2, 3], dtype=np.uint64)),
        Level(everyone, np.array([10, 11, 12, 20]), np.zeros(3, dtype=np.uint64)),
    ]
    found = pick(levels, np.array([0.5, 0.0, 0.99]))
    assert found.tolist() == [11, 10, 20]
    assert pick(levels[:1], np.array([0.5, 0.0, 0.99])).tolist() == [11, 20, -1]


@given(
    st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=20),
    st.lists(st.tuples(st.floats(0, 12), st.floats(0, 0.999)), min_size=1, max_size=20),
)
def test_draws_exceed_the_censoring_point_or_are_it(visits, asked):
    times = np.array([t for t, _ in visits], dtype=float)
    cut = np.array([c for _, c in visits], dtype=bool)
    floor, luck = (np.array(column) for column in zip(*asked, strict=True))
    found = draw_above(times, cut, floor, luck)
    for value, least in zip(found, floor, strict=True):
        longer = [t for t, c in visits if t > least and not c]
        beyond = max((t for t, _ in visits), default=0.0)
        assert value in (*longer, max(least, beyond))
        assert value >= least


def test_without_cuts_draws_are_the_sample():
    times = np.array([3.0, 1.0, 2.0, 2.0])
    luck = (np.arange(400) + 0.5) / 400
    found = draw_above(times, np.zeros(4, bool), np.zeros(400), luck)
    assert np.unique(found, return_counts=True)[1].tolist() == [100, 200, 100]
    above = draw_above(times, np.zeros(4, bool), np.full(400, 1.0), luck)
    assert np.unique(above).tolist() == [2, 3]


def test_survival_is_the_product_of_those_that_did_not_end():
    """Ended at 1, cut at 2, ended at 2 (before the cut of equal time) and at 4."""
    times, cut = np.array([2.0, 4.0, 1.0, 2.0]), np.array([True, False, False, False])
    order, alive = survival(times, cut)
    assert order.tolist() == [2, 3, 0, 1]
    assert alive.tolist() == pytest.approx([3 / 4, 3 / 4 * 2 / 3, 3 / 4 * 2 / 3, 0.0])
