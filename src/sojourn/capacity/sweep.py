"""What one replica was doing at every moment, rebuilt from its calls by a sweep over events.

Exact accounting: a decoding call gets one token per step, so the steps inside its interval are
its output tokens - 1, and the decodes, contexts and prompt tokens of those steps are what the
calls around it wrote and computed meanwhile. Only how a call's tokens spread over its own
interval is modelled: in proportion to the speed of steps, which the last fit gives.
Source: conservation of tokens in continuous batching (one token per running sequence per step).
Wrong when: speculative decoding (more than one token per step), or times from different clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.capacity.chunks import Chunks, Prompts, allocate
from sojourn.trace.arrays import Floats

SAME_BORDER = 0.2
"""Moments closer than this share of the shortest step are the same step border."""
SHORTEST_STEP_S = 1e-6


@dataclass(frozen=True)
class Cost:
    """A step's price list: base + piecewise linear in the batch + contexts + prompt tokens.

    `knots` start each segment of the batch, the first is 0; `rises` are the segments' slopes.
    `mixed` is what a step costs more because it carries prompt tokens at all.
    """

    base: float
    knots: tuple[float, ...]
    rises: tuple[float, ...]
    slope: float
    mixed: float
    token: float
    attended: float

    def decode(self, batch: Floats, context: Floats) -> Floats:
        """Seconds of steps with `batch` decodes whose contexts sum to `context`."""
        rise: Floats = segments(batch, self.knots) @ np.asarray(self.rises)
        return np.maximum(self.base + rise + self.slope * context, SHORTEST_STEP_S)

    @property
    def vector(self) -> Floats:
        """Coefficients in the order of `State.columns`."""
        return np.array([self.base, *self.rises, self.slope, self.mixed, self.token, self.attended])


def segments(batch: Floats, knots: tuple[float, ...]) -> Floats:
    """How much of the batch lies in each segment: rows x segments."""
    upper = (*knots[1:], np.inf)
    return np.stack(
        [np.clip(batch - low, 0.0, high - low) for low, high in zip(knots, upper, strict=True)],
        axis=-1,
    )


@dataclass(frozen=True)
class Occupancy:
    """Where each call of one replica computed its prompt and decoded; NaN where it did not.

    `tokens`: decode steps taken (output - 1), NaN where unknown. `share` is the part of these
    calls that one replica holds: 1, or 1/replicas where the calls do not name their replica.
    """

    prefill_start: Floats
    first: Floats
    end: Floats
    input: Floats
    computed: Floats
    tokens: Floats
    share: float = 1.0


@dataclass(frozen=True)
class State:
    """Piecewise constant state between `times`, and running totals at them.

    totals: steps, steps that carry prompt tokens (`filling`), then prompt tokens computed and
    context attended; `batch` and `context_step` (sum of contexts times steps) are per interval.
    """

    times: Floats
    batch: Floats
    steps: Floats
    context_steps: Floats
    filling: Floats
    tokens: Floats
    attended: Floats

    def columns(self, start: Floats, end: Floats, knots: tuple[float, ...]) -> Floats:
        """Rows of the regression over [start, end]: steps, batch segments times steps,
        contexts times steps, steps with prompt tokens, those tokens, attended context."""
        parts = [self.steps[:, None], segments(self.batch, knots) * self.steps[:, None]]
        totals = (self.context_steps, self.filling, self.tokens, self.attended)
        parts += [total[:, None] for total in totals]
        per_interval = np.concatenate(parts, axis=1)
        running = np.vstack([np.zeros(per_interval.shape[1]), np.cumsum(per_interval, axis=0)])
        found: Floats = self._at(running, end) - self._at(running, start)
        return found

    def _at(self, running: Floats, when: Floats) -> Floats:
        index = np.clip(np.searchsorted(self.times, when, side="right") - 1, 0, len(self.steps) - 1)
        low, high = self.times[index], self.times[index + 1]
        part = np.clip((when - low) / (high - low), 0.0, 1.0)[:, None]
        found: Floats = running[index] * (1 - part) + running[index + 1] * part
        return found

    def step_clock(self, when: Floats) -> Floats:
        """Steps done since the first event."""
        running = np.concatenate([[0.0], np.cumsum(self.steps)])
        return np.asarray(np.interp(when, self.times, running), dtype=np.float64)

    def when(self, clock: Floats) -> Floats:
        """The moment at which so many steps were done."""
        running = np.concatenate([[0.0], np.cumsum(self.steps)])
        return np.asarray(np.interp(clock, running, self.times), dtype=np.float64)

    def batch_at(self, when: Floats) -> Floats:
        """Decodes running just before `when`."""
        index = np.searchsorted(self.times, when, side="left") - 1
        inside = (index >= 0) & (index < len(self.batch))
        return np.where(inside, self.batch[np.clip(index, 0, len(self.batch) - 1)], 0.0)

    def busy_before(self, when: Floats) -> npt.NDArray[np.bool_]:
        """Whether a step was running just before `when`."""
        index = np.searchsorted(self.times, when, side="left") - 1
        inside = (index >= 0) & (index < len(self.batch))
        busy = (self.batch > 0) | (self.tokens > 0)
        found: npt.NDArray[np.bool_] = inside & busy[np.clip(index, 0, len(busy) - 1)]
        return found

    def step_at(self, when: Floats) -> Floats:
        """Duration of the step that runs at `when`; 0 where the engine idles."""
        index = np.clip(np.searchsorted(self.times, when, side="left") - 1, 0, len(self.steps) - 1)
        known = self.steps > 0
        took = np.where(known, np.diff(self.times) / np.where(known, self.steps, 1.0), 0.0)
        return np.where(self.busy_before(when), took[index], 0.0)

    def context_at(self, when: Floats) -> Floats:
        """Sum of the contexts decoding just before `when`."""
        index = np.searchsorted(self.times, when, side="left") - 1
        inside = (index >= 0) & (index < len(self.batch))
        mean = self.context_steps / np.maximum(self.steps, 1e-12)
        return np.where(inside, mean[np.clip(index, 0, len(mean) - 1)], 0.0)


_IDLE = State(np.array([0.0, 1.0]), *(np.zeros(1) for _ in range(6)))


def sweep(calls: Occupancy, cost: Cost | None, *, budget: int) -> tuple[State, Floats]:
    """The state of one replica and the steps each prompt took.

    `cost` None spreads tokens evenly over time (first round).
    """
    decoding = np.isfinite(calls.first) & (calls.end > calls.first) & ~(calls.tokens <= 0)
    first, end = calls.first[decoding], calls.end[decoding]
    chunks = _chunks(calls, (np.sort(first), np.sort(end)), cost, budget)
    times = np.unique(np.concatenate([first, end, chunks.times]))
    if len(times) < 2:
        return _IDLE, chunks.steps_of
    lengths = np.diff(times)
    begin, finish = np.searchsorted(times, first), np.searchsorted(times, end)
    batch = _running(times, begin, finish, np.ones(len(begin))) * calls.share
    batch += np.where(batch > 0, 1 - calls.share, 0.0)  # whoever looks is on that replica
    filling, tokens, attended = (
        np.diff(np.interp(times, chunks.times, total))
        if len(chunks.times)
        else np.zeros(len(lengths))
        for total in (chunks.steps, chunks.tokens, chunks.attended)
    )
    context = np.zeros(len(lengths))
    steps = lengths
    for _ in range(1 if cost is None else 2):
        if cost is not None:
            free = lengths / cost.decode(batch, context)
            steps = np.where(filling > 0, filling, np.where(batch > 0, free, 0.0))
        steps = _calibrated(steps, begin, finish, calls.tokens[decoding])
        context = _contexts(steps, begin, finish, calls.input[decoding] + 1.0) * calls.share
    of_prompts = (part * calls.share for part in (filling, tokens, attended))
    return State(times, batch, steps, context * steps, *of_prompts), chunks.steps_of


def _chunks(
    calls: Occupancy, running: tuple[Floats, Floats], cost: Cost | None, budget: int
) -> Chunks:
    """Prompt chunks of one replica, in steps as long as the last fit says."""
    first, end = running
    prompts = Prompts(
        start=calls.prefill_start,
        first=calls.first,
        computed=calls.computed,
        before=calls.input - calls.computed,
    )

    def batch_at(when: Floats) -> Floats:
        running = np.searchsorted(first, when, "right") - np.searchsorted(end, when, "right")
        return np.asarray(running * calls.share, dtype=np.float64)

    budget = round(budget / calls.share)
    if cost is None:
        return allocate(prompts, batch_at, None, budget=budget, tolerance_s=1e-4)
    mean = float(np.mean(calls.input))
    price = cost

    def step_s(batch: Floats, tokens: Floats) -> Floats:
        return price.decode(batch, batch * mean) + price.mixed + price.token * tokens

    tolerance = SAME_BORDER * float(price.decode(np.ones(1), np.full(1, mean))[0])
    return allocate(prompts, batch_at, step_s, budget=budget, tolerance_s=tolerance)


def _running(
    times: Floats, begin: npt.NDArray[np.intp], end: npt.NDArray[np.intp], size: Floats
) -> Floats:
    """Sum of `size` over the intervals [begin, end) active in each gap between `times`."""
    change = np.bincount(begin, size, minlength=len(times))
    change -= np.bincount(end, size, minlength=len(times))
    found = np.cumsum(change)[:-1]
    found[np.abs(found) < 1e-9 * max(1.0, float(np.abs(change).max(initial=0.0)))] = 0.0
    return np.asarray(found, dtype=np.float64)


def _calibrated(
    raw: Floats, begin: npt.NDArray[np.intp], end: npt.NDArray[np.intp], tokens: Floats
) -> Floats:
    """Steps per interval: raw ones times (tokens written / raw steps) of the calls running then."""
    clock = np.concatenate([[0.0], np.cumsum(raw)])
    lived = clock[end] - clock[begin]
    known = np.isfinite(tokens) & (lived > 0)
    written = _running(clock, begin[known], end[known], tokens[known])
    available = _running(clock, begin[known], end[known], lived[known])
    overall = float(tokens[known].sum() / lived[known].sum()) if known.any() else 1.0
    ratio = np.where(available > 0, written / np.where(available > 0, available, 1.0), overall)
    return np.asarray(raw * ratio, dtype=np.float64)


def _contexts(
    steps: Floats, begin: npt.NDArray[np.intp], end: npt.NDArray[np.intp], start: Floats
) -> Floats:
    """Mean over an interval's steps of the sum of contexts of its decodes."""
    clock = np.concatenate([[0.0], np.cumsum(steps)])
    offset = _running(clock, begin, end, start - clock[begin])
    running = _running(clock, begin, end, np.ones(len(begin)))
    middle = (clock[1:] + clock[:-1]) / 2
    return np.asarray(np.maximum(offset + running * middle, 0.0), dtype=np.float64)
