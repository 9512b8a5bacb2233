"""Measured runs, fitted on a part, simulated, and compared on the rest: small parts of them here,
all of them in benchmarks/ground_truth.py. The errors asserted are what was reached, rounded up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.measured import llmservingsim, lmbench
from benchmarks.measured.runs import joined, stream, tables

from sojourn.capacity import calibration
from sojourn.capacity.records import EngineModel, Fleet
from sojourn.config import Config
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
ABSENT = "published measured runs are not beside the checkout (shared/data/ground_truth)"


@pytest.fixture(scope="module")
def recorded():
    found = llmservingsim.load(SHARED)
    if found is None:
        pytest.skip(ABSENT)
    return found


@pytest.fixture(scope="module")
def sweep():
    """The first sweep: 8 rates, one engine."""
    found = lmbench.load(SHARED)
    if found is None:
        pytest.skip(ABSENT)
    return {part.rate: part.run for part in found if part.sweep == 0}


def engine_of(measured, flags):
    step = calibration.fit(measured, Config.from_dict({"deployment": flags}))
    return Fleet(engine=EngineModel(step=step, replicas=1, kv_blocks=100_000, **flags))


def simulated(run, fleet):
    """E2E and time to first token of each call, seconds."""
    calls = simulate(Scenario(stream(run), fleet)).tables.calls.sort_by("request_id")
    arrival, first, end = (
        calls.column(name).to_numpy() for name in ("arrival_s", "first_token_s", "end_s")
    )
    return end - arrival, first - arrival


def test_a_first_third_tells_the_rest_of_a_run_into_overload(recorded):
    run = recorded.run
    third = np.arange(len(run)) < len(run) // 3
    flags = {
        "max_num_seqs": recorded.max_num_seqs,
        "max_num_batched_tokens": recorded.max_num_batched_tokens,
    }
    e2e, ttft = simulated(run, engine_of(tables(run, known=third), flags))
    assert e2e[~third].mean() == pytest.approx(run.e2e[~third].mean(), rel=0.03)
    assert np.quantile(ttft[~third], 0.99) == pytest.approx(
        np.quantile(run.ttft[~third], 0.99), rel=0.03
    )


def test_two_rates_tell_the_one_between(sweep):
    run, names = joined([sweep[8.0], sweep[16.0]])
    flags = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    e2e, ttft = simulated(sweep[12.0], engine_of(tables(run, names), flags))
    assert e2e.mean() == pytest.approx(sweep[12.0].e2e.mean(), rel=0.03)
    assert ttft.mean() == pytest.approx(sweep[12.0].ttft.mean(), rel=0.1)


def test_sweeps_are_told_apart(sweep):
    assert sorted(sweep) == [4.0, 8.0, 12.0, 16.0, 24.0, 28.0, 32.0, 36.0]
    assert all(len(run) == 252 for run in sweep.values())
