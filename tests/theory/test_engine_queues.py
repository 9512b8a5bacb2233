"""The engine where its batching reduces to a known queue."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, step_model
from tests.theory.closed_forms import bulk_wait, unlimited_bulk_wait
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    call_waits,
    calls,
    poisson,
    replicated,
    served_by,
    stays,
    steady,
    stream_of,
)

from sojourn.capacity.queueing import (
    erlang_c,
    mg1_wait,
    mm1_wait,
    mmc_wait,
    processor_sharing_time,
)
from sojourn.sim.scenario import Scenario


def geometric(mean):
    return lambda rng, count: rng.geometric(1 / mean, count)


def one_engine(rate, tokens, model):
    """Poisson arrivals of calls with one prompt token and `tokens(rng, count)` to write."""
    the_fleet = served_by([], engine=model)

    def make(rng, count):
        arrivals = poisson(rng, rate, count)
        return Scenario(stream_of(arrivals, calls(1, tokens(rng, count))), the_fleet)

    return make


def mean_wait(run):
    return steady(call_waits(run)).mean()


def test_one_slot_and_one_length_is_md1():
    """Wq = rho D / (2 (1 - rho)), D = tokens x step."""
    rate, tokens = 0.7, 8
    model = engine(step_model(base=UNIT_S / tokens), seqs=1)
    make = one_engine(rate, lambda rng, count: np.full(count, tokens), model)
    (mean,) = replicated(make, mean_wait, seed=201)
    agrees(mean, mg1_wait(rate, 1, 0), unlike=[mg1_wait(MORE * rate, 1, 0), mm1_wait(rate, 1)])


def test_one_slot_and_geometric_lengths_is_mg1():
    """Pollaczek-Khinchine with Cs2 = 1 - 1/20: exact, steps need not be short."""
    rate, tokens = 0.6, 20
    model = engine(step_model(base=UNIT_S / tokens), seqs=1)
    (mean,) = replicated(one_engine(rate, geometric(tokens), model), mean_wait, seed=202)
    cs2 = 1 - 1 / tokens
    agrees(mean, mg1_wait(rate, 1, cs2), unlike=mg1_wait(MORE * rate, 1, cs2))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("one length", lambda rng, count: np.full(count, 200)),
        ("geometric", geometric(200)),
        ("two lengths", lambda rng, count: rng.choice([80, 800], count, p=[5 / 6, 1 / 6])),
        ("lognormal", lambda rng, count: np.rint(rng.lognormal(4.798, 1, count)).astype(int) + 1),
    ],
)
def test_steps_linear_in_the_batch_are_processor_sharing(name, tokens):
    """A step of B sequences takes B q and writes a token of each: round robin with quantum q,
    which is processor sharing as q -> 0. E[T] = E[S] / (1 - rho) whatever the distribution.

    Here q = S / 200. An arrival waits for the end of the step under way and leaves at the end of
    its last one: within one mean step, q E[N] = q rho / (1 - rho), of the limit."""
    rate, mean = 0.6, 200
    quantum = 1 / mean
    step = step_model(base=0.0, per_decode=quantum * UNIT_S, token=quantum * UNIT_S)
    model = engine(step, seqs=2000, budget=4000)

    def measure(run):
        written = run.log.calls["written"][np.argsort(run.log.calls["request"])]
        # the drawn mean differs a little from the drawn from; its share in T is taken out
        return steady(stays(run)).mean() / steady(written).mean() * mean

    (inside,) = replicated(one_engine(rate, tokens, model), measure, seed=210)
    slack = quantum * rate / (1 - rate)
    wrong = [1 / (1 - MORE * rate), 1 + mg1_wait(rate, 1, 0.0)]
    agrees(inside, processor_sharing_time(rate, 1, 1), unlike=wrong, slack=slack)


def test_processor_sharing_is_fair_to_every_length():
    """E[T | S = x] = x / (1 - rho) for short and long calls alike."""
    rate, quantum = 0.6, 1 / 200
    step = step_model(base=0.0, per_decode=quantum * UNIT_S, token=quantum * UNIT_S)
    lengths = np.array([80, 800])

    def tokens(rng, count):
        return rng.choice(lengths, count, p=[5 / 6, 1 / 6])

    def measure(run):
        inside = steady(stays(run))
        written = steady(run.log.calls["written"][np.argsort(run.log.calls["request"])])
        return [inside[written == length].mean() for length in lengths]

    make = one_engine(rate, tokens, engine(step, seqs=2000, budget=4000))
    found = replicated(make, measure, seed=215)
    for values, length in zip(found, lengths, strict=True):
        own = length * quantum
        agrees(
            values,
            processor_sharing_time(rate, 1, own),
            unlike=processor_sharing_time(MORE * rate, 1, own),
            slack=quantum * rate / (1 - rate),
        )


@pytest.mark.parametrize(("slots", "load"), [(4, 3.0), (12, 10.2)])
def test_slots_and_constant_steps_are_erlang_c(slots, load):
    """A step that takes the same time whatever the batch makes every slot a server of its own:
    M/M/c in the limit of many tokens (geometric, mean 500). A call that finds the engine at
    work waits for the end of a step, on average half of it, also when a slot is free."""
    tokens = 500
    base = 1 / tokens
    make = one_engine(load, geometric(tokens), engine(step_model(base=base * UNIT_S), seqs=slots))

    def measure(run):
        found = steady(call_waits(run))
        return found.mean() - base / 2, (found > base).mean()

    mean, waiting = replicated(make, measure, seed=220 + slots)
    more = MORE * load
    agrees(mean, mmc_wait(load, 1, slots), unlike=mmc_wait(more, 1, slots), slack=base / 2)
    # a wait of less than a step may be a slot's or the step's: density c mu P(wait) per time
    slack = base * slots
    agrees(waiting, erlang_c(slots, load), unlike=erlang_c(slots, more), slack=slack)


@pytest.mark.parametrize(("most", "rate"), [(8, 6.0), (3, 2.4), (4000, 1.5)])
def test_calls_of_one_token_are_batch_service(most, rate):
    """Every step takes up to `most` of those that wait and all of them leave at its end: M/D(1,b)/1
    (Bailey), without a limit in closed form."""
    model = engine(step_model(base=UNIT_S), seqs=most, budget=8000)
    make = one_engine(rate, lambda rng, count: np.ones(count, int), model)
    (mean,) = replicated(make, mean_wait, seed=230)

    def expected(load):
        return unlimited_bulk_wait(load, 1) if most > 100 else bulk_wait(load, 1, most, states=400)

    if most == 3:  # the numeric solution is the closed form where the limit does not matter
        assert bulk_wait(1.5, 1, 100, states=100) == pytest.approx(unlimited_bulk_wait(1.5, 1))
    agrees(mean, expected(rate), unlike=expected(MORE * rate))
