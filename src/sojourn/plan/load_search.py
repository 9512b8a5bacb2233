"""Where a yes turns into a no as load grows: bracket, bisect, and the interval over replications.

A load is a positive number (a factor, a rate). `Held` answers for one load under one seed. Runs
of one seed share their luck at every load (common random numbers), so a seed has one knee; seeds
differ in their luck and in their day (`sojourn.workload.likeness.another`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from sojourn.interval import Interval
from sojourn.sim.estimates import student
from sojourn.trace.arrays import Floats

Held = Callable[[float], bool]
TOLERANCE: Final = 0.01
"""Loads are found to one per cent."""
UP: Final = 1.5
NEARBY: Final = 1.04
"""Steps of a first search, and of further seeds' around what the first found."""


class Limits(NamedTuple):
    """Loads that are tried at all."""

    least: float
    most: float


class Bracket(NamedTuple):
    """A load held and a higher one that is not; equal where the end of the range was met."""

    low: float
    high: float

    @property
    def open(self) -> bool:
        """Whether no knee was found within the limits."""
        return self.low == self.high


def knee(
    held: Held, start: float, limits: Limits, *, step: float = UP, tolerance: float = TOLERANCE
) -> Bracket:
    """The largest load held, to the tolerance, looked for from `start`.

    Steps grow while they lead on (their ratio is squared each time), so that a start far off costs
    a few runs more and not dozens. Wrong when: yes and no alternate over a wide range of loads;
    the knee found is then one of several.
    """
    found = _bracket(held, min(max(start, limits.least), limits.most), limits, step)
    low, high = found
    while high > low * (1 + tolerance):
        middle = _rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        if held(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def knees(
    held: Callable[[float, int], bool],
    seeds: Sequence[int],
    start: float,
    limits: Limits,
    *,
    step: float = UP,
) -> list[Bracket]:
    """The knee of each seed; the others start where the first ended. Where the first finds none
    within the limits, it is alone."""
    first, *others = seeds
    found = [knee(partial(_swapped, held, first), start, limits, step=step)]
    if found[0].open:
        return found
    near = found[0].low
    return found + [knee(partial(_swapped, held, s), near, limits, step=NEARBY) for s in others]


def _swapped(held: Callable[[float, int], bool], seed: int, load: float) -> bool:
    return held(load, seed)


def _bracket(held: Held, start: float, limits: Limits, step: float) -> Bracket:
    load, ratio = start, step
    if held(load):
        while load < limits.most:
            higher = min(_rounded(load * ratio), limits.most)
            if not held(higher):
                return Bracket(load, higher)
            load, ratio = higher, min(ratio * ratio, 4.0)
        return Bracket(limits.most, limits.most)
    while load > limits.least:
        lower = max(_rounded(load / ratio), limits.least)
        if held(lower):
            return Bracket(lower, load)
        load, ratio = lower, min(ratio * ratio, 4.0)
    return Bracket(limits.least, limits.least)


def _rounded(load: float) -> float:
    """Five digits: equal loads are then equal numbers, and a run is not made twice."""
    return float(f"{load:.5g}")


def over_seeds(brackets: Sequence[Bracket], confidence: float) -> Interval:
    """The knee of the traffic behind a recording: mean of the logarithms over days like it, and
    Student's t times their standard deviation, the resolution at least.

    Days are a bootstrap of the recording, so their spread is the error of one recording: it is not
    divided by the root of their number. Of one day the bracket itself, which tells nothing of luck.
    Source: Efron 1979; with few resamples t in place of the normal quantile. Wrong when: the day
    recorded is unlike other days in more than its luck.
    """
    lows = np.log([bracket.low for bracket in brackets])
    finest = max(bracket.high / bracket.low for bracket in brackets)
    if len(lows) < 2:
        low = float(np.exp(lows[0]))
        return Interval(low=low, mid=low, high=low * finest, confidence=confidence)
    mid = float(lows.mean())
    half = spread(lows, confidence)
    low, high = math.exp(mid - half), math.exp(mid + max(half, math.log(finest)))
    return Interval(low=low, mid=math.exp(mid), high=high, confidence=confidence)


def spread(values: Floats, confidence: float) -> float:
    """Half-width: Student's t with n - 1 degrees times the standard deviation."""
    return student(values, confidence).width / 2 * math.sqrt(len(values))


def capped(interval: Interval, load: float) -> Interval:
    """The interval of a knee of which longer runs left `load`: known to the resolution from above,
    and from below as far as the knee was."""
    if load >= interval.mid:
        return interval
    return Interval(
        low=min(interval.low, load * (1 - TOLERANCE)),
        mid=load,
        high=load * (1 + TOLERANCE),
        confidence=interval.confidence,
    )


def change(before: Sequence[Bracket], after: Sequence[Bracket], confidence: float) -> Interval:
    """Relative change of the knee, day by day (as `over_seeds`), the resolution of both at least.
    What all days share cancels in each ratio. Source: paired t, Law & Kelton, ch. 10.2.1."""
    ratios = np.log([a.low / b.low for b, a in zip(before, after, strict=True)])
    finest = max(bracket.high / bracket.low for bracket in (*before, *after))
    mid = float(ratios.mean())
    half = math.log(finest)
    if len(ratios) > 1:
        half = max(half, spread(ratios, confidence))
    low, high = math.expm1(mid - half), math.expm1(mid + half)
    return Interval(low=low, mid=math.expm1(mid), high=high, confidence=confidence)
