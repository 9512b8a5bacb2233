"""The spans of a run, from its log.

A request's root span holds its attempts; an attempt holds its visits, delays and calls; a call
holds what it went through: the engine's front end, encoder, queue, prefill, KV transfer, the second
queue, decode. Spans come kind by kind, parents before children, numbered in that order. A delay
without a stage leaves no span: it shows as the gap it was. Nor does a phase of no length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import ENGINE_HOST_SPANS, Stage
from sojourn.sim.log import NONE, OK, STATUSES, Rows
from sojourn.sim.lowered import Ints
from sojourn.sim.record import STATUS_NAMES, Calls, Told, Whole, integers, named, repeated, text
from sojourn.sim.ticks import seconds_of
from sojourn.trace.arrays import Bools, Column, Floats

CLIENT_WAIT: Final = "client wait"
"""Name of the gateway span of a request held back at its client."""


@dataclass(frozen=True, eq=False)
class _Kind:
    """Spans of one kind, column by column. Times in ticks; `stage` and `name` as columns or one
    for all; None: null."""

    request_id: Column
    attempt: Whole
    start: Whole
    end: Whole
    status: Whole
    stage: Column | str | None
    name: Column | str
    parent: Column | None = None
    call_id: Column | None = None
    wait_s: Floats | None = None


class _Spans:
    """Kinds of spans, one below the other."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._parts: list[pa.Table] = []
        self._count = 0
        self._same: dict[str | pa.DataType, pa.Array] = {}

    def add(self, kind: _Kind) -> pa.Array:
        """Add the spans of a kind; gives their identities."""
        count = len(kind.start)
        span_id = text(np.arange(self._count, self._count + count))
        self._count += count

        def column(given: Column | str | None) -> Column:
            same = pa.string() if given is None else given
            return self._repeated(same, count) if given is None or isinstance(given, str) else given

        wait = None if kind.wait_s is None else pa.array(kind.wait_s)
        self._parts.append(
            pa.table(
                {
                    "span_id": span_id,
                    "request_id": kind.request_id,
                    "attempt": integers(kind.attempt),
                    "call_id": column(kind.call_id),
                    "stage": column(kind.stage),
                    "name": column(kind.name),
                    "start_s": self._told.times(kind.start),
                    "end_s": self._told.times(kind.end),
                    "wait_s": self._repeated(pa.float64(), count) if wait is None else wait,
                    "parent": column(kind.parent),
                    "status": self._status(kind.status),
                    "provenance": column("simulated"),
                }
            )
        )
        return span_id

    def _status(self, codes: Whole) -> Column:
        first = int(codes[0]) if len(codes) else OK
        if (codes == first).all():
            return self._repeated(STATUSES[first].value, len(codes))
        return named(STATUS_NAMES, codes)

    def _repeated(self, value: str | pa.DataType, count: int) -> pa.Array:
        """A column of one text, or of nulls of a type; equal ones share their memory."""
        made = self._same.get(value)
        if made is None or len(made) < count:
            made = repeated(value, count) if isinstance(value, str) else pa.nulls(count, value)
            self._same[value] = made
        return made.slice(0, count)

    def table(self) -> pa.Table:
        """All of them."""
        return pa.concat_tables(self._parts)


def spans(told: Told) -> pa.Table:
    """Spans of every request that ended; rows of the log that no such request holds are kept
    without a parent."""
    made = _Spans(told)
    roots, root_of = _roots(told, made)
    attempts = told.log.attempts
    attempt_ids = made.add(
        _Kind(
            request_id=named(told.request_id, attempts["request"]),
            attempt=attempts["attempt"],
            start=attempts["started"],
            end=attempts["ended"],
            status=attempts["status"],
            stage=None,
            name="attempt",
            parent=named(roots, root_of[attempts["request"]]),
        )
    )
    _at_the_client(told, made, roots, root_of)
    parents = _Attempts(told, attempt_ids)
    _visits(told, made, parents)
    _calls(told, made, parents)
    return made.table()


def _roots(told: Told, made: _Spans) -> tuple[pa.Array, Ints]:
    """Root spans: their identities, and the place of each request among them (-1: none)."""
    rows = told.ended
    ends = told.log.ends[rows]
    route = pc.fill_null(told.stream.requests.column("route"), "request")
    every = len(rows) == len(told.log.ends)
    ids = made.add(
        _Kind(
            request_id=told.request_id if every else named(told.request_id, rows),
            attempt=np.zeros(len(rows), np.int64),
            start=ends["arrival"],
            end=ends["end"],
            status=ends["status"],
            stage=None,
            name=route if every else route.take(pa.array(rows)),
        )
    )
    place = np.full(len(told.log.ends), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return ids, place


def _at_the_client(told: Told, made: _Spans, roots: pa.Array, root_of: Ints) -> None:
    """Time held back before the first attempt, and waits before the others."""
    attempts = told.log.attempts
    arrival = told.log.ends["arrival"][attempts["request"]]
    held = attempts[(attempts["attempt"] == 0) & (attempts["started"] > arrival)]
    again = attempts[attempts["backoff"] > 0]
    for rows, number, start, end, stage, name in (
        (held, held["attempt"], told.log.ends["arrival"][held["request"]], held["started"],
         Stage.GATEWAY, CLIENT_WAIT),
        (again, again["attempt"] + 1, again["ended"], again["ended"] + again["backoff"],
         Stage.BACKOFF, "backoff"),
    ):  # fmt: skip
        made.add(
            _Kind(
                request_id=named(told.request_id, rows["request"]),
                attempt=number,
                start=start,
                end=end,
                status=np.full(len(rows), OK),
                stage=stage.value,
                name=name,
                parent=named(roots, root_of[rows["request"]]),
            )
        )


class _Attempts:
    """Spans of attempts, found by (request, attempt)."""

    def __init__(self, told: Told, ids: pa.Array) -> None:
        rows = told.log.attempts
        request, number = rows["request"], rows["attempt"]
        most = np.zeros(len(told.log.ends), dtype=np.int64)
        np.maximum.at(most, request, number + 1)
        self._ids = ids
        self._most = most
        self._first = np.concatenate([[0], np.cumsum(most)])
        self._place = np.full(int(self._first[-1]), -1, dtype=np.int64)
        self._place[self._first[request] + number] = np.arange(len(rows))

    def of(self, rows: Rows) -> pa.Array:
        """Identity of the attempt that each row belongs to; null where it has not ended."""
        request, number = rows["request"], rows["attempt"]
        known = number < self._most[request]
        at = np.where(known, self._first[request] + number, 0)
        place = self._place[at] if self._place.size else np.zeros(len(rows), np.int64)
        return named(self._ids, np.where(known, place, -1))


def _visits(told: Told, made: _Spans, parents: _Attempts) -> None:
    """Visits to stations, and delays of a stage."""
    log, steps = told.log.visits, told.stream.steps
    stage = steps.column("stage")
    plain = pc.fill_null(
        pc.is_in(stage, value_set=pa.array(["", Stage.UNEXPLAINED.value])), True
    ).to_numpy()
    plain |= pc.is_null(stage).to_numpy()
    is_delay = log["station"] == NONE
    told_of = is_delay & (log["ended"] > log["entered"]) & ~plain[told.step(log)]
    for rows, wait in ((log[~is_delay], True), (log[told_of], False)):
        at = pa.array(told.step(rows))
        stages, names = stage.take(at), steps.column("name").take(at)
        if not wait:
            blank = pc.fill_null(pc.equal(names, ""), True)
            names = pc.if_else(blank, stages, names)
        served = np.where(rows["started"] == NONE, rows["ended"], rows["started"])
        made.add(
            _Kind(
                request_id=named(told.request_id, rows["request"]),
                attempt=rows["attempt"],
                start=rows["entered"],
                end=rows["ended"],
                status=rows["status"],
                stage=stages,
                name=names,
                parent=parents.of(rows),
                wait_s=seconds_of(served - rows["entered"], 0.0) if wait else None,
            )
        )


@dataclass(frozen=True, eq=False)
class _Phase:
    """What calls went through from `start` to `end`; one that ended inside has `end` NONE.
    `served`: when its wait for a worker was over."""

    stage: Stage
    name: str
    start: Whole
    end: Whole
    served: Whole | None = None


def _calls(told: Told, made: _Spans, parents: _Attempts) -> None:
    calls = told.calls
    rows = calls.rows
    ids = made.add(
        _Kind(
            request_id=calls.request_id,
            attempt=rows["attempt"],
            start=rows["arrival"],
            end=rows["end"],
            status=rows["status"],
            stage=None,
            name=_chat_names(told.stream.steps.column("name"), calls.step),
            parent=parents.of(rows),
            call_id=calls.call_id,
        )
    )
    for phase in _phases(rows, np.array(told.legend.moves)[rows["pool"]]):
        _add_phase(made, calls, ids, phase)


def _chat_names(column: pa.ChunkedArray, step: Ints) -> pa.Array:
    """`chat <model>` of each step."""
    names = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    chat = pc.binary_join_element_wise("chat", names.dictionary, " ")
    return chat.take(names.indices.take(pa.array(step)))


def _phases(rows: Rows, moves: Bools) -> Sequence[_Phase]:
    """Phases of calls in their order; `moves`: KV goes to another pool after the first token."""
    began = np.where(rows["encode"] == NONE, rows["queued"], rows["encode"])
    first = rows["first"]
    stays, goes = np.where(moves, NONE, first), np.where(moves, first, NONE)
    none = np.full(len(rows), NONE)
    return (
        _Phase(Stage.GATEWAY, ENGINE_HOST_SPANS[0], rows["arrival"], began),
        _Phase(Stage.ENCODE, "encode", rows["encode"], rows["queued"], rows["encode_start"]),
        _Phase(Stage.QUEUE, "queue", rows["queued"], rows["scheduled"]),
        _Phase(Stage.PREFILL, "prefill", rows["scheduled"], first),
        _Phase(Stage.KV_TRANSFER, "kv transfer", goes, rows["moved"]),
        _Phase(Stage.QUEUE, "queue", rows["moved"], rows["resumed"]),
        _Phase(Stage.DECODE, "decode", np.where(moves, rows["resumed"], stays), none),
    )


def _add_phase(made: _Spans, calls: Calls, ids: pa.Array, phase: _Phase) -> None:
    rows = calls.rows
    over = phase.end != NONE
    end = np.where(over, phase.end, rows["end"])
    status = np.where(over, OK, rows["status"])
    at = np.flatnonzero((phase.start != NONE) & (end > phase.start))
    every = len(at) == len(rows)

    def chosen(column: Column) -> Column:
        return column if every else column.take(pa.array(at))

    wait = None
    if phase.served is not None:
        served = np.where(phase.served == NONE, end, phase.served)
        wait = seconds_of((served - phase.start)[at], 0.0)
    made.add(
        _Kind(
            request_id=chosen(calls.request_id),
            attempt=rows["attempt"][at],
            start=phase.start[at],
            end=end[at],
            status=status[at],
            stage=phase.stage.value,
            name=phase.name,
            parent=chosen(ids),
            call_id=chosen(calls.call_id),
            wait_s=wait,
        )
    )
