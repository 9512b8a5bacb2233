"""Whether a run kept up with its arrivals, on queues simulated by Lindley's recursion."""

import numpy as np
import pytest
from tests.sim.making import fleet, scenario, station, visit

from sojourn.sim.simulate import simulate
from sojourn.sim.stability import Trend, stability, stability_of


def single_server(rho, count, seed, *, rates=None):
    """M/M/1 with mu = 1: arrivals and ends. D[i] = max over j <= i of (A[j] + S[j] + .. + S[i]),
    which is Lindley's recursion written with running sums. `rates` scale the gaps."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rho, count) / (1.0 if rates is None else rates)
    arrival, work = np.cumsum(gaps), np.cumsum(rng.exponential(1.0, count))
    before = np.concatenate([[0.0], work[:-1]])
    return arrival, np.maximum.accumulate(arrival - before) + work


SEEDS = range(60)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_a_stable_queue_is_not_called_unstable(rho):
    found = [stability_of(*single_server(rho, 20_000, seed)).trend for seed in SEEDS]
    assert Trend.GROWING not in found
    assert found.count(Trend.STABLE) >= 0.9 * len(found)


@pytest.mark.parametrize("rho", [1.1, 1.5])
def test_an_unstable_queue_is_found_with_its_growth(rho):
    """The number in flight grows by lambda - mu."""
    found = [stability_of(*single_server(rho, 20_000, seed)) for seed in SEEDS]
    assert {f.trend for f in found} == {Trend.GROWING}
    inside = sum(f.growth_per_s.contains(rho - 1) for f in found)
    assert inside >= 0.85 * len(found)  # of 95% intervals
    middle = np.mean([f.growth_per_s.mid for f in found])
    assert middle == pytest.approx(rho - 1, rel=0.05)


def test_a_queue_at_its_limit_is_never_called_stable_surely():
    """rho = 1.02 grows by less than the noise of a short run: too short, or growing."""
    found = [stability_of(*single_server(1.02, 3_000, seed)).trend for seed in SEEDS]
    assert found.count(Trend.STABLE) <= 0.2 * len(found)


@pytest.mark.parametrize("rho", [0.5, 0.9, 1.1, 1.5])
def test_a_few_requests_say_nothing(rho):
    found = stability_of(*single_server(rho, 150, 1))
    assert found.trend is Trend.TOO_SHORT
    assert found.growth_per_s is None
    assert "Too short" in found.describe()


@pytest.mark.parametrize("seed", range(10))
def test_more_in_flight_because_more_arrive_is_no_instability(seed):
    """No limit: stays of 10 s, arrivals from 5 to 50 a second; 500 are in flight at the end."""
    rng = np.random.default_rng(seed)
    count = 20_000
    arrival = np.cumsum(rng.exponential(1.0, count) / np.linspace(5, 50, count))
    found = stability_of(arrival, arrival + rng.exponential(10.0, count))
    assert found.growth_per_s.low > 0
    assert found.trend is not Trend.GROWING


@pytest.mark.parametrize("seed", range(10))
def test_a_load_that_rises_within_capacity_is_no_instability(seed):
    found = stability_of(*single_server(0.8, 20_000, seed, rates=np.linspace(0.5, 1.0, 20_000)))
    assert found.trend is not Trend.GROWING


def test_a_load_that_crosses_capacity_and_stays_there_is_found():
    rates = np.concatenate([np.full(5_000, 0.5), np.full(20_000, 1.3)])
    found = stability_of(*single_server(1.0, 25_000, 3, rates=rates))
    assert found.trend is Trend.GROWING


def test_an_unstable_run_is_reported_with_its_growth_and_backlog():
    arrival, end = single_server(1.5, 6_000, 0)
    programs = [[visit("s", s)] for s in np.diff(np.concatenate([[0.0], end]))]
    run = simulate(scenario(arrival, programs, fleet(stations=[station("s", 1)])))
    found = stability(run)
    assert found.trend is Trend.GROWING
    assert found.growth_per_s.mid == pytest.approx(0.5, rel=0.1)
    assert found.in_flight == pytest.approx(arrival[-1] * 0.5, rel=0.1)
    assert found.drain_s == pytest.approx(run.end_s - arrival[-1])
    text = found.describe()
    assert "grows by" in text
    assert "mean nothing" in text


def test_requests_that_never_end_count_as_in_flight():
    arrival = np.arange(1000.0)
    end = np.where(arrival < 100, arrival + 1, np.nan)
    found = stability_of(arrival, end)
    assert found.in_flight == 900
    assert found.trend is Trend.GROWING
    assert found.growth_per_s.mid == pytest.approx(1.0, rel=0.01)


def test_no_requests_no_verdict():
    empty = stability_of(np.empty(0), np.empty(0))
    assert (empty.trend, empty.in_flight, empty.drain_s) == (Trend.TOO_SHORT, 0, 0.0)
