"""What the outside does to a replica, and what happens when its step ends."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import calls, ended, pools, replicas, requests, tables
from sojourn.sim.kernel.cache import ENDED, forget_tail, give_back
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.decodes import advance, cut, first_to_end, join, part, settle
from sojourn.sim.kernel.leaving import PRIORITY, blocks_held, leave, leave_early, let_go
from sojourn.sim.kernel.lists import (
    first_waiting,
    stop_prompting,
    stop_running,
    stop_waiting,
    wait_last,
)
from sojourn.sim.kernel.luck import mixed
from sojourn.sim.kernel.slots import free_call
from sojourn.sim.kernel.state import DECODING, MOVING, NIL, WAITING
from sojourn.sim.kernel.turns import begin_now
from sojourn.sim.log import NONE


@compiled
def enter(w: World, c: Number) -> None:
    """Call c enters the queue of its replica."""
    call = calls(w)[c]
    r = call.replica + 0
    replica, pool = replicas(w)[r], pools(w)[call.pool]
    if call.queued == NONE:
        call.queued = w.now
    replica.numbers += 1
    call.number = replica.numbers
    call.state = WAITING
    call.computed = 0
    call.at_hand = call.prompt if call.moved != NONE else 0
    call.taken = call.blocks = call.leaving = call.held = call.registered = 0
    call.tail = NIL
    call.level = 0
    if pool.order == PRIORITY:
        call.level = requests(w)[call.row].level
    wait_last(w, c)
    if replica.stepping == 0:
        begin_now(w, r)
    elif replica.steps > 1 and replica.running < pool.seqs and first_waiting(w, r) == c:
        cut(w, r)


@compiled
def written_by_now(w: World, c: Number) -> Number:
    """Tokens that a call has written by now."""
    call = calls(w)[c]
    if call.state == DECODING and pools(w)[call.pool].drafts == 0:
        settle(w, call.replica + 0)
        return call.written + replicas(w)[call.replica].done
    return call.written + 0


@compiled
def give_up(w: World, c: Number) -> None:
    """The caller has gone: one that waits leaves now, one in a step at the step's end."""
    call = calls(w)[c]
    r = call.replica + 0
    replica = replicas(w)[r]
    if call.state == WAITING:
        stop_waiting(w, c)
        forget_tail(w, c)
        let_go(w, r)
        free_call(w, c)
        _look_again(w, r)
        return
    cut(w, r)
    if replica.stepping == 1:
        call.leaving = 1
        replica.leaving += 1
    else:
        leave_early(w, c)
        free_call(w, c)
        begin_now(w, r)


@compiled
def _look_again(w: World, r: Number) -> None:
    """Something has changed for those that wait."""
    if replicas(w)[r].stepping == 1:
        cut(w, r)
    elif replicas(w)[r].waiting > 0:
        begin_now(w, r)


@compiled
def release_moved(w: World, c: Number) -> None:
    """The KV of call c has left its prefill replica: blocks and load go back."""
    call = calls(w)[c]
    r = call.replica + 0
    if replicas(w)[r].stepping == 1:
        settle(w, r)
    give_back(w, c, call.blocks + 0, ENDED)
    call.blocks = 0
    let_go(w, r)
    _look_again(w, r)


@compiled
def step_end(w: World, r: Number) -> None:
    """Count what the step computed and wrote; calls that wrote their target are in `ended`."""
    replica = replicas(w)[r]
    if replica.steps > 1:
        advance(w, r, replica.steps - 1, 1)
    replica.busy += w.now - replica.began
    replica.stepping = 0
    if replica.leaving > 0:
        _drop_given_up(w, r)
    w.ended_count = 0
    with_drafts = pools(w)[replica.pool].drafts > 0
    if replica.decoded == 1:
        if with_drafts:
            _count_drafts(w, r)
        else:
            replica.done += 1
            replica.context += replica.decodes
            replica.written_tokens += replica.decodes
    replica.decoded = 0
    if not with_drafts:
        while replica.heap_size > 0:
            c = first_to_end(w, r)
            if calls(w)[c].ends_at > replica.done:
                break
            _finish(w, c)
    _count_prompts(w, r)


@compiled
def after_end(w: World, r: Number) -> None:
    """All ends are told: the next step begins at this instant, if anybody is there."""
    replica = replicas(w)[r]
    if replica.running + replica.waiting > 0:
        begin_now(w, r)


@compiled
def _drop_given_up(w: World, r: Number) -> None:
    table, replica = calls(w), replicas(w)[r]
    c = replica.run_first + 0
    while replica.leaving > 0:
        after = table[c].after + 0
        if table[c].leaving == 1:
            replica.leaving -= 1
            leave_early(w, c)
            free_call(w, c)
        c = after


@compiled
def _finish(w: World, c: Number) -> None:
    """A running call wrote its target: it leaves, or keeps its blocks while its KV moves."""
    call = calls(w)[c]
    r = call.replica + 0
    if call.target < call.output:
        call.blocks = blocks_held(w, c)
        stop_running(w, c)
        if call.state == DECODING:
            part(w, c)
        else:
            stop_prompting(w, c)
        call.state = MOVING
    else:
        leave(w, c, ENDED)
        let_go(w, r)
    ended(w)[w.ended_count] = c
    w.ended_count += 1


@compiled
def _count_drafts(w: World, r: Number) -> None:
    """Each decode writes the accepted tokens of its draft and one more."""
    table, replica = calls(w), replicas(w)[r]
    pool, numbers = pools(w)[replica.pool], tables(w)
    c = replica.run_first + 0
    while c != NIL:
        call = table[c]
        after = call.after + 0
        if call.state == DECODING:
            first = call.luck + np.uint64(16) * np.uint64(call.verified)
            accepted = np.int64(0)
            while accepted < pool.drafts:
                number = np.int64(mixed(first + np.uint64(accepted)) >> np.uint64(11))
                if number >= numbers[pool.accept + accepted]:
                    break
                accepted += 1
            call.verified += 1
            wrote = min(accepted + 1, call.target - call.written)
            call.computed += wrote
            call.written += wrote
            replica.written_tokens += wrote
            if call.written >= call.target:
                _finish(w, c)
        c = after


@compiled
def _count_prompts(w: World, r: Number) -> None:
    """Prompts move on; one that is all computed writes a token, and ends or decodes."""
    table, replica = calls(w), replicas(w)[r]
    c = replica.prompt_first + 0
    while c != NIL:
        call = table[c]
        after = call.prompt_after + 0
        call.computed += call.taken
        done = call.taken > 0 and call.computed == call.prompt + call.written
        call.taken = 0
        if done:
            if call.written == 0:
                call.first = w.now
                replica.prompt_tokens += call.prompt
            call.written += 1
            replica.written_tokens += 1
            if call.written >= call.target:
                _finish(w, c)
            else:
                stop_prompting(w, c)
                join(w, c)
        elif call.written > 0 and call.computed + 1 == call.prompt + call.written:
            stop_prompting(w, c)  # computed anew but for its last token: a decode
            join(w, c)
        c = after
