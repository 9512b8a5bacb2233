"""OTLP files: JSON (lines, one object, Tempo's `batches`) and protobuf, also length-prefixed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.progress import Progress, silent
from sojourn.trace.ledger import Ledger
from sojourn.trace.readers import span_tables
from sojourn.trace.readers.spans import IMAGE_MESSAGES, IMAGE_TYPE, NAMES, Span
from sojourn.trace.sources import Head, Raw, json_values, read_all
from sojourn.trace.tables import Tables

NAME: Final = "otlp"
_BROKEN: Final = (TypeError, KeyError, ValueError, AttributeError, OverflowError, IndexError)
_KINDS: Final = {
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
FIRST_TOKEN_EVENTS: Final = ("first token", "first_token", "first chunk")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def sniff(head: Head) -> bool:
    """OTLP JSON of traces."""
    spans = {"scopeSpans", "instrumentationLibrarySpans", "spans"}
    return head.is_json and bool({"resourceSpans", "batches"} & head.keys and spans & head.keys)


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """All files together, for one trace may lie in several."""
    del config
    return span_tables.read_spans(paths, spans_of, progress)


def spans_of(path: Path, ledger: Ledger, progress: Progress) -> Iterator[Span]:
    """The spans of one JSON file; what cannot be read as a span is counted."""
    for row, value in json_values(path, ledger, progress):
        groups = resource_spans(value)
        if groups is None:
            ledger.read += 1
            ledger.drop("line holds no resourceSpans", 1, f"row {row}")
            continue
        for group in groups:
            yield from _of_resource(group, row, ledger)


def resource_spans(value: Raw) -> list[Any] | None:
    """The ResourceSpans of a document, under any of the names they go by."""
    if not isinstance(value, dict):
        return None
    inner = value.get("trace") if isinstance(value.get("trace"), dict) else value
    for key in ("resourceSpans", "batches", "resource_spans"):
        if isinstance(inner, dict) and isinstance(inner.get(key), list):
            groups: list[Any] = inner[key]
            return groups
    return None


def _of_resource(group: Raw, row: int, ledger: Ledger) -> Iterator[Span]:
    try:
        resource = attributes((group.get("resource") or {}).get("attributes") or ())
        scopes = group.get("scopeSpans") or group.get("instrumentationLibrarySpans") or ()
        batches = [scope.get("spans") or () for scope in scopes]
    except _BROKEN as error:
        ledger.read += 1
        ledger.drop("resourceSpans that cannot be read", 1, f"row {row}: {error!r}")
        return
    for spans in batches:
        for raw in spans if isinstance(spans, list) else ():
            ledger.read += 1
            try:
                yield _span(raw, resource, row)
            except _BROKEN as error:
                ledger.drop("span that cannot be read", 1, f"row {row}: {error!r}")


def _span(raw: dict[str, Any], resource: dict[str, Any], row: int) -> Span:
    status = raw.get("status") or {}
    kind = raw.get("kind", 0)
    code = status.get("code", 0)
    start = int(raw["startTimeUnixNano"])
    events = raw.get("events")
    return Span(
        hex_id(raw["traceId"]),
        hex_id(raw["spanId"]),
        hex_id(raw.get("parentSpanId") or ""),
        str(raw.get("name", "")),
        kind if type(kind) is int else _KINDS.get(str(kind), 0),
        start,
        int(raw.get("endTimeUnixNano") or 0),
        attributes(raw.get("attributes") or ()),
        resource,
        code in (2, "STATUS_CODE_ERROR"),
        str(status.get("message", "")),
        _first_token(events) if events else None,
        row,
        start,
    )


def _first_token(events: list[Any]) -> int | None:
    for event in events:
        name = str(event.get("name", "")).lower()
        if any(word in name for word in FIRST_TOKEN_EVENTS):
            return int(event["timeUnixNano"])
    return None


def attributes(items: Sequence[Any]) -> dict[str, Any]:
    """The wanted attributes of a list of OTLP key-values, and the count of images in a prompt."""
    out: dict[str, Any] = {}
    images = 0
    for item in items:
        key = item["key"]
        name = NAMES.get(key)
        if name is not None:
            out[name] = _value(item["value"])
        elif key.startswith(IMAGE_MESSAGES) and key.endswith(IMAGE_TYPE):
            images += _value(item["value"]) == "image"
    if images:
        out.setdefault(NAMES["sojourn.images"], images)
    return out


def _value(value: dict[str, Any]) -> Raw:
    for kind, raw in value.items():
        if kind == "intValue":
            return int(raw)
        if kind == "arrayValue":
            return [_value(item) for item in (raw or {}).get("values", ())]
        if kind == "kvlistValue":
            return None
        return raw
    return None


def hex_id(raw: str) -> str:
    """An id as lower-case hex, also where protobuf's JSON wrote it as base64."""
    if len(raw) in (32, 16, 0):
        return raw.lower()
    if not _HEX.issuperset(raw) and len(raw) in (12, 24) and raw.endswith("="):
        try:
            return base64.b64decode(raw, validate=True).hex()
        except binascii.Error:
            return raw
    return raw.encode("utf-8", "replace").decode()


# ---- protobuf -------------------------------------------------------------------------------


def sniff_protobuf(head: Head) -> bool:
    """TracesData as protobuf, alone or as length-prefixed messages."""
    data = head.data
    if len(data) < 8:
        return False
    return _starts_traces(data, 0) or (
        int.from_bytes(data[:4], "big") > 2 and _starts_traces(data, 4)
    )


def _starts_traces(data: bytes, at: int) -> bool:
    """A ResourceSpans field whose first field is a Resource, ScopeSpans or schema URL."""
    if data[at : at + 1] != b"\x0a":
        return False
    size, inner = _varint(data, at + 1)
    return size > 4 and data[inner : inner + 1] in (b"\x0a", b"\x12") and _fits(data, inner)


def _fits(data: bytes, at: int) -> bool:
    tag = data[at]
    size, inner = _varint(data, at + 1)
    if size < 0 or inner >= len(data):
        return False
    if size == 0:
        return data[inner : inner + 1] == b"\x12"
    expected = b"\x0a\x10" if tag == 0x0A else b"\x0a\x12\x1a"
    return data[inner : inner + 1] in {bytes([b]) for b in expected}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return -1, at


def read_protobuf(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """All files together."""
    del config
    return span_tables.read_spans(paths, spans_of_protobuf, progress)


def spans_of_protobuf(path: Path, ledger: Ledger, progress: Progress) -> Iterator[Span]:
    """The spans of one protobuf file, one ResourceSpans after the other.

    Raises:
        InputError: not one of them can be read.
    """
    data = read_all(path, ledger)
    progress(f"reading {path.name}", 0.0)
    good = 0
    for number, piece in enumerate(_pieces(data), 1):
        try:
            group = ResourceSpans.FromString(piece)
        except DecodeError as error:
            ledger.read += 1
            ledger.drop("ResourceSpans that cannot be decoded", 1, f"message {number}: {error}")
            continue
        good += 1
        resource = _proto_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for raw in scope.spans:
                ledger.read += 1
                yield _from_proto(raw, resource, number)
    if not good:
        raise InputError(
            "holds no OTLP trace that can be decoded", path=path, todo="Export it again"
        )


def _pieces(data: bytes) -> Iterator[bytes]:
    """The ResourceSpans messages of a file; the last may be cut."""
    at = 0
    prefixed = not _starts_traces(data, 0)
    while at < len(data):
        if prefixed and not _starts_traces(data, at):
            at += 4
        if data[at : at + 1] != b"\x0a":
            if data[at:]:
                yield b"\xff" + data[at : at + 16]
            return
        size, inner = _varint(data, at + 1)
        if size < 0:
            yield b"\xff"
            return
        yield data[inner : inner + size]
        at = inner + size


def _from_proto(raw: Raw, resource: dict[str, Any], row: int) -> Span:
    first = None
    for event in raw.events:
        if first is None and any(word in event.name.lower() for word in FIRST_TOKEN_EVENTS):
            first = int(event.time_unix_nano)
    start = int(raw.start_time_unix_nano)
    return Span(
        raw.trace_id.hex(),
        raw.span_id.hex(),
        raw.parent_span_id.hex(),
        raw.name,
        int(raw.kind),
        start,
        int(raw.end_time_unix_nano),
        _proto_attributes(raw.attributes),
        resource,
        raw.status.code == 2,
        raw.status.message,
        first,
        row,
        start,
    )


def _proto_attributes(items: Raw) -> dict[str, Any]:
    out: dict[str, Any] = {}
    images = 0
    for item in items:
        name = NAMES.get(item.key)
        if name is not None:
            out[name] = _proto_value(item.value)
        elif item.key.startswith(IMAGE_MESSAGES) and item.key.endswith(IMAGE_TYPE):
            images += item.value.string_value == "image"
    if images:
        out.setdefault(NAMES["sojourn.images"], images)
    return out


def _proto_value(value: Raw) -> Raw:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_proto_value(item) for item in value.array_value.values]
    if kind in (None, "kvlist_value", "bytes_value"):
        return None
    return getattr(value, kind)
