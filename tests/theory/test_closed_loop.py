"""Clients that wait for their answer and think: machine repairman and the response time law."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, station, step_model
from tests.theory.closed_forms import finite_population
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    calls,
    replicated,
    served_by,
    stream_of,
    units,
    visits,
)

from sojourn.capacity.policies import Client
from sojourn.sim.scenario import Scenario

THINK = 8.0
EXPONENTIAL = tuple(-np.log1p(-(np.arange(400) + 0.5) / 400))
TWO_POINTS = (0.2, 0.2, 0.2, 3.4)


def closed(clients, think, the_fleet_of, step):
    """`think`: samples with mean 1."""
    scaled = tuple(float(v) * UNIT_S * THINK / np.mean(think) for v in think)
    client = Client(closed_loop=clients, think_samples_s=scaled)
    the_fleet = the_fleet_of({"client": client})

    def make(rng, count):
        return Scenario(stream_of(np.zeros(count), step(rng, count)), the_fleet)

    return make


def law(run):
    """Of the middle of the run: throughput, response, and mean number in flight."""
    ends = run.log.ends
    came, left = units(ends["arrival"]), units(ends["end"])
    first, last = np.quantile(came, [0.1, 0.9])
    inside = np.clip(left, first, last) - np.clip(came, first, last)
    window = (left >= first) & (left < last)
    span = last - first
    return window.sum() / span, (left - came)[window].mean(), inside.sum() / span


def holds(make, clients, servers, seed):
    """X and R of the finite population, and N = X (R + Z) with N the clients."""
    throughput, response, inside = replicated(make, law, seed=seed, count=30_000)
    rate, stay = finite_population(clients, THINK, servers)
    wrong_rate, wrong_stay = finite_population(clients, THINK / MORE, servers)
    agrees(response, stay, unlike=[wrong_stay, clients / 0.97 / rate - THINK])
    agrees(throughput, rate, unlike=wrong_rate if wrong_rate > 1.005 * rate else 1.02 * rate)
    agrees(throughput * (response + THINK), clients, unlike=[clients - 0.3, clients + 0.3])
    agrees(inside / throughput / stay, 1.0, unlike=[0.97, 1.03])


@pytest.mark.parametrize("think", [EXPONENTIAL, TWO_POINTS], ids=["exponential", "two points"])
@pytest.mark.parametrize(("clients", "servers"), [(6, 1), (20, 2)])
def test_machine_repairman(clients, servers, think):
    """M/M/c//N: any think time with the same mean gives the same."""

    def fleet_of(policies):
        return served_by([station("s", servers)], policies=policies)

    make = closed(
        clients, think, fleet_of, lambda rng, count: visits("s", rng.exponential(1.0, count))
    )
    holds(make, clients, servers, seed=400 + clients)


def test_an_engine_in_processor_sharing_is_the_same_whatever_the_lengths():
    """Ten clients before an engine whose steps are linear in the batch: M/M/1//N, though the
    lengths are of two kinds. Within a mean step of the limit (q E[N], q = 1/400)."""
    quantum = 1 / 400
    step = step_model(base=0.0, per_decode=quantum * UNIT_S, token=quantum * UNIT_S)

    def fleet_of(policies):
        return served_by([], engine=engine(step, seqs=20), policies=policies)

    def step_of(rng, count):
        return calls(1, rng.choice([160, 1600], count, p=[5 / 6, 1 / 6]))

    throughput, response, inside = replicated(
        closed(10, EXPONENTIAL, fleet_of, step_of), law, seed=450, count=30_000
    )
    rate, stay = finite_population(10, THINK)
    slack = quantum * inside.mean()
    agrees(response, stay, unlike=finite_population(10, THINK / MORE)[1], slack=slack)
    agrees(throughput, rate, unlike=[0.97 * rate, 1.03 * rate], slack=slack / THINK)
