"""Arrivals: closed forms for simple processes, laws for any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.workload import arrivals

times = st.lists(st.floats(0, 500), min_size=1, max_size=60)


def test_poisson_has_unit_cv_and_dispersion():
    made = np.cumsum(np.random.default_rng(1).exponential(0.2, size=100_000))
    found = arrivals.describe(made, peak_window_s=60)
    assert found.rate_per_s == pytest.approx(5, rel=0.01)
    assert found.cv_interarrival == pytest.approx(1, abs=0.02)
    assert found.dispersion["1s"] == pytest.approx(1, abs=0.04)
    assert found.dispersion["10s"] == pytest.approx(1, abs=0.1)
    assert found.dispersion["60s"] == pytest.approx(1, abs=0.25)


def test_a_clock_has_none():
    found = arrivals.describe(np.arange(0, 600, 0.25), peak_window_s=60)
    assert found.cv_interarrival == pytest.approx(0, abs=1e-12)
    assert found.dispersion == {"1s": 0, "10s": 0, "60s": 0}
    assert found.peak.requests == 240


def test_pairs_double_the_dispersion():
    """A batch of fixed size b has dispersion b times that of the batches."""
    made = np.repeat(np.cumsum(np.random.default_rng(2).exponential(0.5, size=50_000)), 2)
    assert arrivals.dispersion(made, 10) == pytest.approx(2, rel=0.1)


def test_the_cut_window_does_not_make_a_steady_stream_bursty():
    steady = np.arange(0, 90, 0.1)
    assert arrivals.dispersion(steady, 60) != arrivals.dispersion(steady, 60)  # one window: NaN
    assert arrivals.dispersion(np.arange(0, 150, 0.1), 60) == 0
    assert arrivals.dispersion(np.arange(0, 150, 0.1), 60, cut_window=True) > 30


@given(times, st.sampled_from([1.0, 10.0, 60.0]))
def test_windows_hold_every_request_and_the_peak_is_the_largest(values, width):
    made = np.array(values)
    found = arrivals.describe(made, peak_window_s=width, buckets=np.array(["b"] * len(made)))
    assert sum(w.requests for w in found.windows) == len(made)
    assert all(sum(w.buckets.values()) == w.requests for w in found.windows)
    assert sum(w.length_s for w in found.windows) == pytest.approx(
        found.duration_s if found.duration_s else width
    )
    brute = max(int(((made >= t) & (made < t + width)).sum()) for t in made)
    inside = (made >= found.peak.start_s) & (made <= found.peak.start_s + found.peak.length_s)
    assert brute <= found.peak.requests <= int(inside.sum())
    for value in found.dispersion.values():
        assert math.isnan(value) or value >= 0


def test_long_recordings_get_longer_windows():
    made = np.arange(0, 7 * 86_400, 30.0)
    found = arrivals.windows(made, 60.0)
    assert len(found) <= arrivals.MAX_WINDOWS
    assert sum(w.requests for w in found) == len(made)


@pytest.mark.parametrize("made", [np.array([3.0]), np.array([2.0, 2.0])])
def test_no_duration_no_rate(made):
    found = arrivals.describe(made, peak_window_s=60)
    assert found.rate_per_s == 0
    assert math.isnan(found.cv_interarrival)
    assert found.peak.requests == len(made)


@pytest.mark.parametrize(("duration", "width"), [(20.0, 1.0), (250.0, 5.0), (900.0, 30.0)])
def test_a_short_recording_gets_windows_short_enough_to_show_its_shape(duration, width):
    steady = np.arange(0, duration + 0.05, 0.1)
    found = arrivals.windows(steady, 60.0)
    assert found[0].length_s == width
    assert len(found) >= 20


@given(times, st.floats(0.5, 200))
def test_as_many_arrivals_lie_in_the_peak_window_as_it_counted(made, width):
    ordered = np.sort(np.array(made))
    peak = arrivals.peak_window(ordered, width)
    assert arrivals.inside(ordered, peak).sum() == peak.requests


def test_an_arrival_at_the_very_end_of_the_peak_window_is_not_in_it():
    made = np.array([0.0, 5.0, 5.5, 6.0])
    peak = arrivals.peak_window(made, 1.0)
    assert (peak.start_s, peak.requests) == (5.0, 2)
    assert arrivals.inside(made, peak).tolist() == [False, True, True, False]
