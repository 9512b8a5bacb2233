"""Pending events: a binary heap by (time, key). Steps of engines are in `turns`, not here."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.sim.kernel.arrays import events
from sojourn.sim.kernel.compiled import Number, World, compiled

_KIND, _REQUEST, _ATTEMPT = 60, 32, 22
MOST_REQUESTS: Final = 1 << (_KIND - _REQUEST)
MOST_ATTEMPTS: Final = 1 << (_REQUEST - _ATTEMPT)
MOST_PLACES: Final = 1 << _ATTEMPT


@compiled
def key_of(kind: Number, request: Number, attempt: Number, place: Number) -> Number:
    """Kind, then request, attempt and place, in one number that orders as they do."""
    return (
        (np.int64(kind) << _KIND)
        | (np.int64(request) << _REQUEST)
        | (np.int64(attempt) << _ATTEMPT)
        | np.int64(place)
    )


@compiled
def kind_of(key: Number) -> Number:
    """The kind in a key."""
    return np.int64(key) >> _KIND


@compiled
def number_of(key: Number) -> Number:
    """The request (or client, controller) in a key."""
    return (np.int64(key) >> _REQUEST) & (MOST_REQUESTS - 1)


@compiled
def attempt_of(key: Number) -> Number:
    """The attempt in a key."""
    return (np.int64(key) >> _ATTEMPT) & (MOST_ATTEMPTS - 1)


@compiled
def place_of(key: Number) -> Number:
    """The place in a key."""
    return np.int64(key) & (MOST_PLACES - 1)


@compiled
def push(w: World, time: Number, key: Number, slot: Number, stamp: Number) -> None:
    """Add an event."""
    heap = events(w)
    at = w.event_count
    w.event_count = at + 1
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]
        if other.time < time or (other.time == time and other.key <= key):
            break
        here = heap[at]
        here.time, here.key, here.slot, here.stamp = other.time, other.key, other.slot, other.stamp
        at = above
    here = heap[at]
    here.time, here.key, here.slot, here.stamp = time, key, slot, stamp


@compiled
def drop_first(w: World) -> None:
    """Remove the first event."""
    heap = events(w)
    count = w.event_count - 1
    w.event_count = count
    if count == 0:
        return
    last = heap[count]
    time, key, slot, stamp = last.time, last.key, last.slot, last.stamp
    at = np.int64(0)
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        child = heap[below]
        if below + 1 < count:
            other = heap[below + 1]
            if other.time < child.time or (other.time == child.time and other.key < child.key):
                child = other
                below += 1
        if time < child.time or (time == child.time and key <= child.key):
            break
        here = heap[at]
        here.time, here.key, here.slot, here.stamp = child.time, child.key, child.slot, child.stamp
        at = below
    here = heap[at]
    here.time, here.key, here.slot, here.stamp = time, key, slot, stamp
