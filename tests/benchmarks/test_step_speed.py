"""The benchmark of step estimates measures what a simulation computes."""

from __future__ import annotations

import numpy as np
import pytest
import step_speed

from sojourn.capacity.records import StepModel
from sojourn.interval import Provenance
from sojourn.sim.ticks import PER_S


def test_the_estimates_are_those_of_the_readable_engine():
    step, steps = step_speed.fitted(), step_speed.Steps.drawn(5_000)
    run, plan = step_speed.packed(step)
    told = step_speed.answer(run.world, *vars(steps).values())
    assert np.array_equal(told, step_speed.by_the_rule(plan, steps))
    seconds = step_speed.in_python(step, steps)
    assert told / PER_S == pytest.approx(seconds, rel=step_speed.TICK_ERROR)


def test_the_steps_are_mixed_and_within_the_tables():
    steps = step_speed.Steps.drawn(5_000)
    assert 0 < (steps.tokens > 0).mean() < 1
    assert steps.decodes.min() >= 1
    assert steps.decodes.max() <= step_speed.SLOTS
    assert (steps.decodes + steps.tokens).max() <= step_speed.BUDGET


def test_a_step_is_at_least_a_tick():
    nothing = StepModel(
        batches=(0,),
        base_s=(0.0,),
        slope_s_per_token=(0.0,),
        prefill_s_per_token=0.0,
        provenance=Provenance.ASSUMED,
        source="free",
    )
    run, _ = step_speed.packed(nothing)
    one = np.ones(1, np.int64)
    assert step_speed.answer(run.world, one, one, one, one).tolist() == [1]


def test_a_rate_is_reported_with_its_bar_and_a_baseline(monkeypatch):
    monkeypatch.setattr(step_speed, "FEW", 100)
    monkeypatch.setattr(step_speed, "peer", lambda: None)
    told = {f.what: f for f in step_speed.estimates(1_000, 1)}
    assert told["kernel, best"].bar == 10_000_000
    assert told["StepModel.step_s, Python"].value > 0
