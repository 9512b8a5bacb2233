"""A capacity answer small enough to read: every part of it once."""

from __future__ import annotations

from tests.plan.conftest import make_engine, station
from tests.report.documents import interval

from sojourn.capacity.records import CapacityModel, Fleet, Resource
from sojourn.config import Retry
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.plan.capacity_records import (
    CapacityAnswer,
    FlagMove,
    ReplicaOption,
    ReplicaPlan,
    StationNeed,
    Unfit,
)
from sojourn.plan.holding_records import KneePoint, Settled, Sustained
from sojourn.plan.records import Holding
from sojourn.records import Bottleneck
from sojourn.sim.stability import Trend


def resource(name, bottleneck, full, mean, peak, **more):
    fields = {
        "name": name,
        "bottleneck": bottleneck,
        "capacity_per_s": interval(full),
        "mean_load": mean,
        "peak_load": peak,
        "headroom": 1 - peak,
        "scale_by": f"more {name}",
        "provenance": Provenance.FITTED,
        "note": "as seen",
    }
    return Resource(**(fields | more))


def model():
    fleet = Fleet(
        engine=make_engine(),
        stations={"kb": station("kb", "retrieval", [0.5] * 20, 4)},
        retry=Retry(attempt_timeout_s=5.0, max_attempts=3),
    )
    return CapacityModel(
        fleet=fleet,
        resources=(
            resource("engine time", Bottleneck.DECODE_BANDWIDTH, 8.0, 0.5, 0.9),
            resource("kb", Bottleneck.RETRIEVAL, 20.0, 0.2, 0.36),
            resource("retry budget", Bottleneck.RETRY_AMPLIFICATION, 2.7, 1.5, 2.7),
        ),
        engine_wait_s=0.25,
        notes=("Engine step time: made for the test.",),
        warnings=("Step times are known for batches of 1 to 8",),
    )


def settled(trend=Trend.STABLE, days=8):
    return Settled(
        trend=trend,
        requests=8_000,
        days=days,
        arrival_per_s=5.0,
        growth=Interval(low=-0.002, mid=0.001, high=0.004, confidence=0.95),
        in_flight=12,
    )


def holding(factor=1.25):
    knee = ((0.5, 1.0, 1.0), (1.0, 1.4, 1.0), (1.25, 2.0, 0.96), (1.5, 9.0, 0.6), (2.0, 60.0, 0.1))
    points = tuple(
        KneePoint(
            load_factor=load,
            offered_per_s=4.0 * load,
            p50_s=p99 / 2,
            p99_s=p99,
            ttft_p99_s=p99 / 4,
            attainment=share,
            throughput_per_s=min(4.0 * load, 5.5),
            good_per_s=min(4.0 * load, 5.5) * share,
        )
        for load, p99, share in knee
    )
    return Holding(
        load_factor=interval(factor, 0.04),
        rate_per_s=interval(4.0 * factor, 0.04),
        breaks="short_chat: 94.2% of its requests end within 2 s, 94.2% meet every target"
        " (95.0% needed)",
        binds="engine time (97% used in the peak window)",
        curve=tuple((load, p99, share) for load, p99, share in knee),
        points=points,
        settled=settled(),
        replications=8,
    )


def flags():
    change = Interval(low=0.2, mid=0.25, high=0.3)
    none = Interval(low=-0.01, mid=0.0, high=0.01)
    return (
        FlagMove(flag="max_num_seqs", now="16", then="32", change=change),
        FlagMove(flag="max_num_batched_tokens", now="2,048", then="4,096", change=none),
        FlagMove(
            flag="gpu_memory_utilization",
            now="?",
            then="other shares",
            change=Excuse(reason="The hardware is not named", collect=("set it",)),
        ),
    )


def option(gpu, replicas, price, **more):
    fields = {
        "gpu": gpu,
        "tensor_parallel": 1,
        "gpus_per_replica": 1,
        "per_replica_per_s": interval(4.0),
        "replicas": replicas,
        "replicas_low": replicas - 1,
        "replicas_high": replicas + 1,
        "headroom": 0.17,
        "simulated": True,
        "confirmed": settled(days=0),
        "usd_per_hour": price,
        "usd_per_million_tokens": price / 10,
        "usd_per_success": price / 36_000,
        "source": "roofline: a model on a card",
    }
    return ReplicaOption(**(fields | more))


def replicas():
    return ReplicaPlan(
        target_per_s=10.0,
        headroom=0.1,
        options=(
            option("H100-SXM", 3, 7.5),
            option("L40S", 9, 9.0, simulated=False, confirmed=None),
            option("own card", 5, 0.0, confirmed=None, usd_per_hour=None,
                   usd_per_million_tokens=None, usd_per_success=None),
        ),
        unfit=(Unfit(gpu="T4", tensor_parallel=8, excuse=Excuse(reason="does not fit")),),
        stations=(StationNeed(name="kb", now=4, needed=7),),
        notes=("The target is taken as the rate at the peak.",),
    )  # fmt: skip


def answer(**more):
    fields = {
        "model": model(),
        "holding": holding(),
        "sustained": Sustained(
            rate_per_s=interval(5.2, 0.03), settled=settled(days=0), replications=4
        ),
        "flags": flags(),
        "replicas": replicas(),
        "traps": ("GPU utilisation is not load: 93% of the time, 66% of what it carries",),
    }
    return CapacityAnswer(**(fields | more))
