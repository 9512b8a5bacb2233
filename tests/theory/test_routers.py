"""Routers: against closed forms, and against each other with common random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, step_model
from tests.theory.closed_forms import erlang_arrivals_wait, lindley
from tests.theory.running import (
    MORE,
    UNIT_S,
    above,
    agrees,
    call_waits,
    calls,
    of_place,
    poisson,
    replicated,
    served_by,
    steady,
    stream_of,
)

from sojourn.capacity.policies import PrefixCache, Router, RouterPolicy
from sojourn.capacity.queueing import mmc_wait
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

REPLICAS, TOKENS = 4, 200
STEP = step_model(base=UNIT_S / TOKENS)


def spread(policy, rate):
    """Calls of geometric length over replicas of one slot: M/1 each."""
    model = engine(STEP, seqs=1, replicas=REPLICAS, router=Router(policy=policy))
    the_fleet = served_by([], engine=model)

    def make(rng, count):
        arrivals = poisson(rng, rate, count)
        return Scenario(stream_of(arrivals, calls(1, rng.geometric(1 / TOKENS, count))), the_fleet)

    return make


def mean_wait(run):
    return steady(call_waits(run)).mean()


def test_round_robin_thins_to_erlang_arrivals():
    """Every fourth of a Poisson stream: E4/M/1 at each replica (geometric lengths of 200 steps for
    exponential ones: Cs2 is 1 - 1/200, the wait shorter by a fraction of that)."""
    rate = 0.8

    (mean,) = replicated(spread(RouterPolicy.ROUND_ROBIN, 4 * rate), mean_wait, seed=501)
    expected, wrong = (erlang_arrivals_wait(r, 4) for r in (rate, MORE * rate))
    agrees(mean, expected, unlike=[wrong, rate / (1 - rate)], slack=expected / TOKENS)


def test_least_loaded_beats_round_robin():
    """The same calls at the same times, seed by seed; and no router beats one queue for all."""
    rate = 3.2
    turns, least = (
        replicated(spread(policy, rate), mean_wait, seed=510, runs=12, count=20_000)[0]
        for policy in (RouterPolicy.ROUND_ROBIN, RouterPolicy.LEAST_LOADED)
    )
    above(turns, least)
    above(least, mmc_wait(rate, 1, REPLICAS))
    assert least.mean() < 0.7 * turns.mean()


def test_two_replicas_by_turns_are_two_queues():
    """Lindley's recursion on every other arrival, as an independent computation, to the tick."""
    rng = np.random.default_rng(520)
    arrivals = poisson(rng, 1.4, 20_000)
    model = engine(step_model(base=UNIT_S), seqs=1, replicas=2)
    made = Scenario(stream_of(arrivals, calls(1, 1)), served_by([], engine=model))
    run = simulate(made, engine="kernel")
    rows = of_place(run.log.calls)
    assert np.array_equal(rows["replica"], np.arange(20_000) % 2)
    found = call_waits(run)
    for first in (0, 1):
        expected = lindley(arrivals[first::2], np.ones(10_000))
        np.testing.assert_allclose(found[first::2], expected, atol=1e-6)
        assert expected.mean() > 0.1


SESSIONS = 400


@pytest.fixture(scope="module")
def homes():
    """Session and replica of every call, and the replica of every session's last one."""
    rng = np.random.default_rng(530)
    owner = rng.integers(0, SESSIONS, 20_000)
    model = engine(STEP, seqs=8, replicas=REPLICAS, router=Router(policy=RouterPolicy.SESSION))
    made = stream_of(poisson(rng, 3.0, len(owner)), calls(1, TOKENS), sessions=owner)
    run = simulate(Scenario(made, served_by([], engine=model)), engine="kernel")
    replica = of_place(run.log.calls)["replica"]
    home = np.full(SESSIONS, -1)
    home[owner] = replica
    return owner, replica, home


def test_sessions_stay_together(homes):
    """All calls of a session are at one replica."""
    owner, replica, home = homes
    assert np.array_equal(home[owner], replica)
    assert len(np.unique(home)) > 1


def test_sessions_are_spread_evenly(homes):
    """Within 4.9 standard deviations of a binomial share: but for one seed in a million."""
    share = np.bincount(homes[2], minlength=REPLICAS) / SESSIONS
    assert np.all(np.abs(share - 1 / REPLICAS) < 4.9 * np.sqrt(0.25 * 0.75 / SESSIONS))


def hit_share(policy, weight=256.0):
    """Conversations' prompts share one of 60 system prompts of 10 hashes; a replica's cache holds a
    third of them."""
    block, unit, documents = 16, 10, 60
    model = engine(
        STEP, seqs=4, replicas=REPLICAS, block=block, blocks=unit * 20 + 60,
        prefix_cache=PrefixCache(tokens_per_hash=block),
        router=Router(policy=policy, load_weight_tokens=weight),
    )  # fmt: skip
    the_fleet = served_by([], engine=model)

    def make(rng, count):
        which = rng.integers(0, documents, count)
        hashes = [list(range(w * unit + 1, (w + 1) * unit + 1)) for w in which]
        prompt = block * unit + 5
        steps = calls(prompt, rng.geometric(1 / 40, count), hashes=hashes)
        return Scenario(stream_of(poisson(rng, 6.0, count), steps), the_fleet)

    def measure(run):
        return steady(of_place(run.log.calls)["cached"]).mean() / (block * unit)

    return replicated(make, measure, seed=540, runs=8, count=8000)[0]


def test_prefix_aware_raises_the_share_of_hits():
    """Round robin hits as one cache of 20 of 60 would; prefix awareness shares the documents out
    over the replicas, which hold them all."""
    turns, aware = hit_share(RouterPolicy.ROUND_ROBIN), hit_share(RouterPolicy.PREFIX_AWARE, 4.0)
    above(aware, turns)
    assert turns.mean() == pytest.approx(1 / 3, abs=0.05)
    assert aware.mean() > 0.9
