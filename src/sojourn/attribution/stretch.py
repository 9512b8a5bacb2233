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

from sojourn.attribution.infer import DECODE, PREFILL, Phases, codes, prefill_alone
from sojourn.attribution.occupancy import Steps
from sojourn.trace.arrays import Floats, floats

MIN_OUTPUT_TOKENS: Final = 8
"""Fewer gaps than this give no mean gap between tokens worth fitting."""

MIN_CALLS: Final = 20
"""As for the envelope (`infer.ENVELOPE_MIN_CALLS`)."""

SURE_SLOPE: Final = 2.0
"""Standard errors a slope must stand above zero: gaps vary for reasons other than the batch."""


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
    share = np.clip(share, 0.0, 1.0)
    return Stretch(_lend(share, phases), _lend(_decode(calls, phases), phases))


def _lend(share: Floats, phases: Phases) -> Floats:
    """Calls that borrow their phases borrow the median share of the others too."""
    known = share[np.isfinite(share) & ~phases.borrowed]
    return np.where(phases.borrowed, float(np.median(known)) if len(known) else np.nan, share)


def _decode(calls: pa.Table, phases: Phases) -> Floats:
    """Share b (B - 1) of the mean gap between tokens, by the line over the mean batch B."""
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
        slope = _gap_per_request(batch[rows], gap[rows])
        out[rows] = np.clip(slope * (batch[rows] - 1.0) / gap[rows], 0.0, 1.0)
    return out


def _gap_per_request(batch: Floats, gap: Floats) -> float:
    """What one more request in the batch adds to the gap between tokens, seconds.

    Least-squares slope b of gap = a + b B; 0 where it is not clearly above zero, and never so
    steep that a decode alone would take less than no time.
    Source: linear gap between tokens in batch size (llm-d autoscaler).
    Wrong when: all calls ran in one and the same batch size (the slope is then unseen, and 0).
    """
    spread = batch - batch.mean()
    variance = float((spread**2).sum())
    if variance <= 1e-9 * len(batch):
        return 0.0
    slope = float((spread * (gap - gap.mean())).sum()) / variance
    rest = gap - gap.mean() - slope * spread
    error = float(np.sqrt((rest**2).sum() / max(len(gap) - 2, 1) / variance))
    if slope < SURE_SLOPE * error:
        return 0.0
    return min(slope, float(gap.mean()) / float(batch.mean()))


def per_request(share: Floats, seconds: Floats, row: pa.Array | Floats, count: int) -> Floats:
    """Mean share per request, calls weighted by their seconds; 0 where unknown."""
    rows = np.asarray(row, dtype=np.int64)
    use = (rows >= 0) & np.isfinite(share) & (seconds > 0)
    part = np.bincount(rows[use], weights=share[use] * seconds[use], minlength=count)
    whole = np.bincount(rows[use], weights=seconds[use], minlength=count)
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 0.0)
