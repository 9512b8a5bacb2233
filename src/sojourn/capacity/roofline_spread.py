"""How far real step times lie from the roofline's: 80% ranges of real / told, by kind of model and
card, measured on groups (model x format x card) left out of the fit of the constants.

`benchmarks/fit_roofline.py --fit` prints the table again, and how many held-out rows each range
holds when it is made from the other folds' rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sojourn.capacity.model_records import AttentionKind, ModelSpec
from sojourn.capacity.records import StepSpread
from sojourn.capacity.roofline_families import AMPERE, BLACKWELL, HOPPER, Family

LARGE_BATCH: Final = 32
"""From this batch on a decode step counts as large: host work per sequence, sampling, products that
compute as long as they read."""
KNOWN_FAMILIES: Final = (AMPERE, HOPPER, BLACKWELL)
"""Generations with rows in the fit and kernels measured; of CDNA there are rows, but no kernels."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Ranges:
    """Of real / told: decode steps below and from `LARGE_BATCH`, and prompts."""

    small: Range
    large: Range
    prefill: Range


SPREADS: Final = {
    ("dense", "known"): Ranges((0.85, 1.14), (0.86, 1.20), (0.62, 1.90)),
    ("routed", "known"): Ranges((0.79, 1.27), (0.76, 1.27), (0.62, 1.90)),
    ("dense", "other"): Ranges((0.86, 1.70), (0.88, 1.42), (0.62, 1.90)),
    ("routed", "other"): Ranges((0.85, 1.70), (0.85, 1.42), (0.62, 1.90)),
}
"""Of steps, by closed forms: held-out ranges, one or two points wider, prompts five. Of routed
models on other cards one model alone was measured: the dense range, widened to it."""
DECODE_WIDER: Final = 1.2
PROMPT_WIDER: Final = 1.4
"""Powers the ranges are taken to: a server's run errs by more than its steps do, for steps queue.
Replayed with constants of other groups (`python -m accuracy --source "roofline held out"`), plain
ranges held 77% of mean ITL, 71% of mean TTFT and 71% of E2E."""


def kind_of(model: ModelSpec) -> str:
    """`dense`, or `routed` where kernels differ most between engines: experts, linear or sparse
    attention."""
    special = any(a.kind is AttentionKind.LINEAR or a.top_k is not None for a in model.attention)
    return "routed" if special or any(m.experts for m in model.mlp) else "dense"


def place_of(family: Family) -> str:
    """`known` or `other` generation."""
    return "known" if family in KNOWN_FAMILIES else "other"


def spread(model: ModelSpec, family: Family, batches: Sequence[int]) -> StepSpread:
    """80% ranges for a step model with these batches."""
    ranges = SPREADS[kind_of(model), place_of(family)]
    small, large = _wider(ranges.small, DECODE_WIDER), _wider(ranges.large, DECODE_WIDER)
    decode = tuple(large if b >= LARGE_BATCH else small for b in batches)
    prefill = _wider(ranges.prefill, PROMPT_WIDER)
    return StepSpread(confidence=0.8, decode=decode, prefill=prefill)


def _wider(of: Range, power: float) -> Range:
    return of[0] ** power, of[1] ** power
