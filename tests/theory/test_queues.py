"""Stations against closed forms: every mean within the 99.9% interval of its run.

The interval is that of batch means: 30 batches, Student's t with 29 degrees of freedom. Each test
also states how wide the interval may be, so that an agreement means something.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow.compute as pc
import pytest
from tests.sim.making import columns, fleet, scenario, station, visit

from sojourn.sim.simulate import simulate

BATCHES = 30
T_999 = 3.659
WARM_UP = 0.1


def batch_interval(values):
    """(mean, half width) by batch means after the warm-up."""
    steady = np.asarray(values)[int(len(values) * WARM_UP) :]
    means = [part.mean() for part in np.array_split(steady, BATCHES)]
    return float(np.mean(means)), T_999 * float(np.std(means, ddof=1)) / math.sqrt(BATCHES)


def agrees(values, expected, *, width):
    mean, half = batch_interval(values)
    assert half < width * expected, f"too few: {mean:.4g} ± {half:.2g}"
    assert abs(mean - expected) < half, f"{mean:.4g} ± {half:.2g}, closed form {expected:.4g}"


def waits(arrivals, service, servers):
    """Seconds waited, in the order of arrival."""
    run = simulate(
        scenario(
            arrivals, [[visit("s", v)] for v in service], fleet(stations=[station("s", servers)])
        )
    )
    spans = run.tables.spans
    return np.array(spans.filter(pc.equal(spans["name"], "s")).sort_by("start_s")["wait_s"])


def poisson(rng, rate, count):
    return np.cumsum(rng.exponential(1 / rate, count))


def erlang_c(servers, load):
    """P(wait > 0), M/M/c."""
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    return top / (sum(load**k / math.factorial(k) for k in range(servers)) + top)


def test_mm1_mean_wait():
    """Wq = rho / (mu - lambda)."""
    rng = np.random.default_rng(11)
    values = waits(poisson(rng, 0.6, 40_000), rng.exponential(1.0, 40_000), 1)
    agrees(values, 0.6 / 0.4, width=0.2)
    agrees(values > 0, 0.6, width=0.05)


@pytest.mark.parametrize(("servers", "rate"), [(3, 2.1), (8, 6.0)])
def test_mmc_is_erlang_c(servers, rate):
    """P(wait) = C(c, a) and Wq = C / (c mu - lambda)."""
    rng = np.random.default_rng(12 + servers)
    values = waits(poisson(rng, rate, 40_000), rng.exponential(1.0, 40_000), servers)
    chance = erlang_c(servers, rate)
    agrees(values > 0, chance, width=0.12)
    agrees(values, chance / (servers - rate), width=0.3)


def test_mm1_wait_is_exponential_beyond_zero():
    """P(Wq > t) = rho exp(-(mu - lambda) t), at t where it is 10%."""
    rng = np.random.default_rng(14)
    values = waits(poisson(rng, 0.5, 40_000), rng.exponential(1.0, 40_000), 1)
    agrees(values > math.log(5.0) / 0.5, 0.1, width=0.25)


@pytest.mark.parametrize(
    ("name", "draw", "second_moment"),
    [
        ("uniform", lambda rng, n: rng.uniform(0, 2, n), 4 / 3),
        ("two points", lambda rng, n: rng.choice([0.5, 5.5], n, p=[0.9, 0.1]), 3.25),
        ("gamma, cv2 = 2", lambda rng, n: rng.gamma(0.5, 2.0, n), 3.0),
    ],
)
def test_mg1_is_pollaczek_khinchine(name, draw, second_moment):
    """Wq = lambda E[S^2] / (2 (1 - rho)), E[S] = 1."""
    rng = np.random.default_rng(15)
    values = waits(poisson(rng, 0.6, 40_000), draw(rng, 40_000), 1)
    agrees(values, 0.6 * second_moment / (2 * 0.4), width=0.25)


def test_dd1_is_exact():
    """Below capacity nobody waits; above it, visit k waits k (S - 1/lambda)."""
    arrivals = np.arange(200.0)
    assert np.all(waits(arrivals, np.full(200, 0.75), 1) == 0.0)
    np.testing.assert_allclose(waits(arrivals, np.full(200, 1.5), 1), 0.5 * arrivals)
    np.testing.assert_allclose(
        waits(arrivals, np.full(200, 3.0), 2), 0.5 * (np.arange(200) - np.arange(200) % 2)
    )


def test_no_limit_means_no_wait():
    rng = np.random.default_rng(16)
    assert np.all(waits(poisson(rng, 50.0, 500), rng.exponential(1.0, 500), None) == 0.0)


def test_fork_join_without_queues_is_the_longest_branch():
    rng = np.random.default_rng(17)
    work = rng.exponential(1.0, (200, 3))
    programs = [[visit(n, v) for n, v in zip("abc", row, strict=True)] for row in work]
    run = simulate(scenario(np.arange(200.0), programs))
    came, left = columns(run.tables.requests, "arrival_s", "end_s")
    np.testing.assert_allclose(np.subtract(left, came), work.max(axis=1))


def test_fork_join_of_two_mm1():
    """T = (12 - rho) / 8 * 1 / (mu - lambda). Source: Flatto & Hahn 1984, as in Nelson &
    Tantawi 1988 (exact for two branches)."""
    rng = np.random.default_rng(18)
    count = 30_000
    work = rng.exponential(1.0, (count, 2))
    programs = [[visit("a", x), visit("b", y)] for x, y in work]
    the_fleet = fleet(stations=[station("a", 1), station("b", 1)])
    run = simulate(scenario(poisson(rng, 0.5, count), programs, the_fleet))
    came, left = columns(run.tables.requests, "arrival_s", "end_s")
    agrees(np.subtract(left, came), (12 - 0.5) / 8 / 0.5, width=0.15)


def test_stations_in_series_are_independent_mm1():
    """Jackson: E[T] = sum of 1 / (mu_i - lambda)."""
    rng = np.random.default_rng(19)
    count = 30_000
    work = rng.exponential([1.0, 0.5], (count, 2))
    programs = [[visit("a", x), visit("b", y, group=1)] for x, y in work]
    the_fleet = fleet(stations=[station("a", 1), station("b", 1)])
    run = simulate(scenario(poisson(rng, 0.6, count), programs, the_fleet))
    came, left = columns(run.tables.requests, "arrival_s", "end_s")
    agrees(np.subtract(left, came), 1 / 0.4 + 1 / 1.4, width=0.2)
