"""`Profile`: the request profile, as a record. What a team's traffic looks like, per bucket."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sojourn.interval import Interval, Provenance
from sojourn.records import Record


class Summary(Record):
    """A distribution in figures. `cv2` is variance over squared mean. Unit as the field says."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    cv2: float


class StepKind(StrEnum):
    """What a step of a request's program is."""

    STATION = "station"
    CALL = "call"
    DELAY = "delay"


class Step(Record):
    """One step of a request's program. Steps of equal `group` run at once, groups in order.

    `service_s` is time of work, without waiting for a worker (stations and delays);
    tokens are set on calls only.
    """

    group: int
    kind: StepKind
    stage: str
    name: str
    service_s: float = 0.0
    pool: str = "default"
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    image_tokens: int = 0


class Template(Record):
    """A whole program seen in the data: the unit that synthesis draws."""

    steps: tuple[Step, ...]
    tenant: str | None = None
    route: str | None = None
    priority: int = 0


class Window(Record):
    """Requests that arrived in [start_s, start_s + length_s)."""

    start_s: float
    length_s: float
    requests: int
    buckets: dict[str, int] = Field(
        default_factory=dict, description="Requests by bucket; empty where not counted."
    )


class Arrivals(Record):
    """How requests arrive. Rates are per second."""

    requests: int
    duration_s: float
    rate_per_s: float
    peak: Window
    cv_interarrival: float = Field(description="Standard deviation over mean of the gaps.")
    dispersion: dict[str, float] = Field(
        description="Variance over mean of counts in windows of 1s, 10s, 60s; 1 for Poisson."
    )
    windows: tuple[Window, ...]


class BucketProfile(Record):
    """One bucket. Lengths in tokens per request (calls summed; `input_call` is per call)."""

    name: str
    requests: int
    share: float
    rate_per_s: float
    peak_rate_per_s: float = Field(
        description="In the peak window of all requests, so that buckets add up to its rate."
    )
    input: Summary
    output: Summary
    input_call: Summary
    calls_per_request: float
    tool_rounds: float
    outside_s: Summary | None = Field(None, description="Time outside model calls, seconds.")
    image_share: float = Field(0.0, description="Requests with images or image tokens.")
    templates: tuple[Template, ...] = ()


class StationProfile(Record):
    """One part of the chain outside the engine."""

    name: str
    stage: str
    visits: int
    visits_per_request: float
    duration_s: Summary
    wait_s: Summary | None = None


class PrefixReuse(Record):
    """Prefix reuse. `hit_share` is of prompt tokens."""

    hit_share: float
    provenance: Provenance
    by_cache_tokens: dict[str, float] = Field(
        default_factory=dict, description="Hit share an LRU cache of so many tokens would reach."
    )
    ideal: float | None = Field(None, description="Hit share of an unlimited cache.")


class Concentration(Record):
    """Which share of requests takes which share of `basis` (largest first).

    basis: gpu_time, kv_token_seconds or cost.
    """

    basis: str
    curve: tuple[tuple[float, float], ...]
    top_10_percent: float
    provenance: Provenance


class Profile(Record):
    """The request profile of one table set."""

    arrivals: Arrivals
    buckets: dict[str, BucketProfile]
    stations: dict[str, StationProfile]
    models: dict[str, float]
    routes: dict[str, float]
    tenants: dict[str, float]
    long_context_share: float
    multimodal_share: float
    attempts_per_request: Interval
    prefix: PrefixReuse | None
    concentration: tuple[Concentration, ...]
    input_call: Summary | None = Field(None, description="Prompt tokens of a call, all buckets.")
    output_call: Summary | None = Field(None, description="Tokens a call writes, all buckets.")
    source: str = ""
