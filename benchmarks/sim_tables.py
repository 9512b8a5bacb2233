"""From a run's log to tables, and to what the SLO is judged on: processor seconds and memory.

    PYTHONPATH=src python benchmarks/sim_tables.py [requests]

The log is made up: a call for each request, as an engine would write it.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.plan.slo import judge
from sojourn.sim.legend import Legend
from sojourn.sim.log import ATTEMPTS, CALLS, CHANGES, ENDS, NONE, SAMPLES, VISITS, Log
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.ticks import PER_S
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream


def made_up(count: int) -> SimRun:
    """A run of `count` requests with a call each."""
    rng = np.random.default_rng(0)
    zeros, rows = np.zeros(count, np.int64), np.arange(count)
    requests = {
        "request_id": pa.array(rows).cast(pa.string()),
        "arrival_s": np.cumsum(rng.exponential(0.1, count)),
        **{name: pa.nulls(count, pa.string()) for name in ("session_id", "tenant", "route")},
        "priority": zeros,
        "bucket": pa.repeat("short_chat", count),
    }
    steps = {
        "request": rows,
        "group": zeros,
        **{
            name: pa.repeat(value, count)
            for name, value in (("kind", "call"), ("stage", "decode"), ("name", "model"))
        },
        "service_s": np.zeros(count),
        "pool": pa.repeat("default", count),
        "input_tokens": rng.integers(1, 2000, count),
        "cached_tokens": zeros,
        "output_tokens": rng.integers(1, 500, count),
        "image_tokens": zeros,
    }
    stream = Stream(
        pa.table(requests, schema=STREAM_REQUESTS), pa.table(steps, schema=STREAM_STEPS)
    )
    step = StepModel(
        batches=(0,), base_s=(0.01,), slope_s_per_token=(0.0,), prefill_s_per_token=0.0,
        provenance=Provenance.ASSUMED, source="benchmark",
    )  # fmt: skip
    engine = EngineModel(
        step=step, replicas=1, max_num_seqs=64, max_num_batched_tokens=2048, kv_blocks=100_000
    )
    scenario = Scenario(stream, Fleet(engine=engine))
    lowered = lower(scenario)
    return SimRun(scenario, _log(lowered.requests.arrival, rng), Legend.of(lowered), "made up")


def _log(arrival: np.ndarray, rng: np.random.Generator) -> Log:
    count = len(arrival)
    calls, ends, attempts = (np.zeros(count, kind) for kind in (CALLS, ENDS, ATTEMPTS))
    for name in ("encode", "encode_start", "moved", "resumed"):
        calls[name] = NONE
    calls["arrival"] = now = arrival
    for name, mean in (("queued", 0.01), ("scheduled", 0.1), ("first", 0.1), ("end", 3.0)):
        now = now + 1 + (rng.exponential(mean, count) * PER_S).astype(np.int64)
        calls[name] = now
    calls["request"] = attempts["request"] = np.arange(count)
    calls["written"] = 100
    ends["arrival"], ends["end"], ends["attempts"] = arrival, now, 1
    attempts["started"], attempts["ended"], attempts["backoff"] = arrival, now, NONE
    order = np.argsort(now)
    none = (np.zeros(0, kind) for kind in (VISITS, SAMPLES, CHANGES))
    visits, samples, changes = none
    return Log(ends, calls[order], visits, attempts[order], samples, changes)


def main() -> None:
    """Print one line for each table and for judging."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    run = made_up(count)
    config = Config.from_dict({"slo": {"default": {"ttft_s": 1.0, "e2e_s": 9.0}}})
    begin = time.process_time()
    judge(run, config)
    took = time.process_time() - begin
    print(f"judge           {count:>9,} requests {took:7.3f} s {count / took:>12,.0f} a second")
    for name in ("requests", "calls", "spans"):
        begin = time.process_time()
        table = getattr(run.tables, name)
        took = time.process_time() - begin
        print(
            f"{name:15} {table.num_rows:>9,} rows     {took:7.3f} s"
            f" {table.num_rows / took:>12,.0f} a second, {table.nbytes / count:.0f} bytes a request"
        )
    begin = time.process_time()
    judge(made_tables := run.tables, config)
    took = time.process_time() - begin
    print(f"judge by tables {made_tables.requests.num_rows:>9,} requests {took:7.3f} s")


if __name__ == "__main__":
    main()
