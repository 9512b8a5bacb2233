"""Attempts of requests as rows: when each ran, whether it failed, when it reached the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sojourn.records import FAILED
from sojourn.trace.arrays import Floats, Ints, floats, rows_of, whole
from sojourn.trace.tables import Tables


@dataclass(frozen=True)
class Attempts:
    """One row per attempt seen, sorted by request and attempt. Seconds.

    `request` is the row in `requests`; `first_call_s` NaN where it never reached the engine;
    `from_spans` is False where only model calls show the attempt (its start is then the first
    call's, and says nothing of the time before). `per_request` counts attempts per request,
    NaN where nothing tells.
    """

    request: Ints
    attempt: Ints
    start_s: Floats
    end_s: Floats
    first_call_s: Floats
    failed: NDArray[np.bool_]
    from_spans: NDArray[np.bool_]
    per_request: Floats

    @property
    def duration_s(self) -> Floats:
        """Length of each attempt."""
        return self.end_s - self.start_s


def attempts(tables: Tables) -> Attempts | None:
    """Attempts from the spans, else from the calls; None where no table numbers them."""
    span_keys, span_low, span_high = _from_spans(tables)
    call_keys, call_low, call_high = _from_calls(tables)
    counted = floats(tables.requests["attempts"])
    if not len(span_keys) and not len(call_keys) and not np.isfinite(counted).any():
        return None
    keys = np.union1d(span_keys, call_keys)
    low, high, first = (np.full(len(keys), np.nan) for _ in range(3))
    at = np.searchsorted(keys, call_keys)
    low[at], high[at], first[at] = call_low, call_high, call_low
    at = np.searchsorted(keys, span_keys)
    low[at], high[at] = span_low, span_high
    from_spans = np.isin(keys, span_keys)
    request, attempt = keys >> 16, keys & 0xFFFF

    seen = np.full(tables.requests.num_rows, np.nan)
    last = np.full(tables.requests.num_rows, -1, dtype=np.int64)
    np.maximum.at(last, request, attempt)
    seen[last >= 0] = last[last >= 0] + 1
    per_request = np.where(np.isfinite(counted), counted, seen)
    failed = attempt < np.maximum(last[request], np.nan_to_num(per_request[request]) - 1)
    lost = np.asarray(
        pc.fill_null(pc.is_in(tables.requests["status"], value_set=pa.array(list(FAILED))), False)
    )
    failed |= (attempt == last[request]) & lost[request]
    return Attempts(request, attempt, low, high, first, failed, from_spans, per_request)


def key(request: Ints, attempt: Ints) -> Ints:
    """One number for a request's row and an attempt, ascending in both."""
    out: Ints = (request << 16) + np.minimum(attempt, 0xFFFF)
    return out


def _extent(keys: Ints, low: Floats, high: Floats) -> tuple[Ints, Floats, Floats]:
    """Earliest start and latest end per key."""
    if not len(keys):
        return keys, low, high
    order = np.argsort(keys, kind="stable")
    keys, low, high = keys[order], low[order], high[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return keys[first], np.fmin.reduceat(low, first), np.fmax.reduceat(high, first)


def _from_calls(tables: Tables) -> tuple[Ints, Floats, Floats]:
    calls = tables.calls
    row = rows_of(calls["request_id"], tables.requests["request_id"])
    attempt = whole(calls["attempt"], null=-1)
    use = (row >= 0) & (attempt >= 0)
    start, end = floats(calls["arrival_s"])[use], floats(calls["end_s"])[use]
    return _extent(key(row[use], attempt[use]), start, np.fmax(start, end))


def _from_spans(tables: Tables) -> tuple[Ints, Floats, Floats]:
    """An attempt's extent: its own container where there is one (work that goes on after the
    attempt was given up does not lengthen it), else its spans' first start and last end.

    The root holds all attempts and belongs to none, whatever number it carries.
    """
    spans = tables.spans
    row = rows_of(spans["request_id"], tables.requests["request_id"])
    attempt = whole(spans["attempt"], null=-1)
    holds = np.asarray(spans["stage"].is_null()) & np.asarray(spans["call_id"].is_null())
    known = (row >= 0) & (attempt >= 0)
    root = holds & np.asarray(spans["parent"].is_null())
    inner = known & ~root
    keys = key(row, attempt)
    if not inner.any():
        inner = known
    else:
        lonely = ~np.isin(row, row[inner]) & known
        inner |= lonely
    start, end = floats(spans["start_s"]), floats(spans["end_s"])
    every = _extent(keys[inner], start[inner], end[inner])
    boxes = inner & holds & _top_of_attempt(spans, attempt)
    box = _extent(keys[boxes], start[boxes], end[boxes])
    at = np.searchsorted(every[0], box[0])
    every[1][at], every[2][at] = box[1], box[2]
    return every


def _top_of_attempt(spans: pa.Table, attempt: Ints) -> NDArray[np.bool_]:
    """Spans whose parent does not belong to the same attempt, or is a root."""
    ids = pc.binary_join_element_wise(spans["request_id"], spans["span_id"], "\x1f")
    wanted = pc.binary_join_element_wise(spans["request_id"], spans["parent"], "\x1f")
    if not len(ids):
        return np.zeros(0, dtype=np.bool_)
    found = pc.index_in(wanted, value_set=ids.combine_chunks())
    at = np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)
    orphan = np.asarray(spans["parent"].is_null())
    top: NDArray[np.bool_] = (at < 0) | (attempt[at] != attempt) | orphan[at]
    return top
