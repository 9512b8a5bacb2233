"""The simulator against the recorded engine: `benchmarks/real_engine.py`, the part that is stable.

All of the table is in docs/explanation/accuracy.md, with what it misses.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import real_engine as real
from sojourn.capacity import recorded_engine
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.trace.arrays import whole

SEEDS = 2


@pytest.fixture(scope="module")
def base():
    return real.recording("base")


@pytest.fixture(scope="module")
def step(base):
    return real.fitted(base)


def off(run, step):
    """Relative errors of a run's figures; counts as they are where none was recorded."""
    told, seen = real.predicted(run, step, SEEDS), real.recorded_figures(run)
    return {q: told[q].mean() / seen[q] - 1 if seen[q] else told[q].mean() for q in real.BARS}


def test_every_first_token_is_found_in_the_step_log(base):
    steps = recorded_engine.first_token_steps(base)
    assert (steps >= 0).all()
    delivery = recorded_engine.deliveries(base)
    assert delivery.min() > 0  # no chunk before its step has ended
    assert np.median(delivery) == pytest.approx(0.0019, rel=0.2)  # seen: 1.3 to 2.1 ms after spans


def test_the_front_end_is_told_from_the_wait_for_a_step(base, step):
    idle = 0.0034 + np.median(recorded_engine.deliveries(base))  # arrivals while the engine idled
    assert np.median(step.front_samples_s) == pytest.approx(idle, rel=0.2)
    factors = [factor for _, factor in step.front_load]
    assert factors == sorted(factors)
    assert factors[-1] > 1.1


@pytest.mark.parametrize("name", ["load", "lengths"])
def test_another_load_and_another_mix_are_predicted(step, name):
    for quantity, error in off(real.recording(name), step).items():
        assert abs(error) <= real.BARS[quantity], (quantity, error)


@pytest.mark.parametrize("name", ["scarcity", "sharing"])
def test_the_rules_of_preemption_and_prefix_cache_are_the_engines(step, name):
    """With the run's own step times nothing but the rules can err."""
    for quantity, error in off(real.recording(name), real.own_steps(name, step)).items():
        assert abs(error) <= real.BARS[quantity], (quantity, error)


def test_prefix_hits_are_those_of_the_engine(step):
    run = real.recording("sharing")
    own = real.own_steps("sharing", step)
    told = simulate(Scenario(real.stream(run), real.fleet(run, own), 0), engine=real.ENGINE)
    hits = whole(run.requests["cached_tokens"]).sum()
    assert told.log.calls["cached"].sum() == pytest.approx(hits, rel=0.02)
