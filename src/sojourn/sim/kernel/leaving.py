"""How sequences leave the running ones: ended, given up, preempted."""

from __future__ import annotations

from typing import Final

from sojourn.capacity.policies import Order
from sojourn.sim import log
from sojourn.sim.kernel.arrays import calls, pools, replicas
from sojourn.sim.kernel.cache import ABORTED, PREEMPTED, give_back
from sojourn.sim.kernel.compiled import Number, Row, World, compiled
from sojourn.sim.kernel.decodes import part
from sojourn.sim.kernel.lists import (
    stop_prompting,
    stop_running,
    wait_behind,
    wait_by_number,
)
from sojourn.sim.kernel.state import DECODING, DRAINING, NIL, PROMPTING, STOPPED, WAITING
from sojourn.sim.kernel.writing import log_change
from sojourn.sim.lowered import ORDERS

PRIORITY: Final = ORDERS.index(Order.PRIORITY)


@compiled
def blocks_held(w: World, c: Number) -> Number:
    """Blocks that a running call holds now. A decode without draft holds those of its computed
    tokens, and in a step that of the next; `blocks` counts what it took while a step is made."""
    call = calls(w)[c]
    pool = pools(w)[call.pool]
    if call.state != DECODING or pool.drafts > 0:
        return call.blocks + 0
    replica = replicas(w)[call.replica]
    computed = call.computed + replica.done
    if replica.decoded == 1:
        return computed // pool.block + 1
    return (computed + pool.block - 1) // pool.block + call.blocks


@compiled
def leave(w: World, c: Number, how: Number) -> None:
    """A running call leaves; its blocks go back."""
    call = calls(w)[c]
    held = blocks_held(w, c)
    stop_running(w, c)
    if call.state == PROMPTING:
        stop_prompting(w, c)
    else:
        part(w, c)
    give_back(w, c, held, how)
    call.blocks = 0


@compiled
def leave_early(w: World, c: Number) -> None:
    """A running call was given up: it leaves, and its place in the load with it."""
    leave(w, c, ABORTED)
    let_go(w, calls(w)[c].replica + 0)


@compiled
def let_go(w: World, r: Number) -> None:
    """A call has left replica r; one that drains stops when the last has."""
    replica = replicas(w)[r]
    replica.load -= 1
    if replica.state == DRAINING and replica.load == 0:
        replica.state = STOPPED
        log_change(w, log.STOPPED, r)


@compiled
def _later(one: Row, other: Row) -> Number:
    if one.level != other.level:
        return one.level > other.level
    return one.number > other.number


@compiled
def _victim(w: World, r: Number) -> Number:
    table, replica = calls(w), replicas(w)[r]
    found = replica.run_last + 0
    if pools(w)[replica.pool].order != PRIORITY:
        return found
    at = table[found].before + 0
    while at != NIL:
        if _later(table[at], table[found]):
            found = at
        at = table[at].before + 0
    return found


@compiled
def _preempt(w: World, c: Number) -> None:
    call = calls(w)[c]
    replica, pool = replicas(w)[call.replica], pools(w)[call.pool]
    if call.state == PROMPTING:
        replica.left += call.taken
        call.taken = 0
    elif replica.decoded == 1:
        replica.left += 1 + pool.drafts
    leave(w, c, PREEMPTED)
    call.computed = 0
    call.at_hand = 0
    call.preemptions += 1
    replica.preemptions += 1
    replica.calm = 0
    call.state = WAITING
    if pool.order == PRIORITY:
        wait_by_number(w, c)
    else:
        wait_behind(w, c, NIL)


@compiled
def make_room(w: World, c: Number, blocks: Number) -> Number:
    """Preempt until `blocks` are free; False if c itself had to go, whose successors among the
    running and the prompts are then in `w.successor` and `w.prompt_successor`."""
    call = calls(w)[c]
    r = call.replica + 0
    replica = replicas(w)[r]
    while blocks > replica.free:
        victim = _victim(w, r)
        if victim == c:
            w.successor = call.after
            w.prompt_successor = call.prompt_after
        _preempt(w, victim)
        if victim == c:
            return False
    return True
