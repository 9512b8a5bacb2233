"""The front end's time of a call, read off the calls that met the engine at its calmest."""

from __future__ import annotations

import numpy as np

from sojourn.capacity.calibration_reading import FEWEST_CALLS, Reading
from sojourn.capacity.equations import Replica, nobody_waiting
from sojourn.trace.arrays import Bools, Floats

REAR = 0.99
"""Front-end delays beyond this quantile count as much as it: a stopped process is no habit."""
SAMPLES = 100
"""Quantiles that stand for the distribution."""
CALM = 0.5
"""Share of the calls, by batch met on arrival, that count as lightly loaded."""


def front(fit: Reading) -> tuple[float, tuple[float, ...]]:
    """Mean seconds of a call before the engine could take it, beyond the wait for a step's end,
    and samples of them (quantiles).

    Where scheduled times are known: from arrival to scheduled. Else: time to first token less
    the steps of the prompt. Of calls that found nobody waiting. The rest of the step that ran then
    (half of it on average) is taken off, because the simulator makes a call wait for it by
    itself; where the engine schedules a step ahead, that step is put on, because it does not.
    The spread of that rest is taken out too: of the variance of what is left, s^2/12 (a rest
    uniform over a step of s) is not the front end's, so the samples are drawn together around
    their mean until the remainder is what they vary by.
    Wrong when: the front end slows down with load (one distribution stands for all loads).
    """
    delays, steps = _delays(fit)
    if not len(delays):
        return fit.front, ()
    delays = np.minimum(delays, np.quantile(delays, REAR))
    mean = max(0.0, float(delays.mean()))
    own = float(delays.var()) - float((steps**2).mean()) / 12
    shrink = np.sqrt(max(0.0, own) / max(float(delays.var()), 1e-18))
    spread = mean + (delays - mean) * shrink
    count = min(SAMPLES, len(delays))
    places = (np.arange(count) + 0.5) / count
    samples = np.maximum(np.quantile(spread, places), 0.0)
    if samples.mean() > 0:
        samples *= mean / samples.mean()
    return mean, tuple(samples.tolist())


def _delays(fit: Reading) -> tuple[Floats, Floats]:
    """Delays of calm calls, and the step that ran when each arrived."""
    parts = [_of_replica(fit, replica) for replica in fit.replicas.values()]
    delay, step, batch, alone = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen: Bools = alone > 0 if (alone > 0).sum() >= FEWEST_CALLS // 3 else np.ones(len(alone), bool)
    light = batch <= np.quantile(batch[chosen], CALM) if chosen.any() else chosen
    if (chosen & light).sum() >= FEWEST_CALLS:
        chosen &= light
    return delay[chosen], step[chosen]


def _of_replica(fit: Reading, replica: Replica) -> tuple[Floats, Floats, Floats, Floats]:
    """Per usable call: delay, step under way at its arrival, batch then, 1 where nobody waited."""
    calls, state, cost = replica.calls, replica.state, fit.cost
    step = state.step_at(calls.arrival)
    if fit.setting.scheduled_known:
        usable = np.isfinite(calls.scheduled) & calls.clean
        waited = calls.scheduled - calls.arrival
        after = state.when(state.step_clock(calls.scheduled) + 1) - calls.scheduled
        extra = after * replica.lead if fit.setting.ahead else np.zeros(len(calls))
        begun = calls.scheduled
    else:
        usable = calls.clean & (calls.first > calls.arrival) & np.isfinite(replica.chunks)
        begun = replica.occupancy.prefill_start
        waited = begun - calls.arrival
        extra = np.zeros(len(calls))
    delay = waited - np.minimum(step / 2, waited) + extra
    alone = nobody_waiting(calls.arrival, begun)
    batch = state.batch_at(calls.arrival)
    return delay[usable], step[usable], batch[usable], alone[usable].astype(np.float64)
