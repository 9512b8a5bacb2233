"""Rows of `tries`, `visits` and `calls`: taken, and given back to a list threaded through them.

While the list is empty the rows in use are the first `live` ones, so the next fresh row is number
`live`. A row's stamp grows when it is given back: events that still name it are void. (A run
begins with `free_try`, `free_visit` and `free_call` NIL; rows of a grown array are zero.)
"""

from __future__ import annotations

from sojourn.sim.kernel.arrays import calls, tries, visits
from sojourn.sim.kernel.compiled import Number, World, compiled


@compiled
def take_try(w: World) -> Number:
    """A row of `tries`."""
    slot = w.free_try
    if slot < 0:
        slot = w.live_tries
    else:
        w.free_try = tries(w)[slot].free
    w.live_tries += 1
    return slot


@compiled
def free_try(w: World, slot: Number) -> None:
    """Give a row of `tries` back."""
    row = tries(w)[slot]
    row.stamp += 1
    row.free = w.free_try
    w.free_try = slot
    w.live_tries -= 1


@compiled
def take_visit(w: World) -> Number:
    """A row of `visits`."""
    slot = w.free_visit
    if slot < 0:
        slot = w.live_visits
    else:
        w.free_visit = visits(w)[slot].after
    w.live_visits += 1
    return slot


@compiled
def free_visit(w: World, slot: Number) -> None:
    """Give a row of `visits` back."""
    row = visits(w)[slot]
    row.stamp += 1
    row.after = w.free_visit
    w.free_visit = slot
    w.live_visits -= 1


@compiled
def take_call(w: World) -> Number:
    """A row of `calls`."""
    slot = w.free_call
    if slot < 0:
        slot = w.live_calls
    else:
        w.free_call = calls(w)[slot].after
    w.live_calls += 1
    return slot


@compiled
def free_call(w: World, slot: Number) -> None:
    """Give a row of `calls` back."""
    row = calls(w)[slot]
    row.stamp += 1
    row.after = w.free_call
    w.free_call = slot
    w.live_calls -= 1
