"""Draws depend on their key alone and are spread evenly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sojourn.sim.luck import choice, uniform

keys = st.lists(st.one_of(st.integers(), st.text()), min_size=1, max_size=4)


@settings(max_examples=30)
@given(keys)
def test_a_key_gives_one_number_in_the_unit_interval(key):
    assert uniform(*key) == uniform(*key)
    assert 0.0 <= uniform(*key) < 1.0


def test_neighbouring_keys_are_independent():
    draws = np.array([[uniform(0, "r", i, step) for i in range(4000)] for step in (0, 1)])
    assert stats.kstest(draws[0], "uniform").pvalue > 0.001
    assert abs(np.corrcoef(draws)[0, 1]) < 4 / np.sqrt(4000)


def test_choice_takes_every_sample_equally_often():
    picked = [choice((1.0, 2.0, 3.0), "k", i) for i in range(3000)]
    counts = [picked.count(v) for v in (1.0, 2.0, 3.0)]
    assert sum(counts) == 3000
    assert stats.chisquare(counts).pvalue > 0.001
