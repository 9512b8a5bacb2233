"""Tables for the tests of this room: public traces read plainly, streams played at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from sojourn.trace.tables import Tables
from sojourn.workload.stream import Stream

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
AZURE = SHARED / "data" / "traces" / "azure_llm_2023"
MOONCAKE = SHARED / "data" / "traces" / "mooncake"


def azure(name: str) -> Tables:
    """One of the two Azure 2023 traces."""
    raw = pa_csv.read_csv(
        AZURE / f"AzureLLMInferenceTrace_{name}.csv",
        convert_options=pa_csv.ConvertOptions(column_types={"TIMESTAMP": pa.timestamp("ns")}),
    )
    nanos = pc.cast(raw.column("TIMESTAMP"), pa.int64()).to_numpy()
    return one_call_each(
        (nanos - nanos[0]) / 1e9,
        raw.column("ContextTokens").to_numpy(),
        raw.column("GeneratedTokens").to_numpy(),
    )


def mooncake(name: str) -> Tables:
    """One of the two Mooncake traces, with block hashes."""
    text = (MOONCAKE / f"{name}_trace.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return one_call_each(
        np.array([row["timestamp"] / 1000 for row in rows]),
        np.array([row["input_length"] for row in rows]),
        np.array([row["output_length"] for row in rows]),
        block_hashes=[row["hash_ids"] for row in rows],
        block_tokens=[512] * len(rows),
    )


def one_call_each(arrival, input_tokens, output_tokens, **columns) -> Tables:
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


def played(stream: Stream, *, call_s: float = 0.01) -> Tables:
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
