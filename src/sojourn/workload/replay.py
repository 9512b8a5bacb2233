"""Measured requests and their programs, as they came: the stream that a simulation replays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.errors import InputError
from sojourn.records import Bucket, Stage
from sojourn.trace.tables import Tables
from sojourn.workload.hashing import hash_strings
from sojourn.workload.imputation import Kin, repaired
from sojourn.workload.observed import STAGE_CODE, STAGES, Observed, Vocabulary, observe
from sojourn.workload.programs import Programs, programs
from sojourn.workload.steps import CALL, KINDS, Steps, delay_steps
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream

DEFAULT_POOL = "default"


def replay(tables: Tables, *, seed: int = 0) -> Stream:
    """The requests of tables, arrivals counted from the first, each with its whole program.

    A program is what the request needs when nothing hinders it: how it is read off the data says
    `sojourn.workload.programs`, how programs cut short by timeouts are made whole (by donors and
    by draws from uncensored times; timeouts select long requests) says `imputation.repaired`.
    Tables without spans give programs of calls alone. Waiting is left out of station steps where
    it is known (`spans.wait_s`); the simulator makes its own. A call that wrote nothing still
    takes one token (the engine samples the end of text).

    Raises:
        InputError: there are model calls, but none tells its tokens.
    """
    observed = observe(tables)
    return streamed(tables, observed, programs(observed), seed=seed)


def streamed(tables: Tables, observed: Observed, seen: Programs, *, seed: int) -> Stream:
    """`replay` for programs that are read already.

    Raises:
        InputError: there are model calls, but none tells its tokens.
    """
    if observed.size == 0:
        return Stream(STREAM_REQUESTS.empty_table(), STREAM_STEPS.empty_table())
    steps = _never_empty(repaired(seen, kin(tables, observed), seed), observed)
    if np.isnan(steps.output[steps.kind == CALL]).any():
        raise InputError(
            "no model call tells its input and output tokens",
            field="calls.output_tokens",
            todo="Record each call's usage, or map the columns with `columns:` in sojourn.yaml",
        )
    order = np.argsort(observed.arrival, kind="stable")
    rank = np.empty(order.size, dtype=np.int64)
    rank[order] = np.arange(order.size)
    by_rank = np.lexsort((steps.group, rank[steps.request]))
    steps = steps.rows(by_rank)
    return Stream(_requests(tables, observed, order), _steps(steps, rank[steps.request], seen))


def kin(tables: Tables, observed: Observed) -> Kin:
    """Likeness of the requests of tables."""
    return Kin(
        identity=hash_strings(tables.requests.column("request_id")),
        bucket=observed.bucket.codes,
        tenant=Vocabulary.of(tables.requests.column("tenant")).codes,
        retried=observed.attempts_made() > 1,
    )


def _never_empty(steps: Steps, observed: Observed) -> Steps:
    """A request of which nothing is known but its time becomes one unexplained delay."""
    bare = np.ones(observed.size, dtype=np.bool_)
    bare[steps.request] = False
    rows = np.flatnonzero(bare)
    if rows.size == 0:
        return steps
    time = np.clip(np.nan_to_num(observed.end[rows] - observed.arrival[rows]), 0.0, None)
    extra = delay_steps(rows, np.full(rows.size, STAGE_CODE[Stage.UNEXPLAINED]), time)
    joined = Steps.joined(steps, extra)
    return joined.rows(np.argsort(joined.request, kind="stable"))


def _requests(tables: Tables, observed: Observed, order: npt.NDArray[np.int64]) -> pa.Table:
    table = tables.requests.take(pa.array(order))
    arrival = observed.arrival[order]
    columns = [
        table.column("request_id"),
        pa.array(arrival - arrival[0]),
        table.column("session_id"),
        table.column("tenant"),
        table.column("route"),
        pc.fill_null(table.column("priority"), 0),
        pc.fill_null(table.column("bucket"), str(Bucket.SHORT_CHAT)),
    ]
    return pa.table(columns, schema=STREAM_REQUESTS)


def _steps(steps: Steps, request: npt.NDArray[np.int64], seen: Programs) -> pa.Table:
    call = steps.kind == CALL
    output = _tokens(steps.output, call, least=1)
    given = _tokens(steps.input, call, least=1)
    cached = np.minimum(_tokens(steps.cached, call), given)
    columns = [
        pa.array(request),
        pa.array(steps.group),
        _decoded([str(kind) for kind in KINDS], steps.kind),
        _decoded([str(stage) for stage in STAGES], steps.stage),
        _decoded(list(seen.names), steps.name),
        pa.array(steps.service),
        _decoded([*seen.pools, DEFAULT_POOL], steps.pool % (len(seen.pools) + 1)),
        pa.array(given),
        pa.array(cached),
        pa.array(output),
        pa.array(np.minimum(_tokens(steps.image, call), given)),
    ]
    return pa.table(columns, schema=STREAM_STEPS)


def _tokens(
    values: npt.NDArray[np.float64], call: npt.NDArray[np.bool_], *, least: int = 0
) -> npt.NDArray[np.int64]:
    filled = np.maximum(np.nan_to_num(values), least)
    return np.where(call, filled, 0.0).astype(np.int64)


def _decoded(names: list[str], codes: npt.NDArray[np.int64]) -> pa.Array:
    values = pa.array([name or "" for name in names], type=pa.string())
    return values.take(pa.array(codes))
