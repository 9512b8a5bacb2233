"""Intervals: coverage against the binomial, and pairing that cancels what runs share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.plan import estimates


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300),
    st.sampled_from([0.5, 0.95, 0.99]),
)
def test_interval_of_a_quantile_holds_the_quantile_and_samples_only(values, q):
    found = estimates.quantile_interval(np.array(values), q)
    assert found.low <= found.mid <= found.high
    assert min(values) <= found.low
    assert found.high <= max(values)


def test_interval_of_a_quantile_covers_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(1)
    true = -np.log(0.05)  # P95 of an exponential
    hits = [
        estimates.quantile_interval(rng.exponential(size=400), 0.95, 0.9).contains(true)
        for _ in range(400)
    ]
    assert 0.87 <= np.mean(hits) <= 0.97


def test_nan_are_left_out_and_nothing_gives_none():
    assert estimates.quantile_interval(np.array([np.nan, 2.0]), 0.5).mid == 2.0
    assert estimates.quantile_interval(np.array([np.nan]), 0.5) is None
    assert np.isnan(estimates.quantile(np.array([]), 0.5))


def test_wilson_interval_of_published_example():
    # 10 of 100 at 95%: 0.0552 to 0.1744 (Brown, Cai, DasGupta 2001)
    found = estimates.share_interval(10, 100, 0.95)
    assert found.low == pytest.approx(0.0552, abs=1e-3)
    assert found.high == pytest.approx(0.1744, abs=1e-3)
    assert estimates.share_interval(0, 50).low == 0.0
    assert estimates.share_interval(0, 0).width == 1.0


@given(st.integers(2, 200), st.integers(0, 5))
def test_pairing_cancels_what_both_runs_share(n, seed):
    values = np.random.default_rng(seed).exponential(size=n)
    point, samples = estimates.quantile_change(values, values, 0.99)
    assert point == 0
    assert (samples == 0).all()
    shift, shifts = estimates.quantile_change(values, values + 1.0, 0.99)
    assert shift == pytest.approx(1.0)
    assert shifts == pytest.approx(np.ones(len(shifts)))


@given(st.integers(1, 500))
def test_block_resamples_are_rows_of_the_run(n):
    rows = estimates.block_indices(n, 0)
    assert rows.shape[1] == n
    assert rows.min() >= 0
    assert rows.max() < n


def test_mean_change_skips_requests_unknown_in_either_run():
    before = np.array([0.0, 1.0, np.nan, 0.0])
    after = np.array([1.0, 1.0, 1.0, np.nan])
    assert estimates.mean_change(before, after)[0] == pytest.approx(0.5)
