"""First come first served, read backwards: exact where the number of servers is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capacity.station_queue import fifo

from sojourn.capacity import fifo as reading
from sojourn.capacity.fifo import estimate_servers, plateau, service_starts

TIMES = st.lists(
    st.tuples(st.floats(0, 5, allow_nan=False), st.floats(0.001, 10, allow_nan=False)),
    min_size=1,
    max_size=60,
)


@given(TIMES, st.integers(1, 6))
def test_reconstruction_is_exact(gaps_and_work, servers):
    arrival = np.cumsum([gap for gap, _ in gaps_and_work])
    work = np.array([need for _, need in gaps_and_work])
    starts, ends = fifo(arrival, work, servers)
    np.testing.assert_allclose(service_starts(arrival, ends, servers), starts)


@given(TIMES, st.integers(1, 6))
def test_more_servers_never_start_later(gaps_and_work, servers):
    arrival = np.cumsum([gap for gap, _ in gaps_and_work])
    work = np.array([need for _, need in gaps_and_work])
    _, ends = fifo(arrival, work, servers)
    fewer, more = (service_starts(arrival, ends, c) for c in (servers, servers + 1))
    assert (more <= fewer).all()
    assert (more >= arrival).all()


def _load(servers, rho, visits=1500, seed=0, sigma=0.7):
    rng = np.random.default_rng(seed)
    work = rng.lognormal(0, sigma, visits)
    arrival = np.cumsum(rng.exponential(work.mean() / (servers * rho), visits))
    return arrival, work


@pytest.mark.parametrize("servers", [1, 2, 4, 8])
@pytest.mark.parametrize("rho", [0.9, 1.02])
def test_servers_are_found_where_the_queue_is_clear(servers, rho):
    arrival, work = _load(servers, rho)
    _, ends = fifo(arrival, work, servers)
    found = estimate_servers(arrival, ends, censored=np.zeros(len(ends), dtype=bool))
    assert found == pytest.approx(servers, abs=max(0, servers // 8))


@pytest.mark.parametrize("seed", range(5))
def test_no_servers_are_invented_where_times_do_not_depend_on_load(seed):
    arrival, work = _load(4, 0.9, seed=seed)
    nobody = np.zeros(len(work), dtype=bool)
    assert estimate_servers(arrival, arrival + work, censored=nobody) is None
    few, short = _load(4, 1.0, visits=30, seed=seed)
    assert estimate_servers(few, fifo(few, short, 4)[1], censored=nobody[:30]) is None


@pytest.mark.parametrize("servers", [1, 3, 6])
def test_recorded_waits_show_the_plateau(servers):
    arrival, work = _load(servers, 0.9)
    starts, ends = fifo(arrival, work, servers)
    found = plateau(arrival, starts, ends)
    assert found is not None
    assert found.servers == servers
    assert found.held > 0.99


def test_waits_without_a_limit_show_none():
    arrival, work = _load(3, 0.9)
    rng = np.random.default_rng(1)
    starts = arrival + rng.exponential(1.0, len(work))
    assert plateau(arrival, starts, starts + work) is None
    assert plateau(arrival, arrival, arrival + work) is None


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, 300).astype(float)
    y = x + rng.normal(0, 3, 300)
    assert reading._rank(x, y) == pytest.approx(spearmanr(x, y).statistic)
