"""Retry arithmetic, and the feedback of retries on the load."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import fleet, scenario, station, visit
from tests.theory.test_queues import agrees, poisson

from sojourn.sim.simulate import simulate


@pytest.mark.parametrize(("chance", "retries"), [(0.1, 3), (0.5, 3), (0.6, 1), (0.9, 3)])
def test_independent_failures(chance, retries):
    """Attempts = (1 - p^(r+1)) / (1 - p); lost = p^(r+1). First and later visits alike fail with
    probability p: service is 0.1 s, or 9 s against a deadline of 1 s, without a queue."""
    rng = np.random.default_rng(31)
    count = 6000
    samples = [9.0] * round(10 * chance) + [0.1] * round(10 * (1 - chance))
    programs = [[visit("s", v)] for v in rng.choice(samples, count)]
    the_fleet = fleet(
        stations=[station("s", None, samples=samples)],
        attempt_timeout_s=1.0,
        max_attempts=retries + 1,
        backoff_s=0.2,
    )
    run = simulate(scenario(poisson(rng, 2.0, count), programs, the_fleet, seed=3))
    requests = run.tables.requests
    agrees(
        requests.column("attempts").to_numpy(),
        (1 - chance ** (retries + 1)) / (1 - chance),
        width=0.1,
    )
    lost = np.array(requests.column("status").to_pylist()) == "timeout"
    assert run.counts["timeout"] == lost.sum()
    expected = chance ** (retries + 1)
    if expected > 0.01:
        agrees(lost, expected, width=0.35)
    # a request lost after r + 1 attempts took its deadlines and backoffs, to the microsecond
    spent = np.subtract(requests["end_s"], requests["arrival_s"])[lost]
    backoffs = sum(0.2 * 2.0**k for k in range(retries))
    np.testing.assert_allclose(spent, (retries + 1) * 1.0 + backoffs, atol=1e-6)


def failing_long_after_a_burst(seed, attempts, stops):
    """Share of requests that fail from 100 to 300 s after a burst of five seconds."""
    rng = np.random.default_rng(seed)
    calm = poisson(rng, 0.6, 300)
    arrivals = np.sort(np.concatenate([calm, np.linspace(100, 105, 60)]))
    the_fleet = fleet(
        stations=[station("s", 1, samples=[1.0], stops_on_cancel=stops)],
        attempt_timeout_s=4.5,
        max_attempts=attempts,
        backoff_s=0.1,
        jitter=0.5,
    )
    made = scenario(arrivals, [[visit("s", 1.0)]] * len(arrivals), the_fleet, seed=seed)
    failed = np.array(simulate(made).tables.requests.column("status").to_pylist()) != "ok"
    return failed[(arrivals > 200) & (arrivals < 400)].mean()


@pytest.mark.parametrize(
    ("attempts", "stops", "trapped"), [(1, False, False), (4, False, True), (4, True, False)]
)
def test_a_burst_may_trap_a_system_that_retries_abandoned_work(attempts, stops, trapped):
    """Metastable failure: rho = 0.6 is stable, lambda (r+1) = 2.4 mu is not (the hidden
    capacity is mu / (r+1)). Where timed-out attempts are tried four times and their work runs on,
    it is luck in which of its two states the system is long after a burst: in some runs most
    requests fail, in others none. Without retries, or where abandoned work stops, the queue drains
    (what fails then is the odd queue that rho = 0.6 has anyway)."""
    found = np.array([failing_long_after_a_burst(seed, attempts, stops) for seed in range(24)])
    if trapped:
        assert (found > 0.6).sum() >= 3
        assert (found == 0).sum() >= 3
        assert found.mean() > 0.15
    else:
        assert found.max() < 0.5
        assert np.median(found) < 0.01
        assert found.mean() < 0.03
