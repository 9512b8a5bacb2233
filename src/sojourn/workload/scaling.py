"""More or less of the same traffic: a stream at a load factor."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.errors import DomainError
from sojourn.workload.hashing import combine, hash_strings, uniform
from sojourn.workload.stream import STREAM_REQUESTS, Stream

JITTER_S: Final = 5.0
"""Copies arrive within so many seconds of their original: near enough to keep the rate's shape at
the scale of the peak window, far enough not to arrive in lockstep pairs."""
_SALT_KEEP: Final = 31
_SALT_JITTER: Final = 32


def scale(stream: Stream, factor: float, *, seed: int = 0) -> Stream:
    """A stream with `factor` times the requests, in the same time.

    Each request is kept floor(factor) times, and once more with probability frac(factor) by a
    hash of its id and the seed. So streams are nested: what is in the stream at a factor is in it
    at every larger factor, with the same arrivals (common random numbers), and factor 1 changes
    nothing. The first copy keeps its id and arrival; copy k is called `<id>~k`, its session too
    (another user with the same needs), and arrives up to `JITTER_S` before or after, turned back
    at the ends of the stream.

    Raises:
        DomainError: the factor is negative or not finite.
    Wrong when: load grows by longer sessions or other kinds of requests instead of more users.
    """
    if not (np.isfinite(factor) and factor >= 0):
        raise DomainError(f"a load factor is a finite number >= 0, got {factor}")
    if factor == 1 or stream.requests.num_rows == 0:
        return stream
    identity = hash_strings(stream.requests.column("request_id"))
    whole = int(np.floor(factor))
    copies = whole + (uniform(identity, seed, _SALT_KEEP) < factor - whole).astype(np.int64)
    source = np.repeat(np.arange(copies.size), copies)
    number = np.arange(source.size) - np.repeat(np.cumsum(copies) - copies, copies)
    arrival = _arrivals(stream, identity, source, number, seed)
    order = np.argsort(arrival, kind="stable")
    source, number = source[order], number[order]
    requests = stream.requests.take(pa.array(source))
    columns = {name: requests.column(name) for name in STREAM_REQUESTS.names}
    columns["arrival_s"] = pa.array(arrival[order])
    for name in ("request_id", "session_id"):
        columns[name] = _renamed(columns[name], number)
    table = pa.table([columns[name] for name in STREAM_REQUESTS.names], schema=STREAM_REQUESTS)
    return Stream(table, repeated_steps(stream.steps, source))


def repeated_steps(steps: pa.Table, source: npt.NDArray[np.int64]) -> pa.Table:
    """Steps of the requests `source` (rows, repeats allowed), renumbered from 0 in that order."""
    owner = steps.column("request").to_numpy()
    first = np.searchsorted(owner, source, side="left")
    length = np.searchsorted(owner, source, side="right") - first
    rows = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    taken = steps.take(pa.array(rows))
    return taken.set_column(
        0, steps.schema.field(0), pa.array(np.repeat(np.arange(source.size), length))
    )


def _arrivals(
    stream: Stream,
    identity: npt.NDArray[np.uint64],
    source: npt.NDArray[np.int64],
    number: npt.NDArray[np.int64],
    seed: int,
) -> npt.NDArray[np.float64]:
    original = stream.requests.column("arrival_s").to_numpy()
    first, last = original[0], original[-1]
    luck = uniform(combine(identity[source].view(np.int64), number), seed, _SALT_JITTER)
    moved = original[source] + np.where(number > 0, (2 * luck - 1) * JITTER_S, 0.0)
    moved = np.where(moved < first, 2 * first - moved, moved)
    moved = np.where(moved > last, 2 * last - moved, moved)
    return np.asarray(np.clip(moved, first, last))


def _renamed(column: pa.ChunkedArray, number: npt.NDArray[np.int64]) -> pa.ChunkedArray:
    suffix = pc.cast(pa.array(number), pa.string())
    return pc.if_else(
        pa.array(number > 0), pc.binary_join_element_wise(column, suffix, "~"), column
    )
