"""A step model turned by a few factors: how a fit differs from where it started.

A hardware model knows how steps grow with batch, context and prompt, and is off by a factor that
changes slowly with the batch; telemetry tells that factor where it was recorded. Beyond the last
batch recorded the factor stays what it was there, so the shape is still the hardware's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.records import StepModel
from sojourn.trace.arrays import Floats

DOUBLINGS: Final = tuple(2**k for k in range(15))


@dataclass(frozen=True)
class Turns:
    """Logarithms of factors: of a step's base (with the host's time) at `knots` of the batch,
    linear in log2(1 + batch) between and level beyond; of the price of contexts; of prompts; of
    the front end's times; of how wide those are around their mean."""

    knots: tuple[int, ...]
    base: tuple[float, ...]
    context: float = 0.0
    prefill: float = 0.0
    front: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, knots: tuple[int, ...], at: Floats) -> Turns:
        """From one row of numbers: the knots' factors, then context, prefill, front, and jitter
        where there is one more."""
        return cls(knots, tuple(at[: len(knots)].tolist()), *at[len(knots) :].tolist())

    def base_at(self, batch: Floats) -> Floats:
        """Log factor of the base at batches."""
        return np.asarray(weights(self.knots, batch) @ np.array(self.base), dtype=np.float64)


def weights(knots: tuple[int, ...], batch: Floats) -> Floats:
    """How much each knot says at each batch: batches x knots, rows sum to 1."""
    places = np.log2(1.0 + np.array(knots, dtype=np.float64))
    at = np.log2(1.0 + np.asarray(batch, dtype=np.float64))
    unit = np.eye(len(knots))
    columns = [np.interp(at, places, unit[k]) for k in range(len(knots))]
    return np.stack(columns, axis=-1)


def turned(step: StepModel, turns: Turns) -> StepModel:
    """The model with its costs times the factors; spread and source stay as they are."""
    batches = np.array(step.batches, dtype=np.float64)
    factor = np.exp(turns.base_at(batches))
    context, prefill, front = np.exp([turns.context, turns.prefill, turns.front]).tolist()
    base = (np.array(step.base_s) + step.host_s) * factor - step.host_s
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


def refined(step: StepModel, upto: int) -> StepModel:
    """The same model, with its table given at every doubling of the batch up to `upto` too."""
    places = sorted({*step.batches, *(b for b in DOUBLINGS if b <= upto), upto})
    at = np.array(places, dtype=np.float64)
    return step.model_copy(
        update={
            "batches": tuple(places),
            "base_s": tuple(table(step.batches, step.base_s, at).tolist()),
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
