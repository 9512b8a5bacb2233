"""Concentration curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.workload.concentration import curve
from sojourn.workload.profile import profile


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200).filter(lambda v: sum(v) > 1e-3))
def test_curves_rise_bend_down_and_end_at_one(values):
    points = np.array(curve(np.array(values)))
    assert points[0].tolist() == [0, 0]
    assert points[-1] == pytest.approx([1, 1])
    slope = np.diff(points[:, 1]) / np.diff(points[:, 0])
    assert (slope >= -1e-9).all()
    assert (np.diff(slope) <= 1e-6 * slope.max()).all()
    assert (points[:, 1] >= points[:, 0] - 1e-9).all()


def test_ten_percent_take_sixty():
    values = np.array([54.0] * 10 + [4.0] * 90)
    assert dict(curve(values))[0.1] == pytest.approx(0.6)


def test_equal_requests_take_equal_shares():
    assert all(y == pytest.approx(x) for x, y in curve(np.full(7, 3.0)))


def by_basis(tables):
    return {c.basis: c for c in profile(tables, Config()).concentration}


def test_engine_times_are_measured(incident):
    """Nine requests of 1.8 s in the engine and one whose decode took 16.2 s more."""
    for i in range(10):
        at = 50.0 * i
        late = {"end_s": at + 20.0} if i == 0 else {}
        incident.request(f"r{i}", at, end_s=at + 21, cost_usd=1.0 if i else 3.0)
        incident.attempt(f"r{i}", at, **late)
    found = by_basis(incident.tables())
    assert found["gpu_time"].provenance == Provenance.MEASURED
    assert found["gpu_time"].top_10_percent == pytest.approx(18 / (18 + 9 * 1.8))
    usual, slow = 1000 * 0.5 + 1025 * 1.3, 1000 * 0.5 + 1025 * 17.5
    assert found["kv_token_seconds"].top_10_percent == pytest.approx(slow / (slow + 9 * usual))
    assert found["cost"].top_10_percent == pytest.approx(3 / 12)


def test_without_engine_times_a_proxy_says_that_it_is_assumed(one_call_each):
    tables = one_call_each(np.arange(10.0), [100] * 9 + [10_000], [25] * 10)
    found = by_basis(tables)
    assert found["gpu_time"].provenance == Provenance.ASSUMED
    assert found["gpu_time"].top_10_percent == pytest.approx(10_100 / (10_100 + 9 * 200))
    assert "cost" not in found
