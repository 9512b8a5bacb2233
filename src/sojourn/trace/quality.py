"""`clean`: what every set of tables passes through before anyone computes with it.

Readers keep to these rules for their own records; `clean` states them once for all tables, so
that a source which lies about itself is counted here instead of failing far away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.trace import arrays
from sojourn.trace.ledger import Ledger
from sojourn.trace.schema import TABLES, TIME_COLUMNS
from sojourn.trace.tables import Tables

MAX_TOKENS: Final = 100_000_000
"""Tokens of one call; ten times the longest published context window (10 million)."""
MAX_SPREAD_S: Final = 366 * 86_400.0
"""Distance of a time from the median arrival: a trace covers a year at most, so what lies
further off is a broken clock or a wrong unit."""

TOKEN_COLUMNS: Final = tuple(
    c.name for c in TABLES["calls"] if c.unit == "tokens" and c.name != "block_tokens"
)
PARTS: Final = (
    ("cached_tokens", "input_tokens"),
    ("image_tokens", "input_tokens"),
    ("reasoning_tokens", "output_tokens"),
)
"""Token counts that are a part of another one."""
CALL_ORDER: Final = ("arrival_s", "scheduled_s", "first_token_s", "end_s")
_IDENTITY: Final = {"requests": "request_id", "calls": "call_id", "spans": "span_id"}


def clean(tables: Tables) -> Tables:
    """The same tables without rows and values that no computation could use.

    Counted by reason: rows without identity or time, exact and conflicting duplicates, times a
    year off, rows of requests that do not exist (dropped); negative, absurd or NaN values and
    ends before their start (removed: `repaired`); parts larger than their whole and spans that
    end before they start (clamped); arrivals out of order and calls without tokens (noted).
    """
    ledger = Ledger(tables.quality.sources[0] if len(tables.quality.sources) == 1 else "")
    data = {name: tables.table(name) for name in TABLES}
    for name, table in data.items():
        if table.num_rows:
            data[name] = _usable_rows(name, _finite(name, table, ledger), ledger)
    data = _near_in_time(data, ledger)
    for name in ("calls", "spans"):
        data[name] = _of_known_requests(data[name], data["requests"], name, ledger)
    data["requests"] = _end_after_arrival(data["requests"], ledger)
    data["calls"] = _call_order(_token_sizes(data["calls"], ledger), ledger)
    data["spans"] = _span_order(data["spans"], ledger)
    data["engine_samples"] = _sample_order(data["engine_samples"], ledger)
    data["requests"] = _by_arrival(data["requests"], ledger)
    found = ledger.quality()
    quality = tables.quality.model_copy(
        update={
            "kept": tables.quality.kept - ledger.dropped,
            "issues": tables.quality.issues + found.issues,
        }
    )
    return replace(tables, **{name: data[name] for name in TABLES}, quality=quality)


def floats(table: pa.Table, name: str) -> np.ndarray:
    """A numeric column as float64, null as NaN."""
    return arrays.floats(table.column(name))


def with_floats(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    """The table with one column replaced by floats, NaN as null."""
    return _with(table, name, pa.array(values, type=pa.float64(), from_pandas=True))


def far_off(times: np.ndarray, spread: float) -> np.ndarray:
    """Which times lie further than `spread` from their median (NaN does not)."""
    finite = times[np.isfinite(times)]
    if not finite.size:
        return np.zeros(times.shape, dtype=bool)
    off: np.ndarray = np.abs(times - np.median(finite)) > spread
    return off


def _with(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    index = table.column_names.index(name)
    return table.set_column(index, table.schema.field(index), array)


def _drop(table: pa.Table, bad: np.ndarray, name: str, reason: str, ledger: Ledger) -> pa.Table:
    if not bad.any():
        return table
    ledger.drop_where(f"{name}: {reason}", bad)
    return table.filter(pa.array(~bad))


def _null_where(table: pa.Table, column: str, bad: np.ndarray) -> pa.Table:
    field = table.column(column)
    return _with(table, column, pc.if_else(pa.array(bad), pa.scalar(None, field.type), field))


def _finite(name: str, table: pa.Table, ledger: Ledger) -> pa.Table:
    """NaN and infinities become null."""
    for spec in TABLES[name]:
        column = table.column(spec.name)
        if spec.type != pa.float64() or column.null_count == len(column):
            continue
        values = floats(table, spec.name)
        bad = pc.is_valid(column).to_numpy(zero_copy_only=False) & ~np.isfinite(values)
        if bad.any():
            ledger.add_where("repaired", f"{name}.{spec.name} is NaN or infinite: removed", bad)
            table = with_floats(table, spec.name, np.where(bad, np.nan, values))
    return table


def _usable_rows(name: str, table: pa.Table, ledger: Ledger) -> pa.Table:
    """Rows with all required columns, each identity once."""
    for spec in TABLES[name]:
        if spec.required:
            bad = pc.is_null(table.column(spec.name)).to_numpy(zero_copy_only=False)
            table = _drop(table, bad, name, f"{spec.name} missing", ledger)
    key = _IDENTITY.get(name)
    if key is None or table.num_rows < 2:
        return table
    ids = table.column(key).combine_chunks()
    codes = ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    first = np.zeros(len(codes), dtype=bool)
    first[np.unique(codes, return_index=True)[1]] = True
    return _drop(table, ~first, name, f"duplicate {key}", ledger)


def _near_in_time(data: dict[str, pa.Table], ledger: Ledger) -> dict[str, pa.Table]:
    """Without rows whose required time is a year off; optional times that far off are removed."""
    anchors = [floats(data[n], c) for n, c in (("requests", "arrival_s"), ("spans", "start_s"))]
    anchors.append(floats(data["engine_samples"], "t_s"))
    anchor = next((times for times in anchors if times.size), None)
    if anchor is None:
        return data
    middle = float(np.median(anchor))
    for name, columns in TIME_COLUMNS.items():
        required = {spec.name for spec in TABLES[name] if spec.required}
        for column in columns:
            table = data[name]
            if not table.num_rows:
                continue
            far = np.abs(floats(table, column) - middle) > MAX_SPREAD_S
            if not far.any():
                continue
            if column in required:
                data[name] = _drop(table, far, name, f"{column} more than a year off", ledger)
            else:
                ledger.add_where("repaired", f"{name}.{column} a year off: removed", far)
                data[name] = _null_where(table, column, far)
    return data


def _of_known_requests(table: pa.Table, requests: pa.Table, name: str, ledger: Ledger) -> pa.Table:
    if not table.num_rows:
        return table
    known = pc.is_in(table.column("request_id"), value_set=requests.column("request_id"))
    return _drop(table, ~known.to_numpy(zero_copy_only=False), name, "no such request_id", ledger)


def _end_after_arrival(requests: pa.Table, ledger: Ledger) -> pa.Table:
    bad = floats(requests, "end_s") < floats(requests, "arrival_s")
    if not bad.any():
        return requests
    ledger.add_where("repaired", "requests: end before arrival, end removed", bad)
    return _null_where(requests, "end_s", bad)


def _token_sizes(calls: pa.Table, ledger: Ledger) -> pa.Table:
    if not calls.num_rows:
        return calls
    for name in (*TOKEN_COLUMNS, "images"):
        values = floats(calls, name)
        for reason, bad in (
            (f"calls: negative {name} removed", values < 0),
            (f"calls: {name} above {MAX_TOKENS:,} removed", values > MAX_TOKENS),
        ):
            if bad.any():
                ledger.add_where("repaired", reason, bad)
                calls = _null_where(calls, name, bad)
    for part, whole in PARTS:
        small, large = floats(calls, part), floats(calls, whole)
        bad = small > large
        if bad.any():
            ledger.add_where("clamped", f"calls: {part} above {whole}", bad)
            values = np.where(bad, large, small)
            calls = _with(
                calls, part, pa.array(values, from_pandas=True).cast(pa.int64(), safe=False)
            )
    empty = (floats(calls, "input_tokens") == 0) & (floats(calls, "output_tokens") == 0)
    ledger.add_where("noted", "calls: no input and no output tokens", empty)
    return calls


def _call_order(calls: pa.Table, ledger: Ledger) -> pa.Table:
    """Each time of a call not before the latest one that precedes it."""
    if not calls.num_rows:
        return calls
    latest = floats(calls, CALL_ORDER[0])
    for name in CALL_ORDER[1:]:
        values = floats(calls, name)
        bad = values < latest
        if bad.any():
            ledger.add_where("repaired", f"calls: {name} before what it follows, removed", bad)
            calls = _null_where(calls, name, bad)
            values = np.where(bad, np.nan, values)
        latest = np.fmax(latest, values)
    return calls


def _span_order(spans: pa.Table, ledger: Ledger) -> pa.Table:
    if not spans.num_rows:
        return spans
    start, end, wait = (floats(spans, c) for c in ("start_s", "end_s", "wait_s"))
    bad = end < start
    if bad.any():
        ledger.add_where("clamped", "spans: end before start", bad)
        end = np.where(bad, start, end)
        spans = with_floats(spans, "end_s", end)
    room = end - start
    for reason, wrong, value in (
        ("spans: negative wait_s removed", wait < 0, np.full_like(wait, np.nan)),
        ("spans: wait_s longer than the span", wait > room + 1e-6, room),
    ):
        if wrong.any():
            ledger.add_where("clamped", reason, wrong)
            wait = np.where(wrong, value, wait)
            spans = with_floats(spans, "wait_s", wait)
    return spans


def _sample_order(samples: pa.Table, ledger: Ledger) -> pa.Table:
    """Sorted by replica and time; shares within 0..1."""
    if not samples.num_rows:
        return samples
    for name in ("kv_usage", "gpu_busy", "sm_active", "tensor_active", "dram_active", "host_cpu"):
        values = floats(samples, name)
        bad = (values < 0) | (values > 1)
        if bad.any():
            ledger.add_where("clamped", f"engine_samples: {name} outside 0..1", bad)
            samples = with_floats(samples, name, np.clip(values, 0.0, 1.0))
    order: dict[str, Any] = {"sort_keys": [("replica", "ascending"), ("t_s", "ascending")]}
    times = floats(samples, "t_s")
    replica = samples.column("replica").combine_chunks().dictionary_encode().indices
    codes = replica.fill_null(-1).to_numpy(zero_copy_only=False)
    back = np.zeros(len(times), dtype=bool)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        back[rows[1:]] = np.diff(times[rows]) < 0
    ledger.add_where("noted", "engine_samples: clock goes back, rows sorted", back)
    return samples.take(pc.sort_indices(samples, **order))


def _by_arrival(requests: pa.Table, ledger: Ledger) -> pa.Table:
    times = floats(requests, "arrival_s")
    back = np.zeros(times.shape, dtype=bool)
    back[1:] = np.diff(times) < 0
    if not back.any():
        return requests
    ledger.add_where("noted", "requests: clock goes back between rows, rows sorted", back)
    return requests.take(pa.array(np.argsort(times, kind="stable")))
