"""Every request's time, split over the stages: one row per request, parts that sum exactly.

Requests with spans are walked along their critical path; requests with calls alone (CSV logs,
traces) are split in whole arrays by the same rule over their calls' phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sojourn.attribution.critical_path import (
    BACKOFF,
    CODE,
    CONTAINER,
    ENGINE_DETAIL,
    STAGES,
    UNEXPLAINED,
    Forest,
    partition,
)
from sojourn.attribution.infer import Phases, phases
from sojourn.trace.arrays import Floats, Ints, floats, rows_of, whole
from sojourn.trace.tables import Tables

STAGE_COLUMNS: Final = tuple(stage.value for stage in STAGES)
ENGINE_NAMES: Final = [STAGES[code].value for code in sorted(ENGINE_DETAIL)]


def decompose(tables: Tables) -> pa.Table:
    """Stages of every request: `request_id`, `bucket`, `arrival_s`, `total_s`, and one float64
    column of seconds per stage.

    Rows are in the order of `requests`. A request whose end nothing tells has null in `total_s`
    and in every stage. For the others the stages are >= 0 and sum to `total_s`.
    """
    return with_phases(tables, phases(tables.calls))


def with_phases(tables: Tables, call_phases: Phases) -> pa.Table:
    """`decompose`, for a caller that has the calls' phases already."""
    requests = tables.requests
    call_row = rows_of(tables.calls["request_id"], requests["request_id"])
    span_row = rows_of(tables.spans["request_id"], requests["request_id"])
    arrival = floats(requests["arrival_s"])
    end = _ends(tables, call_phases, call_row, span_row)
    seconds = np.zeros((requests.num_rows, len(STAGES)))

    spanned = np.zeros(requests.num_rows, dtype=np.bool_)
    spanned[span_row[span_row >= 0]] = True
    known = np.isfinite(end)
    plain = known & ~spanned
    _from_calls(seconds, _Bare.of(tables.calls, call_phases, call_row, plain), (arrival, end))
    if spanned.any():
        bare = _calls_without_engine_spans(tables)
        extra = _segments(tables, call_phases, bare)
        row = np.r_[span_row, rows_of(extra["request_id"], requests["request_id"])]
        _Forests.of(tables.spans, extra, row).walk(seconds, arrival, end)
    total = np.where(known, np.maximum(end - arrival, 0.0), np.nan)
    _close(seconds, total)
    seconds[~known] = np.nan
    columns = {
        "request_id": requests["request_id"],
        "bucket": requests["bucket"],
        "arrival_s": requests["arrival_s"],
        "total_s": pa.array(total, from_pandas=True),
    }
    for code, name in enumerate(STAGE_COLUMNS):
        columns[name] = pa.array(seconds[:, code], from_pandas=True)
    return pa.table(columns)


def stage_matrix(table: pa.Table) -> Floats:
    """The stage columns of `decompose` as an array (requests, stages), NaN where unknown."""
    return np.column_stack([floats(table[name]) for name in STAGE_COLUMNS])


def _ends(tables: Tables, call_phases: Phases, call_row: Ints, span_row: Ints) -> Floats:
    """End of each request: recorded, else the last end of its spans and calls, else NaN."""
    end = floats(tables.requests["end_s"])
    if np.isfinite(end).all():
        return end
    latest = np.full(len(end), -np.inf)
    use = (call_row >= 0) & call_phases.known_end
    np.maximum.at(latest, call_row[use], call_phases.cuts[use, 3])
    use = span_row >= 0
    np.maximum.at(latest, span_row[use], floats(tables.spans["end_s"])[use])
    return np.where(np.isfinite(end), end, np.where(np.isfinite(latest), latest, np.nan))


def _close(seconds: Floats, total: Floats) -> None:
    """Rounding of sums of differences goes to the largest part, so that the law holds exactly."""
    known = np.isfinite(total)
    if not known.any():
        return
    rows = np.flatnonzero(known)
    largest = seconds[rows].argmax(axis=1)
    seconds[rows, largest] += total[rows] - seconds[rows].sum(axis=1)


@dataclass(frozen=True)
class _Bare:
    """Calls of requests without spans, sorted by request and, within it, by end descending."""

    row: Ints
    rank: Ints
    attempt: Ints
    cuts: Floats
    stages: Ints

    @classmethod
    def of(
        cls, calls: pa.Table, call_phases: Phases, call_row: Ints, plain: NDArray[np.bool_]
    ) -> _Bare:
        use: Ints = np.flatnonzero((call_row >= 0) & plain[call_row]) if len(plain) else call_row
        row, cuts = call_row[use], call_phases.cuts[use]
        attempt = whole(calls["attempt"], null=-1)[use]
        order = np.lexsort((cuts[:, 0], -cuts[:, 3], -attempt, row))
        row = row[order]
        first = np.r_[True, row[1:] != row[:-1]] if len(row) else np.zeros(0, dtype=np.bool_)
        starts = np.flatnonzero(first)
        rank = np.arange(len(row)) - np.repeat(starts, np.diff(np.r_[starts, len(row)]))
        return cls(row, rank, attempt[order], cuts[order], call_phases.stages[use][order])


def _from_calls(seconds: Floats, calls: _Bare, bounds: tuple[Floats, Floats]) -> None:
    """The walk back of `critical_path` for requests that have calls and no spans, k-th last call
    of all requests at once. A later attempt comes first: what an older one still does is waste."""
    arrival, end = bounds
    cursor = end.copy()
    later = np.full(len(end), -1, dtype=np.int64)
    by_rank = np.argsort(calls.rank, kind="stable")
    edges = np.r_[0, np.cumsum(np.bincount(calls.rank))] if len(by_rank) else np.zeros(1, np.int64)
    for begin, stop in pairwise(edges):
        take = by_rank[begin:stop]
        row = calls.row[take]
        low = np.maximum(calls.cuts[take, 0], arrival[row])
        high = np.minimum(calls.cuts[take, 3], cursor[row])
        used = high > low
        take, row, low, high = take[used], row[used], low[used], high[used]
        gap = cursor[row] - high
        between = (calls.attempt[take] >= 0) & (calls.attempt[take] < later[row])
        seconds[row, np.where(between, BACKOFF, UNEXPLAINED)] += gap  # a row occurs once per rank
        for phase in range(3):
            part = np.minimum(calls.cuts[take, phase + 1], high) - np.maximum(
                calls.cuts[take, phase], low
            )
            seconds[row, calls.stages[take, phase]] += np.maximum(part, 0.0)
        cursor[row] = low
        later[row] = calls.attempt[take]
    known = np.isfinite(end)
    seconds[known, UNEXPLAINED] += np.maximum(cursor - arrival, 0.0)[known]


def _calls_without_engine_spans(tables: Tables) -> NDArray[np.bool_]:
    """Calls whose queue, prefill and decode no span shows."""
    spans = tables.spans
    engine = pc.is_in(spans["stage"], value_set=pa.array(ENGINE_NAMES))
    shown = spans["call_id"].filter(engine).drop_null()
    return ~np.asarray(pc.is_in(tables.calls["call_id"], value_set=shown.combine_chunks()))


def _segments(tables: Tables, call_phases: Phases, bare: NDArray[np.bool_]) -> pa.Table:
    """Spans made of the phases of calls that have none, below the span of their call."""
    rows = np.flatnonzero(bare & call_phases.known_end)
    call_id = tables.calls["call_id"].take(pa.array(rows))
    holders = tables.spans.filter(pc.is_valid(tables.spans["call_id"]))
    at = pc.index_in(call_id, value_set=holders["call_id"].combine_chunks())
    parent = holders["span_id"].take(at)
    parts = []
    for phase in range(3):
        start, end = call_phases.cuts[rows, phase], call_phases.cuts[rows, phase + 1]
        stage = call_phases.stages[rows, phase]
        parts.append(
            pa.table(
                {
                    "span_id": pc.binary_join_element_wise(call_id, f"phase {phase}", " "),
                    "request_id": tables.calls["request_id"].take(pa.array(rows)),
                    "attempt": tables.calls["attempt"].take(pa.array(rows)),
                    "call_id": call_id,
                    "stage": pa.array(STAGE_COLUMNS).take(pa.array(stage)),
                    "name": pa.array(STAGE_COLUMNS).take(pa.array(stage)),
                    "start_s": pa.array(start),
                    "end_s": pa.array(end),
                    "parent": parent,
                }
            ).filter(pa.array(end > start))
        )
    return pa.concat_tables(parts)


@dataclass(frozen=True)
class _Forests:
    """Spans of all requests that have some, sorted by request, ready to be sliced."""

    bounds: Ints
    rows: Ints
    lists: Forest

    @classmethod
    def of(cls, spans: pa.Table, extra: pa.Table, row: Ints) -> _Forests:
        """`row`: row in `requests` of each span, then of each extra one (-1: none)."""
        recorded = row[: spans.num_rows]
        has_spans = np.unique(recorded[recorded >= 0])
        wanted = [field.name for field in extra.schema]
        data = pa.concat_tables([spans.select(wanted), extra.cast(spans.select(wanted).schema)])
        order = np.argsort(row, kind="stable")
        order = order[np.isin(row[order], has_spans)]
        data, row = data.take(pa.array(order)), row[order]
        stage = [CODE.get(name, CONTAINER) for name in data["stage"].to_pylist()]
        lists = Forest(
            ids=data["span_id"].to_pylist(),
            parents=data["parent"].to_pylist(),
            stages=stage,
            names=pc.fill_null(data["name"], "").to_pylist(),
            attempts=whole(data["attempt"], null=-1).tolist(),
            calls=data["call_id"].to_pylist(),
            starts=floats(data["start_s"]).tolist(),
            ends=floats(data["end_s"]).tolist(),
        )
        begins = np.flatnonzero(np.r_[True, row[1:] != row[:-1]]) if len(row) else np.zeros(0, int)
        return cls(np.r_[begins, len(row)], row[begins], lists)

    def walk(self, seconds: Floats, arrival: Floats, end: Floats) -> None:
        """Write the partition of each request into its row of `seconds`."""
        names = [field.name for field in fields(Forest)]
        columns: list[Sequence[object]] = [getattr(self.lists, name) for name in names]
        edges = self.bounds.tolist()
        for row, low, high in zip(self.rows.tolist(), edges[:-1], edges[1:], strict=True):
            if not np.isfinite(end[row]):
                continue
            # the slices have the fields' own types; only their common list loses them
            forest = Forest(*(column[low:high] for column in columns))  # type: ignore[arg-type]
            seconds[row] = partition(forest, float(arrival[row]), float(end[row]))
