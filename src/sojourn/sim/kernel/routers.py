"""Routers: which replica of a pool takes a call."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.policies import RouterPolicy
from sojourn.sim.kernel.arrays import calls, pools, replicas, requests
from sojourn.sim.kernel.cache import hit_tokens, longest_hits
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.decodes import settle
from sojourn.sim.kernel.state import ACTIVE, NIL
from sojourn.sim.lowered import ROUTERS

_LEAST_LOADED: Final = ROUTERS.index(RouterPolicy.LEAST_LOADED)
_PREFIX_AWARE: Final = ROUTERS.index(RouterPolicy.PREFIX_AWARE)
_SESSION: Final = ROUTERS.index(RouterPolicy.SESSION)


@compiled
def route(w: World, p: Number, c: Number) -> None:
    """Choose the replica of pool `p` for the call; its load grows by the call."""
    policy = pools(w)[p].router
    session = requests(w)[calls(w)[c].row].session
    if policy == _LEAST_LOADED:
        r = _least_loaded(w, p)
    elif policy == _PREFIX_AWARE:
        r = _prefix_aware(w, p, c)
    elif policy == _SESSION and session != 0:
        r = _by_session(w, p, session)
    else:
        r = _in_turn(w, p)
    calls(w)[c].replica = r
    replicas(w)[r].load += 1


@compiled
def _in_turn(w: World, p: Number) -> Number:
    """The next active replica after the last chosen, by number."""
    plan = pools(w)[p]
    first, room = np.int64(plan.first), np.int64(plan.room)
    place = np.int64(-1) if plan.last_routed < 0 else np.int64(plan.last_routed) - first
    for _ in range(room):
        place += 1
        if place == room:
            place = np.int64(0)
        if replicas(w)[first + place].state == ACTIVE:
            break
    plan.last_routed = first + place
    return first + place


@compiled
def _least_loaded(w: World, p: Number) -> Number:
    plan = pools(w)[p]
    best = NIL
    for r in range(np.int64(plan.first), np.int64(plan.first) + plan.room):
        one = replicas(w)[r]
        if one.state == ACTIVE and (best < 0 or one.load < replicas(w)[best].load):
            best = r
    return best


@compiled
def _by_session(w: World, p: Number, session: Number) -> Number:
    """Active replica number (session mod count of the active ones)."""
    plan = pools(w)[p]
    first, end = np.int64(plan.first), np.int64(plan.first) + plan.room
    count = 0
    for r in range(first, end):
        if replicas(w)[r].state == ACTIVE:
            count += 1
    left = np.int64(session % np.uint64(count))
    chosen = NIL
    for r in range(first, end):
        if replicas(w)[r].state == ACTIVE:
            chosen = r
            if left == 0:
                break
            left -= 1
    return chosen


@compiled
def _prefix_aware(w: World, p: Number, c: Number) -> Number:
    """Most hit tokens, less what the load weighs (thousandths of a token)."""
    plan = pools(w)[p]
    best, most = NIL, 0
    asked = np.uint64(0)
    for r in range(np.int64(plan.first), np.int64(plan.first) + plan.room):
        one = replicas(w)[r]
        if one.state != ACTIVE:
            continue
        settle(w, r)
        if w.with_holders == 1:
            asked |= np.uint64(1) << np.uint64(r)
            continue
        score = 1000 * np.int64(hit_tokens(w, r, c)) - plan.load_weight * one.load
        if best < 0 or score > most or (score == most and one.load < replicas(w)[best].load):
            best, most = r, score
    if w.with_holders == 1:
        return _of_holders(w, p, c, asked)
    return best


@compiled
def _of_holders(w: World, p: Number, c: Number, asked: Number) -> Number:
    """The same, of the replicas in the bits of `asked`: those with the longest hit first, then
    those that come to their end one block sooner, and so on."""
    plan = pools(w)[p]
    best, most = NIL, 0
    while asked != np.uint64(0):
        bits, tokens = longest_hits(w, c, asked)
        for r in range(np.int64(plan.first), np.int64(plan.first) + plan.room):
            if (bits >> np.uint64(r)) & np.uint64(1) == np.uint64(0):
                continue
            load = replicas(w)[r].load
            score = 1000 * tokens - plan.load_weight * load
            if best < 0 or score > most:
                best, most = r, score
            elif score == most:
                other = replicas(w)[best].load
                if load < other or (load == other and r < best):
                    best = r
        asked &= ~bits
    return best
