"""`Breakdown` (where the time goes) and `Diagnosis` (what limits it), as records."""

from __future__ import annotations

from pydantic import Field

from sojourn.interval import Excuse, Interval
from sojourn.records import Bottleneck, Layer, Record

ALL = "all"
"""Name under which figures over every bucket are kept."""


class Tail(Record):
    """One percentile of one bucket, split over the stages.

    `stages` are seconds and sum to `e2e_s.mid`: share of stage i = E[stage_i | E2E near the
    percentile] (Euler allocation of a quantile).
    """

    bucket: str
    percentile: float
    requests: int = Field(description="Requests of the bucket.")
    near: int = Field(description="Requests near the percentile, over which the mean was taken.")
    e2e_s: Interval
    stages: dict[str, float]


class TimeoutMass(Record):
    """Attempts or calls that ended at nearly the same, round duration: a timeout's mark."""

    value_s: float
    share: float = Field(description="Of the failed attempts (or of all calls where none failed).")
    count: int
    where: str = Field(description="attempt, call, or a station's name")


class RetryReport(Record):
    """Retry amplification."""

    attempts_per_request: Interval
    peak_attempts_per_request: float
    calm_attempts_per_request: float
    retry_share_of_attempts: float
    wasted_share_of_engine_tokens: float | None = None
    wasted_share_of_time: float = Field(
        description="Time in attempts that failed, of the time in all attempts."
    )
    timeouts: tuple[TimeoutMass, ...] = ()
    budget_left_at_engine: dict[str, float] = Field(
        default_factory=dict,
        description="Share of the attempt's timeout left at its first model call: p05, p50, and"
        " `under_half` = share of calls with less than half left; `never` = share of attempts"
        " that ended without reaching it.",
    )
    timeout_s: float | None = Field(
        None, description="Time limit of an attempt: as configured, else as seen in the data."
    )
    calm_failed_share: float | None = Field(
        None, description="Attempts that failed, calm windows; None where the load hardly varies."
    )
    peak_failed_share: float = Field(0.0, description="Attempts that failed, peak window.")
    ok_attempt_p95_s: float | None = Field(
        None, description="P95 length of the attempts that succeeded."
    )
    provenance: str = "measured"


class EngineUse(Record):
    """How loaded the engine was, from samples and calls. Shares of time in the peak window."""

    busy_share: float | None = None
    slots_full_share: float | None = None
    waiting_share: float | None = Field(None, description="Time with requests waiting.")
    kv_usage_p95: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    preemptions: float | None = None
    prefix_hit_share: float | None = None
    host_cpu_p95: float | None = None
    busy_from: str = Field(
        "", description="What `busy_share` rests on: device, running (a batch existed) or calls."
    )
    slots: float | None = Field(
        None, description="Batch slots of a replica, as configured or seen as a plateau."
    )
    in_flight_max: float | None = Field(None, description="Most calls in flight at once.")
    in_flight_max_share: float | None = Field(
        None, description="Time with that many in flight (a plateau: somebody limits)."
    )
    head_of_line_share: float | None = Field(
        None, description="Part of short calls' wait during which a long prompt was prefilled."
    )
    head_of_line_lift: float | None = Field(
        None, description="That part over the share of time in which long prompts are prefilled."
    )


class Breakdown(Record):
    """Where requests spend their time."""

    requests: int
    percentiles: tuple[float, ...]
    tails: tuple[Tail, ...]
    mean_stages: dict[str, dict[str, float]] = Field(
        description="Mean seconds per stage, by bucket (and `all`)."
    )
    stations: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description="By span name: stage-level figures mean, p50, p95, p99 (seconds), visits.",
    )
    peak_tails: tuple[Tail, ...] = Field((), description="As `tails`, requests of the peak window.")
    retries: RetryReport | None
    engine: EngineUse
    tail_facts: dict[str, dict[str, float]] = Field(
        default_factory=dict,
        description="By bucket, as shares of the largest percentile: `failed_attempts` (time in"
        " attempts that failed and were tried again, and backoff), `removable` (engine time that"
        " twice the engine capacity would save), `prefill_stretch` and `decode_stretch` (part of"
        " that stage that comes from sharing the engine), `inferred` (split by inference),"
        " `station_wait` (time waiting for a worker outside the engine; absent where unknown).",
    )
    station_stages: dict[str, str] = Field(
        default_factory=dict, description="Stage of each station, by span name."
    )
    notes: tuple[str, ...] = ()

    def tail(self, bucket: str, percentile: float) -> Tail | None:
        """The tail of a bucket at a percentile, or None where it was not computed."""
        for tail in self.tails:
            if tail.bucket == bucket and abs(tail.percentile - percentile) < 1e-9:
                return tail
        return None


class Evidence(Record):
    """One fact a verdict rests on. `value` in the unit the statement says."""

    statement: str
    value: float | None = None
    supports: bool
    rule: str = Field(description="Name of the documented rule that read the fact.")


class Verdict(Record):
    """A bottleneck, how sure, and why."""

    bottleneck: Bottleneck
    layer: Layer | None
    bucket: str
    confidence: float
    share_of_p99: float | None = Field(None, description="Part of the P99 it explains.")
    evidence: tuple[Evidence, ...]
    confirm: tuple[str, ...] = Field((), description="What would confirm or refute it.")
    opens: tuple[str, ...] = Field((), description="Kinds of action it calls for.")


class Diagnosis(Record):
    """Verdicts, surest and largest first; `excuse` is set when the top one is
    `insufficient_evidence`."""

    verdicts: tuple[Verdict, ...]
    by_bucket: dict[str, Bottleneck] = Field(default_factory=dict)
    engine_bound: bool | None = Field(
        None, description="Whether more engine capacity would shorten the tail; None: unknown."
    )
    excuse: Excuse | None = None

    @property
    def top(self) -> Verdict:
        """The first verdict."""
        return self.verdicts[0]
