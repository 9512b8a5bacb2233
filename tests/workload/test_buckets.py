"""Buckets: precedence, thresholds, what is kept, and requests that broke off early."""

from __future__ import annotations

import pytest

from sojourn.config import Config
from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.buckets import assign


def assigned(tables, config=None):
    found = assign(tables, config or Config())
    pairs = (found.requests.column(n).to_pylist() for n in ("request_id", "bucket"))
    return dict(zip(*pairs, strict=True))


def one_request(*calls, span=None, **request):
    rows = [
        {"call_id": f"c{i}", "request_id": "r", "arrival_s": float(i), **call}
        for i, call in enumerate(calls)
    ]
    spans = [] if span is None else [{"span_id": "s", "request_id": "r", "name": "x", **span}]
    return Tables.of(
        {
            "requests": from_rows("requests", [{"request_id": "r", "arrival_s": 0.0, **request}]),
            "calls": from_rows("calls", rows),
            "spans": from_rows("spans", spans),
        }
    )


LONG = {"input_tokens": 4000, "output_tokens": 600}
SHORT = {"input_tokens": 3999, "output_tokens": 599}
TOOL = {"stage": "tool", "start_s": 0.0, "end_s": 1.0}


@pytest.mark.parametrize(
    ("tables", "bucket"),
    [
        (one_request(SHORT), "short_chat"),
        (one_request(LONG), "long_document"),
        (one_request({"input_tokens": 10, "output_tokens": 600}), "long_output"),
        (one_request(SHORT, SHORT), "tool_agent"),
        (one_request(LONG, span=TOOL), "tool_agent"),
        (one_request({**LONG, "images": 1}, span=TOOL), "multimodal"),
        (one_request({**SHORT, "image_tokens": 64}), "multimodal"),
        (one_request({**SHORT, "images": 0}), "short_chat"),
        # a second attempt is no second round, and only the last attempt's output counts
        (one_request({**SHORT, "attempt": 0}, {**SHORT, "attempt": 1}), "short_chat"),
        (one_request({**LONG, "input_tokens": 9}, {**SHORT, "attempt": 1}), "short_chat"),
        (one_request(LONG, bucket="mine"), "mine"),
        (one_request(), "short_chat"),
        (one_request({"input_tokens": None}), "short_chat"),
    ],
)
def test_default_buckets(tables, bucket):
    assert assigned(tables) == {"r": bucket}


def test_custom_rules_come_first_and_in_order():
    rules = [
        {"name": "gold", "tenant": "gold", "min_input_tokens": 100},
        {"name": "code", "route": "/code"},
        {"name": "wordy", "min_output_tokens": 599},
    ]
    config = Config.from_dict({"buckets": {"custom": rules}})
    made = [
        one_request({**LONG, "images": 3}, tenant="gold", route="/code"),
        one_request({"input_tokens": 99, "output_tokens": 1}, tenant="gold", route="/code"),
        one_request(SHORT, tenant="tin"),
        one_request({"input_tokens": 5000, "output_tokens": 1}),
    ]
    found = [assigned(tables, config)["r"] for tables in made]
    assert found == ["gold", "code", "wordy", "long_document"]


def test_requests_that_broke_off_join_their_likes(incident):
    """Timed out in retrieval or rerank: no tokens known, but not all short chats."""
    for i in range(40):
        end = incident.attempt(f"agent{i}", 20.0 * i)
        incident.request(f"agent{i}", 20.0 * i, end_s=end)
    for i in range(40):
        at = 1000.0 + i
        incident.request(f"chat{i}", at, end_s=at + 1)
        incident.span(f"chat{i}", "retrieval", "retrieval kb", at, at + 1)
        row = {"call_id": f"q{i}", "request_id": f"chat{i}", "arrival_s": at}
        incident.calls.append({**row, "input_tokens": 50, "output_tokens": 5})
    for i in range(60):
        at = 2000.0 + i
        incident.request(f"early{i}", at, status="timeout", end_s=at + 5)
        incident.span(f"early{i}", "retrieval", "retrieval kb", at, at + 5, status="timeout")
        incident.request(f"late{i}", at, status="timeout", end_s=at + 5)
        incident.span(f"late{i}", "retrieval", "retrieval kb", at, at + 1)
        incident.span(f"late{i}", "rerank", "rerank", at + 1, at + 5, status="timeout")
    tables = incident.tables()
    found = assigned(tables)
    assert {found[f"late{i}"] for i in range(60)} == {"tool_agent"}  # only agents rerank
    early = [found[f"early{i}"] for i in range(60)]
    # 40 of each kind passed retrieval: half of 60, within four standard deviations
    assert 15 <= early.count("tool_agent") <= 45
    assert early.count("tool_agent") + early.count("short_chat") == 60
    (note,) = assign(tables, Config()).quality.issues
    assert (note.action, note.count) == ("noted", 120)
    assert assigned(tables) == found
    again = assign(tables, Config())
    assert assign(again, Config()) is again


def test_no_requests():
    assert assign(Tables(), Config()).requests.num_rows == 0
