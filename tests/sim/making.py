"""Streams and fleets for tests, built by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel, Fleet, StationModel, StepModel
from sojourn.config import Retry
from sojourn.interval import Provenance
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import ENGINES
from sojourn.workload.profile_records import Summary
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream


def call(prompt, output, *, cached=0, group=0, name="m"):
    return {
        "group": group, "kind": "call", "stage": "decode", "name": name, "service_s": 0.0,
        "pool": "default", "input_tokens": prompt, "cached_tokens": cached,
        "output_tokens": output, "image_tokens": 0,
    }  # fmt: skip


def visit(name, service_s, *, group=0, stage="tool"):
    return {
        "group": group, "kind": "station", "stage": stage, "name": name,
        "service_s": service_s, "pool": "default", "input_tokens": 0, "cached_tokens": 0,
        "output_tokens": 0, "image_tokens": 0,
    }  # fmt: skip


def delay(seconds, *, group=0, stage="unexplained"):
    return {**visit("pause", seconds, group=group, stage=stage), "kind": "delay"}


def stream(arrivals, programs, *, ids=None):
    """`programs[i]` is the list of steps of request i."""
    count = len(arrivals)
    requests = pa.table(
        {
            "request_id": ids or [f"r{i}" for i in range(count)],
            "arrival_s": pa.array([float(a) for a in arrivals], pa.float64()),
            "session_id": pa.nulls(count, pa.string()),
            "tenant": pa.nulls(count, pa.string()),
            "route": pa.nulls(count, pa.string()),
            "priority": pa.array([0] * count, pa.int64()),
            "bucket": pa.array(["short_chat"] * count, pa.string()),
        },
        schema=STREAM_REQUESTS,
    )
    rows = [{"request": i, **step} for i, program in enumerate(programs) for step in program]
    return Stream(requests, pa.Table.from_pylist(rows, schema=STREAM_STEPS))


def summary(samples=(1.0,)):
    values = np.asarray(samples, dtype=float)
    p50, p90, p95, p99 = (float(v) for v in np.quantile(values, [0.5, 0.9, 0.95, 0.99]))
    mean = float(values.mean())
    return Summary(
        count=len(values), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99,
        max=float(values.max()), cv2=float(values.var() / mean**2) if mean else 0.0,
    )  # fmt: skip


def station(name, servers, *, samples=(1.0,), **options):
    return StationModel(
        name=name, stage="tool", servers=servers, service_s=summary(samples),
        service_samples_s=tuple(samples), **options,
    )  # fmt: skip


def step_model(*, base=0.01, per_decode=0.0, slope=0.0, token=0.0, context=0.0, front=0.0):
    """base + per_decode * B + slope * contexts + token * n + context * attended."""
    return StepModel(
        batches=(0, 1024), base_s=(base, base + 1024 * per_decode),
        slope_s_per_token=(slope, slope), prefill_s_per_token=token,
        prefill_s_per_token_context=context, front_s=front,
        provenance=Provenance.ASSUMED, source="test",
    )  # fmt: skip


def engine(step=None, *, replicas=1, seqs=64, budget=2048, block=16, blocks=100_000):
    return EngineModel(
        step=step or step_model(), replicas=replicas, max_num_seqs=seqs,
        max_num_batched_tokens=budget, block_size=block, kv_blocks=blocks,
    )  # fmt: skip


def fleet(engine_model=None, stations=(), **retry):
    return Fleet(
        engine=engine_model or engine(),
        stations={s.name: s for s in stations},
        retry=Retry(**retry),
    )


def scenario(arrivals, programs, the_fleet=None, *, seed=0, ids=None):
    return Scenario(stream(arrivals, programs, ids=ids), the_fleet or fleet(), seed)


def columns(table, *names):
    """Columns as lists, in the table's order."""
    return [table.column(name).to_pylist() for name in names]


def log_of(scenario, engine="reference"):
    """What an engine writes down."""
    return ENGINES[engine](lower(scenario))
