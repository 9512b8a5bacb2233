"""One measured run of a benchmark, replayed: the same finite run, arrivals and client.

What a summary tells (means and percentiles over the run's requests) is what the replay gives, ramp
and tail included. A run is lowered once and then priced with many step models, so that fitting to
summaries costs a millisecond a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity.policies import Client, Router, RouterPolicy, Scheduler
from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.capacity.step_turning import table
from sojourn.capacity.sweep_runs import Arrivals, Ints, SweepRun
from sojourn.errors import UsageError
from sojourn.interval import Provenance
from sojourn.progress import silent
from sojourn.records import Stage
from sojourn.sim.checks import check
from sojourn.sim.log import CALLS, OK, Rows
from sojourn.sim.lowered import Lowered, PoolPlan
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import DEFAULT, ENGINES
from sojourn.sim.ticks import PER_S, ticks, ticks_of
from sojourn.trace.arrays import Floats
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream

PLENTY: Final = 1_000_000
"""KV blocks where a run does not say how many there were: never short of them."""

LONGEST_STEP_S: Final = 3600.0
DRAWS: Final = 3
"""Draws of random arrivals whose figures are averaged: a run of 200 Poisson arrivals has a luck of
its own, which is neither the measured run's nor the engine's."""


@dataclass(frozen=True)
class Told:
    """Times of a replay's requests that count, seconds, in order of sending, and the first
    arrival and last end of them."""

    ttft: Floats
    decode: Floats
    steps: Floats
    begun: Floats
    ended: Floats

    def figure(self, name: str) -> float | None:
        """A figure by its name; None where a replay does not tell it (percentiles of single gaps
        between tokens, pools of memory)."""
        what, _, statistic = name.removesuffix("_s").rpartition("_")
        if name in _RATES:
            span = float(self.ended.max() - self.begun.min())
            counted = len(self.ttft) if name == "requests_per_s" else (self.steps + 1).sum()
            return float(counted) / span if span > 0 else None
        if name == "itl_mean_s":
            return float(self.decode.sum() / max(self.steps.sum(), 1.0))
        values = {"ttft": self.ttft, "e2e": self.ttft + self.decode, "tpot": self._tpot}.get(what)
        if values is None or not len(values) or statistic not in _STATISTICS:
            return None
        quantile = _STATISTICS[statistic]
        return float(values.mean() if quantile is None else np.quantile(values, quantile))

    @property
    def _tpot(self) -> Floats:
        several = self.steps > 0
        return self.decode[several] / self.steps[several]


_RATES: Final = ("output_tokens_per_s", "requests_per_s")
_STATISTICS: Final[dict[str, float | None]] = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}


class FiniteRun:
    """A run lowered once, to be simulated with many step models."""

    def __init__(self, run: SweepRun, *, seed: int = 0, engine: str = DEFAULT) -> None:
        """Lower the run.

        Raises:
            UsageError: a run that no engine can simulate.
        """
        self.run = run
        self._engine = ENGINES[engine]
        count = DRAWS if run.arrivals == Arrivals.POISSON else 1
        self._lowered = [self._lower(seed + draw) for draw in range(count)]

    def _lower(self, seed: int) -> Lowered:
        scenario = Scenario(_stream(self.run, seed), _fleet(self.run), seed)
        check(scenario)
        return lower(scenario)

    def figures(self, step: StepModel) -> dict[str, float]:
        """What a summary of the run would say with these step times: of the figures measured,
        those that a replay tells; the mean over the draws of random arrivals."""
        told = [one for one in (self._told(low, step) for low in self._lowered) if one is not None]
        found = {}
        for name in self.run.measured:
            values = [v for v in (one.figure(name) for one in told) if v is not None and v > 0]
            if values:
                found[name] = float(np.mean(values))
        return found

    def _rows(self, lowered: Lowered, step: StepModel) -> Rows:
        """The calls in order of sending; none where steps are so long that no run can hold them."""
        try:
            log = self._engine(priced(lowered, step), silent).calls
        except UsageError:
            return np.zeros(0, CALLS)
        return log[np.argsort(log["request"], kind="stable")]

    def _told(self, lowered: Lowered, step: StepModel) -> Told | None:
        """What the requests saw; None where none of those that count ended well."""
        rows = self._rows(lowered, step)
        rows = rows[(rows["status"] == OK) & (rows["request"] >= self.run.skip)]
        if not len(rows):
            return None
        arrival, first, end = (rows[name] / PER_S for name in ("arrival", "first", "end"))
        return Told(
            ttft=first - arrival,
            decode=end - first,
            steps=rows["written"].astype(np.float64) - 1,
            begun=arrival,
            ended=end,
        )

    def batches(self, step: StepModel) -> tuple[Floats, Floats]:
        """Decodes in flight on one replica (means over replicas), and for how long, seconds."""
        rows = self._rows(self._lowered[0], step)
        rows = rows[(rows["status"] == OK) & (rows["end"] > rows["first"])]
        times = np.concatenate([rows["first"], rows["end"]]) / PER_S
        change = np.repeat([1.0, -1.0], len(rows))
        order = np.argsort(times, kind="stable")
        running = np.cumsum(change[order])[:-1] / self.run.replicas
        return running, np.diff(times[order])


def priced(lowered: Lowered, step: StepModel) -> Lowered:
    """The same run with other step times in its only pool."""
    plan: PoolPlan = lowered.pools[0]
    batches = np.arange(len(plan.base), dtype=np.float64)
    tokens = np.arange(len(plan.prompt), dtype=np.float64)
    load = step.front_load
    new = replace(
        plan,
        base=_ticks(step.host_s + table(step.batches, step.base_s, batches)),
        slope=_ticks(table(step.batches, step.slope_s_per_token, batches)),
        prompt=_ticks(step.prefill_steps_s(tokens)),
        context=ticks(step.prefill_s_per_token_context),
        front=ticks_of(np.array(step.front_samples_s or (step.front_s,))),
        front_load=np.array([calls for calls, _ in load], dtype=np.int64),
        front_factor=np.array([factor for _, factor in load], dtype=np.float64),
    )
    return replace(lowered, pools=(new,))


def _ticks(seconds: Floats) -> Ints:
    return ticks_of(np.clip(seconds, 0.0, LONGEST_STEP_S))


def _fleet(run: SweepRun) -> Fleet:
    """The run's engine with step times to be replaced, and its client."""
    blank = StepModel(
        batches=(0,),
        base_s=(0.01,),
        slope_s_per_token=(0.0,),
        prefill_s_per_token=1e-5,
        provenance=Provenance.ASSUMED,
        source="to be replaced",
    )
    closed = run.arrivals == Arrivals.CLOSED
    return Fleet(
        engine=EngineModel(
            step=blank,
            replicas=run.replicas,
            max_num_seqs=run.max_num_seqs,
            max_num_batched_tokens=max(run.max_num_batched_tokens, run.max_num_seqs),
            block_size=run.block_size,
            kv_blocks=run.kv_blocks or PLENTY,
            scheduler=run.scheduler or Scheduler(),
            router=Router(policy=RouterPolicy.LEAST_LOADED),
        ),
        client=Client(
            closed_loop=run.concurrency if closed else None,
            max_in_flight=None if closed else run.concurrency,
        ),
    )


def _stream(run: SweepRun, seed: int) -> Stream:
    count = len(run)
    cached = np.zeros(count, np.int64) if run.cached is None else run.cached
    names = pa.nulls(count, pa.string())
    zeros = pa.array(np.zeros(count, np.int64))
    ids = pa.array([f"{i:07d}" for i in range(count)])
    requests = [ids, pa.array(_arrivals(run, seed)), names, names, names, zeros, names]
    steps = [
        pa.array(np.arange(count)),
        zeros,
        pa.repeat(StepKind.CALL.value, count),
        pa.repeat(Stage.DECODE.value, count),
        pa.repeat("model", count),
        pa.array(np.zeros(count)),
        pa.repeat("default", count),
        pa.array(run.inputs, pa.int64()),
        pa.array(cached, pa.int64()),
        pa.array(run.outputs, pa.int64()),
        zeros,
    ]
    return Stream(pa.table(requests, schema=STREAM_REQUESTS), pa.table(steps, schema=STREAM_STEPS))


def _arrivals(run: SweepRun, seed: int) -> Floats:
    """Seconds. Gaps of random arrivals have their mean exactly: whether a draw came in faster or
    slower than it was told to is luck that the measured run had otherwise."""
    count = len(run)
    if run.arrivals == Arrivals.RECORDED and run.times_s is not None:
        return np.asarray(run.times_s - run.times_s.min(), dtype=np.float64)
    if run.rate_per_s is None or run.arrivals not in (Arrivals.POISSON, Arrivals.CONSTANT):
        return np.zeros(count)
    if run.arrivals == Arrivals.CONSTANT:
        return np.arange(count) / run.rate_per_s
    gaps = np.random.default_rng([seed, count]).exponential(1 / run.rate_per_s, count)
    gaps *= 1 / (run.rate_per_s * gaps.mean())
    return np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
