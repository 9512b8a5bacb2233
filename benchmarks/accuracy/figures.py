"""Figures of a simulated run under the names that measured rows use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from measured.runs import Run

from sojourn.capacity.policies import Order
from sojourn.capacity.records import EngineModel
from sojourn.sim.log import NONE, OK
from sojourn.sim.scenario import SimRun
from sojourn.sim.ticks import PER_S

from .rows import Floats, Ints

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
GAP_FIGURES: Final = ("itl_p50_s", "itl_p99_s")


@dataclass(frozen=True)
class Calls:
    """Calls that ended well, by row of the stream: seconds and tokens.

    `arrival` is the time of sending: one that the client held back has not been sent.
    """

    row: Ints
    replica: Ints
    arrival: Floats
    scheduled: Floats
    first: Floats
    end: Floats
    prompt: Floats
    cached: Floats
    written: Floats

    @classmethod
    def of(cls, run: SimRun, inputs: Ints) -> Calls:
        """From the log; `inputs` are the stream's prompts (one call for each request)."""
        log = run.log.calls
        log = log[(log["status"] == OK) & (log["first"] != NONE)]
        log = log[np.argsort(log["request"], kind="stable")]
        times = (log[name] / PER_S for name in ("arrival", "scheduled", "first", "end"))
        return cls(
            log["request"].astype(np.int64),
            log["replica"].astype(np.int64),
            *times,
            inputs[log["request"]].astype(np.float64),
            log["cached"].astype(np.float64),
            log["written"].astype(np.float64),
        )


def figures(
    run: SimRun, inputs: Ints, *, skip: int = 0, wanted: frozenset[str] | None = None
) -> dict[str, float]:
    """Every figure that can be told of a run (of its calls but the first `skip`).

    Throughput is that of the whole run, first sending to last end. `wanted`: gaps between single
    tokens (`GAP_FIGURES`) are worked out only where asked for; None: always.
    """
    calls = Calls.of(run, inputs)
    if not len(calls.row):
        return {}
    counted = calls.row >= skip
    ttft, e2e = (calls.first - calls.arrival)[counted], (calls.end - calls.arrival)[counted]
    steps = calls.written[counted] - 1
    found = _named("ttft", ttft) | _named("e2e", e2e)
    many = steps > 0
    if many.any():
        decode = (e2e - ttft)[many]
        found["itl_mean_s"] = float(decode.sum() / steps[many].sum())
        found |= _named("tpot", decode / steps[many])
        if wanted is None or wanted.intersection(GAP_FIGURES):
            found |= _gap_figures(calls, run.scenario.fleet.engine, found["itl_mean_s"])
    span = float(calls.end[counted].max() - calls.arrival[counted].min())
    if span > 0:
        found["output_tokens_per_s"] = float(calls.written[counted].sum()) / span
        found["requests_per_s"] = float(counted.sum()) / span
    prefill = float(calls.first[counted].max() - calls.arrival[counted].min())
    if prefill > 0:
        computed = float((calls.prompt - calls.cached)[counted].sum())
        found["prefill_tokens_per_s"] = computed / prefill
    return found


def figures_of(run: Run) -> dict[str, float]:
    """Figures of recorded calls, as `figures` tells those of simulated ones."""
    steps = run.output - 1
    decode = run.e2e - run.ttft
    found = {
        "itl_mean_s": float(decode.sum() / max(steps.sum(), 1.0)),
        "output_tokens_per_s": float(run.output.sum() / (run.end.max() - run.arrival.min())),
        "requests_per_s": float(len(run) / (run.end.max() - run.arrival.min())),
    }
    many = steps > 0
    parts = {"ttft": run.ttft, "e2e": run.e2e, "tpot": decode[many] / steps[many]}
    for what, values in parts.items():
        if len(values):
            found[f"{what}_mean_s"] = float(values.mean())
            for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                found[f"{what}_{name}_s"] = float(np.quantile(values, q))
    return found


def _named(what: str, values: Floats) -> dict[str, float]:
    found = {f"{what}_mean_s": float(values.mean())}
    told = np.quantile(values, list(QUANTILES.values()))
    return found | {f"{what}_{n}_s": float(v) for n, v in zip(QUANTILES, told, strict=True)}


def _gap_figures(calls: Calls, engine: EngineModel, mean: float) -> dict[str, float]:
    """Median and P99 of single gaps, scaled so that their mean is the run's own."""
    gaps, weights = [], []
    for replica in np.unique(calls.replica):
        gap, weight = replica_gaps(calls, calls.replica == replica, engine)
        gaps.append(gap)
        weights.append(weight)
    gap, weight = np.concatenate(gaps), np.concatenate(weights)
    if not weight.sum():
        return {}
    gap = gap * mean / float(np.average(gap, weights=weight))
    order = np.argsort(gap)
    share = np.cumsum(weight[order]) / weight.sum()
    at = np.minimum(np.searchsorted(share, [0.5, 0.99]), len(gap) - 1)
    return {name: float(gap[order][i]) for name, i in zip(GAP_FIGURES, at, strict=True)}


def replica_gaps(
    calls: Calls, mine: npt.NDArray[np.bool_], engine: EngineModel
) -> tuple[Floats, Floats]:
    """Gaps between tokens of one replica's calls, and how many tokens had each.

    The log has no rows of single steps, but whenever the batch changes a call is scheduled, has
    its first token or ends; between two such times every step is alike. Where no prompt is in
    work, the step table tells its length and so the number of steps; where one is, a step is a
    chunk of the token budget; with prompts first, decodes stand still until all are done.
    Wrong when: calls are preempted.
    """
    scheduled, first, end = calls.scheduled[mine], calls.first[mine], calls.end[mine]
    prompt, written = calls.prompt[mine], calls.written[mine]
    computed = np.maximum(prompt - calls.cached[mine], 1.0)
    edges = np.unique(np.concatenate([scheduled, first, end]))
    if len(edges) < 2:
        return np.zeros(0), np.zeros(0)
    at, length = edges[:-1], np.diff(edges)
    middle = at + length / 2

    def standing(begin: Floats, stop: Floats, value: Floats | float = 1.0) -> Floats:
        """Sum of the value over those that stand in each stretch."""
        value = np.broadcast_to(value, begin.shape)
        change = np.zeros(len(edges))
        np.add.at(change, np.searchsorted(edges, begin), value)
        np.add.at(change, np.searchsorted(edges, stop), -value)
        return np.cumsum(change)[:-1]

    pace = written / np.maximum(end - first, 1e-9)
    decoding = np.rint(standing(first, end))
    context = standing(first, end, prompt - first * pace) + standing(first, end, pace) * middle
    prompts = np.rint(standing(scheduled, first))
    tokens = standing(scheduled, first, computed / np.maximum(first - scheduled, 1e-9)) * length
    step = engine.step
    steps_s = step.host_s + (
        np.interp(decoding, step.batches, step.base_s)
        + np.interp(decoding, step.batches, step.slope_s_per_token) * np.maximum(context, 0.0)
    )
    if engine.scheduler.order is Order.PREFILL_FIRST:
        return _prompts_first(length, decoding, prompts, steps_s)
    pure = np.maximum(np.rint(length / np.maximum(steps_s, 1e-9)), 1.0)
    room = np.maximum(engine.max_num_batched_tokens - decoding, 1.0)
    mixed = np.maximum(np.ceil(tokens / room - 1e-6), 1.0)
    count = np.where(prompts > 0, mixed, pure)
    return length / count, decoding * count


def _prompts_first(
    length: Floats, decoding: Floats, prompts: Floats, steps_s: Floats
) -> tuple[Floats, Floats]:
    """A stretch of prompts is added to the first gap of the stretch of decodes behind it."""
    waited = np.cumsum(np.where(prompts > 0, length, 0.0))
    decodes = prompts == 0
    before = waited[decodes]
    pause = np.diff(before, prepend=0.0)
    count = np.maximum(np.rint(length[decodes] / np.maximum(steps_s[decodes], 1e-9)), 1.0)
    gap = length[decodes] / count
    running = decoding[decodes]
    return (
        np.concatenate([gap, gap + pause]),
        np.concatenate([running * (count - 1), running]),
    )
