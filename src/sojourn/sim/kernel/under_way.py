"""The steps of an attempt that are under way: a list of visits and calls, by ascending place.

A member is 2 x slot of a visit, or 2 x slot + 1 of a call. Steps begin in the order of their place,
so a new one goes to the end of the list.
"""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import calls, tries, visits
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.state import NIL


@compiled
def visit_member(slot: Number) -> Number:
    """A visit as a member of the list."""
    return np.int64(slot) << 1


@compiled
def call_member(slot: Number) -> Number:
    """A call as a member of the list."""
    return (np.int64(slot) << 1) | 1


@compiled
def following(w: World, member: Number) -> Number:
    """The member after this one; NIL if none."""
    slot = member >> 1
    if member & 1:
        return np.int64(calls(w)[slot].sibling)
    return np.int64(visits(w)[slot].sibling)


@compiled
def _set_following(w: World, member: Number, value: Number) -> None:
    slot = member >> 1
    if member & 1:
        calls(w)[slot].sibling = value
    else:
        visits(w)[slot].sibling = value


@compiled
def _preceding(w: World, member: Number) -> Number:
    slot = member >> 1
    if member & 1:
        return np.int64(calls(w)[slot].elder)
    return np.int64(visits(w)[slot].elder)


@compiled
def _set_preceding(w: World, member: Number, value: Number) -> None:
    slot = member >> 1
    if member & 1:
        calls(w)[slot].elder = value
    else:
        visits(w)[slot].elder = value


@compiled
def append(w: World, t: Number, member: Number) -> None:
    """A step of attempt `t` begins."""
    one = tries(w)[t]
    last = np.int64(one.last)
    _set_following(w, member, NIL)
    _set_preceding(w, member, last)
    if last < 0:
        one.first = member
    else:
        _set_following(w, last, member)
    one.last = member


@compiled
def remove(w: World, t: Number, member: Number) -> None:
    """A step of attempt `t` has ended."""
    one = tries(w)[t]
    before, after = _preceding(w, member), following(w, member)
    if before < 0:
        one.first = after
    else:
        _set_following(w, before, after)
    if after < 0:
        one.last = before
    else:
        _set_preceding(w, after, before)
