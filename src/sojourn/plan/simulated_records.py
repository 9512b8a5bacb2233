"""`Simulated`: what the replications of a scenario came to, as a record."""

from __future__ import annotations

from pydantic import Field

from sojourn.attribution.records import Tail
from sojourn.interval import Interval
from sojourn.records import Record
from sojourn.sim.stability import Stability


class BucketResult(Record):
    """One bucket. Latencies in seconds, figure (mean, p50, p95, p99) to interval; they are empty
    where the system is unstable: they would grow with the length of the run."""

    bucket: str
    requests: float = Field(description="Per replication.")
    failed_share: Interval
    shed_share: Interval
    degraded_share: Interval
    attempts: Interval
    e2e_s: dict[str, Interval] = Field(default_factory=dict)
    ttft_s: dict[str, Interval] = Field(default_factory=dict)
    tpot_s: dict[str, Interval] = Field(default_factory=dict)
    attainment: Interval | None = Field(None, description="Requests that meet every target.")


class ResourceResult(Record):
    """A pool or a station. Shares are of the time in which requests arrive."""

    name: str
    kind: str = Field(description="pool or station")
    busy: float | None = Field(
        None, description="pool: a step is under way; station: servers at work, None: no limit."
    )
    slots: float | None = Field(None, description="pool: batch slots in use.")
    kv: float | None = Field(None, description="pool: KV blocks in use, mean.")
    kv_most: float | None = Field(None, description="pool: KV blocks in use, at most.")
    wait_s: float | None = Field(None, description="Mean wait of a call or visit.")
    waiting_at_end: float = Field(
        0.0, description="Calls or visits that wait when the last request arrives."
    )
    visits: float = Field(description="Calls or visits per replication.")
    refused: float = 0.0
    timed_out: float = 0.0
    preemptions: float = 0.0
    hit_share: float | None = Field(None, description="pool: prompt tokens found in cache.")
    replicas: float | None = Field(None, description="pool: mean replicas that are up.")


class Moment(Record):
    """A stretch of the time in which requests arrive, over all replications."""

    start_s: float
    end_s: float
    requests: float
    failed_share: float
    attempts: float
    in_flight: float = Field(description="At its end.")
    e2e_p50_s: float | None
    e2e_p99_s: float | None


class Change(Record):
    """What a controller did, in the first replication."""

    t_s: float
    what: str
    which: str


class Simulated(Record):
    """What a scenario came to.

    Intervals are over replications (Student), of a single one over its batches; a figure that is
    exact has no interval because there was too little for one.
    """

    requests: int
    replications: int
    confidence: float
    engine: str
    seeds: tuple[int, ...]
    warm_up_s: float
    unstable: bool
    stability: tuple[Stability, ...] = Field(description="By replication.")
    saturated: str | None = Field(None, description="Unstable: where most wait.")
    buckets: tuple[BucketResult, ...]
    resources: tuple[ResourceResult, ...]
    tails: tuple[Tail, ...] = Field(
        (), description="Where the time goes, first replication; empty where unstable."
    )
    moments: tuple[Moment, ...] = ()
    changes: tuple[Change, ...] = ()
    change_counts: dict[str, float] = Field(
        default_factory=dict, description="Controllers' actions per replication."
    )
    counts: dict[str, int] = Field(description="Ends of the requests of all replications.")
    notes: tuple[str, ...] = ()
