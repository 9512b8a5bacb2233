"""What happened, as the tables of ingestion: a simulated run is a trace."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import Status, TtftOrigin
from sojourn.sim.replica import Gauge
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.trace.tables import Clock, Issue, Quality, Tables

SpanRow = tuple[
    int, int, int, int | None, str | None, str, float, float, float | None, int | None, str
]
CallRow = tuple[
    int, int, int, str, str, int, int, int, int, int,
    float, float | None, float | None, float, int, str,
]  # fmt: skip
EndRow = tuple[int, float, str, list[str], int]


class Recorder:
    """Rows as they happen; `tables` turns them into Arrow columns at the end.

    Requests are known by their row in the stream, calls and spans by the number handed out by
    `new_call` and `new_span`: names are made once, column by column.
    """

    def __init__(self) -> None:
        self.spans: list[SpanRow] = []
        self.calls: list[CallRow] = []
        self.ends: list[EndRow] = []
        self.samples: list[tuple[float, int, Gauge, float]] = []
        self.refused_calls = 0
        self._span = 0

    def new_span(self) -> int:
        """A number for a span that others will name as their parent."""
        self._span += 1
        return self._span

    def span(
        self,
        where: tuple[int, int, int | None, int | None],
        what: tuple[str | None, str, str],
        when: tuple[float, float],
        *,
        number: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        """One span: where = (request, attempt, call, parent), what = (stage, name, status)."""
        request, attempt, call, parent = where
        stage, name, status = what
        own = self.new_span() if number is None else number
        self.spans.append((own, request, attempt, call, stage, name, *when, wait_s, parent, status))

    def run(self, scenario: Scenario, *, engine: str, end_s: float) -> SimRun:
        """The finished run."""
        names = scenario.stream.requests.column("request_id").combine_chunks()
        tables = Tables.of(
            {
                "requests": _requests(self.ends, scenario.stream.requests),
                "calls": _calls(self.calls, names),
                "spans": _spans(self.spans, names),
                "engine_samples": _samples(self.samples),
            },
            clock=Clock(kind="simulated"),
            quality=Quality(
                read=len(names), kept=len(self.ends), issues=self._issues(), sources=("simulated",)
            ),
            meta={
                "provenance": "simulated",
                "simulator": engine,
                "seed": str(scenario.seed),
                "step_model": scenario.fleet.engine.step.source,
                "step_model_provenance": scenario.fleet.engine.step.provenance.value,
            },
        )
        counts = {"arrived": len(names), **dict.fromkeys((s.value for s in Status), 0)}
        for _, _, status, _, _ in self.ends:
            counts[status] += 1
        counts["in_flight"] = len(names) - len(self.ends)
        return SimRun(tables=tables, counts=counts, end_s=end_s, seed=scenario.seed)

    def _issues(self) -> tuple[Issue, ...]:
        if not self.refused_calls:
            return ()
        reason = "call longer than the KV blocks of a replica: refused, its request ends in error"
        return (Issue(action="noted", reason=reason, count=self.refused_calls, example=""),)


def _columns(rows: Rows[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _text(numbers: Rows[int | None]) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.string())


def _requests(ends: list[EndRow], arrived: pa.Table) -> pa.Table:
    ends.sort()
    row, end_s, status, degraded, attempts = _columns(ends, 5)
    data = arrived.take(pa.array(row, pa.int64()))
    for name, column in (
        ("end_s", pa.array(end_s, pa.float64())),
        ("status", pa.array(status, pa.string())),
        ("degraded", pa.array(degraded, pa.list_(pa.string()))),
        ("attempts", pa.array(attempts, pa.int64())),
    ):
        data = data.append_column(name, column)
    return data


def _calls(rows: list[CallRow], names: pa.Array) -> pa.Table:
    rows.sort(key=lambda row: row[10])  # by arrival; equal ones stay in the order of their end
    (
        request, attempt, turn, model, pool, replica, prompt, cached, written, image,
        arrival, scheduled, first, end, preemptions, status,
    ) = _columns(rows, 16)  # fmt: skip
    request_id = names.take(pa.array(request, pa.int64()))
    call_id = pc.binary_join_element_wise(request_id, _text(attempt), _text(turn), "/")
    floats = pa.float64()
    return pa.table(
        {
            "call_id": call_id,
            "request_id": request_id,
            "attempt": pa.array(attempt, pa.int64()),
            "turn": pa.array(turn, pa.int64()),
            "model": pa.array(model, pa.string()),
            "pool": pa.array(pool, pa.string()),
            "replica": _text(replica),
            "input_tokens": pa.array(prompt, pa.int64()),
            "cached_tokens": pa.array(cached, pa.int64()),
            "output_tokens": pa.array(written, pa.int64()),
            "image_tokens": pa.array(image, pa.int64()),
            "arrival_s": pa.array(arrival, floats),
            "scheduled_s": pa.array(scheduled, floats),
            "first_token_s": pa.array(first, floats),
            "end_s": pa.array(end, floats),
            "ttft_origin": pa.array([TtftOrigin.SERVER_ARRIVAL.value] * len(rows), pa.string()),
            "preemptions": pa.array(preemptions, pa.int64()),
            "status": pa.array(status, pa.string()),
        }
    )


def _spans(rows: list[SpanRow], names: pa.Array) -> pa.Table:
    rows.sort()
    number, request, attempt, turn, stage, name, start, end, wait, parent, status = _columns(
        rows, 11
    )
    request_id = names.take(pa.array(request, pa.int64()))
    attempts = pa.array(attempt, pa.int64())
    return pa.table(
        {
            "span_id": _text(number),
            "request_id": request_id,
            "attempt": attempts,
            "call_id": pc.binary_join_element_wise(request_id, _text(attempt), _text(turn), "/"),
            "stage": pa.array(stage, pa.string()),
            "name": pa.array(name, pa.string()),
            "start_s": pa.array(start, pa.float64()),
            "end_s": pa.array(end, pa.float64()),
            "wait_s": pa.array(wait, pa.float64()),
            "parent": _text(parent),
            "status": pa.array(status, pa.string()),
            "provenance": pa.array(["simulated"] * len(rows), pa.string()),
        }
    )


def _samples(rows: list[tuple[float, int, Gauge, float]]) -> pa.Table:
    t_s, replica, gauges, busy = _columns(rows, 4)
    running, waiting, kv, preemptions, hits, queries, prompt, written, _ = _columns(gauges, 9)
    columns = {
        "t_s": t_s, "running": running, "waiting": waiting, "kv_usage": kv,
        "preemptions_total": preemptions, "prefix_hit_tokens_total": hits,
        "prefix_query_tokens_total": queries, "prompt_tokens_total": prompt,
        "generation_tokens_total": written, "gpu_busy": busy,
    }  # fmt: skip
    arrays = {name: pa.array(values, pa.float64()) for name, values in columns.items()}
    return pa.table({**arrays, "replica": _text(replica)})
