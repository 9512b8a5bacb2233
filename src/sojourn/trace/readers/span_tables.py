"""Spans to tables: requests, model calls and stage spans.

What each means is laid down in docs/explanation/conventions.md.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sojourn.progress import Progress
from sojourn.trace.ledger import Ledger
from sojourn.trace.quality import MAX_SPREAD_S
from sojourn.trace.readers import span_rows
from sojourn.trace.readers.spans import Span
from sojourn.trace.readers.stages import Role, classify
from sojourn.trace.schema import TABLES, TIME_COLUMNS
from sojourn.trace.tables import Clock, Tables

Source = Callable[[Path, Ledger, Progress], Iterator[Span]]
EARLIEST_NS: Final = 946_684_800 * 10**9  # the year 2000: no tracing format is older
INSTANCE: Final = "otlp.instance."
"""Prefix of a key in `meta` that tells which engine instance answers behind an address."""
MAX_INSTANCES: Final = 256
LATEST_NS: Final = 4_102_444_800 * 10**9  # the year 2100


def read_spans(paths: Sequence[Path], source: Source, progress: Progress) -> Tables:
    """Tables of all spans in several files of one format."""
    ledger = Ledger(", ".join(str(path) for path in paths))
    spans: list[Span] = []
    collecting = gc.isenabled()
    gc.disable()  # a million small live objects: each full collection would walk all of them
    try:
        for path in paths:
            spans.extend(source(path, ledger, progress))
        return build(spans, ledger, progress)
    finally:
        if collecting:
            gc.enable()


def build(spans: list[Span], ledger: Ledger, progress: Progress) -> Tables:
    """Tables of spans of any tracing format."""
    spans = _in_time(spans, ledger)
    traces = _unique(spans, ledger)
    _join_engines(traces, ledger)
    out = span_rows.Rows()
    for number, (trace, members) in enumerate(traces.items()):
        if number % 1000 == 0:
            progress("joining spans", number / max(1, len(traces)))
        span_rows.trace_rows(trace, members, out, ledger)
    span_rows.drop_foreign_routes(out, ledger)
    span_rows.number_turns(out)
    span_rows.name_replicas(out)
    services = sorted({str(s.resource.get("service.name") or "") for s in spans} - {""})
    return _tables(out, ledger, services)


def _in_time(spans: list[Span], ledger: Ledger) -> list[Span]:
    """Without spans whose start is no time of this century or a year off; ends repaired."""
    good: list[Span] = []
    for span in spans:
        if not EARLIEST_NS < span.start < LATEST_NS:
            ledger.drop("span starts at no plausible time", 1, f"row {span.row}: {span.start}")
        else:
            good.append(span)
    if not good:
        return good
    middle = int(np.median(np.array([span.start for span in good], dtype=np.int64)))
    spread = int(MAX_SPREAD_S * 1e9)
    kept: list[Span] = []
    for span in good:
        if abs(span.start - middle) > spread:
            ledger.drop("span more than a year from the others", 1, f"row {span.row}")
            continue
        if span.end and span.end < span.start:
            ledger.add("clamped", "span ends before it starts", 1, f"row {span.row}: {span.name}")
            span.end = span.start
        elif span.end - span.start > spread:
            ledger.add("repaired", "span longer than a year, end removed", 1, f"row {span.row}")
            span.end = 0
        span.true_start, span.true_end = span.start, span.end
        kept.append(span)
    return kept


def _unique(spans: list[Span], ledger: Ledger) -> dict[str, list[Span]]:
    """Spans by trace, each identity once; two spans that share an id are both kept."""
    traces: dict[str, dict[str, Span]] = defaultdict(dict)
    owner: dict[str, str] = {}
    for span in spans:
        members = traces[span.trace]
        if not span.id:
            span.id = f"row-{span.row}-{len(members)}"
            ledger.add("repaired", "span without an id", 1, f"row {span.row}: {span.name}")
        twin = members.get(span.id)
        if twin is not None:
            if twin.name == span.name and twin.start == span.start:
                if span.end > twin.end:
                    members[span.id] = span
                ledger.drop("duplicate span", 1, f"row {span.row}: {span.id}")
                continue
            ledger.add("repaired", "two spans share an id, both kept", 1, f"row {span.row}")
            span.id = f"{span.id}~{len(members)}"
        members[span.id] = span
        owner.setdefault(span.id, span.trace)
    for trace, members in traces.items():
        for key, span in members.items():
            if owner.get(key) != trace:
                span.id = f"{trace}:{key}"
    return _rekeyed(traces)


def _rekeyed(traces: dict[str, dict[str, Span]]) -> dict[str, list[Span]]:
    out: dict[str, list[Span]] = {}
    for trace, members in traces.items():
        for span in members.values():
            holder = members.get(span.parent)
            if holder is not None:
                span.parent = holder.id
        out[trace] = list(members.values())
    return out


def _join_engines(traces: dict[str, list[Span]], ledger: Ledger) -> None:
    """Engine spans without a parent join the call whose response id is their request id."""
    clients: dict[str, Span] = {}
    lonely: list[Span] = []
    for members in traces.values():
        ids = {span.id for span in members}
        for span in members:
            key = span.attrs.get("gen_ai.response.id")
            if key is not None:
                clients[str(key)] = span
            elif "gen_ai.request.id" in span.attrs and span.parent not in ids:
                lonely.append(span)
    for span in lonely:
        client = clients.get(str(span.attrs["gen_ai.request.id"]))
        if client is None or classify(span)[0] is not Role.ENGINE:
            continue
        ledger.add("repaired", "engine span joined to its call by response id", 1, span.id)
        _move(traces, span, client)


def _move(traces: dict[str, list[Span]], span: Span, client: Span) -> None:
    """The span and what lies below it into the client's trace."""
    if span.trace != client.trace:
        members = traces[span.trace]
        moved = [span]
        ids = {span.id}
        for other in members:
            if other.parent in ids and other is not span:
                ids.add(other.id)
                moved.append(other)
        gone = {id(other) for other in moved}
        traces[span.trace] = [other for other in members if id(other) not in gone]
        traces[client.trace].extend(moved)
    span.parent = client.id


def _tables(out: span_rows.Rows, ledger: Ledger, services: list[str]) -> Tables:
    starts = [row[6] for row in out.requests] or [row[6] for row in out.spans]
    origin = min(starts, default=0)
    data = {
        "requests": _table("requests", sorted(out.requests, key=lambda row: row[6]), origin),
        "calls": _table("calls", out.calls, origin),
        "spans": _table("spans", out.spans, origin),
    }
    meta = {"otlp.services": ", ".join(services)} if services else {}
    if len(out.instances) <= MAX_INSTANCES:
        meta |= {f"{INSTANCE}{address}": name for address, name in out.instances.items()}
    return Tables.of(
        data,
        clock=Clock(kind="epoch", origin_epoch_s=origin / 1e9),
        quality=ledger.quality(),
        meta=meta,
    )


def _table(name: str, rows: Sequence[Sequence[Any]], origin: int) -> pa.Table:
    """Rows with times in nanoseconds to a table with seconds from the origin."""
    specs = TABLES[name]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(specs)
    arrays = []
    for spec, values in zip(specs, columns, strict=True):
        if spec.name in TIME_COLUMNS[name]:
            ns = np.array([0 if v is None else v - origin for v in values], dtype=np.int64)
            missing = np.array([v is None for v in values], dtype=bool)
            arrays.append(pa.array(ns / 1e9, mask=missing))
        else:
            arrays.append(pa.array(values, type=spec.type))
    return pa.table(arrays, names=[spec.name for spec in specs])
