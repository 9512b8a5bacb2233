"""A measured row and a step model to the row's figures: the same finite run, simulated.

Arrivals, lengths, the client's cap and the number of requests are the row's; nothing is compared
with a steady state. Poisson arrivals are drawn anew for each seed, and figures are means of seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity import catalogue
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import memory
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.policies import Client
from sojourn.capacity.records import Fleet, StepModel, fast_and_slow
from sojourn.errors import SojournError
from sojourn.interval import Excuse
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream

from .engines import Settings, settings
from .figures import figures
from .rows import Arrivals, Floats, Load, Row

Source = Callable[[ModelSpec, Gpu, Row, float], StepModel | Excuse]
"""Model, card, row and mean context to step times."""
SEEDS: Final = 3
ENOUGH: Final = 4000
"""Requests in all seeds together beyond which no further seed is run."""
KERNEL: Final = "kernel"


@dataclass(frozen=True)
class Predicted:
    """Figures of a row, the ends of their 80% interval where the step model has one, and what had
    to be assumed."""

    mid: dict[str, float]
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: str = ""


def predict(row: Row, source: Source) -> Predicted | Excuse:
    """The row's figures with the step times of a source, or why there are none."""
    try:
        model, gpu = catalogue.model(row.model), catalogue.gpu(row.gpu)
    except SojournError:
        return Excuse(reason=unknown(row))
    if set(row.measured) == {"kv_tokens"}:
        return _kv(row, model, gpu)
    try:
        step = source(model, gpu, row, mean_context(row.load))
        if isinstance(step, Excuse):
            return step
        return run(row, step, settings(row, model, gpu))
    except SojournError as error:
        return Excuse(reason=f"refused: {error}")


def unknown(row: Row) -> str:
    """Which name of the row the catalogue does not have."""
    try:
        catalogue.model(row.model)
    except SojournError:
        return f"no such model in the catalogue: {row.model}"
    return f"no such accelerator in the catalogue: {row.gpu}"


def run(row: Row, step: StepModel, engine: Settings) -> Predicted:
    """The row's figures with these step times, and with those at the ends of their spread."""
    mid = _figures(row, step, engine)
    ends = fast_and_slow(step)
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    if ends is not None:
        fast, slow = (_figures(row, end, engine) for end in ends)
        for name, value in mid.items():
            told = [value, fast.get(name, value), slow.get(name, value)]
            low[name], high[name] = min(told), max(told)
    return Predicted(mid, low, high, engine.notes, step.source)


def mean_context(load: Load) -> float:
    """Mean context of a decoding sequence, tokens: requests count as long as they write."""
    weight = np.maximum(load.outputs, 1).astype(np.float64)
    return float(np.average(load.inputs + load.outputs / 2, weights=weight))


def _kv(row: Row, model: ModelSpec, gpu: Gpu) -> Predicted | Excuse:
    try:
        told = memory(model, gpu, row.deployment)
    except SojournError as error:
        return Excuse(reason=f"refused: {error}")
    return Predicted({"kv_tokens": float(told.kv_tokens)}, source=told.source)


def _figures(row: Row, step: StepModel, engine: Settings) -> dict[str, float]:
    """Means over seeds; one run where nothing is drawn or the run is long."""
    load = row.load
    drawn = load.arrivals is Arrivals.POISSON
    seeds = min(SEEDS, max(1, -(-ENOUGH // len(load.inputs)))) if drawn else 1
    told = [one_run(row, step, engine, seed) for seed in range(seeds)]
    return {
        name: float(np.mean([each[name] for each in told]))
        for name in told[0]
        if all(name in each for each in told)
    }


def one_run(row: Row, step: StepModel, engine: Settings, seed: int) -> dict[str, float]:
    """The row simulated once."""
    load = row.load
    closed = load.arrivals is Arrivals.CLOSED
    client = Client(
        closed_loop=load.concurrency if closed else None,
        max_in_flight=None if closed else load.concurrency,
    )
    fleet = Fleet(engine=engine.engine(step), client=client)
    scenario = Scenario(stream(load, arrivals(load, seed)), fleet, seed)
    made = simulate(scenario, engine=KERNEL)
    return figures(made, load.inputs, skip=load.skip, wanted=frozenset(row.measured))


def arrivals(load: Load, seed: int) -> Floats:
    """Times of sending, seconds from 0."""
    count = len(load.inputs)
    if load.arrivals is Arrivals.RECORDED:
        if load.times_s is None or len(load.times_s) != count:
            raise ValueError("recorded arrivals need one time for each request")
        return load.times_s - load.times_s[0]
    if load.arrivals in (Arrivals.POISSON, Arrivals.CONSTANT):
        if not load.rate_per_s:
            raise ValueError(f"{load.arrivals} arrivals need a rate")
        if load.arrivals is Arrivals.CONSTANT:
            return np.arange(count) / load.rate_per_s
        gaps = np.random.default_rng(seed).exponential(1 / load.rate_per_s, count)
        return np.cumsum(gaps) - gaps[0]
    return np.zeros(count)


def stream(load: Load, arrival_s: Floats) -> Stream:
    """One call for each request."""
    count = len(load.inputs)
    rows, zeros = np.arange(count), np.zeros(count, np.int64)
    cached = zeros if load.cached is None else load.cached
    none = pa.nulls(count, pa.string())

    def same(value: str) -> pa.Array:
        return pa.repeat(pa.scalar(value), count)

    requests = {
        "request_id": pa.array(rows).cast(pa.string()),
        "arrival_s": arrival_s,
        **dict.fromkeys(("session_id", "tenant", "route"), none),
        "priority": zeros,
        "bucket": same("short_chat"),
    }
    steps = {
        "request": rows,
        "group": zeros,
        "kind": same("call"),
        "stage": same("decode"),
        "name": same("model"),
        "service_s": np.zeros(count),
        "pool": same("default"),
        "input_tokens": np.maximum(load.inputs, 1),
        "cached_tokens": np.minimum(cached, np.maximum(load.inputs - 1, 0)),
        "output_tokens": np.maximum(load.outputs, 1),
        "image_tokens": zeros,
    }
    return Stream(pa.table(requests, schema=STREAM_REQUESTS), pa.table(steps, schema=STREAM_STEPS))
