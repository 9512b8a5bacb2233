"""A tiny continuous-batching loop: the known truth that calibration is tested against.

Decodes first, then prompt chunks within the token budget, first come first served; every
running call gets one token per step; a step's cost falls on everyone in it. Deliberately
independent of `sojourn.sim`, which is built on what calibration fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import StepModel
from sojourn.trace.tables import Tables, conform


@dataclass
class Load:
    """Calls to come: arrival, prompt, cached part, output, moment of cancellation (inf: none)."""

    arrival: np.ndarray
    input: np.ndarray
    output: np.ndarray
    cached: np.ndarray = field(default_factory=lambda: np.zeros(0))
    cancel: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self):
        n = len(self.arrival)
        if not len(self.cached):
            self.cached = np.zeros(n)
        if not len(self.cancel):
            self.cancel = np.full(n, np.inf)


class Loop:
    """Runs a load to the end. `ahead`: a step is scheduled while the one before it runs, as
    vLLM does with asynchronous scheduling. `front`: the front end's time of each call, else all
    take the step model's. Times are NaN where something never happened."""

    def __init__(
        self, load, step, *, seqs=256, budget=2048, noise=0.0, ahead=False, seed=0, front=None
    ):
        self.load, self.step, self.seqs, self.budget = load, step, seqs, budget
        self.noise, self.ahead, self.rng = noise, ahead, np.random.default_rng(seed)
        n = len(load.arrival)
        self.reached = load.arrival + (step.front_s if front is None else front)
        self.scheduled, self.first, self.end = (np.full(n, np.nan) for _ in range(3))
        self.left = (load.input - load.cached).astype(float)
        self.written = np.zeros(n)
        self.queue = [int(i) for i in np.argsort(self.reached, kind="stable")]
        self.running: list[int] = []
        self.now = self.seen = float(load.arrival.min())
        self.steps = 0
        while self.queue or self.running:
            self._turn()

    def _turn(self):
        self._drop()
        decodes = [i for i in self.running if self.left[i] == 0]
        self._admit(self.budget - len(decodes))
        tokens, attended, prompts = 0, 0.0, []
        room = self.budget - len(decodes)
        for i in (i for i in self.running if self.left[i] > 0):
            take = min(self.left[i], room)
            done = self.load.input[i] - self.left[i]
            attended += ((done + take) ** 2 - done**2) / 2
            tokens, room = tokens + take, room - take
            prompts.append((i, take))
        if not decodes and not prompts:
            if self.queue:
                self.now = self.seen = max(float(self.reached[self.queue[0]]), self.now)
            return
        context = float(sum(self.load.input[i] + self.written[i] for i in decodes))
        took = self.step.step_s(len(decodes), context, int(tokens), attended)
        self.seen = self.now
        self.now += took * float(np.exp(self.noise * self.rng.standard_normal()))
        self.steps += 1
        self._finish(decodes, prompts)

    def _drop(self):
        for i in [i for i in self.running if self.load.cancel[i] <= self.now]:
            self.end[i] = self.load.cancel[i]
            self.running.remove(i)

    def _admit(self, room):
        room -= sum(self.left[i] for i in self.running)
        horizon = self.seen if self.ahead else self.now
        while self.queue and self.reached[self.queue[0]] <= horizon:
            i = self.queue[0]
            if self.load.cancel[i] <= self.now:
                self.end[i] = self.load.cancel[i]
                self.queue.pop(0)
                continue
            if len(self.running) >= self.seqs or room <= 0:
                break
            self.scheduled[i] = horizon
            room -= self.left[i]
            self.running.append(self.queue.pop(0))

    def _finish(self, decodes, prompts):
        self.written[decodes] += 1
        for i, take in prompts:
            self.left[i] -= take
            if self.left[i] == 0:
                self.first[i], self.written[i] = self.now, 1
        for i in [i for i in self.running if self.left[i] == 0]:
            if self.written[i] >= self.load.output[i]:
                self.end[i] = self.now
                self.running.remove(i)


def calls_table(load, ran, *, scheduled=True, replica="r0"):
    """The run as call rows; cancelled calls tell neither tokens nor first token, as in life."""
    cancelled = np.isfinite(load.cancel) & (ran.end == load.cancel)
    lost = cancelled | ~np.isfinite(ran.first)

    def whole(values):
        return pa.array(values.astype(np.int64), mask=lost)

    def seconds(values, gone):
        return pa.array(values, mask=gone | ~np.isfinite(values))

    n = len(load.arrival)
    ids = [f"c{replica}{i}" for i in range(n)]
    return pa.table(
        {
            "call_id": ids,
            "request_id": ids,
            "replica": [replica] * n,
            "input_tokens": whole(load.input),
            "cached_tokens": whole(load.cached),
            "output_tokens": whole(load.output),
            "arrival_s": load.arrival,
            "scheduled_s": seconds(ran.scheduled, lost | (not scheduled)),
            "first_token_s": seconds(ran.first, lost),
            "end_s": seconds(ran.end, np.zeros(n, dtype=bool)),
            "status": np.where(lost, "cancelled", "ok"),
        }
    )


def tables_of(*calls):
    """Tables with these calls."""
    return Tables(calls=pa.concat_tables([conform("calls", part) for part in calls]))


def truth(**change):
    """A step model with every cost in it."""
    values = {
        "batches": (0, 100),
        "base_s": (0.010, 0.016),
        "slope_s_per_token": (2.5e-7, 2.5e-7),
        "prefill_s_per_token": 4e-5,
        "prefill_s_per_token_context": 3e-9,
        "front_s": 0.004,
        "provenance": "assumed",
        "source": "test",
    }
    return StepModel(**{**values, **change})


def poisson_load(rate, calls, seed=0, *, longest=4000, output=400):
    """Poisson arrivals, prompts and outputs spread over a wide range."""
    rng = np.random.default_rng(seed)
    return Load(
        arrival=np.cumsum(rng.exponential(1 / rate, calls)),
        input=np.round(np.exp(rng.uniform(np.log(20), np.log(longest), calls))),
        output=rng.integers(2, output, calls).astype(float),
    )
