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
from sojourn.workload.scaling import repeated_steps
from sojourn.workload.stream import STREAM_REQUESTS, Stream

BLOCK: Final = 16
"""Requests of a block, about: a burst stays whole, and there are blocks enough to draw from."""
BLOCKS: Final = (8, 96)
"""Of a recording, at least and at most."""
REACH: Final = 3
"""A block's place is taken by one at most so many blocks away: slow hours stay slow, peaks high."""
_WITH_PROGRAM: Final = ("tenant", "route", "priority", "bucket")


def another(stream: Stream, seed: int) -> Stream:
    """Another day like this one: blocks of time, each drawn from those around its place.

    The recording is cut in blocks of equal time; each place takes one of the `2 REACH + 1` blocks
    around it, its requests with the gaps and programs they came with. The day's shape stays; how
    much came in a minute, of what, and which burst met which heavy request is drawn anew; no noise
    is added to that of the recording. Source: local block bootstrap, Paparoditis and Politis,
    Comptes Rendus Mathematique 335 (2002). Wrong when: requests follow on one another over longer
    than a block (an agent's session in several requests), or a peak is shorter than a few blocks.
    """
    count = stream.requests.num_rows
    if count < 2 or stream.duration_s <= 0:
        return stream
    arrival = stream.requests.column("arrival_s").to_numpy()
    blocks = int(np.clip(count // BLOCK, *BLOCKS))
    width = day_s(stream) / blocks
    own = np.minimum(((arrival - arrival[0]) / width).astype(np.int64), blocks - 1)
    sizes = np.bincount(own, minlength=blocks)
    first = np.cumsum(sizes) - sizes
    place = np.arange(blocks)
    drawn = place + np.random.default_rng(seed).integers(-REACH, REACH + 1, size=blocks)
    drawn = np.where((drawn < 0) | (drawn >= blocks), 2 * place - drawn, drawn)
    taken = sizes[drawn]
    within = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    source = np.repeat(first[drawn], taken) + within
    at = arrival[source] + np.repeat((place - drawn) * width, taken)
    moved = pa.array(np.repeat(place, taken)).cast(pa.string())
    names = {
        name: pc.binary_join_element_wise(
            stream.requests.column(name).take(pa.array(source)).combine_chunks(), moved, "@"
        )
        for name in ("request_id", "session_id")
    }
    order = np.argsort(at, kind="stable")  # blocks meet at their edges to within rounding
    ids, sessions = (names[name].take(pa.array(order)) for name in ("request_id", "session_id"))
    return _made(stream, source[order], at[order], ids, sessions)


def day_s(stream: Stream) -> float:
    """From the first arrival to one mean gap after the last."""
    return stream.duration_s * (1 + 1 / max(stream.requests.num_rows - 1, 1)) or 1.0


def repeated(stream: Stream, times: int, seed: int) -> tuple[Stream, Floats]:
    """The recording `times` times in a row, each day another like it; and where the days meet.

    The first is the recording itself; days last `day_s`. The times + 1 edges are the days' starts
    and the end of the last.

    Raises:
        DomainError: `times` is below 1, or there are no requests.
    """
    count = stream.requests.num_rows
    if times < 1 or not count:
        raise DomainError(f"a stream of {count} requests cannot be repeated {times} times")
    first = float(stream.requests.column("arrival_s")[0].as_py())
    day = day_s(stream)
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
    numbers = np.cumsum([0, *(part.requests.num_rows for part in parts[:-1])])
    owner = steps.column("request").to_numpy() + np.repeat(numbers, sizes)
    steps = steps.set_column(0, steps.schema.field(0), pa.array(owner))
    edges = first + day * np.arange(times + 1, dtype=np.float64)
    return Stream(requests, steps), np.asarray(edges, dtype=np.float64)


def steady(
    stream: Stream, rate_per_s: float, count: int, seed: int, *, redrawn: bool = False
) -> Stream:
    """`count` requests of this mix at one rate: Poisson arrivals, programs in rounds.

    Every round takes each recorded program once, in an order of its own; `redrawn`: each program of
    a sample of the recorded ones (a bootstrap of the mix). Streams of one seed at two rates are the
    same requests closer together (common random numbers).
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
    pool = rng.integers(0, known, size=known) if redrawn else np.arange(known)
    rounds = [pool[rng.permutation(known)] for _ in range(-(-count // known))]
    source = np.concatenate(rounds)[:count].astype(np.int64)
    arrival = np.cumsum(rng.exponential(size=count)) / rate_per_s
    ids = pa.array([f"steady-{seed}-{i}" for i in range(count)], type=pa.string())
    return _made(stream, source, arrival, ids, pa.nulls(count))


def faster(stream: Stream, times: float) -> Stream:
    """The same requests so many times closer together: a steady stream at another rate."""
    place = stream.requests.column_names.index("arrival_s")
    arrival = pa.array(stream.requests.column("arrival_s").to_numpy() / times)
    return Stream(stream.requests.set_column(place, "arrival_s", arrival), stream.steps)


def _made(
    stream: Stream,
    source: npt.NDArray[np.int64],
    arrival: Floats,
    ids: pa.Array,
    sessions: pa.Array,
) -> Stream:
    """Requests that arrive then with the programs of `source`."""
    programs = stream.requests.take(pa.array(source))
    columns = {"request_id": ids, "arrival_s": pa.array(arrival), "session_id": sessions}
    columns |= {name: programs.column(name) for name in _WITH_PROGRAM}
    made = [columns[field.name].cast(field.type) for field in STREAM_REQUESTS]
    requests = pa.table(made, schema=STREAM_REQUESTS)
    return Stream(requests, repeated_steps(stream.steps, source))
