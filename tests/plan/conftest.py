"""Small cases built by hand: a stream, a fleet, a diagnosis."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sojourn.attribution.records import Diagnosis, Verdict
from sojourn.capacity.records import (
    CapacityModel,
    EngineModel,
    Fleet,
    Resource,
    StationModel,
    StepModel,
)
from sojourn.config import Config, Retry
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.plan.ranking import Case
from sojourn.records import LAYER_OF, Bottleneck
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.profile_records import Arrivals, Profile, Summary, Window
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream


def call(tokens, written, cached=0, image=0, group=0):
    return {
        "group": group, "kind": "call", "stage": "decode", "name": "model", "service_s": 0.0,
        "pool": "default", "input_tokens": tokens, "cached_tokens": cached,
        "output_tokens": written, "image_tokens": image,
    }  # fmt: skip


def visit(stage, name, seconds, group=0):
    return {
        "group": group, "kind": "station", "stage": stage, "name": name, "service_s": seconds,
        "pool": "default", "input_tokens": 0, "cached_tokens": 0, "output_tokens": 0,
        "image_tokens": 0,
    }  # fmt: skip


def make_stream(rows, priorities=None):
    """Rows of (arrival_s, bucket, steps), ascending by arrival."""
    requests = {
        "request_id": [f"r{i:05d}" for i in range(len(rows))],
        "arrival_s": [float(row[0]) for row in rows],
        "session_id": [None] * len(rows),
        "tenant": ["acme"] * len(rows),
        "route": ["chat"] * len(rows),
        "priority": priorities or [0] * len(rows),
        "bucket": [row[1] for row in rows],
    }
    steps = [{"request": i, **step} for i, row in enumerate(rows) for step in row[2]]
    return Stream(
        pa.table(requests, schema=STREAM_REQUESTS),
        pa.Table.from_pylist(steps, schema=STREAM_STEPS),
    )


def summary(values):
    v = np.asarray(values, dtype=float)
    p50, p90, p95, p99 = np.quantile(v, [0.5, 0.9, 0.95, 0.99])
    return Summary(
        count=v.size, mean=v.mean(), p50=p50, p90=p90, p95=p95, p99=p99, max=v.max(),
        cv2=v.var() / v.mean() ** 2 if v.mean() else 0.0,
    )  # fmt: skip


def station(name, stage, samples, servers, **more):
    return StationModel(
        name=name, stage=stage, servers=servers, service_s=summary(samples),
        service_samples_s=tuple(float(s) for s in samples[:500]), **more,
    )  # fmt: skip


def make_engine(**changes):
    step = StepModel(
        batches=(0, 1, 8, 32),
        base_s=(0.004, 0.010, 0.014, 0.030),
        slope_s_per_token=(0.0, 1e-7, 1e-7, 1e-7),
        prefill_s_per_token=5e-5,
        provenance=Provenance.ASSUMED,
        source="made for the test",
    )
    fields = {
        "step": step, "replicas": 1, "max_num_seqs": 16, "max_num_batched_tokens": 2048,
        "kv_blocks": 4000, "usd_per_replica_hour": 2.0,
    }  # fmt: skip
    return EngineModel(**(fields | changes))


def make_diagnosis(*named, engine_bound, share=0.5):
    verdicts = tuple(
        Verdict(
            bottleneck=b, layer=LAYER_OF[b], bucket="all", confidence=0.9, share_of_p99=share,
            evidence=(),
        )
        for b in named
    )  # fmt: skip
    excuse = None
    if named[0] is Bottleneck.INSUFFICIENT_EVIDENCE:
        excuse = Excuse(reason="Too few requests", collect=("record an hour",))
    return Diagnosis(verdicts=verdicts, engine_bound=engine_bound, excuse=excuse)


def make_profile(stream):
    n = stream.requests.num_rows
    window = Window(start_s=0.0, length_s=60.0, requests=n)
    arrivals = Arrivals(
        requests=n, duration_s=stream.duration_s, rate_per_s=n / max(stream.duration_s, 1e-9),
        peak=window, cv_interarrival=1.0, dispersion={"1s": 1.0}, windows=(window,),
    )  # fmt: skip
    return Profile(
        arrivals=arrivals, buckets={}, stations={}, models={}, routes={}, tenants={},
        long_context_share=0.0, multimodal_share=0.0,
        attempts_per_request=Interval.exact(1.0), prefix=None, concentration=(),
    )  # fmt: skip


def make_case(stream, fleet, diagnosis, config, **more):
    resource = Resource(
        name="retrieval kb", bottleneck=Bottleneck.RETRIEVAL,
        capacity_per_s=Interval(low=2.0, mid=2.2, high=2.5), mean_load=0.7, peak_load=1.0,
        headroom=0.0, scale_by="workers", provenance=Provenance.FITTED,
    )  # fmt: skip
    measured = simulate(Scenario(stream, fleet, seed=7)).tables
    return Case(
        tables=measured, stream=stream,
        capacity=CapacityModel(fleet=fleet, resources=(resource,), engine_wait_s=0.0),
        diagnosis=diagnosis, profile=make_profile(stream), config=config, **more,
    )  # fmt: skip


SLO = {
    "slo": {"default": {"e2e_s": 6.0, "percentile": 0.9, "max_error_share": 0.1}},
    "analysis": {"replications": 2, "peak_window_s": 20.0},
}


@pytest.fixture(scope="session")
def outside():
    """Retrieval is over its capacity at the peak and timeouts are retried; the engine idles."""
    rng = np.random.default_rng(3)
    calm, peak = rng.exponential(1 / 1.5, 60), rng.exponential(1 / 5.0, 240)
    arrivals = np.cumsum(np.concatenate([calm, peak, rng.exponential(1 / 1.5, 60)]))
    search = rng.lognormal(np.log(0.7), 0.8, 360)
    second = rng.lognormal(np.log(0.2), 0.6, 360)
    rows = [
        (t, "short_chat", [
            visit("retrieval", "kb", a, 0), visit("rerank", "second rank", b, 1),
            call(200, 30, group=2),
        ])
        for t, a, b in zip(arrivals, search, second, strict=True)
    ]  # fmt: skip
    fleet = Fleet(
        engine=make_engine(),
        stations={
            "kb": station("kb", "retrieval", search, 4),
            "second rank": station("second rank", "rerank", second, 2, optional=True),
        },
        retry=Retry(attempt_timeout_s=5.0, max_attempts=3, backoff_s=0.4, jitter=0.5),
    )
    diagnosis = make_diagnosis(
        Bottleneck.RETRY_AMPLIFICATION, Bottleneck.RETRIEVAL, engine_bound=False
    )
    return make_case(make_stream(rows), fleet, diagnosis, Config.from_dict(SLO))


@pytest.fixture(scope="session")
def inside():
    """The engine is over its capacity at the peak; nothing else takes time."""
    rng = np.random.default_rng(4)
    gaps = [rng.exponential(1 / 2, 40), rng.exponential(1 / 9.0, 260), rng.exponential(1 / 2, 40)]
    arrivals = np.cumsum(np.concatenate(gaps))
    rows = [
        (t, "long_output" if i % 5 == 0 else "short_chat", [
            visit("tool", "clock", 0.02, 0), call(int(n), int(m), group=1),
        ])
        for i, (t, n, m) in enumerate(
            zip(arrivals, rng.integers(200, 1200, 340), rng.integers(60, 160, 340), strict=True)
        )
    ]  # fmt: skip
    fleet = Fleet(
        engine=make_engine(max_num_seqs=8),
        stations={"clock": station("clock", "tool", [0.02] * 20, 8)},
        retry=Retry(attempt_timeout_s=120.0, max_attempts=2),
    )
    diagnosis = make_diagnosis(
        Bottleneck.QUEUE_ADMISSION, Bottleneck.DECODE_BANDWIDTH, engine_bound=True
    )
    return make_case(make_stream(rows), fleet, diagnosis, Config.from_dict(SLO))


@pytest.fixture(scope="session")
def build():
    """The builders, for tests that need a case of their own."""

    class Builders:
        call = staticmethod(call)
        visit = staticmethod(visit)
        stream = staticmethod(make_stream)
        station = staticmethod(station)
        engine = staticmethod(make_engine)
        diagnosis = staticmethod(make_diagnosis)
        profile = staticmethod(make_profile)
        case = staticmethod(make_case)

    return Builders
