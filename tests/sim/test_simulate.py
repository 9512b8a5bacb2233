"""The entrance: engines by name, what a scenario must satisfy, what a run says of itself."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from tests.sim.making import call, delay, engine, fleet, scenario, station, step_model, visit

from sojourn.errors import UsageError
from sojourn.sim.replicate import replicate, run_all, run_each
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import ENGINES, simulate
from sojourn.trace.schema import TABLES
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream


def test_the_tables_have_the_schema_of_ingestion():
    tables = simulate(scenario([0.0], [[visit("s", 1.0), call(5, 5, group=1)]])).tables
    for name, spec in TABLES.items():
        assert tables.table(name).column_names == [c.name for c in spec]
        for column in spec:
            assert tables.table(name).schema.field(column.name).type == column.type
            if column.required:
                assert tables.table(name).column(column.name).null_count == 0
    assert tables.clock.kind == "simulated"
    assert tables.meta["provenance"] == "simulated"
    assert set(tables.calls.column("ttft_origin").to_pylist()) == {"server_arrival"}


def test_spans_of_a_call_hang_below_its_chat_span():
    the_fleet = fleet(engine(step_model(front=0.1), seqs=1))
    tables = simulate(scenario([0.0, 0.0], [[call(5, 5)]] * 2, the_fleet)).tables
    spans = [s for s in tables.spans.to_pylist() if s["request_id"] == "r1" and s["call_id"]]
    chat, *leaves = spans
    assert (chat["name"], chat["stage"], chat["call_id"]) == ("chat m", None, "r1/0/0")
    assert [(s["stage"], s["name"]) for s in leaves] == [
        ("gateway", "engine front"), ("queue", "queue"), ("prefill", "prefill"),
        ("decode", "decode"),
    ]  # fmt: skip
    assert all(s["parent"] == chat["span_id"] for s in leaves)
    marks = [chat["start_s"], *(s["end_s"] for s in leaves)]
    assert marks == [chat["start_s"], *(s["start_s"] for s in leaves[1:]), chat["end_s"]]


def test_an_empty_stream_gives_an_empty_run():
    empty = Stream(STREAM_REQUESTS.empty_table(), STREAM_STEPS.empty_table())
    run = simulate(Scenario(empty, fleet()))
    assert run.counts["arrived"] == run.counts["ok"] == 0
    assert all(rows == 0 for rows in run.tables.counts().values())


def test_times_need_not_begin_at_zero():
    run = simulate(scenario([1e6 + 0.25, 1e6 + 0.5], [[visit("s", 1.0)]] * 2))
    assert run.tables.engine_samples.column("t_s").to_pylist() == [1e6 + 1, 1e6 + 2]
    run = simulate(scenario([-5.5, 2.0], [[visit("s", 1.0)]] * 2))
    assert run.tables.requests.column("end_s").to_pylist() == [-4.5, 3.0]


def test_a_long_stream_is_read_less_often():
    run = simulate(scenario([0.0, 3e5], [[visit("s", 1.0)]] * 2))
    times = run.tables.engine_samples.column("t_s").to_numpy()
    assert 10_000 < len(times) <= 20_002
    assert np.all(np.diff(times) == 15.0)  # 300,000 s in 20,000 readings


def test_an_unknown_engine_is_named_with_those_there_are():
    with pytest.raises(UsageError, match=r"'warp'.*kernel, reference"):
        simulate(scenario([0.0], [[visit("s", 1.0)]]), engine="warp")
    assert set(ENGINES) == {"reference", "kernel"}


def test_what_no_engine_can_run_is_refused_first():
    with pytest.raises(UsageError, match="request 1 arrives before"):
        simulate(scenario([1.0, 0.0], [[visit("s", 1.0)]] * 2))


def test_nulls_in_a_stream_are_nothing():
    made = scenario([0.0, 1.0], [[visit("s", 1.0)], [call(5, 5), delay(1.0, group=1)]])
    steps = made.stream.steps
    for name, values in (
        ("pool", [None] * 3),
        ("input_tokens", [None, 5, None]),
        ("service_s", [1.0, None, 1.0]),
        ("stage", ["tool", None, None]),
    ):
        index = steps.schema.get_field_index(name)
        column = pa.array(values, steps[name].type)
        steps = steps.set_column(index, STREAM_STEPS.field(index), column)
    made = Scenario(Stream(made.stream.requests, steps), fleet())
    run = simulate(made)
    assert run.counts["ok"] == 2
    assert run.tables.calls.column("pool").to_pylist() == ["default"]


def retrying(seed=0):
    the_fleet = fleet(
        stations=[station("s", None, samples=tuple(np.linspace(0.1, 1.9, 50)))],
        attempt_timeout_s=1.0, max_attempts=4,
    )  # fmt: skip
    return scenario(np.arange(50), [[visit("s", 9.0)]] * 50, the_fleet, seed=seed)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_replications_come_in_order_with_progress(n_jobs):
    seen = []
    runs = replicate(
        retrying(),
        [5, 3, 5],
        n_jobs=n_jobs,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [run.seed for run in runs] == [5, 3, 5]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    first, other, again = (run.tables.requests for run in runs)
    assert first.equals(again)
    assert not first.equals(other)
    assert first.equals(simulate(retrying(seed=5)).tables.requests)


def test_a_replication_may_draw_its_own_stream():
    runs = replicate(
        retrying(), [1, 2], redraw=lambda seed: scenario([0.0], [[visit("s", seed)]]).stream
    )
    assert [run.tables.requests.column("end_s").to_pylist() for run in runs] == [[1.0], [
        runs[1].end_s
    ]]  # fmt: skip
    assert run_all([]) == []


def test_an_answer_is_made_where_the_run_was_and_travels_alone():
    scenarios = [retrying(seed) for seed in range(7)]
    expected = [simulate(each).counts for each in scenarios]
    assert run_each(scenarios, counts_of, n_jobs=2) == expected
    assert run_each(scenarios, counts_of) == expected


def counts_of(run):
    return run.counts


def test_a_run_is_pickled_as_its_log_and_makes_its_tables_again():
    run = simulate(retrying())
    bare = len(pickle.dumps(run))
    tables = run.tables
    assert tables.spans.num_rows > 100
    assert len(pickle.dumps(run)) == bare
    again = pickle.loads(pickle.dumps(run))
    assert again.counts == run.counts
    assert again.tables.spans.equals(tables.spans)
    assert again.log.same(run.log)


def test_tables_are_made_once_each_at_its_first_use():
    run = simulate(retrying())
    tables = run.tables
    assert "spans" not in vars(tables)
    assert tables.requests.num_rows == 50
    assert "spans" not in vars(tables)
    assert tables.spans is tables.spans
    assert run.tables is tables
    with pytest.raises(AttributeError, match="tabels"):
        _ = tables.tabels
