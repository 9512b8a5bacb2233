"""Controllers in the loop: degrade ladder, admission, autoscaler; and the gauges' samples."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.policies import AdmissionPolicy, LoadMetric
from sojourn.sim.kernel.arrays import pools, replicas, requests, rungs, sample_log, steps
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.decodes import settle
from sojourn.sim.kernel.events import key_of, push
from sojourn.sim.kernel.luck import draw, uniform
from sojourn.sim.kernel.scaling import FIRST_READY, ready, scale
from sojourn.sim.kernel.state import ACTIVE, CONTROL, NIL, SAMPLE, STOPPED
from sojourn.sim.kernel.writing import log_change
from sojourn.sim.log import LEVEL
from sojourn.sim.lowered import ADMISSIONS, CALL, METRICS
from sojourn.sim.luck import SHED
from sojourn.sim.ticks import NEVER

_IN_FLIGHT: Final = METRICS.index(LoadMetric.IN_FLIGHT)
_THRESHOLD: Final = ADMISSIONS.index(AdmissionPolicy.THRESHOLD)
_PROBABILISTIC: Final = ADMISSIONS.index(AdmissionPolicy.PROBABILISTIC)


@compiled
def begin(w: World) -> None:
    """Set the first events of controllers and samples."""
    _put_in_force(w)
    if w.ladder_every > 0:
        _push_next(w, key_of(CONTROL, 0, 0, 0), w.ladder_every)
    for p in range(w.pool_count):
        if pools(w)[p].scale_every > 0:
            _push_next(w, key_of(CONTROL, 1 + p, 0, 0), pools(w)[p].scale_every)
    _push_next(w, key_of(SAMPLE, 0, 0, 0), w.sample_every)


@compiled
def control(w: World, number: Number) -> None:
    """A controller's turn (an event of kind CONTROL)."""
    if number >= FIRST_READY:
        ready(w, number - FIRST_READY)
        return
    if number == 0:
        _climb(w)
        every = w.ladder_every
    else:
        scale(w, number - 1)
        every = pools(w)[number - 1].scale_every
    _push_next(w, key_of(CONTROL, number, 0, 0), every)


@compiled
def sample(w: World) -> None:
    """Write the gauges of every replica that is not stopped."""
    for r in range(w.replica_count):
        if replicas(w)[r].state != STOPPED:
            settle(w, r)
            _sample_row(w, r)
    _push_next(w, key_of(SAMPLE, 0, 0, 0), w.sample_every)


@compiled
def shed(w: World, request: Number, attempt: Number) -> bool:
    """Whether the gateway sheds this attempt: the ladder first, then admission."""
    if requests(w)[request].priority >= w.shed_from:
        return True
    if w.admission < 0:
        return False
    if w.admission == _THRESHOLD:
        return bool(_metric(w, w.admission_metric) >= w.admission_high)
    if w.admission == _PROBABILISTIC:
        share = (_metric(w, w.admission_metric) - w.admission_low) / (
            w.admission_high - w.admission_low
        )
        luck = draw(w.seed, requests(w)[request].identity, attempt, np.int64(0), SHED)
        return bool(uniform(luck) < share)
    return _would_miss(w, request)


@compiled
def _push_next(w: World, key: Number, every: Number) -> None:
    """Set the next turn, if a request is in flight or to come."""
    if w.in_flight > 0 or w.held_back > 0 or w.let_go > 0 or w.next_row < w.rows:
        push(w, w.now + every, key, NIL, 0)


@compiled
def _metric(w: World, which: Number) -> Number:
    """Requests in flight, or sequences that wait per active replica."""
    if which == _IN_FLIGHT:
        return np.float64(w.in_flight)
    waiting, active = 0, 0
    for r in range(w.replica_count):
        if replicas(w)[r].state == ACTIVE:
            waiting += replicas(w)[r].waiting
            active += 1
    return waiting / max(active, 1)


@compiled
def _would_miss(w: World, request: Number) -> bool:
    """Whether the queue of the request's first call would outlast the wait allowed."""
    one = requests(w)[request]
    for step in range(np.int64(one.first_step), np.int64(one.first_step) + one.steps):
        if steps(w)[step].kind != CALL:
            continue
        plan = pools(w)[steps(w)[step].pool]
        if plan.gap <= 0:
            return False
        return bool(plan.waiting > w.admission_wait // plan.gap)  # (a product might overflow)
    return False


@compiled
def _climb(w: World) -> None:
    """The ladder moves one rung at most."""
    metric, level = _metric(w, w.ladder_metric), w.level
    if level < w.rung_count and metric >= rungs(w)[level].above:
        level += 1
    elif level > 0 and metric < rungs(w)[level - 1].below:
        level -= 1
    if level != w.level:
        w.level = level
        log_change(w, LEVEL, level)
        _put_in_force(w)


@compiled
def _put_in_force(w: World) -> None:
    """What the rungs below the level ask for, together."""
    w.skipped, w.output_most = 0, NIL
    w.attempts_now, w.shed_from = w.attempts_most, NEVER
    for k in range(w.level):
        rung = rungs(w)[k]
        w.skipped |= np.int64(rung.skip)
        w.shed_from = min(w.shed_from, rung.shed_from)
        if rung.output >= 0 and (w.output_most < 0 or rung.output < w.output_most):
            w.output_most = rung.output
        if rung.attempts >= 0:
            w.attempts_now = min(w.attempts_now, np.int64(rung.attempts))


@compiled
def _sample_row(w: World, r: Number) -> None:
    one = replicas(w)[r]
    row = sample_log(w)[w.sample_logs]
    w.sample_logs += 1
    row.t, row.replica = w.now, r
    row.busy = one.busy + w.now - one.began if one.stepping != 0 else one.busy
    row.prompt_tokens, row.written_tokens = one.prompt_tokens, one.written_tokens
    row.hit_tokens, row.query_tokens = one.hit_tokens, one.query_tokens
    row.preemptions, row.used_blocks = one.preemptions, pools(w)[one.pool].blocks - one.free
    row.running, row.waiting = one.running, one.waiting
