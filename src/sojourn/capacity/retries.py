"""Attempts as the telemetry shows them, and the retry policy that explains them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.config import Config, Retry
from sojourn.records import Stage, Status
from sojourn.trace.arrays import Bools, Floats, Ints
from sojourn.trace.tables import Tables

SAME_TIMEOUT = 0.03
"""Attempts that ran into one timeout differ by the time it takes to notice, not by more."""
SPIKE = 0.4
"""Share of failed attempts that must have that one duration to be called a timeout."""
FEWEST_FAILED = 5
OUTLIVED = 0.01
"""Share of all attempts that may outlast a timeout by more than that slack."""
FEWEST_GAPS = 3
"""Gaps between attempts from which a backoff is read."""
SETTABLE = ("attempt_timeout_s", "max_attempts", "backoff_s", "backoff_factor", "jitter")


@dataclass(frozen=True)
class Attempts:
    """One row per (request, attempt), in that order: extent in seconds, whether it failed."""

    request: pa.Array
    attempt: Ints
    start: Floats
    end: Floats
    failed: Bools

    def ended_at(self, spans: pa.Table, limit_s: float) -> Bools:
        """Whether each span belongs to an attempt that lasted to the limit."""
        own = _key(self.request, pa.array(self.attempt))
        keys = _key(spans.column("request_id"), spans.column("attempt"))
        index = pc.fill_null(pc.index_in(keys, value_set=own), -1)
        found = np.asarray(index.to_numpy(), dtype=np.int64)
        near = (self.end - self.start) >= (1 - SAME_TIMEOUT) * limit_s
        at_limit: Bools = (found >= 0) & np.append(near, False)[found]
        return at_limit


def _key(request: pa.Array | pa.ChunkedArray, attempt: pa.Array | pa.ChunkedArray) -> pa.Array:
    number = pc.fill_null(attempt, 0).cast(pa.string())
    joined = pc.binary_join_element_wise(request, number, "\x1f")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def attempts_of(tables: Tables) -> Attempts:
    """Attempts from the staged spans and the calls; backoff between them does not count."""
    spans = tables.spans
    staged = spans.filter(
        pc.fill_null(pc.not_equal(spans.column("stage"), Stage.BACKOFF.value), fill_value=False)
    ).select(["request_id", "attempt", "start_s", "end_s"])
    calls = tables.calls.select(["request_id", "attempt", "arrival_s", "end_s"])
    calls = calls.rename_columns(["request_id", "attempt", "start_s", "end_s"])
    rows = pa.concat_tables([staged, calls], promote_options="permissive")
    number = pc.fill_null(rows.column("attempt"), 0)
    rows = rows.set_column(1, "attempt", number)
    extent = (
        rows.group_by(["request_id", "attempt"])
        .aggregate([("start_s", "min"), ("end_s", "max")])
        .sort_by([("request_id", "ascending"), ("attempt", "ascending")])
    )
    request = extent.column("request_id").combine_chunks()
    attempt = extent.column("attempt").to_numpy().astype(np.int64)
    start = extent.column("start_s_min").to_numpy().astype(np.float64)
    ended = extent.column("end_s_max").fill_null(float("nan")).to_numpy().astype(np.float64)
    return Attempts(request, attempt, start, ended, _failed(tables, request))


def _failed(tables: Tables, request: pa.Array) -> Bools:
    """An attempt failed where another one follows it, or its request did not end well."""
    if len(request) == 0:
        return np.zeros(0, dtype=bool)
    code = request.dictionary_encode().indices.to_numpy()
    followed = np.append(code[1:] == code[:-1], False)
    good = pc.equal(
        pc.fill_null(tables.requests.column("status"), Status.OK.value), Status.OK.value
    )
    bad = tables.requests.filter(pc.invert(good)).column("request_id")
    lost = pc.is_in(request, value_set=bad.combine_chunks())
    failed: Bools = followed | np.asarray(lost.to_numpy(zero_copy_only=False), dtype=bool)
    return failed


def attempt_timeout(attempts: Attempts) -> float | None:
    """Seconds after which attempts are given up, or None where no such limit shows.

    The most crowded duration of failed attempts, if it holds a large part of them and hardly
    any attempt outlasts it.
    Wrong when: a station's own timeout ends most attempts at one duration by chance.
    """
    duration = attempts.end - attempts.start
    known = np.isfinite(duration) & (duration > 0)
    failed = np.sort(duration[known & attempts.failed])
    if failed.size < FEWEST_FAILED:
        return None
    upto = np.searchsorted(failed, failed * (1 + SAME_TIMEOUT), side="right")
    crowd = upto - np.arange(failed.size)
    best = int(crowd.argmax())
    if crowd[best] < max(SPIKE * failed.size, FEWEST_FAILED):
        return None
    limit = float(np.median(failed[best : upto[best]]))
    outlived = float((duration[known] > (1 + SAME_TIMEOUT) * limit).mean())
    return limit if outlived <= OUTLIVED else None


def detect(tables: Tables, config: Config) -> Retry:
    """The retry policy: what sojourn.yaml sets, the rest as the attempts show it."""
    attempts = attempts_of(tables)
    told = config.retry
    seen: dict[str, float | int | None] = {
        "attempt_timeout_s": attempt_timeout(attempts),
        "max_attempts": _most_attempts(tables, attempts),
    }
    seen |= _backoff(attempts)
    unset = set(SETTABLE) - told.model_fields_set
    return told.model_copy(
        update={name: value for name, value in seen.items() if name in unset and value is not None}
    )


def _most_attempts(tables: Tables, attempts: Attempts) -> int | None:
    counted = pc.max(tables.requests.column("attempts")).as_py()
    seen = [int(attempts.attempt.max()) + 1] if len(attempts.attempt) else []
    seen += [int(counted)] if counted else []
    return max([1, *seen]) if seen else None


def _backoff(attempts: Attempts) -> dict[str, float | int | None]:
    """Wait before the second attempt, growth of the next one, and spread around it."""
    if len(attempts.attempt) < 2:
        return {}
    code = attempts.request.dictionary_encode().indices.to_numpy()
    follows = (code[1:] == code[:-1]) & (np.diff(attempts.attempt) == 1)
    gap = np.maximum((attempts.start[1:] - attempts.end[:-1])[follows], 0.0)
    number = attempts.attempt[1:][follows]
    first = gap[(number == 1) & np.isfinite(gap)]
    if first.size < FEWEST_GAPS:
        return {}
    wait = float(np.median(first))
    found: dict[str, float | int | None] = {"backoff_s": wait}
    second = gap[(number == 2) & np.isfinite(gap)]
    if wait > 0 and second.size >= FEWEST_GAPS:
        found["backoff_factor"] = max(1.0, float(np.median(second)) / wait)
    if wait > 0:
        low, high = np.quantile(first, [0.05, 0.95])
        # a uniform spread of +-j has its central 90% within +-0.9 j
        found["jitter"] = float(np.clip((high - low) / (1.8 * wait), 0.0, 1.0))
    return found
