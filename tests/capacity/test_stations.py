"""Stations from spans: waits apart from work, servers, and work that outlives its caller."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capacity.station_queue import fifo, shared, spans_of, tables_of

from sojourn.capacity import stations
from sojourn.capacity.survival import kaplan_meier
from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.trace.tables import Tables

NAME = "retrieval kb"


def _work(visits, seed=0, sigma=0.7):
    return np.random.default_rng(seed).lognormal(-0.5, sigma, visits)


def _arrivals(rate, visits, seed=1):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, visits))


def test_recorded_waits_win():
    work, arrival = _work(800), _arrivals(5.2, 800)
    starts, ends = fifo(arrival, work, 4)
    rows = spans_of(NAME, "retrieval", arrival, ends, wait=starts - arrival)
    filled, models = stations.infer(tables_of(rows), Config())
    model = models[NAME]
    assert model.servers == 4
    assert model.service_s.mean == pytest.approx(work.mean(), rel=1e-6)
    assert model.service_s.p99 == pytest.approx(np.quantile(work, 0.99), rel=0.02)
    assert np.mean(model.service_samples_s) == pytest.approx(work.mean(), rel=1e-6)
    assert len(model.service_samples_s) == 500
    waits = filled.spans.column("wait_s").to_numpy()
    np.testing.assert_allclose(waits, starts - arrival)


def test_servers_told_give_waits_back():
    work, arrival = _work(500), _arrivals(5, 500)
    starts, ends = fifo(arrival, work, 4)
    config = Config.from_dict({"stations": {NAME: {"servers": 4, "usd_per_call": 0.001}}})
    filled, models = stations.infer(tables_of(spans_of(NAME, "retrieval", arrival, ends)), config)
    waits = filled.spans.column("wait_s").to_numpy()
    np.testing.assert_allclose(waits, starts - arrival, atol=1e-9)
    assert models[NAME].service_s.mean == pytest.approx(work.mean())
    assert models[NAME].usd_per_call == 0.001


def test_servers_untold_are_inferred_or_left_open():
    work, arrival = _work(1500), _arrivals(5.2, 1500)
    _, ends = fifo(arrival, work, 4)
    rows = spans_of(NAME, "retrieval", arrival, ends)
    rows += spans_of("execute_tool web", "tool", arrival, arrival + work)
    filled, models = stations.infer(tables_of(rows), Config())
    assert models[NAME].servers == 4
    assert models[NAME].provenance is Provenance.INFERRED
    assert models[NAME].service_s.mean == pytest.approx(work.mean(), rel=0.02)
    assert models["execute_tool web"].servers is None
    waits = filled.spans.column("wait_s")
    assert waits[:1500].null_count == 0
    assert waits[1500:].null_count == 1500


def test_tools_that_share_workers_are_one_pool():
    visits = 2000
    work, arrival = _work(visits), _arrivals(4.9, visits)
    starts, ends = fifo(arrival, work, 4)
    name = np.random.default_rng(2).integers(0, 3, visits)
    rows = []
    for which in range(3):
        mine = name == which
        rows += spans_of(
            f"execute_tool {which}",
            "tool",
            arrival[mine],
            ends[mine],
            wait=(starts - arrival)[mine],
        )
    _, models = stations.infer(tables_of(rows), Config())
    assert {m.servers for m in models.values()} == {4}
    assert len({m.pool for m in models.values()}) == 1
    assert None not in {m.pool for m in models.values()}


def test_two_pools_of_one_stage_stay_apart():
    rows = []
    for which, servers in (("a", 2), ("b", 5)):
        work, arrival = _work(1500, seed=servers), _arrivals(1.15 * servers, 1500, seed=servers)
        starts, ends = fifo(arrival, work, servers)
        rows += spans_of(f"execute_tool {which}", "tool", arrival, ends, wait=starts - arrival)
    _, models = stations.infer(tables_of(rows), Config())
    assert models["execute_tool a"].servers == 2
    assert models["execute_tool b"].servers == 5
    assert models["execute_tool a"].pool is None


@pytest.mark.parametrize("told", [True, False])
def test_work_cut_by_its_caller_is_longer_than_seen(told):
    visits = 3000
    work, arrival = _work(visits, sigma=0.9), _arrivals(4.4, visits)
    patience = np.random.default_rng(5).uniform(0.5, 4.0, visits)
    starts, ends = shared(arrival, work, 4, patience)
    cut = ~(starts + work <= arrival + patience + 1e-9)
    assert 0.05 < cut.mean() < 0.7
    wait = np.where(cut, np.nan, starts - arrival)
    status = np.where(cut, "cancelled", "ok")
    setting = {"stations": {NAME: {"servers": 4}}} if told else {}
    rows = spans_of(NAME, "retrieval", arrival, ends, wait=wait, status=status)
    _, models = stations.infer(tables_of(rows), Config.from_dict(setting))
    model = models[NAME]
    naive = work[~cut].mean()
    assert abs(model.service_s.mean - work.mean()) < 0.5 * abs(naive - work.mean())
    assert model.servers == 4
    assert "cut by their caller" in model.note


def test_engine_host_spans_and_containers_are_no_stations():
    rows = spans_of("engine front", "gateway", [0.0], [1.0])
    rows += spans_of("POST /v1/task", None, [0.0], [9.0])
    rows += spans_of("decode", "decode", [0.0], [1.0])
    outer = spans_of("retrieval outer", "retrieval", [0.0], [3.0])
    inner = spans_of("rerank inner", "rerank", [1.0], [2.0])
    inner[0]["parent"] = outer[0]["span_id"]
    _, models = stations.infer(tables_of(rows + outer + inner), Config())
    assert set(models) == {"rerank inner"}
    assert stations.infer(Tables(), Config())[1] == {}


def test_same_tables_same_models():
    work, arrival = _work(900), _arrivals(5, 900)
    tables = tables_of(spans_of(NAME, "retrieval", arrival, fifo(arrival, work, 3)[1]))
    assert stations.infer(tables, Config())[1] == stations.infer(tables, Config())[1]


DURATIONS = st.lists(st.floats(0.01, 100, allow_nan=False), min_size=1, max_size=80)


@given(DURATIONS)
def test_without_cuts_kaplan_meier_is_the_sample(values):
    data = np.array(values)
    found = kaplan_meier(data, np.zeros(len(data), dtype=bool))
    assert found.values @ found.weights == pytest.approx(data.mean())
    assert np.mean(found.strata(7)) == pytest.approx(data.mean())
    assert found.quantile(0.5) == pytest.approx(np.sort(data)[(len(data) - 1) // 2])


@given(DURATIONS, st.integers(0, 2**32 - 1))
def test_cuts_never_shorten_the_distribution(values, seed):
    data = np.array(values)
    cut = np.random.default_rng(seed).random(len(data)) < 0.4
    found = kaplan_meier(data, cut)
    if cut.all():
        assert found is None
        return
    assert found.weights.sum() == pytest.approx(1)
    assert found.values @ found.weights >= data[~cut].mean() * (1 - 1e-9) or cut.any()
    assert found.values @ found.weights >= data.mean() * (1 - 1e-9)


def test_reading_the_filled_tables_again_changes_nothing():
    work, arrival = _work(1500), _arrivals(5.2, 1500)
    _, ends = fifo(arrival, work, 4)
    tables = tables_of(spans_of(NAME, "retrieval", arrival, ends))
    filled, first = stations.infer(tables, Config())
    again, second = stations.infer(filled, Config())
    assert again.spans.equals(filled.spans)
    assert second[NAME].servers == first[NAME].servers == 4
    assert second[NAME].service_s == first[NAME].service_s
