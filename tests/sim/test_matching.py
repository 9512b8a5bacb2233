"""Simulate and match turns a step model back to the one that made the run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.sim.making import call, engine, fleet, scenario, step_model

from sojourn.errors import UsageError
from sojourn.sim.matching import FARTHEST, Case, match, turned
from sojourn.sim.simulate import simulate

TRUTH = step_model(base=0.012, per_decode=1e-4, slope=2e-8, token=6e-5, context=2e-9, front=0.02)


def recorded(step, *, calls=120, rate=6.0, seed=0):
    """A run of a known engine: the scenario's stream and the calls it made."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, calls))
    programs = [
        [call(int(rng.integers(50, 3000)), int(rng.integers(2, 300)))] for _ in range(calls)
    ]
    ran = scenario(arrivals, programs, fleet(engine(step)))
    return Case(ran.stream, simulate(ran).tables.calls)


def off(step, real, of):
    """Largest relative difference of a cost over states an engine of this load meets."""
    return max(abs(of(step, at) / of(real, at) - 1) for at in (1, 10, 40))


def decode(step, batch):
    return step.decode_step_s(batch, 800.0 * batch)


def prompt(step, hundreds):
    return step.prefill_step_s(100 * hundreds) + step.prefill_s_per_token_context * 1e6


@settings(max_examples=6, deadline=None)
@example(decodes=1.0390625, prompts=0.8051358998694962, fronts=0.75, seed=2)  # beside the lowest
@given(
    decodes=st.floats(0.85, 1.15),
    prompts=st.floats(0.8, 1.2),
    fronts=st.floats(0.7, 1.4),
    seed=st.integers(0, 3),
)
def test_wrong_factors_are_turned_back(decodes, prompts, fronts, seed):
    case = recorded(TRUTH, seed=seed)
    wrong = turned(TRUTH, decode=decodes, prefill=prompts, front=fronts)
    found = match([case], fleet(engine(wrong)), engine="kernel")
    step = found.fleet.engine.step
    # 120 calls tell decodes and front end apart to some per cent only, their sum better
    assert off(step, TRUTH, decode) < 0.06
    assert off(step, TRUTH, prompt) < 0.08
    assert step.front_s == pytest.approx(TRUTH.front_s, abs=0.01)
    assert found.after < 0.03
    assert found.after <= found.before


def test_what_matches_is_left_alone():
    found = match([recorded(TRUTH)], fleet(engine(TRUTH)))
    assert found.factors == {"decode": 1.0, "prefill": 1.0, "front": 1.0}
    assert found.fleet.engine.step == TRUTH
    assert found.before == found.after < 1e-9


def test_several_runs_are_matched_together():
    cases = [recorded(TRUTH, rate=rate, calls=60, seed=seed) for seed, rate in enumerate((1, 5))]
    wrong = turned(TRUTH, decode=1.1, prefill=1.0, front=1.0)
    found = match(cases, fleet(engine(wrong)))
    assert off(found.fleet.engine.step, TRUTH, decode) < 0.01


def test_only_the_calls_given_count():
    case = recorded(TRUTH)
    part = Case(case.stream, case.calls.slice(0, 50))
    wrong = turned(TRUTH, decode=0.9, prefill=1.0, front=1.0)
    assert off(match([part], fleet(engine(wrong))).fleet.engine.step, TRUTH, decode) < 0.02


def test_factors_stay_within_reach():
    case = recorded(TRUTH, calls=60)
    far = turned(TRUTH, decode=0.3, prefill=1.0, front=1.0)
    found = match([case], fleet(engine(far)))
    assert all(1 / FARTHEST <= factor <= FARTHEST + 1e-9 for factor in found.factors.values())


def test_too_few_calls_are_refused():
    case = recorded(TRUTH, calls=40)
    with pytest.raises(UsageError, match="30 are needed"):
        match([Case(case.stream, case.calls.slice(0, 10))], fleet(engine(TRUTH)))
