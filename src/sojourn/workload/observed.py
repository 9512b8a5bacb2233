"""`Observed`: the columns of tables that this room works on, as numpy arrays with row numbers.

Requests are known by their row in the requests table; names are codes into a vocabulary. Calls
and spans of requests that the table does not have are left out (ingestion counts them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import ENGINE_HOST_SPANS, Stage, Status
from sojourn.trace.arrays import Bools, Floats, Ints, floats, rows_of, whole
from sojourn.trace.tables import Tables

STAGES: Final = tuple(Stage)
STAGE_CODE: Final = {stage: code for code, stage in enumerate(STAGES)}
_CODE_OF: Final[dict[str, int]] = {str(stage): code for stage, code in STAGE_CODE.items()}
NO_STAGE: Final = -1
ENGINE_ONLY: Final = (Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.KV_TRANSFER)
"""Stages that only an engine has; `encode` is one too when its span belongs to a call."""
CUT_SHORT: Final = (Status.TIMEOUT, Status.CANCELLED)
MAX_DEPTH: Final = 64
"""Levels of spans followed upwards; a deeper tree is a cycle in broken parents."""


@dataclass(frozen=True)
class Vocabulary:
    """Codes of a string column; -1 is null."""

    names: tuple[str, ...]
    codes: Ints

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Vocabulary:
        """Encode a column."""
        array = column.combine_chunks().dictionary_encode()
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(tuple(array.dictionary.to_pylist()), codes)

    def taken(self, rows: npt.NDArray[np.generic]) -> Vocabulary:
        """The same vocabulary over some rows."""
        return Vocabulary(self.names, self.codes[rows])

    def isin(self, names: tuple[str, ...]) -> Bools:
        """Rows whose name is one of `names`."""
        wanted = [code for code, name in enumerate(self.names) if name in names]
        return np.isin(self.codes, wanted)


@dataclass(frozen=True)
class Calls:
    """Model calls, sorted by (request, attempt, arrival)."""

    request: Ints
    attempt: Ints
    start: Floats
    scheduled: Floats
    first_token: Floats
    end: Floats
    input: Floats
    cached: Floats
    output: Floats
    image: Floats
    images: Floats
    failed: Bools
    model: Vocabulary
    pool: Vocabulary
    row: Ints
    ordinal: Ints


@dataclass(frozen=True)
class Spans:
    """Spans of requests. `stage` is a place in `STAGES` or -1; `leaf`: no stage span, engine
    span or call lies below it."""

    request: Ints
    attempt: Ints
    start: Floats
    end: Floats
    wait: Floats
    stage: Ints
    name: Vocabulary
    cut: Bools
    failed: Bools
    engine: Bools
    leaf: Bools
    of_call: Bools


@dataclass(frozen=True)
class Observed:
    """Requests (in the order of their table), calls and spans."""

    arrival: Floats
    end: Floats
    ok: Bools
    attempts: Floats
    bucket: Vocabulary
    calls: Calls
    spans: Spans

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.arrival)

    def attempts_made(self) -> Floats:
        """Attempts of each request: as told, or as many as calls and spans show, at least 1."""
        made = np.nan_to_num(self.attempts, nan=1.0)
        np.maximum.at(made, self.calls.request, self.calls.attempt + 1.0)
        np.maximum.at(made, self.spans.request, self.spans.attempt + 1.0)
        return np.maximum(made, 1.0)


def observe(tables: Tables) -> Observed:
    """The arrays of tables."""
    requests = tables.requests
    status = Vocabulary.of(requests.column("status"))
    return Observed(
        arrival=floats(requests.column("arrival_s")),
        end=floats(requests.column("end_s")),
        ok=(status.codes == -1) | status.isin((Status.OK,)),
        attempts=floats(requests.column("attempts")),
        bucket=Vocabulary.of(requests.column("bucket")),
        calls=_calls(tables),
        spans=_spans(tables),
    )


def ranks_within(keys: Ints) -> Ints:
    """0, 1, 2 ... within each run of equal keys."""
    if keys.size == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    lengths = np.diff(np.append(starts, keys.size))
    return np.arange(keys.size) - np.repeat(starts, lengths)


def _calls(tables: Tables) -> Calls:
    table = tables.calls
    request = rows_of(table.column("request_id"), tables.requests.column("request_id"))
    attempt = whole(table.column("attempt"))
    start = floats(table.column("arrival_s"))
    order = np.lexsort((start, attempt, request))
    order = order[request[order] >= 0]
    status = Vocabulary.of(table.column("status")).taken(order)
    number = {name: floats(table.column(name))[order] for name in _CALL_NUMBERS}
    request, attempt = request[order], attempt[order]
    width = int(attempt.max(initial=0)) + 1
    return Calls(
        request=request,
        attempt=attempt,
        start=start[order],
        scheduled=number["scheduled_s"],
        first_token=number["first_token_s"],
        end=number["end_s"],
        input=number["input_tokens"],
        cached=number["cached_tokens"],
        output=number["output_tokens"],
        image=number["image_tokens"],
        images=number["images"],
        failed=(status.codes != -1) & ~status.isin((Status.OK,)),
        model=Vocabulary.of(table.column("model")).taken(order),
        pool=Vocabulary.of(table.column("pool")).taken(order),
        row=order.astype(np.int64),
        ordinal=ranks_within(request * width + attempt),
    )


_CALL_NUMBERS: Final = (
    "scheduled_s",
    "first_token_s",
    "end_s",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "image_tokens",
    "images",
)


def _spans(tables: Tables) -> Spans:
    table = tables.spans
    request = rows_of(table.column("request_id"), tables.requests.column("request_id"))
    stage = Vocabulary.of(table.column("stage"))
    code_of = np.array([_CODE_OF.get(n, NO_STAGE) for n in stage.names] + [NO_STAGE])
    stages = code_of[stage.codes].astype(np.int64)
    name = Vocabulary.of(table.column("name"))
    of_call = np.asarray(pc.is_valid(table.column("call_id")).to_numpy(), dtype=np.bool_)
    engine = np.isin(stages, [STAGE_CODE[s] for s in ENGINE_ONLY])
    engine |= (stages == STAGE_CODE[Stage.ENCODE]) & of_call
    engine |= (stages == STAGE_CODE[Stage.GATEWAY]) & name.isin(ENGINE_HOST_SPANS)
    parent = rows_of(table.column("parent"), table.column("span_id"))
    # Below a stage span, another stage span or a call's own (stageless) span makes it no leaf.
    leaf = _leaves(parent, (stages != NO_STAGE) | of_call)
    keep = np.flatnonzero(request >= 0)
    status = Vocabulary.of(table.column("status"))
    return Spans(
        request=request[keep],
        attempt=whole(table.column("attempt"))[keep],
        start=floats(table.column("start_s"))[keep],
        end=floats(table.column("end_s"))[keep],
        wait=floats(table.column("wait_s"))[keep],
        stage=stages[keep],
        name=name.taken(keep),
        cut=status.isin(CUT_SHORT)[keep],
        failed=((status.codes != -1) & ~status.isin((Status.OK,)))[keep],
        engine=engine[keep],
        leaf=leaf[keep],
        of_call=of_call[keep],
    )


def _leaves(parent: Ints, counted: Bools) -> Bools:
    """Spans without a counted span below them, through any number of containers."""
    leaf = np.ones(parent.size, dtype=np.bool_)
    current = np.flatnonzero(counted)
    for _ in range(MAX_DEPTH):
        above = parent[current]
        current = np.unique(above[above >= 0])
        if current.size == 0:
            break
        leaf[current] = False
    return leaf
