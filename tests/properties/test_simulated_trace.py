"""A simulated run is a trace: the rooms that read recordings read it as well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from tests.properties.test_sim_laws import scenarios
from tests.sim.making import call, delay, engine, fleet, scenario, station, step_model, visit

from sojourn.records import Stage
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

attribution = pytest.importorskip("sojourn.attribution.decompose", reason="room not built yet")
replaying = pytest.importorskip("sojourn.workload.replay", reason="room not built yet")


def spent(tables):
    came, left = (tables.requests.column(n).to_numpy() for n in ("arrival_s", "end_s"))
    return left - came


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_stages_sum_to_the_time_of_every_request(made):
    tables = simulate(made).tables
    stages = attribution.decompose(tables)
    assert (
        stages.column("request_id").to_pylist() == tables.requests.column("request_id").to_pylist()
    )
    total = np.sum([stages.column(stage.value).to_numpy() for stage in Stage], axis=0)
    np.testing.assert_allclose(total, spent(tables), rtol=0, atol=1e-6)


def chain(rng):
    """Retrieval, rerank, one call or two with parallel tools between, and postprocessing."""
    steps = [
        visit("kb", rng.lognormal(-1.0, 0.5), stage="retrieval"),
        visit("rerank", rng.lognormal(-2.0, 0.5), group=1, stage="rerank"),
        call(int(rng.integers(50, 900)), int(rng.integers(5, 90)), group=2),
    ]
    if rng.random() < 0.3:
        steps += [
            visit("search", rng.lognormal(-1.0, 0.5), group=3),
            visit("sql", rng.lognormal(-1.0, 0.5), group=3),
            call(1000, 40, cached=512, group=4),
        ]
    return [*steps, delay(0.01, group=5, stage="postprocess")]


def test_replaying_a_simulated_run_simulates_it_again():
    rng = np.random.default_rng(3)
    count = 400
    the_fleet = fleet(
        engine(step_model(base=0.01, per_decode=2e-4, token=4e-5, front=0.004), seqs=16),
        [station("kb", 3), station("rerank", 2)],
    )
    programs = [chain(rng) for _ in range(count)]
    first = simulate(scenario(np.cumsum(rng.exponential(0.2, count)), programs, the_fleet))
    again = simulate(Scenario(replaying.replay(first.tables), the_fleet))
    np.testing.assert_allclose(spent(again.tables), spent(first.tables), atol=1e-6)
    waited = first.tables.spans.column("wait_s").drop_null().to_numpy()
    assert waited.max() > 0.1
