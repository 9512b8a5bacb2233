"""Tables for the tests of this room: public traces read plainly, streams played at once.

They are given as fixtures that return functions: test folders here are no packages.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pytest

from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.stream import Stream

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
AZURE = SHARED / "data" / "traces" / "azure_llm_2023"
MOONCAKE = SHARED / "data" / "traces" / "mooncake"


def _azure(name: str) -> Tables:
    """One of the two Azure 2023 traces."""
    raw = pa_csv.read_csv(
        AZURE / f"AzureLLMInferenceTrace_{name}.csv",
        convert_options=pa_csv.ConvertOptions(column_types={"TIMESTAMP": pa.timestamp("ns")}),
    )
    nanos = pc.cast(raw.column("TIMESTAMP"), pa.int64()).to_numpy()
    return _one_call_each(
        (nanos - nanos[0]) / 1e9,
        raw.column("ContextTokens").to_numpy(),
        raw.column("GeneratedTokens").to_numpy(),
    )


def _mooncake(name: str) -> Tables:
    """One of the two Mooncake traces, with block hashes."""
    text = (MOONCAKE / f"{name}_trace.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return _one_call_each(
        np.array([row["timestamp"] / 1000 for row in rows]),
        np.array([row["input_length"] for row in rows]),
        np.array([row["output_length"] for row in rows]),
        block_hashes=[row["hash_ids"] for row in rows],
        block_tokens=[512] * len(rows),
    )


def _one_call_each(arrival, input_tokens, output_tokens, **columns) -> Tables:
    """Tables of requests with one call, without spans or ends."""
    ids = [f"r{i}" for i in range(len(arrival))]
    requests = pa.table({"request_id": ids, "arrival_s": arrival})
    calls = pa.table(
        {
            "call_id": ids,
            "request_id": ids,
            "arrival_s": arrival,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            **columns,
        }
    )
    return Tables.of({"requests": requests, "calls": calls})


def _played(stream: Stream, *, call_s: float = 0.01) -> Tables:
    """Tables of a stream on an empty, infinitely wide fleet: every step takes its own time and a
    call `call_s`. What a profile of it must give back is known exactly."""
    requests, steps = stream.requests.to_pydict(), stream.steps.to_pylist()
    now = list(requests["arrival_s"])
    calls, spans, begun = [], [], {}
    for step in steps:
        row = step["request"]
        start = begun.setdefault((row, step["group"]), now[row])
        end = start + (call_s if step["kind"] == "call" else step["service_s"])
        now[row] = max(now[row], end)
        who = requests["request_id"][row]
        if step["kind"] == "call":
            calls.append(_call(step, who, len(calls), start, end))
        elif step["kind"] == "station":
            spans.append(
                {
                    "span_id": f"s{len(spans)}",
                    "request_id": who,
                    "stage": step["stage"],
                    "name": step["name"],
                    "start_s": start,
                    "end_s": end,
                    "wait_s": 0.0,
                    "status": "ok",
                }
            )
    table = stream.requests.append_column("end_s", pa.array(now, type=pa.float64()))
    table = table.append_column("status", pa.array(["ok"] * len(now), type=pa.string()))
    tables = {"requests": table}
    if calls:
        tables["calls"] = pa.Table.from_pylist(calls)
    if spans:
        tables["spans"] = pa.Table.from_pylist(spans)
    return Tables.of(tables)


def _call(step, who, number, start, end):
    return {
        "call_id": f"c{number}",
        "request_id": who,
        "model": step["name"] or None,
        "pool": step["pool"],
        "input_tokens": step["input_tokens"],
        "cached_tokens": step["cached_tokens"],
        "output_tokens": step["output_tokens"],
        "image_tokens": step["image_tokens"],
        "arrival_s": start,
        "scheduled_s": start,
        "first_token_s": end,
        "end_s": end,
        "status": "ok",
    }


@pytest.fixture(scope="session")
def azure():
    """Reads an Azure 2023 trace by name; skips where the shared data are not there."""
    if not AZURE.is_dir():
        pytest.skip(f"public traces are not at {AZURE}")
    return _azure


@pytest.fixture(scope="session")
def mooncake():
    """Reads a Mooncake trace by name; skips where the shared data are not there."""
    if not MOONCAKE.is_dir():
        pytest.skip(f"public traces are not at {MOONCAKE}")
    return _mooncake


@pytest.fixture(scope="session")
def one_call_each():
    """Makes tables of one-call requests from arrays."""
    return _one_call_each


@pytest.fixture(scope="session")
def played():
    """Plays a stream on a fleet where nothing waits."""
    return _played


class Incident:
    """Builds traced requests of a small application: retrieval, rerank, a call, tools."""

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.calls: list[dict] = []
        self.spans: list[dict] = []

    def request(self, name: str, at: float, **columns) -> None:
        """Add a request row."""
        row = {"request_id": name, "arrival_s": at, "status": "ok", "tenant": "a", "attempts": 1}
        self.requests.append({**row, **columns})

    def span(self, request: str, stage: str | None, name: str, start: float, end: float, **columns):
        """Add a span; returns its id."""
        span_id = f"s{len(self.spans)}"
        row = {"span_id": span_id, "request_id": request, "stage": stage, "name": name}
        row |= {"start_s": start, "end_s": end, "attempt": 0, "status": "ok"}
        self.spans.append({**row, **columns})
        return span_id

    def attempt(self, request: str, at: float, *, number: int = 0, **tokens) -> float:
        """Add a whole attempt; returns its end. Known gaps lie between its steps."""
        own = {"attempt": number}
        holder = self.span(request, None, "attempt", at, at + 10.5, **own)
        below = {**own, "parent": holder}
        self.span(request, "retrieval", "retrieval kb", at + 0.1, at + 1.1, wait_s=0.4, **below)
        self.span(request, "rerank", "rerank", at + 1.1, at + 1.5, wait_s=0.0, **below)
        call = f"{request}-{number}"
        chat = self.span(request, None, "chat m", at + 1.6, at + 4.0, call_id=call, **below)
        inside = {**own, "parent": chat, "call_id": call}
        for stage, name, start, end in (
            ("gateway", "engine front", 1.7, 1.8),
            ("queue", "queue", 1.8, 2.0),
            ("prefill", "prefill", 2.0, 2.5),
            ("decode", "decode", 2.5, 3.8),
            ("gateway", "engine back", 3.8, 3.9),
        ):
            self.span(request, stage, name, at + start, at + end, **inside)
        row = {"call_id": call, "request_id": request, "attempt": number, "model": "m"}
        row |= {"input_tokens": 1000, "cached_tokens": 100, "output_tokens": 50, "status": "ok"}
        row |= {"arrival_s": at + 1.7, "scheduled_s": at + 2.0, "first_token_s": at + 2.5}
        self.calls.append({**row, "end_s": at + 3.8, **tokens})
        self.span(request, "tool", "execute_tool x", at + 4.0, at + 6.0, wait_s=0.5, **below)
        self.span(request, "tool", "execute_tool y", at + 4.0, at + 7.0, wait_s=0.5, **below)
        self.span(request, "postprocess", "postprocess", at + 10.0, at + 10.4, **below)
        return at + 10.5

    def tables(self) -> Tables:
        """The tables built so far."""
        return Tables.of(
            {
                "requests": from_rows("requests", self.requests),
                "calls": from_rows("calls", self.calls),
                "spans": from_rows("spans", self.spans),
            }
        )


@pytest.fixture
def incident():
    """A builder of traced requests."""
    return Incident()
