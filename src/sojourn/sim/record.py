"""What happened, as the tables of ingestion: a simulated run is a trace.

Columns are made whole, none row by row. Spans are in `sojourn.sim.spans`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import TtftOrigin
from sojourn.sim.legend import Legend
from sojourn.sim.log import (
    FIRST_SKIP,
    LEVEL,
    NONE,
    PARTIAL_ANSWER,
    SHORT_ANSWER,
    STATUSES,
    Log,
    Rows,
)
from sojourn.sim.lowered import Ints
from sojourn.sim.ticks import PER_S, seconds_of
from sojourn.trace.arrays import Floats
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream

Whole = npt.NDArray[Any]
"""Whole numbers of any width."""

STATUS_NAMES: Final = pa.array([status.value for status in STATUSES], pa.string())
CHANGE_NAMES: Final = ("starting", "ready", "draining", "stopped", "level")
"""In the order of the numbers in `sojourn.sim.log`."""
DEFAULT_POOL: Final = "default"


def named(names: pa.Array, numbers: Whole) -> pa.Array:
    """The name of each number, null below 0."""
    if numbers.size and int(numbers.min()) < 0:
        return names.take(pa.array(numbers, mask=numbers < 0))
    return names.take(pa.array(numbers))


def integers(numbers: Whole) -> pa.Array:
    """Whole numbers of any width as an int64 column."""
    return pa.array(numbers.astype(np.int64, copy=False), pa.int64())


def text(numbers: Whole) -> pa.Array:
    """Whole numbers as text."""
    return pa.array(np.ascontiguousarray(numbers)).cast(pa.string())


def repeated(value: str, count: int) -> pa.Array:
    """A column of one value."""
    return pa.repeat(pa.scalar(value, pa.string()), count)


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a run by arrival (equal ones in the order of their end). `step`: row of the
    call's step among the stream's; `turn`: its place among the calls of its program."""

    rows: Rows
    step: Ints
    turn: Ints
    request_id: pa.Array
    call_id: pa.Array


@dataclass(frozen=True, eq=False)
class Told:
    """A run and the names its numbers stand for: what every table is made from."""

    stream: Stream
    log: Log
    legend: Legend

    @cached_property
    def request_id(self) -> pa.Array:
        """Identities of the stream's requests."""
        return whole(self.stream.requests.column("request_id"))

    @cached_property
    def calls(self) -> Calls:
        """The calls, named."""
        log = self.log.calls
        rows = log[np.argsort(log["arrival"], kind="stable")]
        step = self.step(rows)
        is_call = pc.equal(self.stream.steps.column("kind"), StepKind.CALL.value).to_numpy()
        before = np.concatenate([[0], np.cumsum(is_call)])
        turn = before[step] - before[self.legend.first_step[rows["request"]]]
        request_id = named(self.request_id, rows["request"])
        return Calls(
            rows=rows,
            step=step,
            turn=turn,
            request_id=request_id,
            call_id=pc.binary_join_element_wise(request_id, text(rows["attempt"]), text(turn), "/"),
        )

    @cached_property
    def ended(self) -> Ints:
        """Rows of the requests that have ended."""
        return np.flatnonzero(self.log.ends["status"] != NONE)

    def step(self, rows: Rows) -> Ints:
        """Row in the stream's steps of log rows that have `request` and `place`."""
        return np.asarray(self.legend.first_step[rows["request"]] + rows["place"])

    def seconds(self, ticks: Whole) -> Floats:
        """Ticks of this run as seconds of its stream."""
        return seconds_of(ticks, self.legend.origin_s)

    def times(self, ticks: Whole) -> pa.Array:
        """A column of seconds, null where a thing did not happen."""
        absent = ticks == NONE
        return pa.array(self.seconds(ticks), mask=absent if absent.any() else None)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    made = column.combine_chunks()
    return pa.concat_arrays(made.chunks) if isinstance(made, pa.ChunkedArray) else made


def requests(told: Told) -> pa.Table:
    """Requests that ended, in the stream's order."""
    rows, arrived = told.ended, told.stream.requests
    ends = told.log.ends[rows]
    data = arrived if len(rows) == arrived.num_rows else arrived.take(pa.array(rows))
    index = data.column_names.index("arrival_s")
    data = data.set_column(index, "arrival_s", told.times(ends["arrival"]))
    return (
        data.append_column("end_s", told.times(ends["end"]))
        .append_column("status", named(STATUS_NAMES, ends["status"]))
        .append_column("degraded", _degraded(ends["degraded"], told.legend.stations))
        .append_column("attempts", integers(ends["attempts"]))
    )


def _degraded(bits: Whole, stations: tuple[str, ...]) -> pa.Array:
    """Bits to lists of words, by rising bit."""
    words = {PARTIAL_ANSWER: "partial_answer", SHORT_ANSWER: "short_answer"} | {
        FIRST_SKIP + place: f"skip:{name}" for place, name in enumerate(stations)
    }
    any_bit = int(np.bitwise_or.reduce(bits)) if len(bits) else 0
    found = [
        (np.flatnonzero(bits >> np.uint64(bit) & np.uint64(1)), number)
        for number, bit in enumerate(words)
        if any_bit >> bit & 1
    ]
    row = np.concatenate([rows for rows, _ in found] or [np.zeros(0, np.int64)])
    word = np.concatenate([np.full(len(rows), number) for rows, number in found] or [row])
    order = np.lexsort((word, row))
    first = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(bits)))])
    values = pa.array(list(words.values()), pa.string()).take(pa.array(word[order]))
    return pa.ListArray.from_arrays(pa.array(first.astype(np.int32)), values)


def calls(told: Told, block_tokens: dict[str, int]) -> pa.Table:
    """Model calls by arrival. `block_tokens`: tokens of a prefix hash by pool, where it has any."""
    made, steps = told.calls, told.stream.steps
    rows, at = made.rows, pa.array(made.step)
    prompt = np.maximum(_counts(steps, "input_tokens"), 1)[made.step]
    pool = pc.fill_null(whole(steps.column("pool").take(at)), DEFAULT_POOL)
    columns = {
        "call_id": made.call_id,
        "request_id": made.request_id,
        "attempt": integers(rows["attempt"]),
        "turn": integers(made.turn),
        "model": steps.column("name").take(at),
        "pool": pool,
        "replica": named(pa.array(told.legend.replicas, pa.string()), rows["replica"]),
        "input_tokens": integers(prompt),
        "cached_tokens": integers(np.maximum(rows["cached"], 0)),
        "output_tokens": integers(rows["written"]),
        "image_tokens": integers(_counts(steps, "image_tokens")[made.step]),
        "arrival_s": told.times(rows["arrival"]),
        "scheduled_s": told.times(rows["scheduled"]),
        "first_token_s": told.times(rows["first"]),
        "end_s": told.times(rows["end"]),
        "ttft_origin": repeated(TtftOrigin.SERVER_ARRIVAL.value, len(rows)),
        "preemptions": integers(rows["preemptions"]),
        "status": named(STATUS_NAMES, rows["status"]),
    }
    if "block_hashes" in steps.column_names:
        columns["block_hashes"] = steps.column("block_hashes").take(at)
        sizes = pa.array(list(block_tokens.values()), pa.int64())
        known = pa.array(list(block_tokens), pa.string())
        columns["block_tokens"] = sizes.take(pc.index_in(pool, value_set=known))
    return pa.table(columns)


def _counts(steps: pa.Table, name: str) -> Ints:
    return np.asarray(pc.fill_null(steps.column(name), 0).to_numpy(), dtype=np.int64)


def engine_samples(told: Told) -> pa.Table:
    """Gauges and counters of every replica, by time. `gpu_busy`: share of the time since the
    sample before that was spent in steps."""
    rows, legend = told.log.samples, told.legend
    order = np.argsort(rows["replica"], kind="stable")
    busy, replica = rows["busy"][order], rows["replica"][order]
    before = np.where(
        np.append(False, replica[1:] == replica[:-1])[: len(rows)], np.append(0, busy)[:-1], 0
    )
    share = np.empty(len(rows))
    share[order] = (busy - before) / max(legend.sample_every, 1)
    columns = {
        "running": rows["running"],
        "waiting": rows["waiting"],
        "kv_usage": rows["used_blocks"] / legend.blocks[rows["replica"]],
        "preemptions_total": rows["preemptions"],
        "prefix_hit_tokens_total": rows["hit_tokens"],
        "prefix_query_tokens_total": rows["query_tokens"],
        "prompt_tokens_total": rows["prompt_tokens"],
        "generation_tokens_total": rows["written_tokens"],
        "gpu_busy": np.clip(share, 0.0, 1.0),
    }
    return pa.table(
        {
            "t_s": told.times(rows["t"]),
            "replica": named(pa.array(legend.replicas, pa.string()), rows["replica"]),
            **{name: pa.array(v.astype(np.float64)) for name, v in columns.items()},
        }
    )


def changes(told: Told) -> pa.Table:
    """What the controllers did: t_s, what (`starting`, `ready`, `draining`, `stopped`, `level`),
    which (the replica, or the ladder's new level)."""
    rows = told.log.changes
    is_level = rows["what"] == LEVEL
    replica = named(
        pa.array(told.legend.replicas, pa.string()), np.where(is_level, NONE, rows["which"])
    )
    return pa.table(
        {
            "t_s": told.times(rows["t"]),
            "what": named(pa.array(CHANGE_NAMES, pa.string()), rows["what"]),
            "which": pc.if_else(pa.array(is_level), text(rows["which"]), replica),
        }
    )


@dataclass(frozen=True, eq=False)
class Outcomes:
    """One entry per request that ended, in the stream's order; seconds as in the stream.

    `row`: of the request in the stream. `status`: place in `STATUSES`. Those of the last call of
    the last attempt that had one (NaN without): first token, end, tokens, and its attempt.
    """

    row: Ints
    arrival_s: Floats
    end_s: Floats
    status: Ints
    attempts: Ints
    degraded: npt.NDArray[np.bool_]
    first_token_s: Floats
    call_end_s: Floats
    output_tokens: Floats
    input_tokens: Floats
    call_attempt: Floats


def outcomes(told: Told) -> Outcomes:
    """What became of the requests, straight from the log: no text is made."""
    log, row = told.log, told.ended
    last = _last_calls(log.calls, len(log.ends))
    every = len(row) == len(log.ends)
    if not every:
        last = last[row]
    have = last >= 0
    whole_run = bool(have.all())
    at = last if whole_run else last[have]

    def of_last(values: Whole) -> Floats:
        if whole_run:
            return values.astype(np.float64)
        made = np.full(len(row), np.nan)
        made[have] = values
        return made

    def of_ends(name: str) -> Whole:
        return log.ends[name] if every else log.ends[name][row]

    calls = {name: log.calls[name][at] for name in ("first", "end", "written", "attempt")}
    step = told.legend.first_step[log.calls["request"][at]] + log.calls["place"][at]
    prompt = np.maximum(_counts(told.stream.steps, "input_tokens")[step], 1)
    first = told.seconds(calls["first"])
    return Outcomes(
        row=row,
        arrival_s=told.seconds(of_ends("arrival")),
        end_s=told.seconds(of_ends("end")),
        status=of_ends("status").astype(np.int64),
        attempts=of_ends("attempts").astype(np.int64),
        degraded=of_ends("degraded") != 0,
        first_token_s=of_last(np.where(calls["first"] == NONE, np.nan, first)),
        call_end_s=of_last(told.seconds(calls["end"])),
        output_tokens=of_last(calls["written"]),
        input_tokens=of_last(prompt),
        call_attempt=of_last(calls["attempt"]),
    )


def _last_calls(rows: Rows, count: int) -> Ints:
    """Row of each request's last call by (attempt, place), -1 without one."""
    request = rows["request"]
    found = np.full(count, -1, dtype=np.int64)
    if len(rows) and int(np.bincount(request).max()) > 1:
        order = np.lexsort((rows["place"], rows["attempt"], request))
        ordered = request[order]
        last = order[np.append(ordered[1:] != ordered[:-1], True)]
        found[request[last]] = last
    else:
        found[request] = np.arange(len(rows))
    return found


def end_s(told: Told) -> float:
    """When the last request ended; 0 without any."""
    ends = told.log.ends["end"][told.ended]
    return float(ends.max()) / PER_S + told.legend.origin_s if len(ends) else 0.0
