"""Retry amplification: how much of the load is work done twice, and what the timers cut.

Each extra attempt is load of its own: with failure probability p and at most r retries a request
makes (1 - p^(r+1)) / (1 - p) attempts on average. What is reported here is counted, not taken
from that formula: timeouts select the long requests, so attempts are not independent.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sojourn.attribution import spikes
from sojourn.attribution.attempts import Attempts, attempts, key
from sojourn.attribution.infer import codes, computed_tokens
from sojourn.attribution.peak import Windows
from sojourn.attribution.records import RetryReport, TimeoutMass
from sojourn.config import Config
from sojourn.interval import Interval
from sojourn.records import ENGINE_STAGES, FAILED
from sojourn.trace.arrays import Floats, floats, rows_of
from sojourn.trace.tables import Tables

HALF: Final = 0.5


def report(tables: Tables, config: Config, windows: Windows) -> RetryReport | None:
    """Retries of a table set; None where nothing numbers the attempts. `windows` is over the
    rows of `requests`."""
    rows = attempts(tables)
    if rows is None:
        return None
    per_request = rows.per_request
    known = np.isfinite(per_request)
    if not known.any():
        return None
    timeouts = timeout_marks(tables, rows)
    at_attempt = next((mark.value_s for mark in timeouts if mark.where == "attempt"), None)
    timeout = config.retry.attempt_timeout_s or at_attempt
    total = float(per_request[known].sum())
    time = rows.duration_s
    served = time[~rows.failed & np.isfinite(time) & rows.from_spans]
    return RetryReport(
        attempts_per_request=_mean_interval(per_request[known], config.analysis.confidence),
        peak_attempts_per_request=_mean(per_request[known & windows.peak]),
        calm_attempts_per_request=_mean(per_request[known & windows.calm]),
        retry_share_of_attempts=(total - int(known.sum())) / total if total else 0.0,
        wasted_share_of_engine_tokens=_wasted_tokens(tables, rows),
        wasted_share_of_time=_ratio(np.nansum(time[rows.failed]), np.nansum(time)),
        timeouts=timeouts,
        budget_left_at_engine=_budget(rows, timeout),
        timeout_s=timeout,
        calm_failed_share=_mean(rows.failed[windows.calm[rows.request]].astype(float), 0.0)
        if windows.varies
        else None,
        peak_failed_share=_mean(rows.failed[windows.peak[rows.request]].astype(float), 0.0),
        ok_attempt_p95_s=float(np.quantile(served, 0.95)) if len(served) else None,
    )


def _mean(values: Floats, default: float = 1.0) -> float:
    return float(values.mean()) if len(values) else default


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _mean_interval(values: Floats, confidence: float) -> Interval:
    """Mean with its normal interval; never below one attempt."""
    from scipy.special import ndtri  # noqa: PLC0415  keeps `import sojourn` light

    mid = float(values.mean())
    half = float(ndtri(0.5 + confidence / 2)) * float(values.std()) / math.sqrt(len(values))
    return Interval(
        low=max(min(1.0, mid), mid - half), mid=mid, high=mid + half, confidence=confidence
    )


def timeout_marks(tables: Tables, rows: Attempts | None) -> tuple[TimeoutMass, ...]:
    """Timers' marks among attempts, model calls and the visits of each station."""
    found: list[TimeoutMass | None] = []
    if rows is not None:
        mine = rows.from_spans
        found.append(_marks(rows.duration_s[mine], rows.failed[mine], "attempt"))
    calls = tables.calls
    spent = floats(calls["end_s"]) - floats(calls["arrival_s"])
    found.append(_marks(spent, _failed(calls["status"]), "call"))
    spans = tables.spans
    skipped = pa.array([*sorted(ENGINE_STAGES), "backoff", "gateway", "network"])
    visits = spans.filter(
        pc.and_(pc.is_valid(spans["stage"]), pc.invert(pc.is_in(spans["stage"], skipped)))
    )
    spent = floats(visits["end_s"]) - floats(visits["start_s"])
    lost, name = _failed(visits["status"]), codes(visits["name"])
    for code in np.unique(name[name >= 0]):
        here = name == code
        label = str(visits["name"][int(np.flatnonzero(here)[0])])
        found.append(_marks(spent[here], lost[here], label))
    return tuple(mark for mark in found if mark is not None)


def _marks(spent: Floats, lost: NDArray[np.bool_], where: str) -> TimeoutMass | None:
    if lost.any():
        mark = spikes.find(spent[lost], where, failed=True, served_s=spent[~lost])
        if mark is not None:
            return mark
    return spikes.find(spent, where, failed=False)


def _failed(status: pa.ChunkedArray) -> NDArray[np.bool_]:
    lost = pc.fill_null(pc.is_in(status, value_set=pa.array([*FAILED, "cancelled"])), False)
    return np.asarray(lost, dtype=np.bool_)


def _wasted_tokens(tables: Tables, rows: Attempts) -> float | None:
    """Computed prompt and output tokens of failed attempts, of those of all attempts."""
    calls = tables.calls
    row = rows_of(calls["request_id"], tables.requests["request_id"])
    attempt = floats(calls["attempt"])
    tokens = np.nan_to_num(computed_tokens(calls)) + np.nan_to_num(floats(calls["output_tokens"]))
    use = (row >= 0) & np.isfinite(attempt)
    if not use.any() or tokens[use].sum() <= 0:
        return None
    at = np.searchsorted(
        key(rows.request, rows.attempt), key(row[use], attempt[use].astype(np.int64))
    )
    return _ratio(tokens[use][rows.failed[at]].sum(), tokens[use].sum())


def _budget(rows: Attempts, timeout: float | None) -> dict[str, float]:
    """Share of the timeout left when the attempt first reaches the engine.

    `never` is the share of attempts that ended without reaching it.
    """
    if timeout is None or not rows.from_spans.any():
        return {}
    mine = rows.from_spans
    reached = mine & np.isfinite(rows.first_call_s)
    if not reached.any():
        return {}
    left = 1.0 - (rows.first_call_s[reached] - rows.start_s[reached]) / timeout
    left = np.clip(left, 0.0, 1.0)
    return {
        "p05": float(np.quantile(left, 0.05)),
        "p50": float(np.quantile(left, 0.5)),
        "under_half": float(np.mean(left < HALF)),
        "never": float(np.mean(~np.isfinite(rows.first_call_s[mine]))),
    }
