"""Rows of the log, as the kernel writes them."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import (
    attempt_log,
    call_log,
    calls,
    change_log,
    ends,
    steps,
    tries,
    visit_log,
    visits,
)
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.log import FIRST_SKIP


@compiled
def log_visit(w: World, v: Number, status: Number) -> None:
    """A visit ends now."""
    visit = visits(w)[v]
    row = visit_log(w)[w.visit_logs]
    w.visit_logs += 1
    row.entered, row.started, row.ended = visit.entered, visit.started, w.now
    row.request, row.attempt, row.place = visit.row, visit.attempt, visit.place
    row.station, row.status = visit.station, status


@compiled
def log_call(w: World, c: Number, written: Number, status: Number) -> None:
    """A call ends now, or its caller goes."""
    call = calls(w)[c]
    row = call_log(w)[w.call_logs]
    w.call_logs += 1
    row.arrival, row.encode, row.encode_start = call.arrival, call.encode, call.encode_start
    row.queued, row.scheduled, row.first = call.queued, call.scheduled, call.first
    row.moved, row.resumed, row.end = call.moved, call.resumed, w.now
    row.request, row.attempt, row.place = call.row, call.attempt, call.place
    row.pool, row.replica = steps(w)[call.step].pool, call.replica
    row.cached, row.written, row.preemptions = call.cached, written, call.preemptions
    row.status = status


@compiled
def log_attempt(w: World, t: Number, status: Number, backoff: Number) -> None:
    """An attempt ends now."""
    one = tries(w)[t]
    row = attempt_log(w)[w.attempt_logs]
    w.attempt_logs += 1
    row.started, row.ended, row.backoff = one.started, w.now, backoff
    row.request, row.attempt, row.status = one.row, one.attempt, status


@compiled
def log_change(w: World, what: Number, which: Number) -> None:
    """A controller acts now."""
    row = change_log(w)[w.change_logs]
    w.change_logs += 1
    row.t, row.what, row.which = w.now, what, which


@compiled
def degrade(w: World, request: Number, bit: Number) -> None:
    """The request is degraded."""
    end = ends(w)[request]
    end.degraded |= np.uint64(1) << np.uint64(bit)


@compiled
def degrade_station(w: World, request: Number, station: Number) -> None:
    """The request is degraded: that station is left out."""
    degrade(w, request, FIRST_SKIP + np.int64(station))
