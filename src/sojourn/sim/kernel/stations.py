"""Visits to stations, and delays: rate limit, queue, servers, time limit, giving up."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import (
    queues,
    requests,
    stations,
    steps,
    tables,
    tries,
    visits,
)
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.events import key_of, push
from sojourn.sim.kernel.levels import at_level
from sojourn.sim.kernel.luck import draw, index
from sojourn.sim.kernel.slots import free_visit, take_visit
from sojourn.sim.kernel.state import (
    DELAYED,
    NIL,
    ORPHAN,
    SERVED,
    TIMER,
    VISIT_REFUSED,
    VISIT_WAITS,
    WORK,
)
from sojourn.sim.kernel.under_way import append, visit_member
from sojourn.sim.log import NONE
from sojourn.sim.lowered import DELAY
from sojourn.sim.luck import SERVICE


@compiled
def begin_visit(w: World, t: Number, step: Number, place: Number) -> None:
    """A visit (or a delay) of attempt `t` begins."""
    one, todo = tries(w)[t], steps(w)[step]
    v = take_visit(w)
    visit = visits(w)[v]
    visit.entered, visit.started, visit.service = w.now, NONE, todo.service
    visit.try_, visit.row, visit.attempt, visit.place = t, one.row, one.attempt, place
    visit.before, visit.after = NIL, NIL
    append(w, t, visit_member(v))
    if todo.kind == DELAY:
        visit.station, visit.queue, visit.state = NONE, NIL, DELAYED
        visit.started = w.now
        _push(w, v, WORK, w.now + visit.service)
        return
    station = np.int64(todo.station)
    plan = stations(w)[station]
    visit.station, visit.queue = station, plan.queue
    if _over_rate(w, station) or _queue_full(w, station):
        visit.state = VISIT_REFUSED
        _push(w, v, WORK, w.now)
        return
    if one.attempt > 0 and plan.sample_count > 0:
        visit.service = _drawn_service(w, v)
    if plan.timeout >= 0:
        _push(w, v, TIMER, w.now + plan.timeout)
    if _server_free(w, np.int64(plan.queue)):
        _serve(w, v)
    else:
        _wait(w, v)


@compiled
def leave(w: World, v: Number) -> None:
    """A visit is given up: it leaves the queue, or its server. Its row of `visits` may be free."""
    visit = visits(w)[v]
    queue = np.int64(visit.queue)
    if visit.state == VISIT_WAITS:
        _unlink(w, v)
    elif visit.state == SERVED:
        if stations(w)[visit.station].stops == 0:
            visit.state, visit.try_ = ORPHAN, NIL
            return
        serve_next(w, queue)
    free_visit(w, v)


@compiled
def serve_next(w: World, q: Number) -> None:
    """A server of the queue is free: it takes the first."""
    queue = queues(w)[q]
    queue.busy -= 1
    first = np.int64(queue.first)
    if first >= 0:
        _unlink(w, first)
        _serve(w, first)


@compiled
def _push(w: World, v: Number, kind: Number, time: Number) -> None:
    visit = visits(w)[v]
    row, attempt, place = np.int64(visit.row), np.int64(visit.attempt), np.int64(visit.place)
    push(w, time, key_of(kind, row, attempt, place), v, np.int64(visit.stamp))


@compiled
def _over_rate(w: World, station: Number) -> bool:
    """Generic cell rate algorithm: whether the visit comes too early (then it counts for nothing).

    Source: ITU-T I.371, annex A. `tat`: theoretical arrival time, ticks.
    """
    plan = stations(w)[station]
    if plan.interval < 0:
        return False
    if w.now < plan.tat - (plan.burst - 1) * plan.interval:
        return True
    plan.tat = max(plan.tat, w.now) + plan.interval
    return False


@compiled
def _server_free(w: World, q: Number) -> bool:
    queue = queues(w)[q]
    return bool(queue.servers < 0 or queue.busy < queue.servers)


@compiled
def _queue_full(w: World, station: Number) -> bool:
    plan = stations(w)[station]
    if plan.queue_limit < 0 or _server_free(w, np.int64(plan.queue)):
        return False
    return bool(queues(w)[plan.queue].waiting >= plan.queue_limit)


@compiled
def _drawn_service(w: World, v: Number) -> Number:
    """Service time of a repeated visit, ticks: one of the station's, as it drifts by now."""
    visit = visits(w)[v]
    plan = stations(w)[visit.station]
    identity = requests(w)[visit.row].identity
    luck = draw(w.seed, identity, np.int64(visit.attempt), np.int64(visit.place), SERVICE)
    service = tables(w)[plan.samples + index(luck, plan.sample_count)]
    return at_level(w, service, plan.drift, plan.drifts, plan.factor, w.now)


@compiled
def _serve(w: World, v: Number) -> None:
    visit = visits(w)[v]
    visit.state, visit.started = SERVED, w.now
    queues(w)[visit.queue].busy += 1
    _push(w, v, WORK, w.now + visit.service)


@compiled
def _wait(w: World, v: Number) -> None:
    """Go to the end of the queue."""
    visit = visits(w)[v]
    queue = queues(w)[visit.queue]
    visit.state, visit.before, visit.after = VISIT_WAITS, queue.last, NIL
    if queue.last < 0:
        queue.first = v
    else:
        visits(w)[queue.last].after = v
    queue.last = v
    queue.waiting += 1


@compiled
def _unlink(w: World, v: Number) -> None:
    """Leave the queue."""
    visit = visits(w)[v]
    queue = queues(w)[visit.queue]
    if visit.before < 0:
        queue.first = visit.after
    else:
        visits(w)[visit.before].after = visit.after
    if visit.after < 0:
        queue.last = visit.before
    else:
        visits(w)[visit.after].before = visit.before
    queue.waiting -= 1
