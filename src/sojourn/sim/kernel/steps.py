"""A replica's step begins: who takes part, and how long it takes (rule book: "The engine")."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.policies import Order
from sojourn.sim.kernel.arrays import calls, pools, replicas, tables
from sojourn.sim.kernel.cache import look_up, register, take, take_hit
from sojourn.sim.kernel.compiled import Number, Row, World, compiled
from sojourn.sim.kernel.decodes import blocks_now, longest_leap
from sojourn.sim.kernel.leaving import make_room
from sojourn.sim.kernel.lists import first_waiting, run_last, stop_waiting
from sojourn.sim.kernel.state import DECODING, NIL, PROMPTING
from sojourn.sim.kernel.turns import IDLE, set_turn
from sojourn.sim.log import NONE
from sojourn.sim.lowered import ORDERS

PREFILL_FIRST: Final = ORDERS.index(Order.PREFILL_FIRST)
_NO_CAP: Final = 1 << 60


@compiled
def step_begin(w: World, r: Number) -> None:
    """Make the batch of a step and set its end; an empty one leaves the replica idle."""
    replica = replicas(w)[r]
    pool = pools(w)[replica.pool]
    replica.pending = 0
    replica.calm = 1
    replica.left = pool.budget
    replica.cap = _NO_CAP
    if pool.cap > 0 and replica.running + replica.waiting > 1:
        replica.cap = pool.cap
    if pool.order != PREFILL_FIRST:
        _take_decodes(w, r)
    _continue_prompts(w, r)
    if replica.calm == 1:
        _admit(w, r)
    prompts = _in_batch(w, r)
    if pool.order == PREFILL_FIRST and not prompts:
        _take_decodes(w, r)
    if replica.decodes == 0:
        replica.decoded = 0
    if replica.decoded == 0 and not prompts:
        set_turn(w, r, IDLE)
        return
    _time(w, r)


@compiled
def _in_batch(w: World, r: Number) -> Number:
    """Whether a prompt is in the batch."""
    table = calls(w)
    c = replicas(w)[r].prompt_first + 0
    while c != NIL:
        if table[c].taken > 0:
            return True
        c = table[c].prompt_after + 0
    return False


@compiled
def _take_decodes(w: World, r: Number) -> None:
    replica = replicas(w)[r]
    pool = pools(w)[replica.pool]
    if pool.drafts > 0:
        _take_with_drafts(w, r)
    else:
        need = blocks_now(w, r)
        if need <= replica.free:
            take(w, r, need)
        else:
            _take_one_by_one(w, r)
    replica.decoded = 1
    replica.left -= replica.decodes * (1 + pool.drafts)


@compiled
def _take_one_by_one(w: World, r: Number) -> None:
    """Decodes take their blocks in the order of admission, and preempt where none is left."""
    table, replica = calls(w), replicas(w)[r]
    block = pools(w)[replica.pool].block
    c = replica.run_first + 0
    while c != NIL:
        call = table[c]
        if call.state == DECODING and (call.computed + replica.done) % block == 0:
            if not make_room(w, c, 1):
                c = w.successor + 0
                continue
            take(w, r, 1)
            call.blocks = 1
        c = call.after + 0
    c = replica.run_first + 0
    while c != NIL:  # from here on the rule counts them
        if table[c].state == DECODING:
            table[c].blocks = 0
        c = table[c].after + 0


@compiled
def _take_with_drafts(w: World, r: Number) -> None:
    table, replica = calls(w), replicas(w)[r]
    pool = pools(w)[replica.pool]
    replica.context = 0
    c = replica.run_first + 0
    while c != NIL:
        call = table[c]
        if call.state == DECODING:
            tokens = call.computed + 1 + pool.drafts
            need = max((tokens + pool.block - 1) // pool.block - call.blocks, 0)
            if not make_room(w, c, need):
                c = w.successor + 0
                continue
            take(w, r, need)
            call.blocks += need
        c = call.after + 0


@compiled
def _continue_prompts(w: World, r: Number) -> None:
    """Unfinished prompts take their next chunks."""
    table, replica = calls(w), replicas(w)[r]
    pool = pools(w)[replica.pool]
    c = replica.prompt_first + 0
    while c != NIL:
        call = table[c]
        known = call.prompt + call.written
        tokens = min(known - call.computed, replica.cap, replica.left)
        if tokens > 0:
            covered = call.computed + tokens
            need = max((covered + pool.block - 1) // pool.block - call.blocks, 0)
            if not make_room(w, c, need):
                c = w.prompt_successor + 0
                continue
            take(w, r, need)
            call.blocks += need
            call.taken = tokens
            replica.left -= tokens
            register(w, c, min(covered, np.int64(call.prompt)))
        c = call.prompt_after + 0


@compiled
def _admit(w: World, r: Number) -> None:
    """Waiting calls join the running while there is room."""
    replica = replicas(w)[r]
    pool = pools(w)[replica.pool]
    while replica.waiting > 0 and replica.left > 0 and replica.running < pool.seqs:
        if not _admit_one(w, r, first_waiting(w, r)):
            break


@compiled
def _admit_one(w: World, r: Number, c: Number) -> Number:
    """Admit the head of the queue; False if its blocks are not free."""
    call, replica = calls(w)[c], replicas(w)[r]
    pool = pools(w)[call.pool]
    known = call.prompt + call.written
    found, tail, revived = look_up(w, c)
    shared = np.int64(0)
    if call.at_hand > 0:
        hit = np.int64(call.at_hand)
    elif pool.unit < 0:
        hit = np.int64(call.recorded) if call.moved == NONE else np.int64(0)
    else:
        shared = found * pool.unit + tail
        hit = shared * pool.block
    tokens = min(known - hit, replica.cap, replica.left)
    need = (hit + tokens + pool.block - 1) // pool.block - shared
    wanted = need
    if pool.full_input == 1:
        wanted = (known + pool.block - 1) // pool.block - shared
    if replica.running > 0:
        wanted += pool.watermark
    if wanted + revived > replica.free:
        return False
    stop_waiting(w, c)
    take_hit(w, c, found, tail)
    take(w, r, need)
    call.computed = hit
    call.blocks = shared + need
    call.registering = 1 if call.moved == NONE else 0
    call.state = PROMPTING
    call.taken = tokens
    run_last(w, c)
    replica.left -= tokens
    register(w, c, min(hit + tokens, np.int64(call.prompt)))
    _note_scheduled(w, c, hit)
    return True


@compiled
def _note_scheduled(w: World, c: Number, hit: Number) -> None:
    """First time in a step: when, and counters."""
    call = calls(w)[c]
    replica = replicas(w)[call.replica]
    if call.moved != NONE:
        if call.resumed == NONE:
            call.resumed = w.now
            _note_gap(w, call.pool, call.moved < w.now)
        return
    if call.scheduled != NONE:
        return
    call.scheduled = w.now
    call.cached = min(hit, np.int64(call.prompt))
    replica.query_tokens += call.prompt
    replica.hit_tokens += call.cached
    _note_gap(w, call.pool, call.queued < w.now)


@compiled
def _note_gap(w: World, p: Number, waited: Number) -> None:
    """Mean time between two admissions of a pool, over those that had waited."""
    pool = pools(w)[p]
    if waited and pool.last_scheduled != NIL:
        since = w.now - pool.last_scheduled
        if pool.gap == NIL:
            pool.gap = since
        else:
            pool.gap += (since - pool.gap) >> 3
    pool.last_scheduled = w.now


@compiled
def step_ticks(
    w: World, pool: Row, decodes: Number, context: Number, tokens: Number, attended: Number
) -> Number:
    """A step of a replica of `pool`, ticks: base[B] + slope[B] x contexts + prompt[n] + context x
    attended, and at least 1. Tables have a place for every batch and every number of prompt
    tokens, so nothing is interpolated here."""
    numbers = tables(w)
    return max(
        numbers[pool.base + decodes]
        + numbers[pool.slope + decodes] * context
        + numbers[pool.prompt + tokens]
        + pool.context * attended,
        1,
    )


@compiled
def _time(w: World, r: Number) -> None:
    """How long the step takes, and how many like it follow."""
    table, replica = calls(w), replicas(w)[r]
    pool = pools(w)[replica.pool]
    decodes, context = np.int64(0), np.int64(0)
    if replica.decoded == 1:
        decodes = np.int64(replica.decodes)
        context = replica.context + 0
        if pool.drafts > 0:
            context = _contexts(w, r)
    prompt_tokens, attended = np.int64(0), np.int64(0)
    c = replica.prompt_first + 0
    while c != NIL:
        call = table[c]
        tokens = np.int64(call.taken)
        if tokens == 1 and call.written > 0 and call.computed + 1 == call.prompt + call.written:
            decodes += 1
            context += call.computed + 1
        elif tokens > 0:
            prompt_tokens += tokens
            attended += tokens * call.computed + tokens * (tokens + 1) // 2
        c = call.prompt_after + 0
    replica.first = step_ticks(w, pool, decodes, context, prompt_tokens, attended)
    replica.began = w.now
    replica.stepping = 1
    replica.steps = 1
    replica.growth = tables(w)[pool.slope + decodes] * decodes
    alike = replica.calm == 1 and replica.prompt_first == NIL and pool.drafts == 0
    if alike and not _may_shrink(w, r):
        replica.steps = longest_leap(w, r)
    steps = replica.steps
    length = steps * replica.first + replica.growth * (steps * (steps - 1) // 2)
    set_turn(w, r, 2 * (w.now + length))


@compiled
def _may_shrink(w: World, r: Number) -> Number:
    """Whether the head of the queue waits for blocks and may come to need fewer of them: its first
    chunk begins after its hit, and the hit shrinks as decodes take kept blocks."""
    replica = replicas(w)[r]
    pool = pools(w)[replica.pool]
    return (
        replica.waiting > 0
        and replica.running < pool.seqs
        and pool.unit >= 0
        and pool.full_input == 0
    )


@compiled
def _contexts(w: World, r: Number) -> Number:
    """Sum over the decodes with drafts of computed + 1."""
    table = calls(w)
    total = np.int64(0)
    c = replicas(w)[r].run_first + 0
    while c != NIL:
        if table[c].state == DECODING:
            total += table[c].computed + 1
        c = table[c].after + 0
    return total
