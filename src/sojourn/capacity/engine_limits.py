"""Limits of one engine replica, in calls a second: its time, its slots, its KV memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.capacity.demand import Demand
from sojourn.capacity.records import EngineModel
from sojourn.records import Bottleneck

SLOT_GAIN: Final = 0.10
"""Slots (or KV) count as the limit when four times as many would carry a tenth more: below that,
raising the flag buys less than the model's own error."""
_GRID: Final = np.concatenate(
    (np.geomspace(1e-3, 0.99, 60), np.arange(1, 65), np.geomspace(66, 16_384, 300))
)
"""Batches at which the curve is computed: the same for every fleet, so that comparing two fleets
compares the fleets and not the interpolation."""


class Limit(NamedTuple):
    """One thing that can run out, and the attempts (or calls) a second at which it has."""

    name: str
    bottleneck: Bottleneck
    attempts_per_s: float
    scale_by: str
    note: str


@dataclass(frozen=True)
class Curve:
    """Calls per second one replica carries with B decodes running, by B (ascending)."""

    batches: NDArray[np.float64]
    calls_per_s: NDArray[np.float64]

    def at(self, batch: float) -> float:
        """The rate at a batch."""
        return float(np.interp(batch, self.batches, self.calls_per_s))

    def batch_of(self, calls_per_s: float) -> float | None:
        """The batch that carries a rate: the fixed point B = lambda T(B), or None beyond it."""
        if calls_per_s > self.calls_per_s[-1]:
            return None
        return float(np.interp(calls_per_s, self.calls_per_s, self.batches))


def decode_s(engine: EngineModel, batch: float, context: float) -> float:
    """A decode step with a (fractional) mean batch, its host time included."""
    return float(_decodes_s(engine, np.array([batch]), context)[0])


def _decodes_s(
    engine: EngineModel, batches: NDArray[np.float64], context: float
) -> NDArray[np.float64]:
    """Steps of many batches: between two whole ones as their mean."""
    low = np.floor(batches)
    left = engine.step.decode_steps_s(low, low * context)
    right = engine.step.decode_steps_s(low + 1, (low + 1) * context)
    return engine.step.host_s + left + (right - left) * (batches - low)


def curve_of(engine: EngineModel, asked: Demand) -> Curve:
    """lambda(B) = 1 / (P + m d(B)/B): prefill and decode share the engine's time.

    Symbols: P mean prefill time of a call, m mean output tokens, d(B) decode step at batch B and
    the mix's mean context. From t = d(B) + lambda t P (a step carries the prompts that came
    meanwhile) and B = lambda m t (Little). Made monotone: more slots never carry less.
    Source: derived from Little's law and the step time. Wrong when: prompts wait for whole
    prefills (no chunking), or contexts differ so much that the mean misleads.
    """
    prefill = asked.mean(asked.prefill_s(engine.step))
    tokens = asked.output_mean
    context = asked.context_mean
    batches = np.unique(np.concatenate((_GRID, np.asarray(engine.step.batches[1:], dtype=float))))
    steps = _decodes_s(engine, batches, context)
    per_call = prefill + tokens * steps / batches
    rate = 1 / np.maximum(per_call, 1e-12)
    return Curve(batches, np.maximum.accumulate(rate))


def kv_batch(engine: EngineModel, asked: Demand) -> float:
    """Requests whose KV fits at once: tokens over mean context, half a block lost to rounding."""
    held = asked.context_mean + engine.block_size / 2
    return engine.kv_blocks * engine.block_size / held


def engine_limits(engine: EngineModel, asked: Demand, curve: Curve) -> list[Limit]:
    """Limits of the engine, in calls per second and replica."""
    slots, held = float(engine.max_num_seqs), kv_batch(engine, asked)
    limit = min(slots, held)
    prefill = asked.mean(asked.prefill_s(engine.step))
    decode = asked.output_mean * decode_s(engine, limit, asked.context_mean) / limit
    return [
        _engine_time(curve, limit, prefill, decode),
        Limit(
            "prefill compute",
            Bottleneck.PREFILL_COMPUTE,
            1 / prefill if prefill > 0 else math.inf,
            "engine replicas, prefix cache hits, or shorter prompts",
            "were the engine to do nothing else",
        ),
        Limit(
            "decode",
            Bottleneck.DECODE_BANDWIDTH,
            1 / decode if decode > 0 else math.inf,
            "engine replicas, shorter outputs, or quantised weights",
            "were the engine to do nothing else, at the largest batch it may form",
        ),
        Limit(
            "batch slots",
            Bottleneck.BATCH_SLOTS,
            curve.at(slots),
            "max_num_seqs (while KV cache and step time allow), or engine replicas",
            f"{engine.max_num_seqs} slots x {engine.replicas} replicas",
        ),
        Limit(
            "KV tokens",
            Bottleneck.KV_CAPACITY,
            curve.at(held),
            "KV memory (memory share, fp8 KV, tensor parallelism), or engine replicas",
            f"{engine.kv_blocks * engine.block_size:,} tokens per replica hold {held:.1f} requests"
            f" of {asked.context_mean:,.0f} tokens; blocks {engine.kv_blocks_provenance}",
        ),
    ]


def _engine_time(curve: Curve, limit: float, prefill: float, decode: float) -> Limit:
    """The engine's own time, by the phase that takes more of it.

    At today's largest batch; at four times that batch when slots or KV cache are what stops it
    (`SLOT_GAIN`), so that then they bind and not the engine.
    """
    far = min(4 * limit, float(curve.batches[-1]))
    joint = curve.at(limit)
    if curve.at(far) >= (1 + SLOT_GAIN) * joint:
        joint = curve.at(far)
    busy = prefill + decode
    share = prefill / busy if busy else 0.0
    return Limit(
        "engine time",
        Bottleneck.PREFILL_COMPUTE if prefill > decode else Bottleneck.DECODE_BANDWIDTH,
        joint,
        "engine replicas, or a faster accelerator",
        f"prefill takes {share:.0%} of the engine's time at a full batch",
    )
