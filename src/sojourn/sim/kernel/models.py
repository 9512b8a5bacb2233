"""Model calls outside the engine: begin, front end, encoder, KV transfer, giving up."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel import engine
from sojourn.sim.kernel.arrays import calls, pools, replicas, requests, steps, tables, tries
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.events import key_of, push
from sojourn.sim.kernel.images import image_hit, image_keep
from sojourn.sim.kernel.leaving import let_go
from sojourn.sim.kernel.levels import at_level
from sojourn.sim.kernel.luck import draw, index
from sojourn.sim.kernel.routers import route
from sojourn.sim.kernel.slots import free_call, take_call
from sojourn.sim.kernel.state import (
    CALL_REFUSED,
    DECODING,
    ENCODED,
    ENCODER_WAITS,
    IN_FRONT,
    MOVING,
    NIL,
    WAITING,
    WORK,
)
from sojourn.sim.kernel.under_way import append, call_member
from sojourn.sim.kernel.writing import degrade, log_call
from sojourn.sim.log import CANCELLED, NONE, SHORT_ANSWER
from sojourn.sim.luck import ACCEPT, FRONT


@compiled
def begin_call(w: World, t: Number, step: Number, place: Number) -> None:
    """A call of attempt `t` begins: it is refused, or routed and in the front end."""
    c = take_call(w)
    _fill(w, t, c, step, place)
    call = calls(w)[c]
    append(w, t, call_member(c))
    if w.output_most >= 0 and call.output > w.output_most:
        call.output = w.output_most
        degrade(w, np.int64(call.row), SHORT_ANSWER)
    if _too_large(w, c):
        call.state = CALL_REFUSED
        _push_work(w, c, np.int64(0))
        return
    plan = pools(w)[call.pool]
    if plan.drafts > 0:
        call.luck = _luck(w, c, ACCEPT)
    call.target = call.output
    if plan.prefill_pool >= 0:
        call.pool, call.target = plan.prefill_pool, 1
    route(w, np.int64(call.pool), c)
    wait = _front_time(w, c)
    if wait > 0:
        _push_work(w, c, wait)
    else:
        _after_front(w, c)


@compiled
def call_work(w: World, c: Number) -> None:
    """Front end, encoding or KV transfer ends."""
    state = calls(w)[c].state
    if state == IN_FRONT:
        _after_front(w, c)
    elif state == ENCODED:
        r, image = np.int64(calls(w)[c].replica), steps(w)[calls(w)[c].step].image
        _encode_next(w, r)
        if image != 0:
            image_keep(w, r, image)
        engine.enter(w, c)
    elif state == MOVING:
        _arrive_in_decode_pool(w, c)


@compiled
def move(w: World, c: Number) -> None:
    """The prompt is computed: its KV is moved to the decode pool."""
    call = calls(w)[c]
    call.state = MOVING
    plan = pools(w)[steps(w)[call.step].pool]
    _push_work(w, c, plan.transfer + plan.transfer_token * call.prompt)


@compiled
def give_up(w: World, c: Number) -> None:
    """The caller goes: the call is logged as cancelled, and stops if it can."""
    call = calls(w)[c]
    state, r = np.int64(call.state), np.int64(call.replica)
    in_engine = WAITING <= state <= DECODING
    written = np.int64(engine.written_by_now(w, c)) if in_engine else np.int64(call.written)
    log_call(w, c, written, CANCELLED)
    call.try_ = NIL
    if in_engine:
        if pools(w)[call.pool].abort != 0:
            engine.give_up(w, c)
        return
    if state == MOVING:
        engine.release_moved(w, c)
    elif state != CALL_REFUSED:
        if state == ENCODER_WAITS:
            _unlink(w, c)
        elif state == ENCODED:
            _encode_next(w, r)
        let_go(w, r)
    free_call(w, c)


@compiled
def _fill(w: World, t: Number, c: Number, step: Number, place: Number) -> None:
    call, one, todo = calls(w)[c], tries(w)[t], steps(w)[step]
    call.arrival, call.encode, call.encode_start, call.queued = w.now, NONE, NONE, NONE
    call.scheduled, call.first, call.moved, call.resumed = NONE, NONE, NONE, NONE
    call.try_, call.row, call.attempt, call.place, call.step = t, one.row, one.attempt, place, step
    call.pool, call.replica, call.state = todo.pool, NIL, IN_FRONT
    call.prompt, call.recorded, call.output = todo.prompt, todo.cached, todo.output
    call.first_hash, call.hashes = todo.first_hash, todo.hashes
    call.cached, call.preemptions, call.written, call.verified = 0, 0, 0, 0


@compiled
def _too_large(w: World, c: Number) -> bool:
    """Whether no replica of a pool concerned could hold the call, even alone."""
    call = calls(w)[c]
    plan = pools(w)[call.pool]
    prompt = np.int64(call.prompt)
    if prompt + call.output - 1 + plan.drafts > plan.blocks * plan.block:
        return True
    if plan.prefill_pool < 0:
        return False
    prefill = pools(w)[plan.prefill_pool]
    return bool(prompt > prefill.blocks * prefill.block)


@compiled
def _push_work(w: World, c: Number, wait: Number) -> None:
    call = calls(w)[c]
    row, attempt, place = np.int64(call.row), np.int64(call.attempt), np.int64(call.place)
    push(w, w.now + wait, key_of(WORK, row, attempt, place), c, np.int64(call.stamp))


@compiled
def _luck(w: World, c: Number, purpose: Number) -> Number:
    """A draw for the call."""
    call = calls(w)[c]
    identity = requests(w)[call.row].identity
    return draw(w.seed, identity, np.int64(call.attempt), np.int64(call.place), purpose)


@compiled
def _front_time(w: World, c: Number) -> Number:
    """Time in the front end of its pool, ticks."""
    call = calls(w)[c]
    plan = pools(w)[call.pool]
    if plan.fronts == 0:
        return np.int64(0)
    load = np.int64(replicas(w)[call.replica].load)
    drawn = tables(w)[plan.front + index(_luck(w, c, FRONT), plan.fronts)]
    return at_level(w, drawn, plan.front_load, plan.front_loads, plan.front_factor, load)


@compiled
def _after_front(w: World, c: Number) -> None:
    """To the encoder, or past it into the queue."""
    call = calls(w)[c]
    plan, todo = pools(w)[call.pool], steps(w)[call.step]
    if plan.encoders > 0 and todo.image_tokens > 0:
        r = np.int64(call.replica)
        call.encode = w.now
        if todo.image == 0 or not image_hit(w, r, todo.image):
            if replicas(w)[r].encoding < plan.encoders:
                _encode(w, c)
            else:
                _wait_for_encoder(w, c)
            return
        call.encode_start = w.now
    engine.enter(w, c)


@compiled
def _encode(w: World, c: Number) -> None:
    call = calls(w)[c]
    plan = pools(w)[call.pool]
    call.state, call.encode_start = ENCODED, w.now
    replicas(w)[call.replica].encoding += 1
    _push_work(w, c, plan.encode_base + plan.encode_token * steps(w)[call.step].image_tokens)


@compiled
def _encode_next(w: World, r: Number) -> None:
    """An encoder of the replica is free: it takes the first that waits."""
    one = replicas(w)[r]
    one.encoding -= 1
    first = np.int64(one.encode_first)
    if first >= 0:
        _unlink(w, first)
        _encode(w, first)


@compiled
def _wait_for_encoder(w: World, c: Number) -> None:
    call = calls(w)[c]
    one = replicas(w)[call.replica]
    call.state, call.before, call.after = ENCODER_WAITS, one.encode_last, NIL
    if one.encode_last < 0:
        one.encode_first = c
    else:
        calls(w)[one.encode_last].after = c
    one.encode_last = c


@compiled
def _unlink(w: World, c: Number) -> None:
    """Leave the encoder's queue."""
    call = calls(w)[c]
    one = replicas(w)[call.replica]
    if call.before < 0:
        one.encode_first = call.after
    else:
        calls(w)[call.before].after = call.after
    if call.after < 0:
        one.encode_last = call.before
    else:
        calls(w)[call.after].before = call.before


@compiled
def _arrive_in_decode_pool(w: World, c: Number) -> None:
    """The KV has moved: the call enters the queue of a replica of its own pool."""
    engine.release_moved(w, c)
    call = calls(w)[c]
    pool = np.int64(steps(w)[call.step].pool)
    call.moved, call.pool, call.target = w.now, pool, call.output
    route(w, pool, c)
    engine.enter(w, c)
