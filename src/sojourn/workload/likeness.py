"""Traffic like that of a recording: another day of it, many days in a row, or one rate for ever.

The simulator answers for the stream it is given. A capacity must hold for traffic *like* it, and
for longer than it lasted; these streams say what "like" means.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.errors import DomainError
from sojourn.trace.arrays import Floats
from sojourn.workload.hashing import hash_strings, uniform
from sojourn.workload.scaling import repeated_steps
from sojourn.workload.stream import STREAM_REQUESTS, Stream

NEIGHBOURS: Final = 64
"""Requests of a bucket that trade places: few enough that slow hours stay slow, enough that a heavy
request may meet another burst."""
_SALT_TRADE: Final = 41
_WITH_PROGRAM: Final = ("tenant", "route", "priority", "bucket")


def another(stream: Stream, seed: int) -> Stream:
    """Another day like this one: the same arrivals, programs traded among `NEIGHBOURS`.

    Within its bucket a request takes the program of one that came near it in time. What arrived,
    when, and of which bucket stays; which burst meets which heavy request is drawn anew.
    Wrong when: programs follow on one another (an agent's session in several requests).
    """
    bucket = stream.requests.column("bucket").combine_chunks().dictionary_encode()
    code = bucket.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(code, kind="stable")
    counts = np.bincount(code, minlength=len(bucket.dictionary))
    rank = np.empty(code.size, dtype=np.int64)
    rank[order] = np.arange(code.size) - np.repeat(np.cumsum(counts) - counts, counts)
    luck = uniform(hash_strings(stream.requests.column("request_id")), seed, _SALT_TRADE)
    block = rank // NEIGHBOURS
    source = np.empty(code.size, dtype=np.int64)
    source[np.lexsort((rank, block, code))] = np.lexsort((luck, block, code))
    arrival = stream.requests.column("arrival_s").to_numpy()
    return _made(stream, source, arrival, stream.requests.column("request_id"))


def repeated(stream: Stream, times: int, seed: int) -> tuple[Stream, Floats]:
    """The recording `times` times in a row, each day another like it; and where the days meet.

    A day lasts from its first arrival to one mean gap after its last. The first is the recording
    itself; the edges, times + 1 of them, are the days' starts and the end of the last.

    Raises:
        DomainError: `times` is below 1, or there are no requests.
    """
    count = stream.requests.num_rows
    if times < 1 or not count:
        raise DomainError(f"a stream of {count} requests cannot be repeated {times} times")
    first = float(stream.requests.column("arrival_s")[0].as_py())
    day = stream.duration_s * (1 + 1 / max(count - 1, 1)) or 1.0
    parts = [stream]
    for number in range(1, times):
        part = another(stream, seed + 7919 * number)
        arrival = part.requests.column("arrival_s").to_numpy() + number * day
        columns = {name: part.requests.column(name) for name in STREAM_REQUESTS.names}
        columns["arrival_s"] = pa.array(arrival)
        for name in ("request_id", "session_id"):
            columns[name] = pc.binary_join_element_wise(columns[name], f"day {number}", "#")
        parts.append(Stream(pa.table(columns, schema=STREAM_REQUESTS), part.steps))
    requests = pa.concat_tables([part.requests for part in parts]).combine_chunks()
    steps = pa.concat_tables([part.steps for part in parts]).combine_chunks()
    sizes = [part.steps.num_rows for part in parts]
    owner = steps.column("request").to_numpy() + np.repeat(np.arange(times) * count, sizes)
    steps = steps.set_column(0, steps.schema.field(0), pa.array(owner))
    edges = first + day * np.arange(times + 1, dtype=np.float64)
    return Stream(requests, steps), np.asarray(edges, dtype=np.float64)


def steady(stream: Stream, rate_per_s: float, count: int, seed: int) -> Stream:
    """`count` requests of this mix at one rate: Poisson arrivals, programs in rounds.

    Every round takes each recorded program once, in an order of its own. Streams of one seed at
    two rates are the same requests closer together (common random numbers).
    Wrong when: arrivals within a minute come in bursts of their own (then less is held).

    Raises:
        DomainError: the rate or the count is not positive, or there are no requests.
    """
    known = stream.requests.num_rows
    if not (known and count >= 1 and rate_per_s > 0 and np.isfinite(rate_per_s)):
        raise DomainError(
            f"steady traffic needs requests, a rate and a count above 0, got {known} requests,"
            f" {rate_per_s} per second, {count}"
        )
    rng = np.random.default_rng(seed)
    rounds = [rng.permutation(known) for _ in range(-(-count // known))]
    source = np.concatenate(rounds)[:count].astype(np.int64)
    arrival = np.cumsum(rng.exponential(size=count)) / rate_per_s
    ids = pa.array([f"steady-{seed}-{i}" for i in range(count)], type=pa.string())
    return _made(stream, source, arrival, ids, own_sessions=False)


def faster(stream: Stream, times: float) -> Stream:
    """The same requests so many times closer together: a steady stream at another rate."""
    place = stream.requests.column_names.index("arrival_s")
    arrival = pa.array(stream.requests.column("arrival_s").to_numpy() / times)
    return Stream(stream.requests.set_column(place, "arrival_s", arrival), stream.steps)


def _made(
    stream: Stream,
    source: npt.NDArray[np.int64],
    arrival: Floats,
    ids: pa.Array | pa.ChunkedArray,
    *,
    own_sessions: bool = True,
) -> Stream:
    """Requests that arrive then with the programs of `source`."""
    programs = stream.requests.take(pa.array(source))
    sessions = stream.requests.column("session_id") if own_sessions else pa.nulls(len(ids))
    columns = {"request_id": ids, "arrival_s": pa.array(arrival), "session_id": sessions}
    columns |= {name: programs.column(name) for name in _WITH_PROGRAM}
    made = [columns[field.name].cast(field.type) for field in STREAM_REQUESTS]
    requests = pa.table(made, schema=STREAM_REQUESTS)
    return Stream(requests, repeated_steps(stream.steps, source))
