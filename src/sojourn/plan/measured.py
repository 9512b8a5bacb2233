"""What was measured of each request, of a recording or of a simulated run: what the SLO is held
against. A simulated run is read from its log, so that judging thousands costs no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import FAILED, Status
from sojourn.sim.scenario import SimRun
from sojourn.trace.arrays import Bools, Floats, Ints, floats, rows_of, whole
from sojourn.trace.tables import Tables

STATUSES: Final = tuple(Status)
OK, CANCELLED, SHED = (STATUSES.index(s) for s in (Status.OK, Status.CANCELLED, Status.SHED))
FAILURES: Final = tuple(STATUSES.index(status) for status in FAILED)
UNKNOWN: Final = -1
NO_BUCKET: Final = "unassigned"
_NAMES: Final = pa.array([status.value for status in STATUSES], pa.string())


@dataclass(frozen=True, eq=False)
class Measured:
    """One entry per request, by arrival. Seconds and tokens, NaN where not measured.

    `status`: place in `STATUSES`, `UNKNOWN` where not told. `first_token_s` to `call_attempt` are
    of the last call of the last attempt that has one. `calls`: whether any call was seen at all.
    """

    request_id: pa.Array
    bucket: npt.NDArray[np.object_]
    status: Ints
    arrival_s: Floats
    end_s: Floats
    attempts: Floats
    degraded: Bools
    success: Bools
    first_token_s: Floats
    call_end_s: Floats
    output_tokens: Floats
    input_tokens: Floats
    call_attempt: Floats
    calls: bool


def measured(run: Tables | SimRun) -> Measured:
    """Of a recording's tables, or of a simulated run; both say the same of the same run."""
    return _of_run(run) if isinstance(run, SimRun) else _of_tables(run)


def _of_run(run: SimRun) -> Measured:
    requests = run.scenario.stream.requests
    found = run.outcomes
    if len(found.row) < requests.num_rows:
        requests = requests.take(pa.array(found.row))
    if (np.diff(found.arrival_s) < 0).any():  # an engine may send a closed loop's rows late
        return _of_tables(run.tables)
    return Measured(
        request_id=_one(requests.column("request_id")),
        bucket=_names(requests.column("bucket"), NO_BUCKET),
        status=found.status,
        arrival_s=found.arrival_s,
        end_s=found.end_s,
        attempts=found.attempts.astype(np.float64),
        degraded=found.degraded,
        success=np.ones(len(found.row), dtype=bool),
        first_token_s=found.first_token_s,
        call_end_s=found.call_end_s,
        output_tokens=found.output_tokens,
        input_tokens=found.input_tokens,
        call_attempt=found.call_attempt,
        calls=len(run.log.calls) > 0,
    )


def _of_tables(tables: Tables) -> Measured:
    arrival = floats(tables.requests["arrival_s"])
    requests = tables.requests.take(pa.array(np.argsort(arrival, kind="stable")))
    end = floats(requests["end_s"])
    status = whole(pc.index_in(requests["status"], value_set=_NAMES), null=UNKNOWN)
    untold = pc.equal(pc.fill_null(requests["status"], ""), "").to_numpy(zero_copy_only=False)
    last = _last_calls(requests, tables.calls)

    def of_last(name: str) -> Floats:
        out = np.full(len(end), np.nan)
        known = last >= 0
        if known.any():
            out[known] = floats(tables.calls[name])[last[known]]
        return out

    attempt = of_last("attempt")
    attempt = np.where(last >= 0, np.nan_to_num(attempt), np.nan)
    attempts = floats(requests["attempts"])
    degraded = pc.fill_null(pc.list_value_length(requests.column("degraded")), 0)
    success = pc.fill_null(requests.column("success"), True)
    return Measured(
        request_id=_one(requests.column("request_id")),
        bucket=_names(requests.column("bucket"), NO_BUCKET),
        status=np.where(untold & ~np.isnan(end), OK, status),
        arrival_s=floats(requests["arrival_s"]),
        end_s=end,
        attempts=np.where(np.isnan(attempts), np.nan_to_num(attempt) + 1, attempts),
        degraded=np.asarray(degraded.to_numpy() > 0, dtype=bool),
        success=np.asarray(success.to_numpy(), dtype=bool),
        first_token_s=of_last("first_token_s"),
        call_end_s=of_last("end_s"),
        output_tokens=of_last("output_tokens"),
        input_tokens=of_last("input_tokens"),
        call_attempt=attempt,
        calls=tables.calls.num_rows > 0,
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    return pa.concat_arrays(made.chunks) if isinstance(made, pa.ChunkedArray) else made


def _names(column: pa.ChunkedArray, null: str) -> npt.NDArray[np.object_]:
    """Texts of few kinds: each is one Python string, however often it occurs."""
    coded = _one(pc.fill_null(column, null)).dictionary_encode()
    words = np.array([*coded.dictionary.to_pylist(), ""], dtype=object)[:-1]
    return np.asarray(words[coded.indices.to_numpy()], dtype=object)


def _last_calls(requests: pa.Table, calls: pa.Table) -> Ints:
    """Row of each request's last call, -1 without one."""
    found = np.full(requests.num_rows, -1, dtype=np.int64)
    if not calls.num_rows or not requests.num_rows:
        return found
    owner = rows_of(calls["request_id"], requests["request_id"])
    attempt = np.nan_to_num(floats(calls["attempt"]))
    turn = np.nan_to_num(floats(calls["turn"]), nan=0.0)
    order = np.lexsort((floats(calls["arrival_s"]), turn, attempt, owner))
    owner = owner[order]
    last = np.flatnonzero(np.append(owner[1:] != owner[:-1], True))
    last = last[owner[last] >= 0]
    found[owner[last]] = order[last]
    return found
