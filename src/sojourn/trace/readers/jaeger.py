"""Jaeger JSON (the UI's and the API's export), over the same span model as OTLP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sojourn.config import Config
from sojourn.progress import Progress, silent
from sojourn.trace.ledger import Ledger
from sojourn.trace.readers import span_tables
from sojourn.trace.readers.spans import NAMES, Span, truth
from sojourn.trace.sources import Head, Raw, json_values
from sojourn.trace.tables import Tables

NAME: Final = "jaeger"
_BROKEN: Final = (TypeError, KeyError, ValueError, AttributeError, OverflowError)
_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}


def sniff(head: Head) -> bool:
    """Spans with traceID, spanID and operationName."""
    return head.is_json and {"traceID", "spanID", "operationName"} <= head.keys


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """All files together."""
    del config
    return span_tables.read_spans(paths, spans_of, progress)


def spans_of(path: Path, ledger: Ledger, progress: Progress) -> Iterator[Span]:
    """The spans of one file; what cannot be read as a span is counted."""
    for row, value in json_values(path, ledger, progress):
        traces = value.get("data") if isinstance(value, dict) else None
        if not isinstance(traces, list):
            traces = [value]
        for trace in traces:
            yield from _of_trace(trace, row, ledger)


def _of_trace(trace: Raw, row: int, ledger: Ledger) -> Iterator[Span]:
    spans = trace.get("spans") if isinstance(trace, dict) else None
    if not isinstance(spans, list):
        ledger.read += 1
        ledger.drop("entry holds no spans", 1, f"row {row}")
        return
    try:
        processes = {
            key: {"service.name": str(p.get("serviceName", "")), **_tags(p.get("tags") or ())}
            for key, p in (trace.get("processes") or {}).items()
        }
    except _BROKEN as error:
        processes = {}
        ledger.add("noted", "processes that cannot be read", 1, f"row {row}: {error!r}")
    for raw in spans:
        ledger.read += 1
        try:
            yield _span(raw, processes, row)
        except _BROKEN as error:
            ledger.drop("span that cannot be read", 1, f"row {row}: {error!r}")


def _tags(items: Sequence[Any]) -> dict[str, Any]:
    return {NAMES[tag["key"]]: tag.get("value") for tag in items if tag["key"] in NAMES}


def _span(raw: dict[str, Any], processes: dict[str, dict[str, Any]], row: int) -> Span:
    tags = _tags(raw.get("tags") or ())
    parent = str(raw.get("parentSpanID") or "")
    for reference in raw.get("references") or ():
        if reference.get("refType") == "CHILD_OF":
            parent = str(reference["spanID"])
    error = tags.get("error")
    start = int(raw["startTime"]) * 1000
    return Span(
        str(raw["traceID"]).lower(),
        str(raw["spanID"]).lower(),
        parent.lower(),
        str(raw.get("operationName", "")),
        _KINDS.get(str(tags.get("span.kind", "")).lower(), 0),
        start,
        start + int(raw["duration"]) * 1000,
        tags,
        processes.get(str(raw.get("processID")), {}),
        truth(error) is True or tags.get("otel.status_code") == "ERROR",
        str(tags.get("otel.status_description") or ""),
        None,
        row,
        start,
    )
