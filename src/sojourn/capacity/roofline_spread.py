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
    ("dense", "known"): Ranges((0.86, 1.12), (0.87, 1.19), (0.65, 1.80)),
    ("routed", "known"): Ranges((0.79, 1.27), (0.76, 1.27), (0.65, 1.80)),
    ("dense", "other"): Ranges((0.88, 1.68), (0.90, 1.40), (0.65, 1.80)),
    ("routed", "other"): Ranges((0.85, 1.68), (0.85, 1.40), (0.65, 1.80)),
}
"""Of routed models on other cards one model alone was measured: the dense range, widened to it."""


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
    decode = tuple(ranges.large if b >= LARGE_BATCH else ranges.small for b in batches)
    return StepSpread(confidence=0.8, decode=decode, prefill=ranges.prefill)
