"""The entrance: engines by name, what a scenario must satisfy, what a run says of itself."""

import numpy as np
import pyarrow as pa
import pytest
from tests.sim.making import call, delay, engine, fleet, scenario, station, step_model, visit

from sojourn.errors import UsageError
from sojourn.sim.replicate import replicate, run_all
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
    run = simulate(scenario([0.0, 5e5], [[visit("s", 1.0)]] * 2))
    times = run.tables.engine_samples.column("t_s").to_numpy()
    assert 50_000 < len(times) <= 100_002
    assert np.all(np.diff(times) == 5.0)


def test_an_unknown_engine_is_named_with_those_there_are():
    with pytest.raises(UsageError, match=r"oracle.*kernel, reference"):
        simulate(scenario([0.0], [[visit("s", 1.0)]]), engine="oracle")
    assert set(ENGINES) == {"reference", "kernel"}


def broken(**changes):
    good = scenario([0.0, 1.0], [[visit("s", 1.0)], [call(5, 5), delay(1.0, group=1)]])
    steps = good.stream.steps
    for name, values in changes.items():
        index = steps.schema.get_field_index(name)
        steps = steps.set_column(
            index, STREAM_STEPS.field(index), pa.array(values, steps[name].type)
        )
    return Scenario(Stream(good.stream.requests, steps), fleet())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service_s": [-1.0, 0.0, 0.0]}, "step 0: service_s must be seconds"),
        ({"service_s": [1.0, 0.0, float("nan")]}, "step 2: service_s"),
        ({"kind": ["station", "robot", "delay"]}, "step 1: kind must be one of station"),
        ({"kind": ["station", None, "delay"]}, "step 1: kind"),
        ({"input_tokens": [0, -5, 0]}, "step 1: input_tokens"),
        ({"request": [0, 0, 0]}, "every request needs a step"),
        ({"request": [0, 1, 2]}, "do not fit"),
        ({"request": [1, 0, 1]}, "sorted"),
        ({"group": [0, 1, 0]}, "sorted"),
    ],
)
def test_a_broken_stream_is_refused_with_the_place(changes, message):
    with pytest.raises(UsageError, match=message):
        simulate(broken(**changes))


def test_arrivals_must_be_sorted_numbers():
    with pytest.raises(UsageError, match="request 1 arrives before"):
        simulate(scenario([1.0, 0.0], [[visit("s", 1.0)]] * 2))
    with pytest.raises(UsageError, match="request 1: arrival_s is no number"):
        simulate(scenario([0.0, float("nan")], [[visit("s", 1.0)]] * 2))


def test_nulls_in_a_stream_are_nothing():
    made = broken(
        pool=[None] * 3, input_tokens=[None, 5, None], service_s=[1.0, None, 1.0],
        stage=["tool", None, None],
    )  # fmt: skip
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
