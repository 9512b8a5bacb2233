"""Streams and fleets for tests, built by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel, Fleet, StationModel, StepModel
from sojourn.config import Retry
from sojourn.interval import Provenance
from sojourn.progress import silent
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import ENGINES
from sojourn.sim.ticks import PER_S
from sojourn.workload.profile_records import Summary
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_REQUESTS, STREAM_STEPS, Stream


def call(prompt, output, *, cached=0, group=0, name="m", **more):
    """`more`: pool, image_tokens, image_id, block_hashes."""
    return {
        "group": group, "kind": "call", "stage": "decode", "name": name, "service_s": 0.0,
        "pool": "default", "input_tokens": prompt, "cached_tokens": cached,
        "output_tokens": output, "image_tokens": 0, **more,
    }  # fmt: skip


def visit(name, service_s, *, group=0, stage="tool"):
    return {
        "group": group, "kind": "station", "stage": stage, "name": name,
        "service_s": service_s, "pool": "default", "input_tokens": 0, "cached_tokens": 0,
        "output_tokens": 0, "image_tokens": 0,
    }  # fmt: skip


def delay(seconds, *, group=0, stage="unexplained"):
    return {**visit("pause", seconds, group=group, stage=stage), "kind": "delay"}


def stream(arrivals, programs, *, ids=None, sessions=None, priorities=None):
    """`programs[i]` is the list of steps of request i."""
    count = len(arrivals)
    requests = pa.table(
        {
            "request_id": ids or [f"r{i}" for i in range(count)],
            "arrival_s": pa.array([float(a) for a in arrivals], pa.float64()),
            "session_id": pa.array(sessions or [None] * count, pa.string()),
            "tenant": pa.nulls(count, pa.string()),
            "route": pa.nulls(count, pa.string()),
            "priority": pa.array(priorities or [0] * count, pa.int64()),
            "bucket": pa.array(["short_chat"] * count, pa.string()),
        },
        schema=STREAM_REQUESTS,
    )
    rows = [{"request": i, **step} for i, program in enumerate(programs) for step in program]
    steps = pa.table({f.name: [r[f.name] for r in rows] for f in STREAM_STEPS}, schema=STREAM_STEPS)
    for field, default in zip(STREAM_IDENTITIES, (None, 0), strict=True):
        if any(field.name in row for row in rows):
            values = [row.get(field.name, default) for row in rows]
            steps = steps.append_column(field, pa.array(values, field.type))
    return Stream(requests, steps)


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


def engine(step=None, *, replicas=1, seqs=64, budget=2048, block=16, blocks=100_000, **more):
    return EngineModel(
        step=step or step_model(), replicas=replicas, max_num_seqs=seqs,
        max_num_batched_tokens=budget, block_size=block, kv_blocks=blocks, **more,
    )  # fmt: skip


def fleet(engine_model=None, stations=(), **retry):
    return Fleet(
        engine=engine_model or engine(),
        stations={s.name: s for s in stations},
        retry=Retry(**retry),
    )


def scenario(arrivals, programs, the_fleet=None, *, seed=0, **of_requests):
    """`of_requests`: ids, sessions, priorities."""
    return Scenario(stream(arrivals, programs, **of_requests), the_fleet or fleet(), seed)


def columns(table, *names):
    """Columns as lists, in the table's order."""
    return [table.column(name).to_pylist() for name in names]


def log_of(scenario, engine="reference"):
    """What an engine writes down."""
    return ENGINES[engine](lower(scenario), silent)


TIMES = ("t", "busy", "arrival", "end", "encode", "encode_start", "queued", "scheduled", "first",
         "moved", "resumed", "entered", "started", "ended", "backoff")  # fmt: skip


def told(rows, *names):
    """Rows of a log as tuples in the order of (request, attempt, place), as far as they have them;
    times in seconds since the origin, None where a thing did not happen. Exact: 2^-42 s are a
    whole power of two."""
    order = [rows[name] for name in ("place", "attempt", "request") if name in rows.dtype.names]
    chosen = rows[np.lexsort(order)] if order else rows
    columns = [chosen[name].tolist() for name in names]
    for place, name in enumerate(names):
        if name in TIMES:
            columns[place] = [None if v < 0 else v / PER_S for v in columns[place]]
    return list(zip(*columns, strict=True))
