"""A step model turned by a few factors: how a fit differs from where it started.

A hardware model knows how steps grow with batch, context and prompt, and is off by factors that
change slowly with the batch; telemetry tells them where it was recorded. Beyond the last batch
recorded what a sequence adds is the hardware's, times the factor found at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.records import StepModel
from sojourn.capacity.sweep import segments
from sojourn.trace.arrays import Floats

DOUBLINGS: Final = tuple(2**k for k in range(15))
LEAST_RISE: Final = 0.002
"""A doubling of the batch makes a step longer by this part at least: a factor on nothing is
nothing, and no engine does twice the work in the same time."""


@dataclass(frozen=True)
class Turns:
    """Logarithms of factors: of a step without decodes (the host's time with it); of what each
    further sequence adds, by segments of the batch that begin at `knots` (the first is 0); of the
    price of contexts; of prompts; of the front end's times; of how wide those are around their
    mean."""

    knots: tuple[int, ...]
    fixed: float
    rises: tuple[float, ...]
    context: float = 0.0
    prefill: float = 0.0
    front: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, knots: tuple[int, ...], at: Floats) -> Turns:
        """From one row of numbers: fixed, rises, context, prefill, front, and jitter where there
        is one more."""
        values = at.tolist()
        return cls(knots, values[0], tuple(values[1 : 1 + len(knots)]), *values[1 + len(knots) :])


def parts(step: StepModel, knots: tuple[int, ...], batch: Floats) -> Floats:
    """What a step's base is made of at batches: without decodes (with the host's time), and what
    the sequences of each segment add. Batches x (1 + segments), seconds."""
    inside = segments(np.asarray(batch, dtype=np.float64), tuple(float(k) for k in knots))
    starts = np.array(knots, dtype=np.float64)
    low = table(step.batches, step.base_s, starts)
    added = [table(step.batches, step.base_s, s + inside[:, k]) for k, s in enumerate(starts)]
    rises = np.stack([column - low[k] for k, column in enumerate(added)], axis=-1)
    fixed = np.full((len(inside), 1), step.base_s[0] + step.host_s)
    return np.concatenate([fixed, rises], axis=1)


def turned(step: StepModel, turns: Turns) -> StepModel:
    """The model with its costs times the factors. Spread and source stay as they are; a knot that
    is no place of the model's table gives way to the table."""
    batches = np.array(step.batches, dtype=np.float64)
    factors = np.exp([turns.fixed, *turns.rises])
    base = parts(step, turns.knots, batches) @ factors - step.host_s
    context, prefill, front = np.exp([turns.context, turns.prefill, turns.front]).tolist()
    return step.model_copy(
        update={
            "base_s": tuple(base.tolist()),
            "slope_s_per_token": tuple(v * context for v in step.slope_s_per_token),
            "prefill_s_per_token": step.prefill_s_per_token * prefill,
            "prefill_s_per_token_context": step.prefill_s_per_token_context * prefill,
            "prefill_base_s": tuple(v * prefill for v in step.prefill_base_s),
            "front_s": step.front_s * front,
            "front_samples_s": _widened(step.front_samples_s, turns.jitter, front),
        }
    )


def _widened(samples: tuple[float, ...], jitter: float, front: float) -> tuple[float, ...]:
    """Samples times `front`, `exp(jitter)` times as far from their mean, which stays."""
    if not samples:
        return ()
    values = np.array(samples)
    mean = float(values.mean())
    wide = np.maximum(mean + (values - mean) * np.exp(jitter), 0.0)
    if wide.mean() > 0:
        wide *= mean / wide.mean()
    return tuple((wide * front).tolist())


def refined(step: StepModel, places: tuple[int, ...], upto: int) -> StepModel:
    """The same model with its table given at these places and at every doubling of the batch up to
    `upto` too, its base rising by `LEAST_RISE` a doubling at least."""
    doublings = (b for b in DOUBLINGS if b <= upto)
    batches = sorted({0, *step.batches, *places, *doublings, upto})
    at = np.array(batches, dtype=np.float64)
    base = table(step.batches, step.base_s, at)
    floor = LEAST_RISE * float(base[0] + step.host_s) * np.log2(1 + at)
    base = base[0] + np.cumsum(
        np.maximum(np.diff(base, prepend=base[0]), np.diff(floor, prepend=0))
    )
    return step.model_copy(
        update={
            "batches": tuple(batches),
            "base_s": tuple(base.tolist()),
            "slope_s_per_token": tuple(table(step.batches, step.slope_s_per_token, at).tolist()),
            "spread": None,
        }
    )


def table(places: tuple[int, ...], values: tuple[float, ...], at: Floats) -> Floats:
    """A table's values: linear between its places, beyond the last by the last slope."""
    inside = np.interp(at, places, values)
    if len(values) == 1:
        return np.asarray(inside, dtype=np.float64)
    rise = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return np.asarray(inside + rise * np.maximum(at - places[-1], 0.0), dtype=np.float64)
