"""The arrays of a run by name: `calls(w)[c].prompt`."""

from __future__ import annotations

import numpy as np
from numba import carray

from sojourn.sim import log
from sojourn.sim.kernel.compiled import Array, World, compiled, pointer
from sojourn.sim.kernel.state import (
    CALL,
    EVENT,
    NODE,
    POOL,
    QUEUE,
    REPLICA,
    REQUEST,
    RUNG,
    STATION,
    STEP,
    TRY,
    VISIT,
)

_I8, _I4, _F8 = np.dtype("i8"), np.dtype("i4"), np.dtype("f8")
_ENDS, _CALL_LOG, _VISIT_LOG = log.ENDS, log.CALLS, log.VISITS
_ATTEMPT_LOG, _SAMPLE_LOG, _CHANGE_LOG = log.ATTEMPTS, log.SAMPLES, log.CHANGES


@compiled
def requests(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.requests_at), (w.requests_room,), REQUEST)


@compiled
def steps(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.steps_at), (w.steps_room,), STEP)


@compiled
def hashes(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.hashes_at), (w.hashes_room,), _I8)


@compiled
def tables(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.tables_at), (w.tables_room,), _I8)


@compiled
def factors(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.factors_at), (w.factors_room,), _F8)


@compiled
def pools(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.pools_at), (w.pools_room,), POOL)


@compiled
def replicas(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.replicas_at), (w.replicas_room,), REPLICA)


@compiled
def stations(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.stations_at), (w.stations_room,), STATION)


@compiled
def queues(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.queues_at), (w.queues_room,), QUEUE)


@compiled
def rungs(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.rungs_at), (w.rungs_room,), RUNG)


@compiled
def events(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.events_at), (w.events_room,), EVENT)


@compiled
def tries(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.tries_at), (w.tries_room,), TRY)


@compiled
def visits(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.visits_at), (w.visits_room,), VISIT)


@compiled
def calls(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.calls_at), (w.calls_room,), CALL)


@compiled
def turns(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.turns_at), (w.turns_room,), _I8)


@compiled
def finish(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.finish_at), (w.finish_room,), _I4)


@compiled
def phases(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.phases_at), (w.phases_room,), _I4)


@compiled
def levels(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.levels_at), (w.levels_room,), _I4)


@compiled
def ended(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.ended_at), (w.ended_room,), _I4)


@compiled
def nodes(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.nodes_at), (w.nodes_room,), NODE)


@compiled
def buckets(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.buckets_at), (w.buckets_room,), _I4)


@compiled
def images(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.images_at), (w.images_room,), NODE)


@compiled
def image_buckets(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.image_buckets_at), (w.image_buckets_room,), _I4)


@compiled
def waiting_rows(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.waiting_rows_at), (w.waiting_rows_room,), _I4)


@compiled
def ends(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.ends_at), (w.ends_room,), _ENDS)


@compiled
def call_log(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.call_log_at), (w.call_log_room,), _CALL_LOG)


@compiled
def visit_log(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.visit_log_at), (w.visit_log_room,), _VISIT_LOG)


@compiled
def attempt_log(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.attempt_log_at), (w.attempt_log_room,), _ATTEMPT_LOG)


@compiled
def sample_log(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.sample_log_at), (w.sample_log_room,), _SAMPLE_LOG)


@compiled
def change_log(w: World) -> Array:
    """The array of that name."""
    return carray(pointer(w.change_log_at), (w.change_log_room,), _CHANGE_LOG)
