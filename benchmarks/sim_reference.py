"""Requests per second of the simulator's engines, on synthetic streams.

    python benchmarks/sim_reference.py [--requests 5000] [--engine reference] [--repeat 3]

Three shapes, the same for every engine: `light` (chain of two stations and a call, a third of the
engine's capacity), `loaded` (one call each, batches near full) and `retrying` (a slow station
behind a deadline). Prints one line each: requests, simulated seconds, the best wall time of the
repeats, requests per second.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel, Fleet, StationModel, StepModel
from sojourn.config import Retry
from sojourn.interval import Provenance
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import ENGINES, simulate
from sojourn.workload.profile_records import Summary
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream

STEP = StepModel(
    batches=(0, 1, 64, 256),
    base_s=(0.004, 0.012, 0.016, 0.026),
    slope_s_per_token=(2e-8, 2e-8, 2e-8, 2e-8),
    prefill_s_per_token=4e-5,
    prefill_s_per_token_context=2e-9,
    front_s=0.004,
    provenance=Provenance.ASSUMED,
    source="benchmark",
)


@dataclass(frozen=True)
class Shape:
    """One synthetic stream: arrivals per second, tokens, and the chain around the call."""

    rate_per_s: float
    prompt: int
    output: int
    chain: bool
    retry: Retry = field(default_factory=Retry)


SHAPES = {
    "light": Shape(4.0, 600, 50, chain=True),
    "loaded": Shape(22.0, 600, 200, chain=False),
    "retrying": Shape(4.0, 600, 50, True, Retry(attempt_timeout_s=2.0, max_attempts=3)),
}


def make_stream(shape: Shape, count: int, seed: int = 0) -> Stream:
    """Poisson arrivals, exponential lengths."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / shape.rate_per_s, count))
    kinds = ["station", "call", "station"] if shape.chain else ["call"]
    per = len(kinds)
    is_call = np.tile([kind == "call" for kind in kinds], count)
    names = np.tile(["retrieval" if k == "station" else "model" for k in kinds], count)
    size = count * per
    prompt = 1 + rng.exponential(shape.prompt, size).astype(int)
    output = 1 + rng.exponential(shape.output, size).astype(int)
    requests = pa.table(
        {
            "request_id": [f"r{i}" for i in range(count)],
            "arrival_s": arrivals,
            **{name: pa.nulls(count, pa.string()) for name in ("session_id", "tenant", "route")},
            "priority": np.zeros(count, dtype=np.int64),
            "bucket": ["short_chat"] * count,
        },
        schema=STREAM_REQUESTS,
    )
    steps = pa.table(
        {
            "request": np.repeat(np.arange(count), per),
            "group": np.tile(np.arange(per), count),
            "kind": np.tile(kinds, count),
            "stage": np.where(is_call, "decode", "retrieval"),
            "name": names,
            "service_s": np.where(is_call, 0.0, rng.lognormal(-1.5, 1.0, size)),
            "pool": ["default"] * size,
            "input_tokens": np.where(is_call, prompt, 0),
            "cached_tokens": np.zeros(size, dtype=np.int64),
            "output_tokens": np.where(is_call, output, 0),
            "image_tokens": np.zeros(size, dtype=np.int64),
        },
        schema=STREAM_STEPS,
    )
    return Stream(requests, steps)


def make_fleet(shape: Shape) -> Fleet:
    """One replica and a station of four servers."""
    rng = np.random.default_rng(1)
    samples = tuple(float(v) for v in rng.lognormal(-1.5, 1.0, 200))
    blank = Summary(count=1, mean=0.4, p50=0.2, p90=0.8, p95=1.2, p99=2.3, max=5.0, cv2=1.7)
    station = StationModel(
        name="retrieval", stage="retrieval", servers=4, service_s=blank, service_samples_s=samples
    )
    engine = EngineModel(
        step=STEP, replicas=1, max_num_seqs=256, max_num_batched_tokens=2048, kv_blocks=20_000
    )
    return Fleet(engine=engine, stations={"retrieval": station}, retry=shape.retry)


def main() -> None:
    """Print one line per shape and engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--engine", action="append", choices=sorted(ENGINES))
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    for name, shape in SHAPES.items():
        scenario = Scenario(make_stream(shape, arguments.requests), make_fleet(shape))
        for engine in arguments.engine or ["reference"]:
            walls = []
            for _ in range(arguments.repeat):
                began = time.perf_counter()
                run = simulate(scenario, engine=engine)
                walls.append(time.perf_counter() - began)
            rate = arguments.requests / min(walls)
            print(
                f"{name:9} {engine:10} {arguments.requests:7} requests"
                f" {run.end_s:9.1f} simulated s {min(walls):7.3f} s {rate:9.0f} requests/s"
            )


if __name__ == "__main__":
    main()
