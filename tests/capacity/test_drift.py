"""Drift of a station: seen where it is, not seen where it is not, undone and redone exactly."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity.drift import level_at, level_of, levels


def visits(factor: float, seed: int, count: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 300, count))
    service = np.exp(rng.normal(np.log(0.5), 0.6, count))
    return at, service * np.where((at > 100) & (at < 200), factor, 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_no_drift_is_seen_where_there_is_none(seed: int) -> None:
    at, service = visits(1.0, seed)
    assert levels(at, service, np.zeros(len(at), dtype=bool)) == ()


@pytest.mark.parametrize("factor", [1.6, 2.4])
def test_a_slow_hour_is_found_at_its_level(factor: float) -> None:
    at, service = visits(factor, 1)
    found = levels(at, service, np.zeros(len(at), dtype=bool))
    calm = np.mean([level_at(found, t) for t in (20.0, 60.0, 250.0)])
    assert level_at(found, 150.0) / calm == pytest.approx(factor, rel=0.15)


def test_visits_cut_at_a_timeout_do_not_hide_the_level() -> None:
    at, service = visits(2.4, 2)
    cut = service > 1.5
    found = levels(at, np.minimum(service, 1.5), cut)
    calm = np.mean([level_at(found, t) for t in (20.0, 60.0, 250.0)])
    assert level_at(found, 150.0) / calm == pytest.approx(2.4, rel=0.15)


def test_levels_hold_before_the_first_and_after_the_last_window() -> None:
    drift = ((10.0, 0.5), (20.0, 2.0))
    assert [level_at(drift, t) for t in (0.0, 10.0, 19.9, 20.0, 1e9)] == [0.5, 0.5, 0.5, 2.0, 2.0]
    times = np.array([0.0, 15.0, 25.0])
    assert level_of(drift, times).tolist() == [level_at(drift, t) for t in times]
    assert level_at((), 5.0) == 1.0
    assert level_of((), times).tolist() == [1.0, 1.0, 1.0]


def test_few_visits_show_nothing() -> None:
    at, service = visits(5.0, 3, count=60)
    assert levels(at, service, np.zeros(60, dtype=bool)) == ()
