"""A fitted step model beyond the batches it was fitted on."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from sojourn.capacity.records import StepModel, StepSpread
from sojourn.capacity.step_turning import DOUBLINGS, table
from sojourn.trace.arrays import Floats

BY_HARDWARE: Final = 0.06
BY_LAST_SLOPE: Final = 0.08
"""Standard deviation of the logarithm of a step's error, per doubling of the batch beyond the
last one seen. Assumed: wider without the hardware, whose shape knows where products turn from
reading to computing."""
LOWEST: Final = 4
"""Batches below the range seen are shaped by the hardware where the range begins here or later:
from fewer on the regression's own base is as good."""
LEAST_PART: Final = 0.3
"""A step of a small batch is never taken for less than this part of the smallest one seen."""


def extended(
    step: StepModel, hardware: StepModel | None, *, context: float, upto: int
) -> StepModel:
    """The model with a table up to `upto` decodes.

    Where `hardware` is given, steps beyond the last batch seen grow as its steps do, times the
    ratio of the two at that batch (with `context` tokens a sequence), and below the first one
    they shrink so. Else the last slope goes on. The spread widens by `BY_HARDWARE` or
    `BY_LAST_SLOPE` a doubling, and `source` says how the table goes on.
    Wrong when: the engine changes its ways beyond (CUDA graphs end, a kernel is swapped).
    """
    low, high = step.valid_batch[0], step.batches[-1]
    if hardware is None:
        more = sorted({b for b in (*DOUBLINGS, upto) if high < b <= upto})
        if not more:
            return step
        places = (*step.batches, *more)
        at = np.array(places, dtype=np.float64)
        base, slope = (
            table(step.batches, values, at) for values in (step.base_s, step.slope_s_per_token)
        )
        how = f"beyond batch {high} by the last slope"
        return _with(step, places, (base, slope), BY_LAST_SLOPE, how)
    small, high = low >= LOWEST, min(high, max(step.valid_batch[1], 1))
    kept = [b for b in step.batches if (low <= b or not small) and b <= high]
    places = tuple(
        sorted(
            {
                0,
                *kept,
                high,
                *((low,) if small else ()),
                *(b for b in (*DOUBLINGS, upto) if high < b <= upto or (small and b < low)),
            }
        )
    )
    at = np.array(places, dtype=np.float64)
    base, slope = _shaped(step, hardware, at, context, (low if small else None, high))
    ends = f"beyond batch {high}" + (f" and below {low}" if small else "")
    how = f"{ends} by the shape of {hardware.source}"
    return _with(step, places, (base, slope), BY_HARDWARE, how)


def _shaped(
    step: StepModel,
    hardware: StepModel,
    at: Floats,
    context: float,
    ends: tuple[int | None, int],
) -> tuple[Floats, Floats]:
    """Base and slope at batches: the fit's between the ends, the hardware's shape outside."""
    low, high = ends
    base, slope = (
        table(step.batches, values, at) for values in (step.base_s, step.slope_s_per_token)
    )
    theirs, inclined = (
        table(hardware.batches, values, at)
        for values in (hardware.base_s, hardware.slope_s_per_token)
    )

    def edge(batch: float) -> tuple[float, float, float, float]:
        """The ratio of the two there, and our base, theirs, and the ratio of the slopes."""
        where = np.array([batch])
        ours, other = (
            float(table(m.batches, m.base_s, where)[0])
            + m.host_s
            + float(table(m.batches, m.slope_s_per_token, where)[0]) * batch * context
            for m in (step, hardware)
        )
        bases = [float(table(m.batches, m.base_s, where)[0]) for m in (step, hardware)]
        slopes = [float(table(m.batches, m.slope_s_per_token, where)[0]) for m in (step, hardware)]
        return ours / other, bases[0], bases[1], slopes[0] / slopes[1] if slopes[1] > 0 else 0.0

    ratio, ours, other, incline = edge(float(high))
    above = at > high
    base[above] = ours + ratio * np.maximum(theirs[above] - other, 0.0)
    slope[above] = np.where(incline > 0, inclined[above] * incline, slope[above])
    if low is not None:
        ratio, ours, other, _ = edge(float(low))
        below = at < low
        shrunk = ours - ratio * np.maximum(other - theirs[below], 0.0)
        base[below] = np.maximum(shrunk, LEAST_PART * ours)
    return base, slope


def _with(
    step: StepModel,
    places: tuple[int, ...],
    tables: tuple[Floats, Floats],
    per_doubling: float,
    how: str,
) -> StepModel:
    base, slope = tables
    spread = step.spread
    if spread is not None:
        spread = StepSpread(
            confidence=spread.confidence,
            decode=_widened(step, spread, places, per_doubling),
            prefill=spread.prefill,
        )
    return step.model_copy(
        update={
            "batches": places,
            "base_s": tuple(base.tolist()),
            "slope_s_per_token": tuple(slope.tolist()),
            "spread": spread,
            "source": f"{step.source}; {how}",
        }
    )


def _widened(
    step: StepModel, spread: StepSpread, places: tuple[int, ...], per_doubling: float
) -> tuple[tuple[float, float], ...]:
    """Ranges at the new places: the nearest one's, with what a doubling outside adds."""
    reach = NormalDist().inv_cdf(0.5 + spread.confidence / 2)
    logs = np.log(np.array(spread.decode))
    at = np.array(places, dtype=np.float64)
    low, high = (np.interp(at, step.batches, logs[:, end]) for end in (0, 1))
    inside = np.clip(at, max(step.valid_batch[0], 1), max(step.valid_batch[1], 1))
    outside = np.abs(np.log2(np.maximum(at, 1.0) / inside))
    extra = reach * per_doubling * outside
    return tuple(
        (float(np.exp(-np.hypot(a, e))), float(np.exp(np.hypot(b, e))))
        if a <= 0 <= b
        else (float(np.exp(a - e)), float(np.exp(b + e)))
        for a, b, e in zip(low, high, extra, strict=True)
    )


def beyond_valid(step: StepModel, batches: Floats, weights: Floats | None = None) -> float:
    """Share of steps (`weights`: how often or how long each; None: equally) with more or fewer
    decodes than the model was fitted on; steps without decodes count as inside. 0 for a model
    that does not say what it is valid for."""
    low, high = step.valid_batch
    at = np.asarray(batches, dtype=np.float64)
    weight = np.ones(len(at)) if weights is None else np.asarray(weights, dtype=np.float64)
    if high <= 0 or weight.sum() <= 0:
        return 0.0
    outside = (at > 0) & ((at < low) | (at > high))
    return float(weight[outside].sum() / weight.sum())
