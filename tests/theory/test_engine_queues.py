"""The engine where its batching reduces to a known queue."""

from __future__ import annotations

import numpy as np
from tests.sim.making import call, columns, engine, fleet, scenario, step_model
from tests.theory.test_queues import agrees, erlang_c, poisson

from sojourn.sim.simulate import simulate


def test_one_slot_and_steps_of_one_length_is_md1():
    """Wq = rho D / (2 (1 - rho)) with D = output tokens x step."""
    rng = np.random.default_rng(21)
    count, tokens = 30_000, 8
    the_fleet = fleet(engine(step_model(base=1 / tokens), seqs=1))
    programs = [[call(10, tokens)]] * count
    run = simulate(scenario(poisson(rng, 0.7, count), programs, the_fleet))
    came, scheduled, left = columns(run.tables.calls, "arrival_s", "scheduled_s", "end_s")
    np.testing.assert_allclose(np.subtract(left, scheduled), 1.0)
    agrees(np.subtract(scheduled, came), 0.7 / (2 * 0.3), width=0.2)


def test_one_slot_and_geometric_lengths_is_mg1():
    """Pollaczek-Khinchine over the lengths that were drawn."""
    rng = np.random.default_rng(22)
    count = 30_000
    tokens = rng.geometric(1 / 20, count)
    the_fleet = fleet(engine(step_model(base=0.05), seqs=1))
    programs = [[call(1, int(n))] for n in tokens]
    rate = 0.5
    run = simulate(scenario(poisson(rng, rate, count), programs, the_fleet))
    came, scheduled = columns(run.tables.calls, "arrival_s", "scheduled_s")
    service = tokens * 0.05
    expected = rate * (service**2).mean() / (2 * (1 - rate * service.mean()))
    agrees(np.subtract(scheduled, came), expected, width=0.3)


def test_steps_linear_in_the_batch_are_processor_sharing():
    """A step of B sequences takes B d, and each has one token of it: processor sharing with
    quantum d. E[T] = E[S] / (1 - rho), whatever the distribution, and E[T | S = x] = x / (1 - rho).
    Tokens are few enough to be fast and many enough (mean 100) that the quantum is below 1%."""
    rng = np.random.default_rng(23)
    count, quantum, rho = 20_000, 0.01, 0.6
    tokens = rng.choice([40, 400], count, p=[5 / 6, 1 / 6])  # mean 100: a second of work
    step = step_model(base=0.0, per_decode=quantum, token=quantum)
    the_fleet = fleet(engine(step, seqs=10_000, budget=10_000))
    programs = [[call(1, int(n))] for n in tokens]
    run = simulate(scenario(poisson(rng, rho, count), programs, the_fleet))
    came, left, size = columns(run.tables.calls, "arrival_s", "end_s", "output_tokens")
    inside, size = np.subtract(left, came), np.array(size)
    agrees(inside, 1.0 / (1 - rho), width=0.2)
    agrees(inside[size == 40], 0.4 / (1 - rho), width=0.2)
    agrees(inside[size == 400], 4.0 / (1 - rho), width=0.2)


def test_slots_and_constant_steps_are_erlang_c():
    """A step that takes the same time whatever the batch makes every slot a server of its own:
    M/M/c in the limit of many tokens (geometric lengths, mean 100 steps; a call waits half a
    step for the boundary, which is taken off)."""
    rng = np.random.default_rng(24)
    count, slots, load, base = 30_000, 4, 3.0, 0.01
    tokens = rng.geometric(1 / 100, count)
    the_fleet = fleet(engine(step_model(base=base), seqs=slots))
    programs = [[call(1, int(n))] for n in tokens]
    run = simulate(scenario(poisson(rng, load, count), programs, the_fleet))
    came, scheduled = columns(run.tables.calls, "arrival_s", "scheduled_s")
    expected = erlang_c(slots, load) / (slots - load)
    agrees(np.subtract(scheduled, came) - base / 2, expected, width=0.3)


def test_two_replicas_by_turns_are_two_queues_of_erlang_arrivals():
    """Round robin thins a Poisson stream to Erlang-2 gaps: each replica is E2/D/1, whose wait is
    shorter than M/D/1's and longer than D/D/1's zero."""
    rng = np.random.default_rng(25)
    count = 20_000
    arrivals = poisson(rng, 1.4, count)
    the_fleet = fleet(engine(step_model(base=1.0), seqs=1, replicas=2))
    run = simulate(scenario(arrivals, [[call(1, 1)]] * count, the_fleet))
    calls = run.tables.calls
    assert calls.column("replica").to_pylist()[:4] == ["0", "1", "0", "1"]
    # Lindley's recursion on every other arrival, as an independent computation
    expected = []
    for first in (0, 1):
        free = 0.0
        for t in arrivals[first::2]:
            start = max(free, t)
            expected.append((t, start - t))
            free = start + 1.0
    came, scheduled = columns(calls, "arrival_s", "scheduled_s")
    wait = [w for _, w in sorted(expected)]
    np.testing.assert_allclose(np.subtract(scheduled, came), wait, atol=1e-6)
    assert 0 < np.mean(wait) < 0.7 / (2 * 0.3)
