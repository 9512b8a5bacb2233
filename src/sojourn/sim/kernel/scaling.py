"""Autoscalers: replicas of a pool that start, become ready, drain and stop."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.policies import ScaleMetric
from sojourn.sim.kernel.arrays import pools, replicas
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.decodes import settle
from sojourn.sim.kernel.events import key_of, push
from sojourn.sim.kernel.state import ACTIVE, CONTROL, DRAINING, NIL, STARTING, STOPPED
from sojourn.sim.kernel.writing import log_change
from sojourn.sim.log import DRAINING as LOG_DRAINING
from sojourn.sim.log import READY as LOG_READY
from sojourn.sim.log import STARTING as LOG_STARTING
from sojourn.sim.log import STOPPED as LOG_STOPPED
from sojourn.sim.lowered import SCALES

FIRST_READY: Final = 1000
"""Key of the CONTROL event with which replica 0 becomes ready; replica r: r more."""

_WAITING: Final = SCALES.index(ScaleMetric.WAITING)
_RUNNING: Final = SCALES.index(ScaleMetric.RUNNING)
_LOAD: Final = SCALES.index(ScaleMetric.OUTSTANDING)


@compiled
def scale(w: World, p: Number) -> None:
    """The autoscaler of pool `p` decides."""
    plan = pools(w)[p]
    active, starting = _count(w, p, ACTIVE), _count(w, p, STARTING)
    current, total = active + starting, _total(w, p)
    aim = plan.scale_target * active
    desired = current
    if abs(total - aim) * 1000 > plan.scale_tolerance * aim:
        desired = -((-total) // plan.scale_target)
        desired = min(max(desired, plan.scale_least), plan.scale_most)
    if desired >= current:
        plan.less_since = NIL
        _grow(w, p, desired - current)
        return
    if plan.less_since < 0:
        plan.less_since = w.now
    if w.now - plan.less_since >= plan.scale_after:
        plan.less_since = w.now
        _shrink(w, p, min(current - desired, active - 1))


@compiled
def ready(w: World, r: Number) -> None:
    """A replica has started."""
    replicas(w)[r].state = ACTIVE
    log_change(w, LOG_READY, r)


@compiled
def _count(w: World, p: Number, state: Number) -> Number:
    plan = pools(w)[p]
    count = np.int64(0)
    for r in range(np.int64(plan.first), np.int64(plan.first) + plan.room):
        if replicas(w)[r].state == state:
            count += 1
    return count


@compiled
def _total(w: World, p: Number) -> Number:
    """The metric, in thousandths, over the active replicas."""
    plan = pools(w)[p]
    total = np.int64(0)
    for r in range(np.int64(plan.first), np.int64(plan.first) + plan.room):
        one = replicas(w)[r]
        if one.state != ACTIVE:
            continue
        settle(w, r)
        if plan.scale_metric == _WAITING:
            total += 1000 * np.int64(one.waiting)
        elif plan.scale_metric == _RUNNING:
            total += 1000 * np.int64(one.running)
        elif plan.scale_metric == _LOAD:
            total += 1000 * np.int64(one.load)
        else:
            total += 1000 * (plan.blocks - one.free) // plan.blocks
    return total


@compiled
def _grow(w: World, p: Number, more: Number) -> None:
    """Draining replicas serve on; then stopped ones start."""
    plan = pools(w)[p]
    first, end = np.int64(plan.first), np.int64(plan.first) + plan.room
    for r in range(first, end):
        if more > 0 and replicas(w)[r].state == DRAINING:
            more -= 1
            replicas(w)[r].state = ACTIVE
            log_change(w, LOG_READY, r)
    for r in range(first, end):
        if more > 0 and replicas(w)[r].state == STOPPED:
            more -= 1
            replicas(w)[r].state = STARTING
            log_change(w, LOG_STARTING, r)
            push(w, w.now + plan.cold_start, key_of(CONTROL, FIRST_READY + r, 0, 0), NIL, 0)


@compiled
def _shrink(w: World, p: Number, fewer: Number) -> None:
    """The active replicas with the highest numbers drain; one without load stops at once."""
    plan = pools(w)[p]
    for back in range(np.int64(plan.room)):
        r = np.int64(plan.first) + plan.room - 1 - back
        one = replicas(w)[r]
        if fewer > 0 and one.state == ACTIVE:
            fewer -= 1
            one.state = DRAINING
            log_change(w, LOG_DRAINING, r)
            if one.load == 0:
                one.state = STOPPED
                log_change(w, LOG_STOPPED, r)
