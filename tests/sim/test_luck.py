"""Draws depend on their key alone and are spread evenly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sojourn.sim.luck import BACKOFF, SERVICE, draw, index, pick, uniform

words = st.integers(0, 2**64 - 1)
keys = st.tuples(
    st.integers(-(2**40), 2**40),
    words,
    st.integers(0, 999),
    st.integers(0, 9999),
    st.integers(1, 6),
)


@settings(max_examples=30)
@given(keys)
def test_a_key_gives_one_number_in_the_unit_interval(key):
    assert draw(*key) == draw(*key)
    assert 0 <= draw(*key) < 2**64
    assert 0.0 <= uniform(draw(*key)) < 1.0


@given(words, st.integers(1, 2**32 - 1))
def test_an_index_is_below_its_count(number, count):
    assert 0 <= index(number, count) < count


def test_the_ends_of_a_draw():
    assert uniform(0) == 0.0
    assert uniform(2**64 - 1) == 1 - 2.0**-53
    assert index(2**64 - 1, 7) == 6


def test_neighbouring_keys_are_independent():
    places = np.array(
        [[uniform(draw(0, 7, i, step, SERVICE)) for i in range(4000)] for step in (0, 1)]
    )
    purposes = np.array([uniform(draw(0, 7, i, 0, BACKOFF)) for i in range(4000)])
    assert stats.kstest(places[0], "uniform").pvalue > 0.001
    for other in (places[1], purposes):
        assert abs(np.corrcoef(places[0], other)[0, 1]) < 4 / np.sqrt(4000)


def test_a_pick_takes_every_sample_equally_often():
    picked = [pick((1, 2, 3), draw(5, i, 0, 0, SERVICE)) for i in range(3000)]
    counts = [picked.count(v) for v in (1, 2, 3)]
    assert sum(counts) == 3000
    assert stats.chisquare(counts).pvalue > 0.001
