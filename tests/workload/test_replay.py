"""Programs read off traces, and whole again where something cut them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.buckets import assign
from sojourn.workload.replay import replay


def program(stream, name):
    """Steps of a request: (group, kind, stage, name, service in ms, input, cached, output)."""
    row = stream.requests.column("request_id").to_pylist().index(name)
    return [
        (
            step["group"],
            step["kind"],
            step["stage"],
            step["name"],
            round(step["service_s"] * 1000),
            step["input_tokens"],
            step["cached_tokens"],
            step["output_tokens"],
        )
        for step in stream.steps.to_pylist()
        if step["request"] == row
    ]


WHOLE = [
    (0, "delay", "unexplained", "unexplained", 100, 0, 0, 0),
    (1, "station", "retrieval", "retrieval kb", 600, 0, 0, 0),
    (2, "station", "rerank", "rerank", 400, 0, 0, 0),
    (3, "delay", "unexplained", "unexplained", 100, 0, 0, 0),
    (4, "delay", "network", "network", 100, 0, 0, 0),
    (5, "call", "decode", "m", 0, 1000, 100, 50),
    (6, "delay", "gateway", "gateway", 100, 0, 0, 0),
    (7, "delay", "network", "network", 100, 0, 0, 0),
    (8, "station", "tool", "execute_tool x", 1500, 0, 0, 0),
    (8, "station", "tool", "execute_tool y", 2500, 0, 0, 0),
    (9, "delay", "unexplained", "unexplained", 3000, 0, 0, 0),
    (10, "station", "postprocess", "postprocess", 400, 0, 0, 0),
    (11, "delay", "unexplained", "unexplained", 100, 0, 0, 0),
]


def settled(incident, seed=0):
    return replay(assign(incident.tables(), Config()), seed=seed)


def add_ok(incident, count=10):
    for i in range(count):
        incident.request(f"r{i}", 20.0 * i, end_s=incident.attempt(f"r{i}", 20.0 * i))


def test_a_traced_request_becomes_its_steps(incident):
    add_ok(incident, 2)
    stream = settled(incident)
    assert program(stream, "r0") == WHOLE
    assert stream.requests.column("arrival_s").to_pylist() == [0.0, 20.0]
    assert stream.requests.column("bucket").to_pylist() == ["tool_agent"] * 2


def test_time_of_a_program_is_the_request_s(incident):
    """Nothing is lost: waits, engine time and steps on the way add up to end - arrival."""
    add_ok(incident, 1)
    stream = settled(incident)
    longest: dict[int, float] = {}
    for step in stream.steps.to_pylist():
        longest[step["group"]] = max(longest.get(step["group"], 0), step["service_s"])
    waits, engine = 0.4 + 0.0 + 0.5, 2.1
    assert sum(longest.values()) + waits + engine == pytest.approx(10.5)


def test_a_retried_request_is_read_off_its_last_attempt(incident):
    """And the cache that its own first try warmed is no reuse."""
    add_ok(incident)
    incident.request("k", 300.0, attempts=2, end_s=317.0)
    incident.span("k", "retrieval", "retrieval kb", 300.0, 300.1)
    row = {"call_id": "k-0", "request_id": "k", "arrival_s": 300.2, "status": "cancelled"}
    incident.calls.append({**row, "end_s": 305.0, "input_tokens": 1000, "cached_tokens": 200})
    incident.span("k", "backoff", "backoff", 305.0, 306.0)
    incident.attempt("k", 306.0, number=1, cached_tokens=990)
    found = program(settled(incident), "k")
    assert [step[3] for step in found[:2]] == ["unexplained", "retrieval kb"]
    assert [step[5:] for step in found if step[1] == "call"] == [(1000, 200, 50)]
    assert not any(step[2] == "backoff" for step in found)


def test_cache_of_a_first_try_that_did_not_tell_is_the_usual(incident):
    add_ok(incident)
    incident.request("k", 300.0, attempts=2, end_s=317.0)
    row = {"call_id": "k-0", "request_id": "k", "arrival_s": 300.2, "status": "cancelled"}
    incident.calls.append({**row, "end_s": 305.0})
    incident.attempt("k", 306.0, number=1, cached_tokens=990)
    found = program(settled(incident), "k")
    assert [step[5:] for step in found if step[1] == "call"] == [(1000, 100, 50)]


def test_a_failed_request_gets_the_rest_from_a_donor(incident):
    """It got as far as rerank in its second attempt, but its retrieval was cut in the first."""
    add_ok(incident)
    incident.request("f", 300.0, status="timeout", attempts=2, end_s=311.0)
    incident.span("f", "retrieval", "retrieval kb", 300.0, 305.0, status="timeout")
    incident.span("f", "backoff", "backoff", 305.0, 306.0)
    incident.span("f", "retrieval", "retrieval kb", 306.0, 307.0, attempt=1, wait_s=0.0)
    incident.span("f", "rerank", "rerank", 307.0, 311.0, attempt=1, status="cancelled")
    found = program(settled(incident), "f")
    # Waits of what was cut are not known where others tell theirs: so none of 5 s and 4 s is sure
    # to be work, and any visit may stand for them.
    assert found[0][:4] == (0, "station", "retrieval", "retrieval kb")
    assert found[0][4] in (600, 1000)
    assert found[1] == (1, "station", "rerank", "rerank", 400, 0, 0, 0)
    assert [step[1:] for step in found[2:]] == [step[1:] for step in WHOLE[3:]]
    assert [step[0] for step in found] == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10]


def test_a_censored_service_time_is_drawn_above_what_was_seen(incident):
    for i, service in enumerate((0.2, 0.5, 1.0, 2.0, 4.0)):
        at = 20.0 * i
        incident.request(f"r{i}", at, end_s=at + service)
        incident.span(f"r{i}", "tool", "execute_tool x", at, at + service)
    for i, (lasted, wait) in enumerate(((0.7, None), (1.5, 0.6), (9.0, None))):
        at = 200.0 + i
        incident.request(f"f{i}", at, status="timeout", end_s=at + lasted)
        incident.span(
            f"f{i}", "tool", "execute_tool x", at, at + lasted, status="cancelled", wait_s=wait
        )
    first, second, third = (
        program(settled(incident, seed=s), f"f{i}")[0][4] for i, s in ((0, 1), (1, 1), (2, 1))
    )
    assert first in (1000, 2000, 4000)
    assert second in (1000, 2000, 4000)  # 1.5 s of which 0.6 s were waiting
    assert third == 9000  # longer than all seen: stays


def test_donors_are_at_least_as_long_as_what_was_seen():
    """One-round and three-round agents; a request seen in its third call is no one-rounder."""
    requests, calls = [], []
    for i in range(60):
        rounds = 1 if i < 40 else 3
        requests.append({"request_id": f"r{i}", "arrival_s": float(i), "status": "ok"})
        requests[-1]["bucket"] = "b"
        for turn in range(rounds):
            row = {"call_id": f"{i}-{turn}", "request_id": f"r{i}", "arrival_s": i + turn / 10}
            row |= {"end_s": i + turn / 10 + 0.05, "input_tokens": 100 * (turn + 1)}
            calls.append({**row, "output_tokens": 7 + turn, "model": "m"})
    requests.append({"request_id": "f", "arrival_s": 90.0, "status": "timeout", "bucket": "b"})
    for turn in range(2):
        row = {"call_id": f"f-{turn}", "request_id": "f", "arrival_s": 90.0 + turn / 10}
        row |= {"end_s": 90.05 + turn / 10, "status": "ok" if turn == 0 else "cancelled"}
        tokens = {"input_tokens": 111, "output_tokens": 9} if turn == 0 else {}
        calls.append({**row, **tokens, "model": "m"})
    tables = Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)}
    )
    found = [step[5:] for step in program(replay(tables), "f") if step[1] == "call"]
    assert found == [(111, 0, 9), (200, 0, 8), (300, 0, 9)]


def test_calls_without_spans_follow_each_other_with_pauses():
    requests = [{"request_id": "r", "arrival_s": 5.0, "end_s": 9.0}]
    row = {"request_id": "r", "input_tokens": 10, "output_tokens": 2}
    calls = [
        {**row, "call_id": "a", "arrival_s": 5.0, "end_s": 6.0},
        {**row, "call_id": "b", "arrival_s": 7.0, "end_s": 8.5},
        {**row, "call_id": "c", "arrival_s": 7.2, "end_s": 8.0, "pool": "small"},
    ]
    tables = Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)}
    )
    stream = replay(tables)
    found = program(stream, "r")
    assert [(s[0], s[1], s[4]) for s in found] == [
        (0, "call", 0),
        (1, "delay", 1000),
        (2, "call", 0),
        (2, "call", 0),
        (3, "delay", 500),
    ]
    assert stream.steps.column("pool").to_pylist() == ["default"] * 3 + ["small", "default"]


def test_an_agent_run_by_a_tool_keeps_the_tool_s_own_time():
    requests = [{"request_id": "r", "arrival_s": 0.0, "end_s": 10.0}]
    span = {"request_id": "r"}
    spans = [
        {**span, "span_id": "t", "stage": "tool", "name": "agent", "start_s": 1.0, "end_s": 9.0},
        {**span, "span_id": "c", "name": "chat m", "start_s": 2.0, "end_s": 8.0, "parent": "t",
         "call_id": "q"},
    ]  # fmt: skip
    calls = [
        {"call_id": "q", "request_id": "r", "arrival_s": 3.0, "end_s": 7.0, "input_tokens": 5,
         "output_tokens": 5}
    ]  # fmt: skip
    tables = Tables.of(
        {
            "requests": from_rows("requests", requests),
            "calls": from_rows("calls", calls),
            "spans": from_rows("spans", spans),
        }
    )
    found = [(step[2], step[4]) for step in program(replay(tables), "r")]
    assert found == [
        ("unexplained", 1000),
        ("tool", 1000),
        ("network", 1000),
        ("decode", 0),
        ("network", 1000),
        ("tool", 1000),
        ("unexplained", 1000),
    ]


def test_every_request_has_a_step_and_unknown_tokens_are_refused():
    bare = Tables.of(
        {"requests": from_rows("requests", [{"request_id": "r", "arrival_s": 1.0, "end_s": 3.0}])}
    )
    assert program(replay(bare), "r") == [(0, "delay", "unexplained", "unexplained", 2000, 0, 0, 0)]
    calls = [{"call_id": "c", "request_id": "r", "arrival_s": 1.0}]
    untold = Tables.of({"requests": bare.requests, "calls": from_rows("calls", calls)})
    with pytest.raises(InputError, match="tells its input and output tokens"):
        replay(untold)
    assert replay(Tables()).requests.num_rows == 0


def test_failed_rows_without_output_take_their_likes():
    """BurstGPT writes failures as zero output tokens."""
    requests = [
        {"request_id": f"r{i}", "arrival_s": float(i), "status": "error" if i == 9 else "ok"}
        for i in range(10)
    ]
    calls = [
        {
            "call_id": f"r{i}",
            "request_id": f"r{i}",
            "arrival_s": float(i),
            "input_tokens": 100 + i,
            "output_tokens": 0 if i == 9 else 40 + i,
            "status": "error" if i == 9 else "ok",
        }
        for i in range(10)
    ]
    tables = Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)}
    )
    (call,) = program(replay(tables), "r9")
    assert call[5] == 109
    assert 40 <= call[7] <= 48


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_laws_of_any_stream(data):
    """Whatever the tables say: every request is there once, sorted, with steps in order."""
    number = data.draw(st.integers(1, 12))
    maybe = st.one_of(st.none(), st.integers(0, 50))
    moment = st.floats(0, 100)
    statuses = st.sampled_from(["ok", "timeout", "error", "cancelled", None])
    requests = [
        {
            "request_id": f"r{i}",
            "arrival_s": data.draw(moment),
            "end_s": data.draw(st.one_of(st.none(), moment)),
            "status": data.draw(statuses),
            "tenant": data.draw(st.sampled_from(["a", "b", None])),
        }
        for i in range(number)
    ]
    calls = [
        {
            "call_id": f"c{k}",
            "request_id": f"r{data.draw(st.integers(0, number))}",
            "attempt": data.draw(st.sampled_from([None, 0, 1, 2])),
            "arrival_s": data.draw(moment),
            "end_s": data.draw(st.one_of(st.none(), moment)),
            "input_tokens": data.draw(maybe),
            "cached_tokens": data.draw(maybe),
            "output_tokens": data.draw(maybe),
            "status": data.draw(statuses),
        }
        for k in range(data.draw(st.integers(0, 15)))
    ]
    calls.append({"call_id": "told", "request_id": "r0", "arrival_s": 1.0, "input_tokens": 3,
                  "output_tokens": 4, "status": "ok"})  # fmt: skip
    spans = []
    for k in range(data.draw(st.integers(0, 20))):
        one, two = sorted((data.draw(moment), data.draw(moment)))
        spans.append(
            {
                "span_id": f"s{k}",
                "request_id": f"r{data.draw(st.integers(0, number))}",
                "attempt": data.draw(st.sampled_from([None, 0, 1])),
                "stage": data.draw(st.sampled_from([None, "tool", "queue", "network", "backoff"])),
                "name": data.draw(st.sampled_from(["x", "chat m", "engine back", None])),
                "start_s": one,
                "end_s": two,
                "wait_s": data.draw(st.one_of(st.none(), moment)),
                "parent": data.draw(st.sampled_from([None, "s0", "s1", f"s{k}"])),
                "status": data.draw(statuses),
            }
        )
    tables = Tables.of(
        {
            "requests": from_rows("requests", requests),
            "calls": from_rows("calls", calls),
            "spans": from_rows("spans", spans),
        }
    )
    tables = assign(tables, Config())
    stream = replay(tables, seed=3)
    check_stream(stream, {row["request_id"] for row in requests})
    again = replay(tables, seed=3)
    assert again.steps.equals(stream.steps)


def check_stream(stream, names):
    assert set(stream.requests.column("request_id").to_pylist()) == names
    assert stream.requests.num_rows == len(names)
    arrival = stream.requests.column("arrival_s").to_numpy()
    assert arrival[0] == 0
    assert (np.diff(arrival) >= 0).all()
    owner, group = (stream.steps.column(n).to_numpy() for n in ("request", "group"))
    assert sorted(set(owner.tolist())) == list(range(len(names)))
    same = owner[1:] == owner[:-1]
    assert (np.diff(owner) >= 0).all()
    assert set(np.diff(group)[same].tolist()) <= {0, 1}
    assert (group[np.append(True, ~same)] == 0).all()
    assert (stream.steps.column("service_s").to_numpy() >= 0).all()
    call = np.array(stream.steps.column("kind").to_pylist()) == "call"
    tokens = {
        n: stream.steps.column(n).to_numpy()
        for n in ("input_tokens", "cached_tokens", "output_tokens", "image_tokens")
    }
    assert (tokens["input_tokens"][call] >= 1).all()
    assert (tokens["output_tokens"][call] >= 1).all()
    assert (tokens["cached_tokens"] <= tokens["input_tokens"]).all()
    assert all((column[~call] == 0).all() for column in tokens.values())


def test_work_that_a_timeout_cut_is_estimated_without_bias(incident):
    """An attempt may take 5 s; up to 3 s of it are waiting, work is lognormal with mean 1.19 s.

    A fifth of the requests is retried or lost, and what they were lost for is that they were
    long. Times of the visits that ended are much too short; programs must not be.
    """
    rng = np.random.default_rng(4)
    truth = []
    for i in range(1500):
        at, attempt = 20.0 * i, 0
        while True:
            wait, work = float(rng.uniform(0, 3)), float(0.78 * np.exp(0.92 * rng.normal()))
            truth += [work] if attempt == 0 else []
            cut = wait + work > 5
            columns = {"attempt": attempt, "wait_s": wait, "status": "timeout" if cut else "ok"}
            end = at + min(wait + work, 5)
            incident.span(f"r{i}", "retrieval", "kb", at, end, **columns)
            if not cut or attempt == 1:
                break
            at, attempt = end, 1
        status = "timeout" if cut else "ok"
        incident.request(f"r{i}", 20.0 * i, end_s=end, status=status, attempts=attempt + 1)
    stream = settled(incident)
    kind = np.array(stream.steps.column("kind").to_pylist())
    work = stream.steps.column("service_s").to_numpy()[kind == "station"]
    assert len(work) == 1500
    ended = [s["end_s"] - s["start_s"] - s["wait_s"] for s in incident.spans if s["status"] == "ok"]
    assert np.mean(ended) < 0.85 * np.mean(truth)
    # beyond 5 s nothing was ever seen: compare up to there
    assert np.mean(np.minimum(work, 5)) == pytest.approx(np.mean(np.minimum(truth, 5)), rel=0.03)
    assert np.quantile(work, 0.95) == pytest.approx(np.quantile(truth, 0.95), rel=0.1)
