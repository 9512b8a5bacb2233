"""Decoding calls of a replica without a draft, which all advance at once.

`done` counts the replica's decode steps. A decode's `computed` and `written` are kept less `done`,
so a step changes one number and no call; it ends when `done` reaches its `ends_at` (a heap finds
the first), and needs a block when computed is a multiple of the block size, that is when `done` mod
block is its phase (`phases` counts them). While a step is under way, its blocks are taken.

A leap is `steps` alike steps as one event: step j of them takes first + j growth ticks, so k take
k first + growth k(k - 1)/2.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.sim.kernel.arrays import calls, finish, phases, pools, replicas
from sojourn.sim.kernel.cache import take
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.state import DECODING, STEP_END
from sojourn.sim.kernel.turns import set_turn


@compiled
def _sooner(w: World, a: Number, b: Number) -> Number:
    one, other = calls(w)[a], calls(w)[b]
    if one.ends_at != other.ends_at:
        return one.ends_at < other.ends_at
    return one.turn < other.turn


@compiled
def _rise(w: World, base: Number, at: Number, c: Number) -> None:
    heap, table = finish(w), calls(w)
    while at > 0:
        above = (at - 1) >> 1
        other = heap[base + above]
        if _sooner(w, other, c):
            break
        heap[base + at] = other
        table[other].heap_place = at
        at = above
    heap[base + at] = c
    table[c].heap_place = at


@compiled
def _sink(w: World, base: Number, size: Number, at: Number, c: Number) -> None:
    heap, table = finish(w), calls(w)
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _sooner(w, heap[base + below + 1], heap[base + below]):
            below += 1
        other = heap[base + below]
        if _sooner(w, c, other):
            break
        heap[base + at] = other
        table[other].heap_place = at
        at = below
    heap[base + at] = c
    table[c].heap_place = at


@compiled
def first_to_end(w: World, r: Number) -> Number:
    """The decode that ends first (there is one)."""
    return finish(w)[r * w.seqs_most] + 0


@compiled
def join(w: World, c: Number) -> None:
    """A call whose prompt is computed decodes from the next step on."""
    call = calls(w)[c]
    r = call.replica
    replica, pool = replicas(w)[r], pools(w)[call.pool]
    call.state = DECODING
    replica.decodes += 1
    if pool.drafts > 0:
        return
    call.blocks = 0
    replica.context += call.computed + 1
    call.ends_at = replica.done + call.target - call.written
    call.computed -= replica.done
    call.written -= replica.done
    phases(w)[r * w.block_most + (-call.computed) % pool.block] += 1
    size = replica.heap_size + 0
    replica.heap_size += 1
    _rise(w, r * w.seqs_most, size, c)


@compiled
def part(w: World, c: Number) -> None:
    """A decode stops: `computed` and `written` are its own again."""
    call = calls(w)[c]
    r = call.replica
    replica, pool = replicas(w)[r], pools(w)[call.pool]
    replica.decodes -= 1
    if pool.drafts > 0:
        return
    phases(w)[r * w.block_most + (-call.computed) % pool.block] -= 1
    call.computed += replica.done
    call.written += replica.done
    replica.context -= call.computed + 1
    base = r * w.seqs_most
    replica.heap_size -= 1
    size = replica.heap_size + 0
    at = call.heap_place + 0
    if at < size:
        last = finish(w)[base + size] + 0
        if at > 0 and _sooner(w, last, finish(w)[base + ((at - 1) >> 1)]):
            _rise(w, base, at, last)
        else:
            _sink(w, base, size, at, last)


@compiled
def blocks_now(w: World, r: Number) -> Number:
    """Blocks that the decodes need for the next step beyond those held."""
    replica = replicas(w)[r]
    return np.int64(phases(w)[r * w.block_most + replica.done % pools(w)[replica.pool].block])


@compiled
def blocks_after(w: World, r: Number, steps: Number) -> Number:
    """Blocks that the decodes need for `steps` steps after the one under way."""
    replica = replicas(w)[r]
    block = pools(w)[replica.pool].block
    counts, base = phases(w), r * w.block_most
    total = (steps // block) * replica.decodes
    at = (replica.done + 1) % block
    for _ in range(steps % block):
        total += counts[base + at]
        at += 1
        if at == block:
            at = 0
    return total


@compiled
def longest_leap(w: World, r: Number) -> Number:
    """Steps until a decode ends or the free blocks run out; the first one's are taken."""
    replica = replicas(w)[r]
    most = calls(w)[first_to_end(w, r)].ends_at - replica.done
    span = replica.first + most * np.float64(replica.growth)
    if np.float64(most) * span > 2.0**61:  # so long that times would overflow: leap less far
        most = max(np.int64(1), np.int64(2.0**61 / span))
    block = pools(w)[replica.pool].block
    rounds = (most - 1 + block - 1) // block
    if rounds * replica.decodes <= replica.free or blocks_after(w, r, most - 1) <= replica.free:
        return most
    counts, base = phases(w), r * w.block_most
    whole = replica.free // replica.decodes
    free = replica.free - whole * replica.decodes
    steps = whole * block
    at = (replica.done + 1) % block
    while counts[base + at] <= free:
        free -= counts[base + at]
        steps += 1
        at += 1
        if at == block:
            at = 0
    return steps + 1


@compiled
def _after(replica: Number, steps: Number) -> Number:
    """When that many steps of the leap have ended."""
    return replica.began + steps * replica.first + replica.growth * (steps * (steps - 1) // 2)


@compiled
def _steps_over(replica: Number, now: Number) -> Number:
    """Steps of the leap that end at `now` or before, the last one not counted."""
    half = 0.5 * replica.growth
    b = replica.first - half
    elapsed = np.float64(now - replica.began)
    if half <= 0.0:
        guess = np.int64(elapsed / replica.first)
    else:
        guess = np.int64((math.sqrt(b * b + 4.0 * half * elapsed) - b) / (2.0 * half))
    steps = max(np.int64(0), min(guess, replica.steps - 1))
    while steps > 0 and _after(replica, steps) > now:
        steps -= 1
    while steps < replica.steps - 1 and _after(replica, steps + 1) <= now:
        steps += 1
    return steps


@compiled
def advance(w: World, r: Number, steps: Number, more: Number) -> None:
    """Let `steps` steps of the leap be over; `more`: 1 if another is under way then."""
    replica = replicas(w)[r]
    take(w, r, blocks_after(w, r, steps - 1 + more))
    over = _after(replica, steps)
    replica.busy += over - replica.began
    replica.began = over
    replica.first += replica.growth * steps
    replica.steps -= steps
    replica.done += steps
    replica.context += steps * replica.decodes
    replica.written_tokens += steps * replica.decodes


@compiled
def settle(w: World, r: Number) -> None:
    """Bring a leap up to now. If a step of it ends at this instant and its turn has come, the
    next begins as an event of its own."""
    replica = replicas(w)[r]
    if replica.stepping == 0 or replica.steps == 1:
        return
    passed = w.kind > STEP_END or (w.kind == STEP_END and w.replica_now > r)
    steps = _steps_over(replica, w.now if passed else w.now - 1)
    if steps == 0:
        return
    if _after(replica, steps) == w.now:
        advance(w, r, steps, 0)
        replica.stepping = 0
        replica.decoded = 0
        replica.steps = 1
        replica.pending = 1
        set_turn(w, r, 2 * w.now + 1)
    else:
        advance(w, r, steps, 1)


@compiled
def cut(w: World, r: Number) -> None:
    """End a leap with the step under way."""
    settle(w, r)
    replica = replicas(w)[r]
    if replica.stepping == 1 and replica.steps > 1:
        replica.steps = 1
        set_turn(w, r, 2 * (replica.began + replica.first))
