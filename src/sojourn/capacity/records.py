"""`CapacityModel` and its parts: what the fleet is made of and what each part can take."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from sojourn.capacity.policies import (
    Admission,
    Autoscaler,
    Client,
    Encoder,
    Ladder,
    PrefillPool,
    PrefixCache,
    Router,
    Scheduler,
    Speculative,
)
from sojourn.config import Retry
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.records import Bottleneck, Record
from sojourn.trace.arrays import Floats
from sojourn.workload.profile_records import Summary


class StepSpread(Record):
    """How far real step times lie from those told: real / told is within (low, high).

    `decode` has one pair for each of the model's `batches` (host time included); `prefill` one
    for all prompt costs. The errors of one deployment go together: all its steps are slow, or all
    fast, so a bound on a run's figure is the run with every step at that bound.
    """

    confidence: float = Field(0.8, gt=0, lt=1)
    decode: tuple[tuple[float, float], ...] = Field(min_length=1)
    prefill: tuple[float, float]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (*self.decode, self.prefill):
            if not 0 < low <= high:
                raise ValueError(f"a spread needs 0 < low <= high, got ({low}, {high})")
        return self


class StepModel(Record):
    """Duration of one engine step, seconds.

    step = base(B) + slope(B) * (sum of contexts of the B decoding sequences)
           + prefill_s_per_token * n + prefill_s_per_token_context * n * c
    with n prompt tokens computed in the step and c their mean context. base(0) is the cost of
    a step without decodes. `base_s`, `slope_s_per_token` are given at `batches` (ascending,
    the first 0) and interpolated linearly, beyond the last extrapolated by its last slope.
    Source: decode as ITL = alpha + beta B (llm-d workload-variant-autoscaler, modeling
    optimisation) and ITL = intercept + slope * context (vLLM blog, 2026-04-22), joined.
    Wrong when: decode and prefill overlap in one kernel below the memory roof (the sum is then
    too long), or outside `valid_batch` and `valid_context`.
    """

    batches: tuple[int, ...]
    base_s: tuple[float, ...]
    slope_s_per_token: tuple[float, ...]
    prefill_s_per_token: float = Field(ge=0)
    prefill_s_per_token_context: float = Field(0.0, ge=0)
    prefill_tokens: tuple[int, ...] = Field(
        (),
        description="With `prefill_base_s`: what the n prompt tokens of a step cost beyond the"
        " linear terms, given at these n (ascending, the first 0), linear between.",
    )
    prefill_base_s: tuple[float, ...] = ()
    host_s: float = Field(0.0, ge=0, description="Host overhead of a step, beside its tables.")
    front_s: float = Field(0.0, ge=0, description="Host time of a call before it is queued.")
    front_samples_s: tuple[float, ...] = Field(
        (), description="Host times of calls, to draw from; empty: every call takes `front_s`."
    )
    front_load: tuple[tuple[int, float], ...] = Field(
        (),
        description="(calls, factor): with so many calls on the replica, this one counted, host"
        " times are factor times the above (a front end that also streams what others write).",
    )
    provenance: Provenance
    source: str
    held_out_error: float | None = Field(
        None, description="Median absolute relative error on calls kept out of the fit."
    )
    valid_batch: tuple[int, int] = (0, 0)
    valid_context: tuple[int, int] = (0, 0)
    valid_chunk: tuple[int, int] = (0, 0)
    spread: StepSpread | None = Field(None, description="None: not known.")
    to_narrow: str = Field("", description="What to record for a better model, in a sentence.")

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if not len(self.batches) == len(self.base_s) == len(self.slope_s_per_token) >= 1:
            raise ValueError("batches, base_s and slope_s_per_token need one length >= 1")
        if list(self.batches) != sorted(set(self.batches)):
            raise ValueError("batches must ascend")
        if len(self.prefill_tokens) != len(self.prefill_base_s):
            raise ValueError("prefill_tokens and prefill_base_s need one length")
        if list(self.prefill_tokens) != sorted(set(self.prefill_tokens)):
            raise ValueError("prefill_tokens must ascend")
        if self.spread is not None and len(self.spread.decode) != len(self.batches):
            raise ValueError("spread.decode needs one pair for each of batches")
        loads = [load for load, _ in self.front_load]
        if loads != sorted(set(loads)) or min((f for _, f in self.front_load), default=0.0) < 0:
            raise ValueError("front_load needs ascending calls and factors >= 0")
        return self

    def prefill_step_s(self, tokens: int) -> float:
        """What `tokens` prompt tokens in a step cost, but for the part with their contexts."""
        return float(self.prefill_steps_s(np.array([tokens], dtype=np.float64))[0])

    def prefill_steps_s(self, tokens: Floats) -> Floats:
        """`prefill_step_s` of many steps."""
        linear = self.prefill_s_per_token * tokens
        if not self.prefill_tokens:
            return linear
        return linear + _between(self.prefill_tokens, self.prefill_base_s, tokens)

    def decode_step_s(self, batch: int, context_sum: float) -> float:
        """A step with `batch` decodes whose contexts sum to `context_sum` tokens."""
        return self._at(self.base_s, batch) + self._at(self.slope_s_per_token, batch) * context_sum

    def decode_steps_s(self, batch: Floats, context_sum: Floats | float = 0.0) -> Floats:
        """`decode_step_s` of many steps; batches may be fractions, between two whole ones."""
        base = _between(self.batches, self.base_s, batch)
        return base + _between(self.batches, self.slope_s_per_token, batch) * context_sum

    def step_s(self, batch: int, context_sum: float, tokens: int, token_context: float) -> float:
        """A mixed step: decodes, and `tokens` prompt tokens; `token_context` is the sum over
        those tokens of the context each attends to."""
        return (
            self.host_s
            + self.decode_step_s(batch, context_sum)
            + self.prefill_step_s(tokens)
            + self.prefill_s_per_token_context * token_context
        )

    def prefill_s(self, prompt: Floats, cached: Floats) -> Floats:
        """Prompts alone in the engine, each in one step: its tokens, and token x context.

        The computed tokens see contexts from `cached` to `prompt`, on average half-way. Wrong when:
        prompts share a step or are cut in pieces: what a step with prompts costs whatever their
        number (`prefill_base_s` at 1) then counts too often, or not often enough.
        """
        computed = np.asarray(np.maximum(prompt - cached, 0.0), dtype=np.float64)
        context = (prompt + cached) / 2
        attended = self.prefill_s_per_token_context * computed * context
        return np.asarray(self.prefill_steps_s(computed) + attended, dtype=np.float64)

    def _at(self, values: tuple[float, ...], batch: int) -> float:
        return float(_between(self.batches, values, np.array([batch], dtype=np.float64))[0])

    def scaled(self, factor: float) -> StepModel:
        """Every step `factor` times as long."""
        return self.model_copy(
            update={
                "base_s": tuple(v * factor for v in self.base_s),
                "slope_s_per_token": tuple(v * factor for v in self.slope_s_per_token),
                "prefill_s_per_token": self.prefill_s_per_token * factor,
                "prefill_s_per_token_context": self.prefill_s_per_token_context * factor,
                "prefill_base_s": tuple(v * factor for v in self.prefill_base_s),
                "host_s": self.host_s * factor,
            }
        )


def fast_and_slow(step: StepModel) -> tuple[StepModel, StepModel] | None:
    """The model at the low and at the high end of its spread; None where that is not known."""
    spread = step.spread
    if spread is None:
        return None
    return _at_end(step, spread, 0), _at_end(step, spread, 1)


def _at_end(step: StepModel, spread: StepSpread, end: int) -> StepModel:
    """Base (with the host's time), slope and prompt costs times that end of their spread."""
    factors = tuple(pair[end] for pair in spread.decode)
    prefill = spread.prefill[end]
    return step.model_copy(
        update={
            "base_s": tuple(
                (value + step.host_s) * factor - step.host_s
                for value, factor in zip(step.base_s, factors, strict=True)
            ),
            "slope_s_per_token": tuple(
                value * factor
                for value, factor in zip(step.slope_s_per_token, factors, strict=True)
            ),
            "prefill_s_per_token": step.prefill_s_per_token * prefill,
            "prefill_s_per_token_context": step.prefill_s_per_token_context * prefill,
            "prefill_base_s": tuple(value * prefill for value in step.prefill_base_s),
            "spread": None,
        }
    )


def _between(places: tuple[int, ...], values: tuple[float, ...], at: Floats) -> Floats:
    """The values at places: linear between those given, beyond the last by the last slope."""
    inside = np.interp(at, places, values)
    if len(values) == 1:
        return np.asarray(inside, dtype=np.float64)
    rise = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return np.asarray(inside + rise * np.maximum(at - places[-1], 0.0), dtype=np.float64)


class Memory(Record):
    """Memory of one replica by part, GiB. The parts sum to `total_gib`."""

    total_gib: float
    weights_gib: float
    activations_gib: float
    graphs_gib: float
    overhead_gib: float
    kv_gib: float
    kv_bytes_per_token: float
    kv_bytes_per_request: float = 0.0
    kv_tokens: int
    concurrency_at_max_len: float | None = None
    concurrency_at_profile: float | None = None
    source: str


class EngineModel(Record):
    """One pool of equal engine replicas behind a router."""

    step: StepModel
    replicas: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    block_size: int = Field(16, ge=1)
    kv_blocks: int = Field(ge=1, description="Per replica.")
    kv_blocks_provenance: Provenance = Provenance.ASSUMED
    usd_per_replica_hour: float | None = None
    memory: Memory | None = None
    scheduler: Scheduler = Scheduler()
    prefix_cache: PrefixCache | None = None
    speculative: Speculative | None = None
    router: Router = Router()
    prefill: PrefillPool | None = None
    encoder: Encoder | None = None
    autoscaler: Autoscaler | None = None
    abort_on_cancel: bool = Field(
        True, description="Whether a call whose client has gone is aborted in the engine."
    )


class StationModel(Record):
    """A part of the chain outside the engine: c servers, FIFO.

    `service_samples_s` (at most 500) are times of work without waiting; a retry's visit draws
    from them, times the level of `drift` at that time. `servers` None: no limit (an external
    service whose latency does not depend on our load). A visit over `timeout_s` is given up:
    skipped (and the request degraded) when `optional`, else the attempt fails. Stations that
    name one `pool` share its workers (four tools behind one tool server); the pool has the
    largest of their `servers`.
    """

    name: str
    stage: str
    servers: int | None
    service_s: Summary
    service_samples_s: tuple[float, ...]
    timeout_s: float | None = None
    stops_on_cancel: bool = False
    optional: bool = False
    usd_per_call: float = 0.0
    provenance: Provenance = Provenance.MEASURED
    note: str = ""
    pool: str | None = Field(None, description="Worker pool shared with other stations.")
    queue_limit: int | None = Field(None, ge=0, description="Waiting visits; more are refused.")
    rate_per_s: float | None = Field(None, gt=0, description="Visits over this rate are refused.")
    burst: int = Field(1, ge=1, description="Visits at once that the rate limit lets through.")
    drift: tuple[tuple[float, float], ...] = Field(
        (),
        description="(start_s, factor): from then on work takes factor times the samples.",
    )


class Fleet(Record):
    """All that serves the workload: what actions change and the simulator runs.

    A call goes to the pool of `pools` that its step names, else to `engine`.
    """

    engine: EngineModel
    stations: dict[str, StationModel] = Field(default_factory=dict)
    retry: Retry = Field(default_factory=Retry)
    pools: dict[str, EngineModel] = Field(default_factory=dict)
    client: Client = Client()
    admission: Admission | None = None
    ladder: Ladder | None = None


class Resource(Record):
    """One thing that can run out. Rates in requests per second of the profile's mix.

    headroom = 1 - peak load / capacity: negative when the peak is over it.
    """

    name: str
    bottleneck: Bottleneck
    capacity_per_s: Interval
    mean_load: float = Field(description="Utilisation at the mean rate, 0..")
    peak_load: float = Field(description="Utilisation in the peak window, 0..")
    headroom: float
    scale_by: str = Field(description="What adds capacity here.")
    provenance: Provenance
    note: str = ""


class CapacityModel(Record):
    """What the fleet can take, per resource. `engine_wait_s` is the closed form's first guess: mean
    wait in the engine at the peak, seconds. The simulated load under the SLO is
    `sojourn.plan.records.Holding`."""

    fleet: Fleet
    resources: tuple[Resource, ...] = Field(
        description="Least headroom first; last what is no limit but a warning: a front end whose"
        " load is not measured, the retry budget."
    )
    engine_wait_s: float | Excuse
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = Field(
        (), description="Where step times are used outside what they are known for."
    )

    @property
    def binding(self) -> Resource:
        """The resource with the least headroom."""
        return self.resources[0]
