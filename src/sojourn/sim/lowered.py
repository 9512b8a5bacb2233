"""`Lowered`: a scenario in whole numbers, as both engines run it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.capacity.policies import AdmissionPolicy, LoadMetric, Order, RouterPolicy, ScaleMetric
from sojourn.sim.ticks import Ticks
from sojourn.workload.profile_records import StepKind

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

STATION, CALL, DELAY = (
    tuple(StepKind).index(k) for k in (StepKind.STATION, StepKind.CALL, StepKind.DELAY)
)
ORDERS, ROUTERS, SCALES = tuple(Order), tuple(RouterPolicy), tuple(ScaleMetric)
METRICS, ADMISSIONS = tuple(LoadMetric), tuple(AdmissionPolicy)


@dataclass(frozen=True)
class Requests:
    """One entry per request. `first_step` has one more: steps of row r are first[r]..first[r+1].
    `priority` is the stream's with its sign changed: engines serve the lowest first."""

    arrival: Ticks
    identity: Hashes
    session: Hashes
    priority: Ints
    first_step: Ints


@dataclass(frozen=True)
class Steps:
    """One entry per step of a program. Hashes of step s: first_hash[s]..first_hash[s+1] of
    `hashes`, numbered in the order in which they first occur."""

    group: Ints
    kind: Ints
    station: Ints
    pool: Ints
    service: Ticks
    prompt: Ints
    cached: Ints
    output: Ints
    image_tokens: Ints
    image: Ints
    first_hash: Ints
    hashes: Ints


@dataclass(frozen=True)
class ScalerPlan:
    """Autoscaler; target and metric in thousandths."""

    metric: int
    target: int
    every: int
    cold_start: int
    least: int
    most: int
    after: int
    tolerance: int


@dataclass(frozen=True)
class EncoderPlan:
    """Encoder of every replica of a pool."""

    servers: int
    base: int
    per_token: int
    cache: int


@dataclass(frozen=True)
class PoolPlan:
    """A pool of engine replicas. `first` is its first replica's number over all pools; `room` how
    many there can be. `base` and `slope` by number of decodes, `prompt` by prompt tokens of a
    step. With a draft, `base` is that of verifying. `accept` in 2^-53. -1: none."""

    first: int
    replicas: int
    room: int
    seqs: int
    budget: int
    block: int
    blocks: int
    base: Ticks
    slope: Ticks
    prompt: Ticks
    context: int
    front: Ticks
    order: int
    cap: int
    full_input: bool
    watermark: int
    unit: int
    accept: Ints
    router: int
    load_weight: int
    prefill_pool: int
    transfer: int
    transfer_token: int
    encoder: EncoderPlan | None
    scaler: ScalerPlan | None
    abort: bool
    front_load: Ints
    front_factor: npt.NDArray[np.float64]


@dataclass(frozen=True)
class StationPlan:
    """A station. `queue` is the number of the queue it shares; -1: no such limit."""

    queue: int
    timeout: int
    stops: bool
    optional: bool
    queue_limit: int
    interval: int
    burst: int
    samples: Ticks
    drift_start: Ticks
    drift_factor: npt.NDArray[np.float64]


@dataclass(frozen=True)
class RetryPlan:
    """`backoff[k]`: wait after attempt k (k = 0 the first). Budget in thousandths of a retry."""

    timeout: int
    most: int
    backoff: Ticks
    jitter: float
    on_timeout: bool
    on_error: bool
    degrade: bool
    budget_gain: int
    budget_most: int


@dataclass(frozen=True)
class ClientPlan:
    """-1: no closed loop, no cap."""

    closed: int
    cap: int
    think: Ticks


@dataclass(frozen=True)
class AdmissionPlan:
    """`wait` in ticks."""

    policy: int
    metric: int
    low: float
    high: float
    wait: int


@dataclass(frozen=True)
class RungPlan:
    """`skip`: bit s for station s. -1: no such limit; `shed_from` NEVER: none is shed."""

    above: float
    below: float
    skip: int
    output: int
    attempts: int
    shed_from: int


@dataclass(frozen=True)
class LadderPlan:
    """The degrade ladder."""

    metric: int
    every: int
    rungs: tuple[RungPlan, ...]


@dataclass(frozen=True)
class Lowered:
    """A scenario in whole numbers. `servers[q]` of station queue q, -1 without limit."""

    origin_s: float
    seed: int
    requests: Requests
    steps: Steps
    pools: tuple[PoolPlan, ...]
    pool_names: tuple[str, ...]
    stations: tuple[StationPlan, ...]
    station_names: tuple[str, ...]
    servers: Ints
    retry: RetryPlan
    client: ClientPlan
    admission: AdmissionPlan | None
    ladder: LadderPlan | None
    sample_every: int

    @property
    def replicas(self) -> int:
        """Replicas over all pools, those an autoscaler may start included."""
        return sum(pool.room for pool in self.pools)
