"""Stations against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.sim.making import station
from tests.theory.closed_forms import md1k_refused, mmck
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    poisson,
    replicated,
    served_by,
    stays,
    steady,
    stream_of,
    units,
    visits,
    waits,
)

from sojourn.capacity.policies import Client
from sojourn.capacity.queueing import (
    deadline_failure,
    erlang_b,
    erlang_c,
    kimura_wait_quantile,
    mg1_wait,
    mm1_wait,
    mmc_wait,
    mmc_wait_tail,
)
from sojourn.sim.log import ERROR, TIMEOUT
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate


def exponential(rng, count):
    return rng.exponential(1.0, count)


def one_station(rate, servers, *, work=exponential, policies=None, **options):
    """Poisson arrivals to one station."""
    the_fleet = served_by([station("s", servers, **options)], policies=policies)

    def make(rng, count):
        return Scenario(
            stream_of(poisson(rng, rate, count), visits("s", work(rng, count))), the_fleet
        )

    return make


def refused(run):
    return np.mean(steady(run.log.ends["status"]) == ERROR)


def test_mm1():
    """Wq = rho S / (1 - rho), P(wait) = rho, P(Wq > t) = rho exp(-(mu - lambda) t)."""
    rate, far = 0.7, 6.0

    def measure(run):
        found = steady(waits(run))
        return found.mean(), (found > 0).mean(), (found > far).mean()

    mean, waiting, tail = replicated(one_station(rate, 1), measure, seed=101)
    agrees(mean, mm1_wait(rate, 1), unlike=mm1_wait(MORE * rate, 1))
    agrees(waiting, rate, unlike=MORE * rate)
    agrees(tail, mmc_wait_tail(rate, 1, 1, wait_s=far), unlike=rate * math.exp(-0.279 * far))


@pytest.mark.parametrize(("servers", "rate"), [(3, 2.25), (16, 13.5)])
def test_mmc(servers, rate):
    """P(wait) = C(c, a), Wq = C / (c mu - lambda), and the wait that 1% exceed."""
    p99 = kimura_wait_quantile(rate, 1, servers, quantile=0.99)

    def measure(run):
        found = steady(waits(run))
        return found.mean(), (found > 0).mean(), (found > p99).mean()

    mean, waiting, tail = replicated(one_station(rate, servers), measure, seed=102 + servers)
    more = MORE * rate
    agrees(mean, mmc_wait(rate, 1, servers), unlike=mmc_wait(more, 1, servers))
    agrees(waiting, erlang_c(servers, rate), unlike=erlang_c(servers, more))
    agrees(tail, 0.01, unlike=mmc_wait_tail(more, 1, servers, wait_s=p99))


def lognormal(cs2):
    spread = math.log(1 + cs2)
    return lambda rng, count: rng.lognormal(-spread / 2, math.sqrt(spread), count)


@pytest.mark.parametrize(
    ("name", "work", "cs2"),
    [
        ("exponential", exponential, 1.0),
        ("deterministic", lambda rng, count: np.ones(count), 0.0),
        ("lognormal", lognormal(1.5), 1.5),
        ("two points", lambda rng, count: rng.choice([0.5, 5.5], count, p=[0.9, 0.1]), 2.25),
    ],
)
def test_mg1(name, work, cs2):
    """Pollaczek-Khinchine: Wq = rho / (1 - rho) (1 + Cs2) / 2 S."""
    rate = 0.6
    (mean,) = replicated(
        one_station(rate, 1, work=work), lambda run: steady(waits(run)).mean(), seed=130
    )
    wrong = [mg1_wait(MORE * rate, 1, cs2), mg1_wait(rate, 1, cs2 + 0.3)]
    agrees(mean, mg1_wait(rate, 1, cs2), unlike=wrong)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("exponential", exponential),
        ("deterministic", lambda rng, count: np.ones(count)),
        ("lognormal", lognormal(4.0)),
    ],
)
def test_no_queue_is_erlang_b(name, work):
    """M/G/c/c: B(c, a), whatever the distribution."""
    rate = 4.0
    (lost,) = replicated(one_station(rate, 5, work=work, queue_limit=0), refused, seed=140)
    agrees(lost, erlang_b(5, rate), unlike=erlang_b(5, MORE * rate))


@pytest.mark.parametrize(("servers", "limit", "rate"), [(1, 3, 0.9), (2, 4, 1.9), (4, 8, 5.0)])
def test_a_queue_limit_is_mmck(servers, limit, rate):
    """Share refused and wait of those let in, also beyond capacity (rate 5 of 4)."""

    def measure(run):
        return refused(run), np.nanmean(steady(waits(run)))

    make = one_station(rate, servers, queue_limit=limit)
    lost, mean = replicated(make, measure, seed=150)
    right, wrong = (mmck(r, servers, servers + limit) for r in (rate, MORE * rate))
    agrees(lost, right[0], unlike=wrong[0])
    agrees(mean, right[1], unlike=wrong[1])


def test_a_connection_cap_is_a_queue_at_the_client():
    """Four requests at most in flight before a station without limit: M/M/4."""
    rate, policies = 3.0, {"client": Client(max_in_flight=4)}

    def measure(run):
        return steady(stays(run)).mean() - 1.0

    (mean,) = replicated(one_station(rate, None, policies=policies), measure, seed=155)
    agrees(mean, mmc_wait(rate, 1, 4), unlike=mmc_wait(MORE * rate, 1, 4))


def test_stations_in_series_are_independent():
    """Burke: what leaves M/M/c is Poisson again, so each station waits as if alone (Jackson);
    and times inside two single servers of one request do not correlate (Reich 1963)."""
    rate = 0.7
    the_fleet = served_by([station("a", 1), station("b", 1), station("c", 2)])

    def make(rng, count):
        work = rng.exponential([1.0, 0.8, 1.6], (count, 3)).T
        steps = [visits(n, w, group=g) for g, (n, w) in enumerate(zip("abc", work, strict=True))]
        return Scenario(stream_of(poisson(rng, rate, count), *steps), the_fleet)

    def measure(run):
        rows = [run.log.visits[run.log.visits["place"] == place] for place in (0, 1)]
        inside = [steady(units(r["ended"] - r["entered"])[np.argsort(r["request"])]) for r in rows]
        gaps = np.diff(np.sort(units(rows[0]["ended"])))
        each = [steady(waits(run, place)).mean() for place in range(3)]
        return (*each, gaps.var() / gaps.mean() ** 2, np.corrcoef(*inside)[0, 1])

    first, second, third, gaps, correlation = replicated(make, measure, seed=160)
    more = MORE * rate
    agrees(first, mm1_wait(rate, 1), unlike=mm1_wait(more, 1))
    agrees(second, mm1_wait(rate, 0.8), unlike=mm1_wait(more, 0.8))
    agrees(third, mmc_wait(rate, 1.6, 2), unlike=mmc_wait(more, 1.6, 2))
    agrees(gaps, 1.0, unlike=[0.95, 1.05])
    agrees(correlation, 0.0, unlike=[-0.03, 0.03])


@pytest.mark.parametrize(("burst", "rate"), [(1, 0.8), (3, 0.9), (5, 1.3), (2, 4.0)])
def test_a_rate_limit_is_a_loss_system(burst, rate):
    """The generic cell rate algorithm lets pass what finds room in M/D/1/burst with D = 1 /
    rate_per_s: with burst 1 a share 1 / (1 + lambda D). Far beyond the limit one passes per D."""
    limits = {"rate_per_s": 1 / UNIT_S, "burst": burst}
    (lost,) = replicated(one_station(rate, None, **limits), refused, seed=170)
    expected = md1k_refused(rate, 1.0, burst)
    agrees(lost, expected, unlike=md1k_refused(MORE * rate, 1.0, burst))
    if burst == 1:
        assert expected == pytest.approx(1 - 1 / (1 + rate))


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("rate", [0.8, 1.4])
def test_a_time_limit_is_mm1_with_impatience(rate, stops):
    """Visits over 4 S are given up, waiting or in service; one given up in service runs on, or
    stops. Below and beyond capacity."""
    limit = 4.0
    make = one_station(rate, 1, timeout_s=limit * UNIT_S, stops_on_cancel=stops)

    def measure(run):
        return np.mean(steady(run.log.ends["status"]) == TIMEOUT)

    (lost,) = replicated(make, measure, seed=180)
    right, wrong, other = (
        deadline_failure(r, 1, limit, runs_on=on)
        for r, on in ((rate, not stops), (MORE * rate, not stops), (rate, stops))
    )
    agrees(lost, right, unlike=[wrong, other])


@pytest.mark.parametrize("engine", ["reference", "kernel"])
def test_dd1_is_exact(engine):
    """Below capacity nobody waits; above it, visit k waits k (S - 1/lambda)."""

    def waited(work, servers):
        made = stream_of(np.arange(200.0), visits("s", np.full(200, work)))
        run = simulate(Scenario(made, served_by([station("s", servers)])), engine=engine)
        return waits(run)

    assert np.all(waited(0.75, 1) == 0.0)
    np.testing.assert_allclose(waited(1.5, 1), 0.5 * np.arange(200), atol=1e-9)
    by_turns = 0.5 * (np.arange(200) - np.arange(200) % 2)
    np.testing.assert_allclose(waited(3.0, 2), by_turns, atol=1e-9)


def test_no_limit_means_no_wait():
    made = one_station(50.0, None)(np.random.default_rng(190), 5000)
    assert np.all(waits(simulate(made, engine="kernel")) == 0.0)
