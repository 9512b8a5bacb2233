"""When each replica acts next: a tree of minima over 2 x time, + 1 where a step begins."""

from __future__ import annotations

from typing import Final

from sojourn.sim.kernel.arrays import replicas, turns
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.ticks import NEVER

IDLE: Final = 2 * NEVER


@compiled
def set_turn(w: World, r: Number, value: Number) -> None:
    """Replica r acts at `value`."""
    tree = turns(w)
    at = w.tree_base + r
    tree[at] = value
    while at > 1:
        at >>= 1
        left, right = tree[2 * at], tree[2 * at + 1]
        tree[at] = left if left <= right else right


@compiled
def first_turn(w: World) -> Number:
    """The replica that acts first; of equal ones the lowest number."""
    tree = turns(w)
    at = 1
    while at < w.tree_base:
        at = 2 * at if tree[2 * at] <= tree[2 * at + 1] else 2 * at + 1
    return at - w.tree_base


@compiled
def begin_now(w: World, r: Number) -> None:
    """A step of replica r begins at this instant, when all else has happened."""
    replica = replicas(w)[r]
    if replica.pending == 0 and replica.stepping == 0:
        replica.pending = 1
        set_turn(w, r, 2 * w.now + 1)
