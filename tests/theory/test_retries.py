"""Retry arithmetic, and the feedback of retries on the load: fixed points and metastability."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import station
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    poisson,
    replicated,
    served_by,
    stream_of,
    units,
    visits,
)

from sojourn.capacity.policies import Admission, AdmissionPolicy, Client
from sojourn.capacity.queueing import (
    attempts,
    deadline_failure,
    erlang_b,
    hidden_capacity,
    retry_fixed_points,
)
from sojourn.sim.log import OK, TIMEOUT
from sojourn.sim.scenario import Scenario

EXPONENTIAL = tuple(UNIT_S * v for v in -np.log1p(-(np.arange(2000) + 0.5) / 2000))
"""Service times that later attempts draw from: an exponential distribution's, mean 1."""


@pytest.mark.parametrize(("chance", "retries"), [(0.1, 3), (0.5, 3), (0.6, 1), (0.9, 3)])
def test_independent_failures(chance, retries):
    """Attempts = (1 - p^(r+1)) / (1 - p); lost = p^(r+1). First and later visits alike fail with
    probability p: service is 0.1, or 9 against a deadline of 1, without a queue."""
    works = [9.0] * round(10 * chance) + [0.1] * round(10 * (1 - chance))
    samples = [UNIT_S * w for w in works]
    the_fleet = served_by(
        [station("s", None, samples=samples)],
        attempt_timeout_s=UNIT_S, max_attempts=retries + 1, backoff_s=UNIT_S / 4,
    )  # fmt: skip

    def make(rng, count):
        return Scenario(
            stream_of(poisson(rng, 2.0, count), visits("s", rng.choice(works, count))), the_fleet
        )

    def measure(run):
        ends = run.log.ends
        lost = ends["status"] == TIMEOUT
        assert run.counts["timeout"] == lost.sum()
        # lost after r + 1 attempts: their deadlines and the backoffs between, to the tick
        spent = units((ends["end"] - ends["arrival"])[lost])
        backoffs = sum(0.25 * 2.0**k for k in range(retries))
        np.testing.assert_allclose(spent, retries + 1 + backoffs, atol=1e-9)
        return ends["attempts"].mean(), lost.mean()

    tried, lost = replicated(make, measure, seed=600 + retries)
    more = MORE * chance
    agrees(tried, attempts(chance, retries), unlike=attempts(more, retries))
    expected = chance ** (retries + 1)
    agrees(lost, expected, unlike=[more ** (retries + 1) if chance > 0.2 else 10 * expected])


def load_and_failures(run, begin, end):
    """Attempts begun per unit of time in a window, and the share of them that failed."""
    rows = run.log.attempts
    started = units(rows["started"])
    mine = rows[(started >= begin) & (started < end)]
    return len(mine) / (end - begin), (mine["status"] != OK).mean()


def test_retries_of_refused_visits_settle_at_their_fixed_point():
    """lambda_eff = lambda E(B(c, lambda_eff)): a station without queue whose refused visits come
    again after a long while (300 S in the mean), as new ones would. Exact as the wait grows."""
    rate, servers, retries = 4.0, 5, 3
    the_fleet = served_by(
        [station("s", servers, samples=EXPONENTIAL, queue_limit=0)],
        policies={"client": Client(retry_on_error=True)},
        max_attempts=retries + 1, backoff_s=300 * UNIT_S, backoff_factor=1.0, jitter=1.0,
    )  # fmt: skip

    def make(rng, count):
        arrivals = poisson(rng, rate, count)
        return Scenario(stream_of(arrivals, visits("s", rng.exponential(1.0, count))), the_fleet)

    def measure(run):
        last = units(run.log.ends["arrival"][-1])
        return load_and_failures(run, 0.3 * last, 0.95 * last)

    load, failing = replicated(make, measure, seed=620)
    (right,), (wrong,) = (
        retry_fixed_points(r, lambda x: erlang_b(servers, x), retries) for r in (rate, MORE * rate)
    )
    agrees(load, right, unlike=[wrong, rate, rate * attempts(erlang_b(servers, rate), retries)])
    agrees(failing, erlang_b(servers, right), unlike=erlang_b(servers, wrong))


# A metastable system: one server, attempts given up after 8 S (their work runs on), five retries

RATE, LIMIT, RETRIES, BACKOFF = 0.7, 8.0, 5, 1500.0
"""The backoff (mean; uniform from 0 to twice that) is long against the queue's memory, so that
attempts come almost as a Poisson process, as the formula has it."""
TRIGGER, LASTS = 4000.0, 6000.0
SETTLED = (0.6, 0.95)
"""Where it is looked at, in parts of the arrival period (57,000 S): 16 backoffs after it."""


def equilibria(rate, *, runs_on=True):
    """(load, share failing) at each fixed point."""

    def failing(load):
        return deadline_failure(load, 1.0, LIMIT, runs_on=runs_on)

    return [(load, failing(load)) for load in retry_fixed_points(rate, failing, RETRIES)]


def metastable(trigger, *, stops=False, policies=None, most=RETRIES + 1):
    """`trigger`: `none`; `burst`: six times more than the server does arrive for a while;
    `slow`: everything takes eight times as long for a while."""
    slow = trigger == "slow"
    drift = ((0.0, 1.0), (TRIGGER * UNIT_S, 8.0), ((TRIGGER + LASTS) * UNIT_S, 1.0))
    the_fleet = served_by(
        [station("s", 1, samples=EXPONENTIAL, stops_on_cancel=stops, drift=drift if slow else ())],
        policies=policies, attempt_timeout_s=LIMIT * UNIT_S, max_attempts=most,
        backoff_s=BACKOFF * UNIT_S, backoff_factor=1.0, jitter=1.0,
    )  # fmt: skip

    def make(rng, count):
        arrivals = poisson(rng, RATE, count)
        if trigger == "burst":
            extra = rng.uniform(TRIGGER, TRIGGER + LASTS / 4, min(count, int(1.5 * LASTS)))
            arrivals = np.sort(np.concatenate([arrivals, extra]))
        work = rng.exponential(1.0, len(arrivals))
        if slow:
            work[(arrivals >= TRIGGER) & (arrivals < TRIGGER + LASTS)] *= 8.0
        return Scenario(stream_of(arrivals, visits("s", work)), the_fleet)

    return make


def settled(run):
    last = units(run.log.ends["arrival"][-1])
    return load_and_failures(run, *(share * last for share in SETTLED))


def observed(trigger, *, runs=16, **options):
    return replicated(metastable(trigger, **options), settled, seed=640, runs=runs)


def is_at(found, place, *, runs_on=True):
    """Load and failures are those of one equilibrium (0 the good one, -1 the bad one), and not of
    another, nor is the load that of 3% more requests."""
    right, more = equilibria(RATE, runs_on=runs_on), equilibria(MORE * RATE, runs_on=runs_on)
    others = [one for one in right if one != right[place]]
    load, failing = found
    agrees(load, right[place][0], unlike=[more[place][0], *(one[0] for one in others)])
    agrees(failing, right[place][1], unlike=[0.0, *(one[1] for one in others)])


def test_the_system_has_two_stable_equilibria():
    """Three fixed points, the middle one unstable; the load is above the hidden capacity mu / (r +
    1) and below mu: it works, and does not come back by itself."""
    found = equilibria(RATE)
    assert len(found) == 3
    assert hidden_capacity(1.0, RETRIES) < RATE < 1.0
    slopes = [
        (retry_gain(load + 1e-4) - retry_gain(load - 1e-4)) / 2e-4 for load, _failing in found
    ]
    assert slopes[0] < 1 < slopes[1]
    assert slopes[2] < 1


def retry_gain(load):
    return RATE * attempts(deadline_failure(load, 1.0, LIMIT), RETRIES)


def test_started_empty_it_stays_in_the_good_equilibrium():
    found = observed("none", runs=24)
    is_at(found, 0)
    agrees(found[1], equilibria(RATE)[0][1], unlike=equilibria(MORE * RATE)[0][1])


@pytest.mark.parametrize("trigger", ["burst", "slow"])
def test_after_a_trigger_it_stays_in_the_bad_equilibrium(trigger):
    """Though the trigger has been over for more than 20,000 service times."""
    found = observed(trigger)
    is_at(found, -1)
    agrees(found[1], equilibria(RATE)[-1][1], unlike=equilibria(MORE * RATE)[-1][1])


@pytest.mark.parametrize("trigger", ["burst", "slow"])
@pytest.mark.parametrize(
    "policies",
    [
        {"client": Client(retry_budget_per_success=0.25, retry_budget_most=50.0)},
        {"admission": Admission(policy=AdmissionPolicy.THRESHOLD, high=200)},
    ],
    ids=["retry budget", "admission"],
)
def test_a_limit_on_retries_brings_it_back(trigger, policies):
    """Back in the good equilibrium, in which neither has anything to do: a budget of 0.25 retries a
    success against 0.067 needed, 200 in flight against 73 (70 of them between attempts)."""
    is_at(observed(trigger, policies=policies), 0)


def test_without_work_that_nobody_waits_for_there_is_one_equilibrium():
    """Given-up work that stops leaves no second equilibrium: after the same trigger it is back."""
    assert len(equilibria(RATE, runs_on=False)) == 1
    is_at(observed("burst", stops=True), 0, runs_on=False)


def test_below_the_hidden_capacity_it_always_comes_back():
    """With no retry at all, lambda (r + 1) < mu, nothing sustains the overload."""
    load, failing = observed("burst", most=1, runs=24)
    agrees(load, RATE, unlike=MORE * RATE)
    wrong = deadline_failure(MORE * RATE, 1.0, LIMIT)
    agrees(failing, deadline_failure(RATE, 1.0, LIMIT), unlike=wrong)
