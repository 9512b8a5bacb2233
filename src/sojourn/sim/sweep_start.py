"""Where a fit to benchmark summaries starts: which batches they met, and a first guess at costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sojourn.capacity.records import StepModel
from sojourn.capacity.sweep_runs import Arrivals, SweepRun
from sojourn.interval import Excuse, Provenance

APART: Final = 3.0
"""Knots of the base lie at least a factor apart: what differs less is one state of the engine."""
FEWEST_FREE: Final = 3
RANGE_FREE: Final = 4.0
"""So many runs over such a range of batches tell the shape of step times by themselves."""
MOST_KNOTS: Final = 5
CONTEXT_PART: Final = 0.2
"""Part of a loaded step that is taken for contexts before the fit."""
FRONT_S: Final = 0.005
"""A front end's time where nothing tells it (HTTP, tokenizer, first answer)."""
FRONT_SAMPLES: Final = 100
FRONT_JITTER: Final = 0.2
"""Part of a front end's time that is exponential at first, the rest is the same for all."""
FRONT_PART: Final = 0.3
"""Part of the shortest time to first token seen that the front end may have been at first."""


def batch_of(run: SweepRun) -> float:
    """About how many sequences of a replica decoded at once: clients of a closed loop, else rate
    times whole time (Little's law), at most the slots."""
    count = float(len(run))
    if run.arrivals == Arrivals.CLOSED and run.concurrency:
        count = min(count, float(run.concurrency))
    elif run.rate_per_s and (whole := whole_s(run)) is not None:
        count = min(count, run.rate_per_s * whole)
        if run.concurrency:
            count = min(count, float(run.concurrency))
    return float(np.clip(count / run.replicas, 1.0, run.max_num_seqs))


def gap_s(run: SweepRun) -> float | None:
    """Mean time between tokens, from whatever figure tells it."""
    for name in ("itl_mean_s", "tpot_mean_s", "tpot_p50_s", "itl_p50_s"):
        if name in run.measured and run.measured[name] > 0:
            return run.measured[name]
    steps = float(np.mean(run.outputs)) - 1
    whole, first = run.measured.get("e2e_mean_s"), run.measured.get("ttft_mean_s", 0.0)
    if whole is not None and steps > 0:
        return (whole - first) / steps
    rate = run.measured.get("output_tokens_per_s")
    return None if not rate or not run.concurrency else run.concurrency / rate


def whole_s(run: SweepRun) -> float | None:
    """Mean whole time of a request."""
    if "e2e_mean_s" in run.measured:
        return run.measured["e2e_mean_s"]
    gap = run.measured.get("itl_mean_s") or run.measured.get("tpot_mean_s")
    if gap is None:
        gap = run.measured.get("tpot_p50_s")
    if gap is None:
        return None
    first = run.measured.get("ttft_mean_s") or run.measured.get("ttft_p50_s") or 0.0
    return first + gap * max(float(np.mean(run.outputs)) - 1, 0.0)


def knots_of(runs: Sequence[SweepRun]) -> tuple[int, ...]:
    """Where segments of the batch begin, each with a factor of its own: 0, and the batches met
    between the least and the most."""
    return (0, *met_of(runs)[1:-1])


def met_of(runs: Sequence[SweepRun]) -> tuple[int, ...]:
    """Batches met, `APART` from each other."""
    met = sorted({round(batch_of(run)) for run in runs})
    kept = [met[0]]
    for batch in met[1:]:
        if batch >= APART * kept[-1]:
            kept.append(batch)
    if met[-1] > kept[-1] * APART**0.5:
        kept.append(met[-1])
    while len(kept) > MOST_KNOTS:
        ratios = [kept[k + 1] / kept[k - 1] for k in range(1, len(kept) - 1)]
        kept.pop(1 + int(np.argmin(ratios)))
    return tuple(kept)


def with_front(step: StepModel, runs: Sequence[SweepRun]) -> StepModel:
    """The model with a front end's time to be turned, where it has none."""
    if step.front_s > 0:
        return step
    seen = [
        run.measured[name]
        for run in runs
        for name in ("ttft_p50_s", "ttft_mean_s")
        if run.measured.get(name, 0.0) > 0
    ]
    front = min([FRONT_S, *(FRONT_PART * value for value in seen)])
    places = (np.arange(FRONT_SAMPLES) + 0.5) / FRONT_SAMPLES
    spread = -np.log1p(-places)
    samples = front * (1 - FRONT_JITTER + FRONT_JITTER * spread / spread.mean())
    return step.model_copy(update={"front_s": front, "front_samples_s": tuple(samples.tolist())})


def told_by_themselves(runs: Sequence[SweepRun]) -> bool:
    """Whether runs tell the shape of step times without the hardware's help: on public sweeps of
    so many runs over such a range a start at the hardware predicted other runs no better, often
    worse (6% against 10% of gaps), but for batches beyond those seen."""
    met = [batch_of(run) for run in runs if gap_s(run) is not None]
    return len(met) >= FEWEST_FREE and max(met) >= RANGE_FREE * min(met)


def guess(runs: Sequence[SweepRun]) -> StepModel | Excuse:
    """A step model from the runs' own figures: the gap between tokens at the batches met, a part
    of it for contexts; a prompt token from the shortest time to first token."""
    seen = sorted(
        (batch_of(run), gap, float(np.mean(run.inputs) + np.mean(run.outputs) / 2))
        for run in runs
        if (gap := gap_s(run)) is not None
    )
    if not seen:
        return Excuse(
            reason="No run tells the time between tokens, and no hardware is named to start from",
            collect=("mean TPOT or ITL of each benchmark run", "deployment.model and .accelerator"),
        )
    batch, gaps, context = (np.array(column) for column in zip(*seen, strict=True))
    slope = CONTEXT_PART * float(np.median(gaps[-1:] / (batch[-1:] * context[-1:])))
    knots = met_of(runs)
    base = np.interp(knots, batch, gaps * (1 - CONTEXT_PART * batch / batch[-1]))
    base = np.maximum.accumulate(base)
    places = (0, *knots)
    return StepModel(
        batches=places,
        base_s=(float(base[0]), *base.tolist()),
        slope_s_per_token=(slope,) * len(places),
        prefill_s_per_token=_prompt_token_s(runs, float(gaps[0])),
        provenance=Provenance.FITTED,
        source="guessed from the runs",
    )


def _prompt_token_s(runs: Sequence[SweepRun], step_s: float) -> float:
    """Seconds of a prompt token: the least of (time to first token - a step) / tokens."""
    each = []
    for run in runs:
        first = run.measured.get("ttft_p50_s") or run.measured.get("ttft_mean_s")
        computed = run.inputs if run.cached is None else run.inputs - run.cached
        tokens = max(float(np.mean(computed)), 1.0)
        if first is not None and tokens > 1:
            each.append(max(first - step_s, first / 4) / tokens)
    return min(each, default=step_s / 200)
