"""Distributions behind intervals: times behind a clock that is looked at now and then."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity import interval_times


def seen(count=4000, step=0.006, seed=0):
    """Times of a front end, and the looks of an engine between steps that they lie between."""
    rng = np.random.default_rng(seed)
    time = 0.002 + rng.gamma(2.0, 0.001, count)
    phase = rng.uniform(0, step, count)
    high = phase + np.ceil((time - phase) / step) * step
    return time, high - step, high


def test_the_distribution_comes_back_from_intervals_wider_than_it():
    time, low, high = seen()
    places, shares = interval_times.distribution(low, high)
    assert shares.sum() == pytest.approx(1.0)
    assert shares @ places == pytest.approx(time.mean(), rel=0.03)
    quantiles = interval_times.quantiles(places, shares, 400)
    for q in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(quantiles, q) == pytest.approx(np.quantile(time, q), rel=0.12)
    assert high.mean() > 1.5 * time.mean()  # what taking the wait for it would have given


def test_expected_times_lie_in_their_intervals_and_keep_the_mean():
    time, low, high = seen(seed=1)
    places, shares = interval_times.distribution(low, high)
    expected = interval_times.expected(low, high, places, shares)
    assert (expected >= np.maximum(low, 0) - 1e-4).all()
    assert (expected <= high + 1e-4).all()
    assert expected.mean() == pytest.approx(time.mean(), rel=0.03)
    assert interval_times.expected(np.array([5.0]), np.array([7.0]), places, shares) == [6.0]


def test_known_times_are_their_own_distribution():
    times = np.array([0.001, 0.002, 0.002, 0.009])
    places, shares = interval_times.distribution(times, times)
    assert shares @ places == pytest.approx(times.mean(), rel=0.03)


@pytest.mark.parametrize(("low", "high"), [([], []), ([0.2], [0.1])])
def test_no_intervals_and_turned_ones_are_errors(low, high):
    with pytest.raises(ValueError, match="intervals need"):
        interval_times.distribution(np.array(low), np.array(high))
