"""Model calls of one engine, as arrays: what calibration sweeps over.

A call that was cancelled holds its place in the batch until it ends, so it belongs to the state
the others saw even where its own tokens and times are unknown: they are filled in here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.records import Status
from sojourn.trace.arrays import Bools, Floats, Ints, floats

WINDOWS = 4
WINDOW_CALLS = 5_000
"""Calls of one stretch and number of stretches: five coefficients are known to well under 1%
from 20,000 calls, and drift between the stretches shows in the held-out error."""


@dataclass(frozen=True)
class EngineCalls:
    """Columns of equal length; times in seconds, unknown ones NaN, sorted by arrival.

    `replica` is a code from 0. `clean` marks calls that ran undisturbed to their end with known
    tokens: only those become equations; the others are part of the state.
    """

    replica: Ints
    arrival: Floats
    scheduled: Floats
    first: Floats
    end: Floats
    input: Floats
    cached: Floats
    output: Floats
    clean: Bools
    model: str
    replicas_named: bool

    @property
    def computed(self) -> Floats:
        """Prompt tokens that had to be computed; at least one (the last is never cached)."""
        return np.maximum(self.input - self.cached, 1.0)

    @property
    def attended(self) -> Floats:
        """Sum over the computed prompt tokens of the context each attends to."""
        start = self.input - self.computed
        return (self.input**2 - start**2) / 2

    def take(self, rows: Bools | Ints) -> EngineCalls:
        """The calls of these rows."""
        return replace(
            self,
            replica=self.replica[rows],
            arrival=self.arrival[rows],
            scheduled=self.scheduled[rows],
            first=self.first[rows],
            end=self.end[rows],
            input=self.input[rows],
            cached=self.cached[rows],
            output=self.output[rows],
            clean=self.clean[rows],
        )

    def __len__(self) -> int:
        return len(self.arrival)


def _codes(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    filled = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    return filled.indices.to_numpy(zero_copy_only=False).astype(np.int64), [
        str(v) for v in filled.dictionary.to_pylist()
    ]


def main_engine(calls: pa.Table) -> tuple[pa.Table, str]:
    """The calls of the (pool, model) with most of them: one step model describes one engine."""
    label = pc.binary_join_element_wise(
        pc.fill_null(calls.column("pool"), ""), pc.fill_null(calls.column("model"), ""), "\x1f"
    )
    codes, names = _codes(label)
    best = int(np.bincount(codes).argmax())
    pool, model = names[best].split("\x1f")
    return calls.filter(pa.array(codes == best)), model or pool


def extract(calls: pa.Table) -> EngineCalls | None:
    """Calls of the busiest engine that ran at all (shed ones never did), sorted by arrival.

    None where no call has an end.
    """
    ran = pc.and_(
        pc.is_valid(calls.column("end_s")),
        pc.not_equal(pc.fill_null(calls.column("status"), Status.OK), Status.SHED),
    )
    calls = calls.filter(ran)
    if calls.num_rows == 0:
        return None
    calls, model = main_engine(calls)
    calls = calls.sort_by("arrival_s")
    arrival, end = floats(calls["arrival_s"]), floats(calls["end_s"])
    scheduled, first = (floats(calls[name]).copy() for name in ("scheduled_s", "first_token_s"))
    scheduled[(scheduled < arrival) | (scheduled > end)] = np.nan
    first[(first < arrival) | (first > end)] = np.nan
    tokens_in, tokens_out = floats(calls["input_tokens"]), floats(calls["output_tokens"])
    cached = np.nan_to_num(floats(calls["cached_tokens"]), nan=0.0)
    ok = pc.equal(pc.fill_null(calls.column("status"), Status.OK), Status.OK)
    calm = np.nan_to_num(floats(calls["preemptions"]), nan=0.0) == 0
    known = np.isfinite(first) & np.isfinite(tokens_in) & np.isfinite(tokens_out)
    replica, _ = _codes(calls.column("replica"))
    return EngineCalls(
        replica=replica,
        arrival=arrival,
        scheduled=scheduled,
        first=first,
        end=end,
        input=_like_siblings(calls, tokens_in),
        cached=np.minimum(cached, np.nan_to_num(tokens_in, nan=0.0)),
        output=tokens_out,
        clean=known & calm & ok.to_numpy(zero_copy_only=False),
        model=model,
        replicas_named=calls.column("replica").null_count == 0,
    )


def left_out(calls: pa.Table) -> dict[str, int]:
    """How many calls are no equations, by reason in words (they may still be part of the load)."""
    ended = pc.is_valid(calls.column("end_s"))
    ran = calls.filter(ended)
    own, _ = main_engine(ran) if ran.num_rows else (ran, "")
    arrival, end = floats(own["arrival_s"]), floats(own["end_s"])
    scheduled, first = floats(own["scheduled_s"]), floats(own["first_token_s"])
    broken = (end < arrival) | (first < arrival) | (first > end)
    broken |= (scheduled < arrival) | (scheduled > end)
    tokens = np.isfinite(floats(own["input_tokens"])) & np.isfinite(floats(own["output_tokens"]))
    status = pc.fill_null(own["status"], Status.OK)
    well = pc.equal(status, Status.OK).to_numpy(zero_copy_only=False)
    retried = np.nan_to_num(floats(own["attempt"]), nan=0.0) > 0
    return {
        "without an end left out": calls.num_rows - ran.num_rows,
        "of other models or pools left out": ran.num_rows - own.num_rows,
        "with times out of order": int(broken.sum()),
        "without token counts": int((well & ~tokens).sum()),
        "that did not end well counted as load only": int((~well).sum()),
        "are retries": int(retried.sum()),
    }


def windows(calls: EngineCalls) -> EngineCalls:
    """A few stretches of a long recording, spread over it: more calls would not tell more.

    What runs into a stretch is kept as part of the state; calls that outlast it are no
    equations, for what ran beside their end is left out.
    """
    if len(calls) <= WINDOWS * WINDOW_CALLS:
        return calls
    keep = np.zeros(len(calls), dtype=bool)
    clean = np.zeros(len(calls), dtype=bool)
    for start in np.linspace(0, len(calls) - WINDOW_CALLS, WINDOWS).astype(int):
        inside = np.zeros(len(calls), dtype=bool)
        inside[start : start + WINDOW_CALLS] = True
        opened, closed = calls.arrival[start], calls.arrival[start + WINDOW_CALLS - 1]
        keep |= inside | ((calls.arrival < opened) & (calls.end > opened))
        clean |= inside & (calls.end <= closed)
    return replace(calls, clean=calls.clean & clean).take(keep)


def _like_siblings(calls: pa.Table, tokens: Floats) -> Floats:
    """Unknown prompt lengths: mean of the same turn in the request's other attempts (a retry
    sends the same prompt), else the median of all."""
    missing = ~np.isfinite(tokens)
    if not missing.any() or missing.all():
        return tokens
    turn = pc.fill_null(calls.column("turn"), 0).cast(pa.string())
    codes, names = _codes(pc.binary_join_element_wise(calls.column("request_id"), turn, "\x1f"))
    sums = np.bincount(codes[~missing], tokens[~missing], minlength=len(names))
    counts = np.bincount(codes[~missing], minlength=len(names))
    typical = np.where(counts > 0, sums / np.maximum(counts, 1), np.median(tokens[~missing]))
    return np.where(missing, typical[codes], tokens)


def delay_at(calls: EngineCalls, times: Floats, replica: Ints) -> Floats:
    """Arrival-to-scheduled delay a call arriving at `times` met: that of the calls around it.

    First come first served keeps the order of arrivals, so the neighbours' delays bound it.
    """
    found = np.zeros_like(times)
    known = np.isfinite(calls.scheduled)
    for code in np.unique(replica):
        here = known & (calls.replica == code)
        rows = replica == code
        if here.any():
            found[rows] = np.interp(
                times[rows], calls.arrival[here], (calls.scheduled - calls.arrival)[here]
            )
    return found
