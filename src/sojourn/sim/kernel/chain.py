"""Requests, their attempts, and the groups of steps of an attempt: what begins, and what ends.

An event's function (`arrive`, `work`, `timer`, `call_ended`) says which attempt it concerns, NIL if
none, and leaves in `w.status` and `w.how` how the step or the attempt has ended, or that an attempt
begins; then `go_on` does what follows. No function calls itself, by whatever way: all that could is
an event.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.sim.kernel import control, models, stations
from sojourn.sim.kernel.arrays import (
    calls,
    ends,
    requests,
    steps,
    tables,
    tries,
    visits,
    waiting_rows,
)
from sojourn.sim.kernel.arrays import stations as plans
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.events import attempt_of, key_of, number_of, place_of, push
from sojourn.sim.kernel.luck import draw, index, uniform
from sojourn.sim.kernel.slots import free_call, free_try, free_visit, take_try
from sojourn.sim.kernel.state import (
    ARRIVE,
    CALL_REFUSED,
    NIL,
    ORPHAN,
    SERVED,
    TIMER,
    VISIT_REFUSED,
    VISIT_WAITS,
    WORK,
)
from sojourn.sim.kernel.under_way import call_member, following, remove, visit_member
from sojourn.sim.kernel.writing import (
    degrade,
    degrade_station,
    log_attempt,
    log_call,
    log_visit,
)
from sojourn.sim.log import CANCELLED, ERROR, NONE, OK, PARTIAL_ANSWER, SHED, TIMEOUT
from sojourn.sim.lowered import CALL, STATION
from sojourn.sim.luck import BACKOFF, THINK

_BY_STEP, _BY_DEADLINE, _HOPELESS = 0, 1, 2  # how an attempt ends; the last is not retried
_WHOLE_RETRY: Final = 1000
"""Budgets are in thousandths of a retry."""


@compiled
def start(w: World) -> None:
    """Set the first events: controllers, samples, the clients of a closed loop."""
    control.begin(w)
    for client in range(w.closed):
        push(w, 0, key_of(ARRIVE, client, 0, 0), NIL, 0)


@compiled
def arrive(w: World, number: Number) -> Number:
    """A request arrives (open loop: its row), or a client sends its next (closed loop)."""
    row = number
    if w.closed >= 0:
        row = w.next_row
        if row >= w.rows:
            return NIL
        w.next_row = row + 1
        requests(w)[row].client = number
    ends(w)[row].arrival = w.now
    if w.cap < 0 or (w.held_back == 0 and w.in_flight + w.let_go < w.cap):
        return _begin_request(w, row)
    waiting_rows(w)[(w.held_first + w.held_back) % w.waiting_rows_room] = row
    w.held_back += 1
    return NIL


@compiled
def work(w: World, key: Number, slot: Number, stamp: Number) -> Number:
    """An event of kind WORK."""
    row, place = number_of(key), place_of(key)
    if place == requests(w)[row].steps:
        if slot < 0:
            w.let_go -= 1
            return _begin_request(w, row)
        if tries(w)[slot].stamp == stamp:
            return _begin_attempt(w, slot, attempt_of(key) + 1)
    elif steps(w)[requests(w)[row].first_step + place].kind != CALL:
        if visits(w)[slot].stamp == stamp:
            return _visit_work(w, slot)
    elif calls(w)[slot].stamp == stamp:
        if calls(w)[slot].state == CALL_REFUSED:
            w.how = _HOPELESS
            return _call_done(w, slot, ERROR)
        models.call_work(w, slot)
    return NIL


@compiled
def timer(w: World, key: Number, slot: Number, stamp: Number) -> Number:
    """An event of kind TIMER: a visit's time limit, or an attempt's deadline."""
    if place_of(key) == requests(w)[number_of(key)].steps:
        if tries(w)[slot].stamp == stamp:
            w.status, w.how = TIMEOUT, _BY_DEADLINE
            return slot
    elif visits(w)[slot].stamp == stamp:
        return _visit_timer(w, slot)
    return NIL


@compiled
def call_ended(w: World, c: Number) -> Number:
    """A call has written all that it writes where it is."""
    call = calls(w)[c]
    if call.target < call.output:
        models.move(w, c)
    elif call.try_ < 0:
        free_call(w, c)
    else:
        return _call_done(w, c, OK)
    return NIL


@compiled
def go_on(w: World, t: Number) -> None:
    """What follows for attempt `t`: the next groups if `w.status` is OK and nothing is under way,
    and after the last group, or with another status, the attempt's end."""
    if w.status == OK and (tries(w)[t].first >= 0 or _begin_groups(w, t)):
        return
    if w.status == SHED:
        log_attempt(w, t, SHED, NONE)
        _end_request(w, t, SHED)
    else:
        _end_attempt(w, t, w.status, w.how)


@compiled
def _key_after_steps(w: World, kind: Number, row: Number, attempt: Number) -> Number:
    """The key of an attempt's deadline, of a backoff, of letting go: after all steps."""
    return key_of(kind, row, attempt, np.int64(requests(w)[row].steps))


@compiled
def _begin_request(w: World, row: Number) -> Number:
    w.in_flight += 1
    t = take_try(w)
    tries(w)[t].row = row
    return _begin_attempt(w, t, np.int64(0))


@compiled
def _begin_attempt(w: World, t: Number, attempt: Number) -> Number:
    one = tries(w)[t]
    row = np.int64(one.row)
    one.started, one.attempt, one.next_step = w.now, attempt, 0
    one.first, one.last = NIL, NIL
    ends(w)[row].attempts = attempt + 1
    w.status, w.how = OK, _BY_STEP
    if control.shed(w, row, attempt):
        w.status = SHED
    elif w.timeout >= 0:
        key = _key_after_steps(w, TIMER, row, attempt)
        push(w, w.now + w.timeout, key, t, np.int64(one.stamp))
    return t


@compiled
def _begin_groups(w: World, t: Number) -> bool:
    """Begin groups until something is under way. False: there is no group left."""
    one = tries(w)[t]
    first, count = np.int64(requests(w)[one.row].first_step), requests(w)[one.row].steps
    while one.first < 0:
        if one.next_step >= count:
            return False
        group = steps(w)[first + one.next_step].group
        while one.next_step < count and steps(w)[first + one.next_step].group == group:
            _begin_step(w, t, first + one.next_step, np.int64(one.next_step))
            one.next_step += 1
    return True


@compiled
def _begin_step(w: World, t: Number, step: Number, place: Number) -> None:
    todo = steps(w)[step]
    if todo.kind == CALL:
        models.begin_call(w, t, step, place)
    elif todo.kind == STATION and (w.skipped >> np.int64(todo.station)) & 1:
        degrade_station(w, np.int64(tries(w)[t].row), np.int64(todo.station))
    else:
        stations.begin_visit(w, t, step, place)


@compiled
def _visit_work(w: World, v: Number) -> Number:
    """A service, a delay or a refusal ends."""
    state = np.int64(visits(w)[v].state)
    if state in (SERVED, ORPHAN):
        stations.serve_next(w, np.int64(visits(w)[v].queue))
    if state == ORPHAN:
        free_visit(w, v)
        return NIL
    t = _visit_done(w, v, ERROR if state == VISIT_REFUSED else OK)
    free_visit(w, v)
    return t


@compiled
def _visit_timer(w: World, v: Number) -> Number:
    """A visit's time limit."""
    if visits(w)[v].state not in (VISIT_WAITS, SERVED):
        return NIL
    t = _visit_done(w, v, TIMEOUT)
    stations.leave(w, v)
    return t


@compiled
def _visit_done(w: World, v: Number, status: Number) -> Number:
    """A visit that has a caller ends: its row is written, and it is under way no more. An optional
    station can be done without."""
    visit = visits(w)[v]
    log_visit(w, v, status)
    remove(w, np.int64(visit.try_), visit_member(v))
    w.status, w.how = status, _BY_STEP
    if status != OK and plans(w)[visit.station].optional != 0:
        degrade_station(w, np.int64(visit.row), np.int64(visit.station))
        w.status = OK
    return np.int64(visit.try_)


@compiled
def _call_done(w: World, c: Number, status: Number) -> Number:
    """A call that has a caller ends: its row is written, and it is under way no more."""
    call = calls(w)[c]
    t = np.int64(call.try_)
    log_call(w, c, np.int64(call.written), status)
    remove(w, t, call_member(c))
    free_call(w, c)
    w.status = status
    return t


@compiled
def _end_attempt(w: World, t: Number, status: Number, how: Number) -> None:
    """Give up what is under way, log the attempt, then try again or end the request."""
    one = tries(w)[t]
    one.stamp += 1  # its deadline is void
    _give_up_steps(w, t)
    row, attempt = np.int64(one.row), np.int64(one.attempt)
    final, wait = status, np.int64(NONE)
    if status == OK:
        if w.budget_gain >= 0:
            w.budget = min(w.budget + w.budget_gain, w.budget_most)
    elif how == _BY_DEADLINE and w.degrade != 0:
        degrade(w, row, PARTIAL_ANSWER)
        final = np.int64(OK)
    elif _may_retry(w, attempt, status, how):
        if w.budget_gain >= 0:
            w.budget -= _WHOLE_RETRY
        wait = _backoff(w, row, attempt)
    log_attempt(w, t, status, wait)
    if wait < 0:
        _end_request(w, t, final)
        return
    key = _key_after_steps(w, WORK, row, attempt)
    push(w, w.now + wait, key, t, np.int64(one.stamp))


@compiled
def _give_up_steps(w: World, t: Number) -> None:
    one = tries(w)[t]
    member = np.int64(one.first)
    while member >= 0:
        after, slot = following(w, member), member >> 1
        if member & 1:
            models.give_up(w, slot)
        else:
            log_visit(w, slot, CANCELLED)
            stations.leave(w, slot)
        member = after
    one.first, one.last = NIL, NIL


@compiled
def _may_retry(w: World, attempt: Number, status: Number, how: Number) -> bool:
    if how == _HOPELESS or attempt + 1 >= w.attempts_now:
        return False
    if status == TIMEOUT and w.on_timeout == 0:
        return False
    if status == ERROR and w.on_error == 0:
        return False
    return bool(w.budget_gain < 0 or w.budget >= _WHOLE_RETRY)


@compiled
def _backoff(w: World, row: Number, attempt: Number) -> Number:
    """Wait after attempt `attempt`, with jitter, ticks."""
    wait = tables(w)[w.backoff + attempt]
    if w.jitter == 0.0:
        return wait
    luck = draw(w.seed, requests(w)[row].identity, attempt + 1, np.int64(0), BACKOFF)
    return np.int64(np.rint(wait * (1.0 + w.jitter * (2.0 * uniform(luck) - 1.0))))


@compiled
def _end_request(w: World, t: Number, status: Number) -> None:
    """Fill its row; its client thinks; one that is held back at the client is let go."""
    row = np.int64(tries(w)[t].row)
    end = ends(w)[row]
    end.end, end.status = w.now, status
    w.in_flight -= 1
    free_try(w, t)
    if w.closed >= 0:
        luck = draw(w.seed, requests(w)[row].identity, np.int64(0), np.int64(0), THINK)
        wait = tables(w)[w.think + index(luck, w.thinks)]
        client = np.int64(requests(w)[row].client)
        push(w, w.now + wait, key_of(ARRIVE, client, 0, 0), NIL, 0)
    if w.held_back > 0:
        held = np.int64(waiting_rows(w)[w.held_first])
        w.held_first = (w.held_first + 1) % w.waiting_rows_room
        w.held_back -= 1
        w.let_go += 1
        push(w, w.now, _key_after_steps(w, WORK, held, 0), NIL, 0)
