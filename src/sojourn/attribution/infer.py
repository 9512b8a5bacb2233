"""Phases of a model call: queue, prefill, decode, from the times that were recorded.

What is recorded decides: with `scheduled_s` and `first_token_s` all three are measured; with the
first token alone the time to it is split by `envelope`, marked inferred; a call that was cut off
before its engine reported borrows the phases of the calls around it (`_borrow`); with the end
alone the call is one opaque interval, `unexplained`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sojourn.attribution.critical_path import CODE, UNEXPLAINED
from sojourn.records import Stage, Status, TtftOrigin
from sojourn.trace.arrays import Floats, Ints, floats

ENVELOPE_QUANTILE: Final = 0.05
"""Share of calls below the envelope. A server at utilisation rho lets a share 1 - rho in without
a wait: up to rho = 0.95 at least one call in twenty shows the prefill alone."""

ENVELOPE_MIN_CALLS: Final = 20
"""One call in twenty lies on the envelope: fewer calls than that have none to show."""

ENVELOPE_MAX_CALLS: Final = 50_000
"""Calls used for one fit (evenly spaced): its standard error is then below every other error."""

NEIGHBOURS: Final = 9
"""Calls around a cut-off one whose phases it borrows: an odd few, so that the median is one of
them and the load is still that of the moment."""

CUT_OFF: Final = (Status.TIMEOUT, Status.CANCELLED, Status.ERROR)

QUEUE, PREFILL, DECODE = CODE[Stage.QUEUE], CODE[Stage.PREFILL], CODE[Stage.DECODE]


@dataclass(frozen=True)
class Phases:
    """Calls cut into three phases, seconds. `cuts` is (n, 4): arrival, end of phase 1, of phase
    2, end; `stages` is (n, 3) codes. `inferred`: the first cut is no measurement but the
    envelope's; `borrowed`: both cuts are taken from other calls.

    `known_end` is False where a call has neither an end nor anything after its arrival.
    """

    cuts: Floats
    stages: Ints
    inferred: NDArray[np.bool_]
    borrowed: NDArray[np.bool_]
    known_end: NDArray[np.bool_]


def same(column: pa.ChunkedArray, value: str) -> NDArray[np.bool_]:
    """Where a text column equals `value` (null: no)."""
    return np.asarray(
        pc.fill_null(pc.equal(column, value), False).to_numpy(zero_copy_only=False), dtype=np.bool_
    )


def codes(column: pa.ChunkedArray) -> Ints:
    """A text column as small integers, one per value; null is -1."""
    encoded = pc.dictionary_encode(column).combine_chunks()
    return np.asarray(
        pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64
    )


def quantile_line(x: Floats, y: Floats, quantile: float) -> tuple[float, float]:
    """Linear quantile regression y = a + b x with a, b >= 0, by search over the slope.

    For a fixed slope the best intercept is the quantile of y - b x, and the loss is convex in b,
    so a golden-section search finds it. Units: y's, and y's per x.
    Source: Koenker and Bassett 1978 (check loss).
    Wrong when: y falls with x (the slope is then 0).
    """
    positive = x >= 1e-9 * max(float(x.max()), 1e-300)
    positive &= x > 1e-300
    if not positive.any():
        return max(float(np.quantile(y, quantile)), 0.0), 0.0

    def fit(slope: float) -> tuple[float, float]:
        rest = y - slope * x
        level = max(float(np.quantile(rest, quantile)), 0.0)
        gap = rest - level
        return float(np.mean(np.maximum(quantile * gap, (quantile - 1) * gap))), level

    low, high = 0.0, float(np.median(y[positive] / x[positive]))
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if fit(left)[0] <= fit(right)[0]:
            high = right
        else:
            low = left
    slope = min((0.0, (low + high) / 2), key=lambda s: fit(s)[0])
    return fit(slope)[1], slope


def envelope(computed_tokens: Floats, ttft_s: Floats) -> tuple[float, float] | None:
    """Prefill time alone as a line over computed prompt tokens: (seconds, seconds per token).

    Lower envelope of the time to first token: quantile regression at `ENVELOPE_QUANTILE`.
    None where fewer than `ENVELOPE_MIN_CALLS` calls are known.
    Wrong when: every call waited (the line then holds a part of the queue), or prompts are so
    long that attention makes prefill grow faster than linearly.
    """
    known = np.isfinite(computed_tokens) & np.isfinite(ttft_s) & (ttft_s >= 0)
    if int(known.sum()) < ENVELOPE_MIN_CALLS:
        return None
    x, y = computed_tokens[known], ttft_s[known]
    step = max(1, len(x) // ENVELOPE_MAX_CALLS)
    return quantile_line(x[::step], y[::step], ENVELOPE_QUANTILE)


def computed_tokens(calls: pa.Table) -> Floats:
    """Prompt tokens that had to be computed: input minus cached (unknown cached: none)."""
    cached = np.nan_to_num(floats(calls["cached_tokens"]), nan=0.0)
    return np.maximum(floats(calls["input_tokens"]) - cached, 0.0)


def prefill_alone(calls: pa.Table, prefill_s: Floats) -> Floats:
    """Per call, the envelope of `prefill_s` over its computed tokens, by model; NaN: unknown."""
    tokens, models = computed_tokens(calls), codes(calls["model"])
    out = np.full(calls.num_rows, np.nan)
    for model in np.unique(models):
        rows = models == model
        line = envelope(tokens[rows], prefill_s[rows])
        if line is not None:
            out[rows] = line[0] + line[1] * tokens[rows]
    return out


def phases(calls: pa.Table) -> Phases:
    """Cut every call of a `calls` table into its phases."""
    arrival, scheduled, first, end = (
        floats(calls[name]) for name in ("arrival_s", "scheduled_s", "first_token_s", "end_s")
    )
    from_scheduled = same(calls["ttft_origin"], TtftOrigin.FIRST_SCHEDULED)
    scheduled = np.where(np.isnan(scheduled) & from_scheduled, arrival, scheduled)
    known_end = np.isfinite(end) | np.isfinite(first) | np.isfinite(scheduled)
    end = np.where(np.isfinite(end), end, np.fmax(np.fmax(scheduled, first), arrival))
    end = np.maximum(end, arrival)
    has_first, has_scheduled = np.isfinite(first), np.isfinite(scheduled)

    stages = np.full((calls.num_rows, 3), UNEXPLAINED, dtype=np.int64)
    stages[has_first] = (UNEXPLAINED, UNEXPLAINED, DECODE)
    stages[has_scheduled, 0] = QUEUE
    stages[has_first & has_scheduled, 1] = PREFILL

    unsplit = has_first & ~has_scheduled
    cut1 = np.where(has_scheduled, scheduled, arrival)
    inferred = np.zeros(calls.num_rows, dtype=np.bool_)
    if unsplit.any():
        ok = same(calls["status"], Status.OK) | np.asarray(calls["status"].is_null())
        ttft = np.where(unsplit & ok, first - arrival, np.nan)
        alone = prefill_alone(calls, ttft)
        inferred = unsplit & np.isfinite(alone)
        cut1 = np.where(inferred, first - np.minimum(alone, first - arrival), cut1)
        stages[inferred] = (QUEUE, PREFILL, DECODE)
    cut2 = np.where(has_first, first, cut1)
    cut1 = np.clip(cut1, arrival, end)
    cut2 = np.clip(np.maximum(cut2, cut1), arrival, end)
    cuts = np.column_stack([arrival, cut1, cut2, end])
    borrowed = _borrow(calls, cuts, stages, ~has_first & ~has_scheduled & known_end)
    return Phases(cuts, stages, inferred, borrowed, known_end)


def _borrow(
    calls: pa.Table, cuts: Floats, stages: Ints, opaque: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Phases of calls that were given up before their engine told anything, filled in.

    Queue and prefill: medians of the calls that arrived around it on the same replica, no longer
    than the call; the rest is decode. Time in a call that was cut off is the engine's, whatever
    its split. Changes `cuts` and `stages`; returns which calls were filled.
    Wrong when: the cut-off calls waited much longer than those that came through (the queue is
    then understated and decode overstated), or the client never reached the engine.
    """
    lost = np.zeros(len(cuts), dtype=np.bool_)
    for status in CUT_OFF:
        lost |= same(calls["status"], status)
    wanted, donors = opaque & lost, (stages[:, 0] == QUEUE) & (stages[:, 1] == PREFILL)
    done = np.zeros(len(cuts), dtype=np.bool_)
    if not wanted.any() or not donors.any():
        return done
    replica = codes(calls["replica"])
    for code in np.unique(replica[wanted]):
        given = np.flatnonzero(donors & (replica == code))
        if len(given) < ENVELOPE_MIN_CALLS:
            continue
        given = given[np.argsort(cuts[given, 0], kind="stable")]
        mine = np.flatnonzero(wanted & (replica == code))
        middle = np.searchsorted(cuts[given, 0], cuts[mine, 0]) - NEIGHBOURS // 2
        first = np.clip(middle, 0, len(given) - NEIGHBOURS)
        around = given[first[:, None] + np.arange(NEIGHBOURS)[None, :]]
        queue = np.median(cuts[around, 1] - cuts[around, 0], axis=1)
        prefill = np.median(cuts[around, 2] - cuts[around, 1], axis=1)
        cuts[mine, 1] = np.minimum(cuts[mine, 0] + queue, cuts[mine, 3])
        cuts[mine, 2] = np.minimum(cuts[mine, 1] + prefill, cuts[mine, 3])
        stages[mine] = (QUEUE, PREFILL, DECODE)
        done[mine] = True
    return done
