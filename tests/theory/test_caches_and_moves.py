"""The prefix cache under independent references, and prefill apart from decode."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, step_model
from tests.theory.closed_forms import lru_che, lru_exact, lru_share
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    between,
    call_waits,
    calls,
    of_place,
    poisson,
    replicated,
    served_by,
    steady,
    stream_of,
)

from sojourn.capacity.policies import PrefillPool, PrefixCache
from sojourn.capacity.queueing import mg1_wait, mmc_wait
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import ticks

BLOCK = 16


def zipf(documents, power):
    weights = np.arange(1, documents + 1, dtype=float) ** -power
    return weights / weights.sum()


def references(popularity, size):
    """One call after the other, each with the one-block prefix of a document: the cache holds
    `size` documents, and one block more is for the call's last tokens."""
    model = engine(
        step_model(base=1e-4), seqs=1, block=BLOCK, blocks=size + 1,
        prefix_cache=PrefixCache(tokens_per_hash=BLOCK),
    )  # fmt: skip
    the_fleet = served_by([], engine=model)

    def make(rng, count):
        which = rng.choice(len(popularity), count, p=popularity)
        step = calls(BLOCK + 1, 1, hashes=[[int(w) + 1] for w in which])
        return Scenario(stream_of(np.arange(count, dtype=float), step), the_fleet)

    return make


def hits(run):
    return of_place(run.log.calls)["cached"] > 0


def test_the_cache_is_least_recently_used():
    """Every hit and miss, as a list of the recently used has them."""
    popularity = zipf(40, 0.9)
    made = references(popularity, 7)(np.random.default_rng(800), 20_000)
    order = [row[0] for row in made.stream.steps.column("block_hashes").to_pylist()]
    found = hits(simulate(made, engine="kernel"))
    assert np.array_equal(found, lru_share(order, 7))
    assert 0.2 < found.mean() < 0.8


@pytest.mark.parametrize("size", [1, 4])
def test_hit_ratio_of_few_documents_is_exact(size):
    """King's formula for eight documents."""
    popularity = zipf(8, 0.8)
    (share,) = replicated(
        references(popularity, size), lambda run: steady(hits(run)).mean(), seed=810, count=20_000
    )
    expected = lru_exact(popularity, size)
    agrees(share, expected, unlike=[1.03 * expected, popularity[:size].sum()])


@pytest.mark.parametrize(("documents", "size", "power"), [(500, 50, 0.8), (2000, 300, 1.0)])
def test_hit_ratio_of_many_documents_is_ches(documents, size, power):
    """Che's approximation, held to 0.2 percentage points."""
    popularity = zipf(documents, power)

    def measure(run):
        return hits(run)[5000:].mean()

    (share,) = replicated(references(popularity, size), measure, seed=820)
    expected = lru_che(popularity, size)
    wrong = [lru_che(popularity, round(1.05 * size)), popularity[:size].sum()]
    agrees(share, expected, unlike=wrong, slack=0.002)


def apart(rate, slots, *, base=0.0, per_token=0.0):
    """Prompts one by one in a pool of their own (geometric, mean 200, S = 1), answers in another
    with steps of constant length (geometric, mean 400 steps, S = 1 each)."""
    prompts = engine(step_model(base=0.0, token=UNIT_S / 200), seqs=1, budget=20_000)
    moved = PrefillPool(
        pool="prompts", transfer_base_s=base * UNIT_S, transfer_s_per_token=per_token * UNIT_S
    )
    answers = engine(step_model(base=UNIT_S / 400), seqs=slots, prefill=moved)
    the_fleet = served_by([], engine=answers, policies={"pools": {"prompts": prompts}})

    def make(rng, count):
        step = calls(rng.geometric(1 / 200, count), 1 + rng.geometric(1 / 400, count))
        return Scenario(stream_of(poisson(rng, rate, count), step), the_fleet)

    return make


def test_two_pools_are_queues_in_series():
    """M/M/1 for prompts (Cs2 = 1 - 1/200), Burke, and M/M/c for answers. Lengths in whole tokens
    and a wait for the end of a step (half a step in the mean, taken off) leave it within half a
    step."""
    rate, slots, step = 0.7, 1, 1 / 400

    def measure(run):
        second = between(of_place(run.log.calls), "moved", "resumed")
        return steady(call_waits(run)).mean(), steady(second).mean() - step / 2

    first, second = replicated(apart(rate, slots, base=0.5), measure, seed=830)
    agrees(first, mg1_wait(rate, 1, 1 - 1 / 200), unlike=mg1_wait(MORE * rate, 1, 1 - 1 / 200))
    expected, wrong = (mmc_wait(r, 1, slots) for r in (rate, MORE * rate))
    agrees(second, expected, unlike=wrong, slack=step / 2 + expected / 200)


@pytest.mark.parametrize("engine_name", ["reference", "kernel"])
def test_transfer_adds_exactly_its_time_to_an_unloaded_call(engine_name):
    """Base and tokens x rate, to the tick."""
    rng = np.random.default_rng(840)
    base, per_token = 0.3, 0.002
    stream = apart(1.0, 8)(rng, 200).stream
    step = calls(*(stream.steps.column(n).to_numpy() for n in ("input_tokens", "output_tokens")))
    alone = stream_of(np.arange(200) * 60.0, step)
    stays = []
    for cost in ({}, {"base": base, "per_token": per_token}):
        made = Scenario(alone, apart(1.0, 8, **cost)(rng, 1).fleet)
        ends = simulate(made, engine=engine_name).log.ends
        stays.append(ends["end"] - ends["arrival"])
    transfer = ticks(base * UNIT_S) + ticks(per_token * UNIT_S) * step["input_tokens"]
    assert np.array_equal(stays[1] - stays[0], transfer)
