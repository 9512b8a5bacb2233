"""Programs, attempts, deadlines, retries and degraded answers."""

import numpy as np
import pytest
from tests.sim.making import (
    call,
    columns,
    delay,
    engine,
    fleet,
    scenario,
    station,
    step_model,
    visit,
)

from sojourn.sim.simulate import simulate


def one(program, the_fleet, **options):
    """Run a single request; its row and the tables."""
    tables = simulate(scenario([0.0], [program], the_fleet, **options)).tables
    return tables.requests.to_pylist()[0], tables


def spans_of(tables, *stages):
    return [
        (s["name"], s["start_s"], s["end_s"], s["status"])
        for s in tables.spans.to_pylist()
        if s["stage"] in stages
    ]


def test_groups_follow_each_other_and_steps_of_a_group_run_at_once():
    program = [
        visit("a", 1.0), visit("b", 3.0), delay(0.5, group=1), visit("c", 2.0, group=2),
    ]  # fmt: skip
    row, tables = one(program, fleet())
    assert row["end_s"] == 5.5
    assert spans_of(tables, "tool") == [
        ("a", 0.0, 1.0, "ok"), ("b", 0.0, 3.0, "ok"), ("c", 3.5, 5.5, "ok"),
    ]  # fmt: skip


def test_a_delay_leaves_a_span_only_where_its_stage_is_known():
    program = [delay(1.0), delay(2.0, group=1, stage="network")]
    _, tables = one(program, fleet())
    assert [(s["stage"], s["start_s"], s["end_s"]) for s in tables.spans.to_pylist()] == [
        (None, 0.0, 3.0), (None, 0.0, 3.0), ("network", 1.0, 3.0),
    ]  # fmt: skip


def test_stages_sum_to_the_whole_along_a_chain():
    """Without parallel steps every leaf is on the critical path."""
    rng = np.random.default_rng(2)
    programs = [
        [
            visit("kb", rng.exponential(0.2), stage="retrieval"),
            call(int(rng.integers(1, 300)), int(rng.integers(1, 40)), group=1),
            delay(rng.exponential(0.05), group=2, stage="network"),
            call(50, 5, group=3),
        ]
        for _ in range(200)
    ]
    the_fleet = fleet(
        engine(step_model(token=1e-4, front=0.004), seqs=4),
        [station("kb", 2, samples=[0.2], timeout_s=1.0)],
        attempt_timeout_s=2.0, max_attempts=3, backoff_s=0.3, jitter=0.4,
    )  # fmt: skip
    run = simulate(scenario(np.cumsum(rng.exponential(0.15, 200)), programs, the_fleet))
    total = {}
    for span in run.tables.spans.to_pylist():
        if span["stage"] is not None:
            key = span["request_id"]
            total[key] = total.get(key, 0.0) + span["end_s"] - span["start_s"]
    ids, came, left, attempts = columns(
        run.tables.requests, "request_id", "arrival_s", "end_s", "attempts"
    )
    assert max(attempts) > 1
    np.testing.assert_allclose([total[i] for i in ids], np.subtract(left, came), atol=1e-9)


def test_a_deadline_ends_the_attempt_and_a_backoff_grows():
    the_fleet = fleet(
        stations=[station("s", None, samples=[9.0])],
        attempt_timeout_s=1.0, max_attempts=3, backoff_s=0.5, backoff_factor=4.0,
    )  # fmt: skip
    row, tables = one([visit("s", 9.0)], the_fleet)
    assert (row["status"], row["attempts"], row["end_s"]) == ("timeout", 3, 1 + 0.5 + 1 + 2 + 1)
    assert spans_of(tables, "backoff") == [("backoff", 1.0, 1.5, "ok"), ("backoff", 2.5, 4.5, "ok")]
    assert spans_of(tables, "tool") == [
        ("s", 0.0, 1.0, "cancelled"), ("s", 1.5, 2.5, "cancelled"), ("s", 4.5, 5.5, "cancelled"),
    ]  # fmt: skip
    attempts = [s for s in tables.spans.to_pylist() if s["name"] == "attempt"]
    assert [(s["attempt"], s["status"]) for s in attempts] == [(k, "timeout") for k in range(3)]


def test_work_that_ends_on_the_deadline_is_in_time():
    row, _ = one([visit("s", 1.0)], fleet(attempt_timeout_s=1.0))
    assert row["status"] == "ok"
    row, _ = one([call(1, 4)], fleet(engine(step_model(base=0.25)), attempt_timeout_s=1.0))
    assert row["status"] == "ok"


def test_a_retry_draws_new_service_times_keyed_by_seed_and_request():
    the_fleet = fleet(
        stations=[station("s", None, samples=[0.25, 0.5, 0.75])],
        attempt_timeout_s=1.0, max_attempts=2,
    )  # fmt: skip

    def second(seed):
        made = scenario([0.0] * 40, [[visit("s", 9.0)]] * 40, the_fleet, seed=seed)
        return simulate(made).tables.requests.column("end_s").to_pylist()

    assert second(1) == second(1)
    assert second(1) != second(2)
    assert set(second(1)) == {1.25, 1.5, 1.75}


def test_each_attempt_has_luck_of_its_own():
    the_fleet = fleet(
        stations=[station("s", None, samples=[0.5, 9.0])], attempt_timeout_s=1.0, max_attempts=3
    )
    run = simulate(scenario([0.0] * 64, [[visit("s", 9.0)]] * 64, the_fleet))
    rows = set(zip(*columns(run.tables.requests, "status", "attempts"), strict=True))
    assert rows == {("ok", 2), ("ok", 3), ("timeout", 3)}


def test_luck_does_not_depend_on_the_rest_of_the_stream():
    """Common random numbers: the same request draws the same in a stream with others."""
    the_fleet = fleet(
        stations=[station("s", None, samples=tuple(np.linspace(0.1, 0.9, 99)))],
        attempt_timeout_s=1.0, max_attempts=3, backoff_s=0.3, jitter=1.0,
    )  # fmt: skip

    def spent(ids):
        made = scenario(np.arange(len(ids)), [[visit("s", 9.0)]] * len(ids), the_fleet, ids=ids)
        names, came, left = columns(
            simulate(made).tables.requests, "request_id", "arrival_s", "end_s"
        )
        return dict(zip(names, np.subtract(left, came), strict=True))

    alone, among = spent(["b"]), spent(["a", "b", "c"])
    assert among["b"] == pytest.approx(alone["b"])
    assert len({round(v, 6) for v in among.values()}) == 3


def test_no_retry_on_timeout():
    row, _ = one(
        [visit("s", 9.0)], fleet(attempt_timeout_s=1.0, max_attempts=3, retry_on_timeout=False)
    )
    assert (row["status"], row["attempts"], row["end_s"]) == ("timeout", 1, 1.0)


def test_a_partial_answer_at_the_deadline():
    row, _ = one(
        [call(10, 10_000)], fleet(attempt_timeout_s=1.0, max_attempts=3, degrade_on_timeout=True)
    )
    assert (row["status"], row["attempts"], row["end_s"]) == ("ok", 1, 1.0)
    assert row["degraded"] == ["partial_answer"]


def test_an_optional_station_is_skipped_at_its_timeout_and_noted_once():
    the_fleet = fleet(stations=[station("s", 1, timeout_s=2.0, optional=True)])
    row, tables = one([visit("s", 5.0), visit("s", 5.0), visit("t", 1.0, group=1)], the_fleet)
    assert (row["status"], row["end_s"], row["degraded"]) == ("ok", 3.0, ["skip:s"])
    assert spans_of(tables, "tool") == [
        ("s", 0.0, 2.0, "timeout"), ("s", 0.0, 2.0, "timeout"), ("t", 2.0, 3.0, "ok"),
    ]  # fmt: skip
    waits = tables.spans.column("wait_s").to_pylist()
    assert [w for w in waits if w is not None] == [0.0, 2.0, 0.0]


def test_a_needed_station_that_times_out_fails_the_attempt_and_its_siblings():
    the_fleet = fleet(
        stations=[station("s", None, samples=[0.5], timeout_s=2.0)],
        attempt_timeout_s=60.0, max_attempts=2, degrade_on_timeout=True,
    )  # fmt: skip
    row, tables = one([visit("s", 5.0), call(10, 10_000)], the_fleet)
    # nothing to answer with: tried again, although the deadline would have degraded
    assert row["attempts"] == 2
    assert row["degraded"] == ["partial_answer"]
    calls = tables.calls.to_pylist()
    assert [(c["status"], c["end_s"]) for c in calls] == [("cancelled", 2.0), ("cancelled", 62.0)]


def test_stations_of_one_pool_share_its_workers():
    shared = [station("a", 1, pool="tools"), station("b", 1, pool="tools")]
    row, _ = one([visit("a", 1.0), visit("b", 1.0)], fleet(stations=shared))
    assert row["end_s"] == 2.0
    apart = [station("a", 1), station("b", 1)]
    row, _ = one([visit("a", 1.0), visit("b", 1.0)], fleet(stations=apart))
    assert row["end_s"] == 1.0
    wider = [station("a", 1, pool="tools"), station("b", 2, pool="tools")]
    row, _ = one([visit("a", 1.0), visit("b", 1.0)], fleet(stations=wider))
    assert row["end_s"] == 1.0
    open_ended = [station("a", 1, pool="tools"), station("b", None, pool="tools")]
    row, _ = one([visit("a", 1.0)] * 3, fleet(stations=open_ended))
    assert row["end_s"] == 1.0


@pytest.mark.parametrize(("stops", "end"), [(False, 11.0), (True, 2.4)])
def test_a_timed_out_attempt_leaves_the_work_behind(stops, end):
    """The first attempt's service of 9 s holds the only server, or not. Then the attempt of 8.4
    is served from 9 to 10, too late for its deadline, and that of 9.8 from 10 to 11."""
    the_fleet = fleet(
        stations=[station("s", 1, samples=[1.0], stops_on_cancel=stops)],
        attempt_timeout_s=1.4, max_attempts=20,
    )  # fmt: skip
    row, _ = one([visit("s", 9.0)], the_fleet)
    assert row["status"] == "ok"
    assert row["end_s"] == pytest.approx(end)


def test_calls_go_round_the_replicas_whoever_asks():
    programs = [[call(1, 1), call(1, 1, group=1)], [call(1, 1)], [call(1, 1)]]
    run = simulate(scenario([0, 1, 2], programs, fleet(engine(replicas=3))))
    rows = zip(*columns(run.tables.calls, "arrival_s", "call_id", "replica"), strict=True)
    assert [(c, r) for _, c, r in sorted(rows)] == [
        ("r0/0/0", "0"), ("r0/0/1", "1"), ("r1/0/0", "2"), ("r2/0/0", "0"),
    ]  # fmt: skip


def test_a_call_cancelled_in_the_front_never_reaches_the_engine():
    the_fleet = fleet(engine(step_model(front=2.0)), attempt_timeout_s=1.0)
    row, tables = one([call(10, 10)], the_fleet)
    (call_row,) = tables.calls.to_pylist()
    assert row["status"] == "timeout"
    assert call_row["scheduled_s"] is None
    assert (call_row["status"], call_row["output_tokens"]) == ("cancelled", 0)
    assert tables.engine_samples.column("prompt_tokens_total").to_pylist()[-1] == 0
