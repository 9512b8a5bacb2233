"""What the engine's own gauges say of the load behind recorded calls."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.engine_calls import EngineCalls
from sojourn.trace.arrays import floats
from sojourn.trace.tables import Tables

FEWEST_SAMPLES: Final = 20
FEWEST_MET: Final = 200
"""Calls in flight that all samples together must have met: fewer are a matter of luck."""
MORE: Final = 1.15
"""Gauges that show this many times the calls show load that is not in them. Fewer show nothing: a
call is longer for its client than for the engine."""
FARTHEST: Final = 4.0
"""Gauges that show more than this times the calls (or less than the inverse) are of another engine,
or on another clock."""


def share_by_gauges(calls: EngineCalls, tables: Tables) -> tuple[float, str] | None:
    """Requests on one replica per recorded call in flight, and what was found, in words; None
    where gauges are absent, agree with the calls of named replicas, or cannot be of these calls.

    Sum over the samples of running and waiting requests, over the recorded calls in flight at
    those moments; over the replicas sampled, where calls do not name theirs.
    Wrong when: the load that is not in the calls is not spread in time as the calls are.
    """
    if tables.engine_samples.num_rows < FEWEST_SAMPLES or not len(calls):
        return None
    replicas, ratio = _ratio(calls, tables)
    if ratio is None or (calls.replicas_named and len(np.unique(calls.replica)) > 1):
        return None
    if ratio > MORE:
        more = f"{ratio - 1:.0%} more requests than the calls"
        return ratio / replicas, f"the engine's gauges show {more}: counted as load"
    if replicas == 1:
        return None
    return 1.0 / replicas, f"load even over {replicas} replicas, as the engine's gauges say"


def _ratio(calls: EngineCalls, tables: Tables) -> tuple[int, float | None]:
    """Replicas sampled, and requests in the engines over recorded calls in flight; None where the
    samples are not of these calls."""
    samples = tables.engine_samples
    times, running, waiting = (floats(samples[n]) for n in ("t_s", "running", "waiting"))
    inside = (times >= calls.arrival.min()) & (times <= np.nanmax(calls.end))
    usable = inside & np.isfinite(running)
    names = samples["replica"].fill_null("").to_pylist()
    replicas = len({name for name, use in zip(names, usable, strict=True) if use})
    if usable.sum() < FEWEST_SAMPLES:
        return replicas, None
    begun, ended = np.sort(calls.arrival), np.sort(calls.end)
    at = times[usable]
    flight = np.searchsorted(begun, at, "right") - np.searchsorted(ended, at, "right")
    seen = float((running[usable] + np.nan_to_num(waiting[usable])).sum())
    if flight.sum() < FEWEST_MET or seen <= 0:
        return replicas, None
    ratio = seen * replicas / float(flight.sum())  # each replica's samples meet all calls
    return replicas, ratio if 1 / FARTHEST <= ratio <= FARTHEST else None
