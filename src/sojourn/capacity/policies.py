"""Policies of a fleet: how engines schedule and scale, how routers choose, what the gateway and
the client do. Every one is data; the simulator gives them their meaning
(docs/explanation/simulator.md says which, exactly)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from sojourn.records import Record


class Order(StrEnum):
    """Whose turn it is in a step."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    PREFILL_FIRST = "prefill_first"


class Scheduler(Record):
    """How a replica fills its steps. Defaults are vLLM's (0.32)."""

    order: Order = Order.FCFS
    long_prompt_cap: int | None = Field(
        None, ge=1, description="Most prompt tokens of one sequence in a step."
    )
    admit_full_input: bool = Field(
        True, description="Blocks for the whole input must be free, else for the first chunk."
    )
    watermark: float = Field(
        0.0, ge=0, lt=1, description="Share of blocks kept free when others run."
    )


class PrefixCache(Record):
    """Blocks shared between calls, by hash. Without it recorded `cached_tokens` are believed."""

    tokens_per_hash: int = Field(
        ge=1, description="Tokens that one block hash of the stream covers; blocks x block size."
    )


class Speculative(Record):
    """Speculative decoding: a draft of `len(acceptance)` tokens, verified in one step.

    `acceptance[i]`: probability that token i of the draft is accepted, given that those before
    it were. A verification of B sequences costs what B (1 + drafts) decodes cost in the step
    table, and `draft_s`. Wrong when: acceptance depends on the text's position or topic.
    """

    acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1, max_length=16)
    draft_s: float = Field(0.0, ge=0)


class RouterPolicy(StrEnum):
    """How a pool chooses the replica of a call."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX_AWARE = "prefix_aware"
    SESSION = "session"


class Router(Record):
    """The router of a pool. Load of a replica: its calls that have not ended."""

    policy: RouterPolicy = RouterPolicy.ROUND_ROBIN
    load_weight_tokens: float = Field(
        256.0, ge=0, description="prefix_aware: cached tokens that outweigh one call of load."
    )


class PrefillPool(Record):
    """Disaggregation: prompts are computed in another pool, their KV is then moved here."""

    pool: str
    transfer_base_s: float = Field(0.0, ge=0)
    transfer_s_per_token: float = Field(0.0, ge=0)


class Encoder(Record):
    """The vision or audio encoder of a replica: its own workers and cache, before the queue."""

    servers: int = Field(1, ge=1)
    base_s: float = Field(0.0, ge=0)
    s_per_token: float = Field(0.0, ge=0)
    cache_images: int = Field(0, ge=0, description="Images kept, least recently used go first.")


class ScaleMetric(StrEnum):
    """What an autoscaler looks at, per active replica."""

    WAITING = "waiting"
    RUNNING = "running"
    OUTSTANDING = "outstanding"
    KV_USAGE = "kv_usage"


class Autoscaler(Record):
    """Replicas wanted = ceil(sum of the metric / target), as Kubernetes' HPA has it."""

    metric: ScaleMetric = ScaleMetric.OUTSTANDING
    target: float = Field(gt=0)
    every_s: float = Field(15.0, gt=0)
    cold_start_s: float = Field(60.0, ge=0)
    least: int = Field(1, ge=1)
    most: int = Field(ge=1)
    scale_down_after_s: float = Field(300.0, ge=0)
    tolerance: float = Field(0.1, ge=0, lt=1)


class Client(Record):
    """Who sends the requests.

    With `closed_loop` clients the stream's arrival times are not used: each client sends the
    stream's next request, waits for its end, thinks, and sends another.
    """

    closed_loop: int | None = Field(None, ge=1)
    think_samples_s: tuple[float, ...] = ()
    max_in_flight: int | None = Field(
        None, ge=1, description="Requests at once; others wait at the client (a connection cap)."
    )
    retry_on_error: bool = Field(
        False, description="Whether refused attempts (queue or rate limit) are tried again."
    )
    retry_budget_per_success: float | None = Field(
        None, ge=0, description="Token bucket: a success adds this many retries, one costs 1."
    )
    retry_budget_most: float = Field(
        10.0, ge=0, description="Retries the bucket holds, at first too."
    )


class LoadMetric(StrEnum):
    """What the controllers of the gateway look at."""

    IN_FLIGHT = "in_flight"
    WAITING = "waiting"


class AdmissionPolicy(StrEnum):
    """How the gateway decides to shed an attempt."""

    THRESHOLD = "threshold"
    PROBABILISTIC = "probabilistic"
    PREDICTED_MISS = "predicted_miss"


class Admission(Record):
    """Admission at the gateway, asked at the start of every attempt."""

    policy: AdmissionPolicy
    metric: LoadMetric = LoadMetric.IN_FLIGHT
    low: float = Field(0.0, ge=0, description="probabilistic: below, nothing is shed.")
    high: float = Field(0.0, ge=0, description="threshold: from here on, all is shed.")
    wait_s: float = Field(
        0.0, ge=0, description="predicted_miss: longest wait allowed in the queue."
    )


class Rung(Record):
    """A step of the degrade ladder, in force while the level is at least its own."""

    above: float = Field(ge=0, description="The metric at or over it climbs onto this rung.")
    below: float = Field(ge=0, description="The metric under it leaves this rung.")
    skip: tuple[str, ...] = Field((), description="Stations left out.")
    output_most: int | None = Field(None, ge=1, description="Output tokens of a call, at most.")
    max_attempts: int | None = Field(None, ge=1)
    shed_priority_to: int | None = Field(
        None, description="Attempts of this priority, or of a less important one, are shed."
    )

    @model_validator(mode="after")
    def _hysteresis(self) -> Self:
        if self.below > self.above:
            raise ValueError("below must not exceed above")
        return self


class Ladder(Record):
    """The degrade ladder: looked at every `every_s`, it moves one rung at a time."""

    metric: LoadMetric = LoadMetric.WAITING
    every_s: float = Field(1.0, gt=0)
    rungs: tuple[Rung, ...] = Field(min_length=1)
