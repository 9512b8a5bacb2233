"""What sharing the engine costs a call, and what more engine would give back.

A decode step grows with the batch, ITL = a + b B; a prefill that shares its steps takes longer
than alone. The part that comes from the others is the `stretch`; twice the capacity halves the
others, so it gives back half of that part, and the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.attribution.infer import (
    DECODE,
    PREFILL,
    Floats,
    Phases,
    codes,
    floats,
    prefill_alone,
)
from sojourn.attribution.occupancy import Steps

MIN_OUTPUT_TOKENS: Final = 8
"""Fewer gaps than this give no mean gap between tokens worth fitting."""

MIN_CALLS: Final = 20
"""As for the envelope (`infer.ENVELOPE_MIN_CALLS`)."""

FAST_QUANTILE: Final = 0.05
"""Calls at the fast end show the gap between tokens in a small batch, where the load varied."""


@dataclass(frozen=True)
class Stretch:
    """Per call, shares 0..1 of its prefill and of its decode that come from sharing; NaN where
    unknown."""

    prefill: Floats
    decode: Floats


def stretch(calls: pa.Table, phases: Phases) -> Stretch:
    """Shares of prefill and decode due to the other calls on the replica."""
    cuts, measured = phases.cuts, phases.stages[:, 1] == PREFILL
    prefill = np.where(measured, cuts[:, 2] - cuts[:, 1], np.nan)
    alone = prefill_alone(calls, prefill)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - alone / prefill
    share = np.where(phases.inferred, 0.0, share)  # an inferred prefill is the envelope itself
    return Stretch(np.clip(share, 0.0, 1.0), _decode(calls, phases))


def _decode(calls: pa.Table, phases: Phases) -> Floats:
    """Share b B / (a + b B) of the mean gap between tokens, by the line over the mean batch."""
    cuts = phases.cuts
    tokens = floats(calls["output_tokens"])
    use = (phases.stages[:, 2] == DECODE) & (tokens >= MIN_OUTPUT_TOKENS)
    out = np.full(calls.num_rows, np.nan)
    if int(use.sum()) < MIN_CALLS:
        return out
    gap = (cuts[:, 3] - cuts[:, 2]) / np.maximum(tokens - 1, 1)
    batch = np.ones(calls.num_rows)
    replica, model = codes(calls["replica"]), codes(calls["model"])
    for code in np.unique(replica):
        here = (replica == code) & phases.known_end
        steps = Steps.of(cuts[here, 1], cuts[here, 3])
        batch[here] = steps.mean(cuts[here, 2], cuts[here, 3])
    for code in np.unique(model[use]):
        rows = np.flatnonzero(use & (model == code) & np.isfinite(batch) & (gap > 0))
        if len(rows) < MIN_CALLS:
            continue
        single = _gap_alone(batch[rows], gap[rows])
        out[rows] = np.clip(1.0 - single / gap[rows], 0.0, 1.0)
    return out


def _gap_alone(batch: Floats, gap: Floats) -> float:
    """Gap between tokens of a call that decodes alone, seconds.

    The line gap = a + b B at B = 1 where batches differ, never above the fast end of the gaps
    and never below zero. Source: linear ITL in batch and context (llm-d autoscaler, case 12).
    Wrong when: all calls ran in one and the same batch size (the stretch is then understated).
    """
    fast = float(np.quantile(gap, FAST_QUANTILE))
    spread = batch - batch.mean()
    variance = float((spread**2).sum())
    if variance <= 1e-9 * len(batch):
        return fast
    slope = max(float((spread * (gap - gap.mean())).sum()) / variance, 0.0)
    line = float(gap.mean()) - slope * (float(batch.mean()) - 1.0)
    return float(np.clip(line, 0.0, fast))


def per_request(share: Floats, seconds: Floats, row: pa.Array | Floats, count: int) -> Floats:
    """Mean share per request, calls weighted by their seconds; 0 where unknown."""
    rows = np.asarray(row, dtype=np.int64)
    use = (rows >= 0) & np.isfinite(share) & (seconds > 0)
    part = np.bincount(rows[use], weights=share[use] * seconds[use], minlength=count)
    whole = np.bincount(rows[use], weights=seconds[use], minlength=count)
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 0.0)
