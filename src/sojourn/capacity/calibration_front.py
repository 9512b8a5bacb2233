"""The front end's time of a call: how it is spread, and how it grows with load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.capacity.calibration_reading import FEWEST_CALLS, Reading
from sojourn.capacity.engine_calls import EngineCalls
from sojourn.capacity.equations import Replica, nobody_waiting
from sojourn.trace.arrays import Bools, Floats

REAR = 0.99
"""Front-end delays beyond this quantile count as much as it: a stopped process is no habit."""
SAMPLES = 100
"""Quantiles that stand for the distribution."""
CALLS_OF_LEVEL = 4 * FEWEST_CALLS
"""Calls behind a level of load, at least: the mean of 120 delays that vary by as much as they
last is known to a tenth."""
MOST_LEVELS = 12
CALM = 1.5
LOAD_PAYS = 1.25
"""The busiest level must be slower than the calmest by a quarter for levels to be kept."""


@dataclass(frozen=True)
class Front:
    """Mean and samples at the calmest level, seconds; factors by calls on the replica."""

    mean_s: float
    samples_s: tuple[float, ...]
    load: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Delays:
    """Per usable call: delay, step under way at its arrival, calls on the replica then (itself
    counted), whether the engine had room for it at once."""

    delay: Floats
    step: Floats
    load: Floats
    room: Bools

    def take(self, chosen: Bools) -> _Delays:
        return _Delays(self.delay[chosen], self.step[chosen], self.load[chosen], self.room[chosen])


def front(fit: Reading, *, slots: int) -> Front:
    """Seconds of a call before the engine could take it, beyond the wait for a step's end.

    Where scheduled times are known: from arrival to scheduled, of calls that found nobody
    waiting. Else: time to first token less the steps of the prompt, of calls that the engine
    could have taken into its next step: a slot was free, and the prompts that had come before
    without a first token yet left room in the step's budget. The rest of the step that ran on
    arrival (half of it on average) is taken off, because the simulator makes a call wait for it
    by itself; where the engine schedules a step ahead, that step is put on, because it does not.
    The spread
    of that rest is taken out too: of the variance of what is left, s^2/12 (a rest uniform over a
    step of s) is not the front end's, so the samples are drawn together around their mean until
    the remainder is what they vary by.
    The mean by level of load, monotone, over that of the calmest level is `load`: the front end
    also streams what others write, so it slows down as they become more. The samples are of calm
    levels (factor at most `CALM`) where these have calls enough, else of all, each delay over its
    level's factor: a loaded host's delays are wider, by more than their mean grows, and below the
    knee it is the idle host that first tokens wait for.
    Wrong when: the engine's own step is late for another reason than its load (then the front end
    gets the blame), or delays change shape with load and not only scale.
    """
    delays = _delays(fit, slots)
    if not len(delays.delay):
        return Front(fit.front, (), ())
    by_load = levels(delays.delay, delays.load)
    factor = factors_at(by_load, delays.load)
    scaled, step = delays.delay / factor, delays.step / factor
    calm = factor <= CALM
    if calm.sum() >= CALLS_OF_LEVEL // 2:
        scaled, step = scaled[calm], step[calm]
    scaled = np.minimum(scaled, np.quantile(scaled, REAR))
    mean = max(0.0, float(scaled.mean()))
    samples = _narrowed(scaled, step, mean)
    return Front(mean, samples, tuple(by_load) if len(by_load) > 1 else ())


def _narrowed(delays: Floats, steps: Floats, mean: float) -> tuple[float, ...]:
    """Quantiles of the delays, without the spread that the wait for a step's end gave them."""
    own = float(delays.var()) - float((steps**2).mean()) / 12
    shrink = np.sqrt(max(0.0, own) / max(float(delays.var()), 1e-18))
    count = min(SAMPLES, len(delays))
    places = (np.arange(count) + 0.5) / count
    samples = np.maximum(np.quantile(mean + (delays - mean) * shrink, places), 0.0)
    if samples.mean() > 0:
        samples *= mean / samples.mean()
    return tuple(samples.tolist())


def levels(delay: Floats, load: Floats) -> list[tuple[int, float]]:
    """(load, factor) of levels with equally many calls; one level where load makes no difference.

    `delay` (s) and `load` (calls on the replica, this one counted) are one entry per call.
    The means are made monotone by pooling neighbours that are not (isotonic regression, Ayer et
    al. 1955).
    """
    count = min(MOST_LEVELS, len(delay) // CALLS_OF_LEVEL)
    if count < 2:
        return [(0, 1.0)]
    cut = np.minimum(delay, np.quantile(delay, REAR))
    edges = np.unique(np.quantile(load, np.arange(count) / count).round())
    place = np.searchsorted(edges, load, side="right") - 1
    place = np.maximum(place, 0)
    size = np.bincount(place, minlength=len(edges)).astype(np.float64)
    means = np.bincount(place, cut, minlength=len(edges)) / np.maximum(size, 1.0)
    pooled: list[tuple[float, float, float]] = []  # mean, calls, load
    for mean, calls, edge in zip(means, size, edges, strict=True):
        pooled.append((float(mean), float(calls), float(edge)))
        while len(pooled) > 1 and pooled[-2][0] >= pooled[-1][0]:
            (m1, c1, l1), (m2, c2, _) = pooled[-2:]
            pooled[-2:] = [((m1 * c1 + m2 * c2) / (c1 + c2), c1 + c2, l1)]
    calmest = pooled[0][0]
    if calmest <= 0 or pooled[-1][0] < LOAD_PAYS * calmest:
        return [(0, 1.0)]
    return [(int(edge), mean / calmest) for mean, _, edge in pooled]


def factors_at(by_load: list[tuple[int, float]], load: Floats) -> Floats:
    """The factor of the last level at or under each load, the first one's below it."""
    starts, factors = (np.array(column) for column in zip(*by_load, strict=True))
    return np.asarray(factors[np.maximum(np.searchsorted(starts, load, side="right") - 1, 0)])


def _delays(fit: Reading, slots: int) -> _Delays:
    """Delays of the calls that waited for nothing but front end and step."""
    parts = [_of_replica(fit, replica, slots) for replica in fit.replicas.values()]
    found = _Delays(
        *(np.concatenate([getattr(p, n) for p in parts]) for n in ("delay", "step", "load", "room"))
    )
    return found.take(found.room) if found.room.sum() >= FEWEST_CALLS // 3 else found


def _of_replica(fit: Reading, replica: Replica, slots: int) -> _Delays:
    calls, state = replica.calls, replica.state
    step = state.step_at(calls.arrival)
    if fit.setting.scheduled_known:
        usable = np.isfinite(calls.scheduled) & calls.clean
        begun = calls.scheduled
        after = state.when(state.step_clock(begun) + 1) - begun
        extra = after * replica.lead if fit.setting.ahead else np.zeros(len(calls))
    else:
        usable = calls.clean & (calls.first > calls.arrival) & np.isfinite(replica.chunks)
        begun = replica.occupancy.prefill_start
        extra = np.zeros(len(calls))
    waited = begun - calls.arrival
    delay = waited - np.minimum(step / 2, waited) + extra
    gone = np.searchsorted(np.sort(calls.end), calls.arrival, side="left")
    load = (np.arange(1, len(calls) + 1) - gone) * fit.setting.share  # calls: sorted by arrival
    if fit.setting.scheduled_known:
        room = nobody_waiting(calls.arrival, begun)
    else:
        tokens = _pending(calls, replica.occupancy.first) * fit.setting.share
        left = fit.setting.budget - state.batch_at(calls.arrival) - calls.computed
        room = (load <= slots) & (tokens <= left)
    return _Delays(delay, step, np.asarray(load, dtype=np.float64), room).take(usable)


def _pending(calls: EngineCalls, first: Floats) -> Floats:
    """Prompt tokens to compute of calls that came before each one and had no first token yet."""
    before = np.cumsum(calls.computed) - calls.computed
    order = np.argsort(first, kind="stable")
    done = np.concatenate([[0.0], np.cumsum(calls.computed[order])])
    written = done[np.searchsorted(first[order], calls.arrival, "right")]
    return np.asarray(np.maximum(before - written, 0.0), dtype=np.float64)
