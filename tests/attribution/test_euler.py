"""Tails: shares sum to the quantile, intervals cover it, conditional means are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.attribution.euler import NEAR_MIN, Sample, near, quantile_interval

NAMES = ("a", "b", "c")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.floats(0.01, 0.995), st.integers(0, 2**32 - 1))
def test_shares_sum_to_the_quantile(count, quantile, seed):
    stages = np.random.default_rng(seed).exponential(1.0, (count, 3))
    total = stages.sum(axis=1)
    tail = Sample(total, stages).tail("x", quantile, confidence=0.9, names=NAMES)
    assert sum(tail.stages.values()) == pytest.approx(tail.e2e_s.mid, abs=1e-9)
    assert tail.e2e_s.mid == pytest.approx(float(np.quantile(total, quantile)))
    assert all(part >= 0 for part in tail.stages.values())


@given(st.integers(1, 100_000), st.floats(0.001, 0.999))
def test_ranks_near_lie_in_the_sample_and_weights_sum_to_one(count, quantile):
    ranks, weights = near(count, quantile)
    assert len(ranks) >= min(NEAR_MIN, count)
    assert 0 <= ranks[0] <= ranks[-1] < count
    assert weights.sum() == pytest.approx(1.0)
    assert (weights > 0).all()


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(5)
    truth = -np.log(0.05)  # P95 of an exponential with mean 1
    covered = 0
    for _ in range(400):
        interval = quantile_interval(np.sort(rng.exponential(1.0, 300)), 0.95, 0.9)
        covered += interval.contains(truth)
    assert covered / 400 >= 0.87


def test_the_stage_that_makes_the_tail_gets_the_tail():
    rng = np.random.default_rng(7)
    steady, wild = np.full(5000, 1.0), rng.exponential(1.0, 5000)
    stages = np.column_stack([steady, wild, np.zeros(5000)])
    tail = Sample(stages.sum(axis=1), stages).tail("x", 0.99, confidence=0.9, names=NAMES)
    assert tail.stages["a"] == pytest.approx(1.0, abs=0.05)
    assert tail.stages["b"] == pytest.approx(-np.log(0.01), rel=0.12)


def test_requests_of_no_time_have_no_shares():
    tail = Sample(np.zeros(50), np.zeros((50, 3))).tail("x", 0.99, confidence=0.9, names=NAMES)
    assert set(tail.stages.values()) == {0.0}
