"""The knee of a yes that turns into a no, and its interval over seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.plan.load_search import TOLERANCE, Bracket, Limits, change, knee, knees, over_seeds

LIMITS = Limits(0.01, 1000.0)


@given(limit=st.floats(0.02, 900.0), start=st.floats(0.02, 900.0))
def test_the_knee_is_found_to_one_per_cent_from_anywhere(limit, start):
    asked = []

    def held(load):
        asked.append(load)
        return load <= limit

    low, high = knee(held, start, LIMITS)
    assert low <= limit < high
    assert high <= low * (1 + TOLERANCE) * 1.0001
    assert len(asked) == len(set(asked)), "no load is run twice"
    assert len(asked) < 25


def test_an_end_of_the_range_is_said():
    assert knee(lambda _: True, 1.0, LIMITS) == (1000.0, 1000.0)
    assert knee(lambda _: False, 1.0, LIMITS) == (0.01, 0.01)
    assert knee(lambda _: True, 1.0, LIMITS).open
    assert not Bracket(1.0, 1.01).open


def test_further_seeds_start_where_the_first_ended():
    limit = {0: 3.0, 1: 3.1, 2: 2.8}
    asked = dict.fromkeys(limit, 0)

    def held(load, seed):
        asked[seed] += 1
        return load <= limit[seed]

    found = knees(held, (0, 1, 2), 1.0, LIMITS)
    for seed, bracket in enumerate(found):
        assert bracket.low <= limit[seed] < bracket.high
    assert max(asked[1], asked[2]) <= 7
    assert len(knees(lambda load, _: True, (0, 1), 1.0, LIMITS)) == 1


def test_the_interval_holds_the_seeds_and_the_resolution():
    found = over_seeds([Bracket(b, b * 1.01) for b in (1.0, 1.05, 0.95, 1.02)], 0.9)
    assert found.mid == pytest.approx(1.004, abs=0.003)
    # standard deviation of the logarithms 0.0421, t(3, 0.95) = 2.353
    assert found.low == pytest.approx(1.0043 * np.exp(-0.0421 * 2.353), rel=2e-3)
    assert found.high == pytest.approx(1.0043 * np.exp(0.0421 * 2.353), rel=2e-3)
    alone = over_seeds([Bracket(2.0, 2.02)], 0.9)
    assert (alone.low, alone.high) == pytest.approx((2.0, 2.02))
    same = over_seeds([Bracket(2.0, 2.02)] * 3, 0.9)
    assert same.high == pytest.approx(2.02)


def test_a_change_is_paired_seed_by_seed():
    """Seeds that differ by half but all gain a tenth: the gain is known, the level is not."""
    before = [Bracket(b, b * 1.005) for b in (1.0, 1.5, 0.8)]
    after = [Bracket(1.1 * b.low, 1.1 * b.high) for b in before]
    gained = change(before, after, 0.9)
    assert gained.mid == pytest.approx(0.1)
    assert gained.width < 0.02
    assert change(before, before, 0.9).contains(0.0)
