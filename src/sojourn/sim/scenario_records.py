"""A scenario as people write it: what arrives, what a request goes through, what serves it.

Policies are the records that the simulator runs (`sojourn.capacity.policies`), the deployment and
the retries those of sojourn.yaml (`sojourn.config`): one word means one thing everywhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

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
from sojourn.capacity.records import StepModel
from sojourn.config import MAX_CONFIDENCE, MAX_SEED, Deployment, Retry, Slo, Station
from sojourn.interval import Provenance
from sojourn.records import Stage
from sojourn.workload.arrival_process import LONGEST_S, ArrivalProcess
from sojourn.workload.variates import Distribution, Section, fixed

DEFAULT_POOL: Final = "default"
MOST_REQUESTS: Final = 20_000_000
MOST_GROUPS: Final = 10_000_000
MOST_REPLICATIONS: Final = 1_000
MOST_PRIORITY: Final = 1_000_000
CONFIDENCE: Final = 0.9
StationStage: TypeAlias = Literal[
    Stage.GATEWAY, Stage.GUARDRAIL, Stage.RETRIEVAL, Stage.RERANK, Stage.TOOL, Stage.POSTPROCESS,
    Stage.NETWORK, Stage.ENCODE,
]  # fmt: skip
"""Stages that a station's time may be counted under."""


class SharedPrefix(Section):
    """Tokens that many requests begin with (a system prompt, a document), in front of the input."""

    tokens: int = Field(ge=1, le=10**9, description="Length of the shared beginning.")
    groups: int = Field(1, ge=1, le=MOST_GROUPS, description="Different beginnings.")
    skew: float = Field(
        0.0, ge=0, le=10, description="Zipf exponent of how popular they are; 0: all alike."
    )


class Images(Section):
    """Images that requests of a class bring. Their tokens come on top of the input."""

    tokens: Distribution = Field(description="Image tokens of a request.")
    share: float = Field(1.0, gt=0, le=1, description="Requests that bring one.")
    distinct: int | None = Field(
        None, ge=1, le=MOST_GROUPS, description="Different images; unset: none comes twice."
    )


class Agent(Section):
    """A model call that is made several times, with tools between: each turn's prompt holds all
    that was said and found before."""

    turns: Distribution = Field(description="Model calls of a request, at least 1.")
    tools: dict[str, Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="station: weight; each visit takes one by weight."
    )
    tools_per_turn: Distribution = Field(
        default_factory=lambda: fixed(1.0),
        description="Visits after each turn but the last; unset: 1.",
    )
    at_once: bool = Field(False, description="Whether the tools of a turn run at once.")
    result_tokens: Distribution = Field(
        default_factory=lambda: fixed(0.0),
        description="Tokens that the results of a turn add; unset: 0.",
    )
    step: str | None = Field(
        None, description="The step that is repeated; unset: the last call of the chain."
    )


class Session(Section):
    """Several requests of one user: each prompt holds the conversation so far.

    Only the first request arrives by the process; the next arrives `gap_s` after it, and so on.
    """

    requests: Distribution = Field(description="Requests of a session, at least 1.")
    gap_s: Distribution = Field(
        description="From one arrival to the next, seconds: reading, thinking and the answer."
    )


class RequestClass(Section):
    """Requests of one kind."""

    name: str = Field(min_length=1, description="Name of the class.")
    bucket: str | None = Field(None, description="Bucket of the results; unset: the name.")
    share: float = Field(
        1.0, gt=0, le=1, description="Of the arrivals; the shares of all classes sum to 1."
    )
    input_tokens: Distribution = Field(description="Prompt tokens of a request.")
    output_tokens: Distribution = Field(description="Tokens of each answer.")
    prefix: SharedPrefix | None = Field(None, description="Tokens shared with others.")
    images: Images | None = Field(None, description="Images.")
    agent: Agent | None = Field(None, description="Turns with tools.")
    session: Session | None = Field(None, description="Conversations.")
    tenants: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="tenant: weight."
    )
    route: str | None = Field(None, description="Route, as tables have it.")
    priority: int = Field(
        0, ge=-MOST_PRIORITY, le=MOST_PRIORITY, description="Larger is more important."
    )


class Workload(Section):
    """What arrives: classes by rule, or a recording again (`replay`)."""

    arrivals: ArrivalProcess | None = Field(None, description="When requests arrive.")
    duration_s: float | None = Field(
        None, gt=0, le=LONGEST_S, description="Arrivals stop then; what is there runs to its end."
    )
    requests: int | None = Field(
        None, ge=1, le=MOST_REQUESTS, description="Arrivals at most (a session counts once)."
    )
    classes: tuple[RequestClass, ...] = Field((), description="Kinds of request.")
    replay: str | None = Field(
        None,
        description="Telemetry to run again: a file, a folder or a store, beside this file.",
    )
    load: float = Field(1.0, gt=0, le=100, description="replay: times the recorded load.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        drawn = self.arrivals is not None or bool(self.classes)
        if drawn == (self.replay is not None):
            raise ValueError("give either `arrivals` and `classes`, or `replay`")
        if self.replay is not None:
            if self.duration_s is not None or self.requests is not None:
                raise ValueError("duration_s and requests belong to drawn arrivals, not to replay")
            return self
        if self.arrivals is None or not self.classes:
            raise ValueError("drawn requests need both `arrivals` and `classes`")
        if self.load != 1.0:
            raise ValueError("load belongs to replay; change arrivals.rate_per_s instead")
        if self.duration_s is None and self.requests is None:
            raise ValueError("say how long: duration_s, requests, or both")
        names = [item.name for item in self.classes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two classes are called {twice[0]!r}")
        total = sum(item.share for item in self.classes)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of the classes sum to {total:g}, expected 1")
        return self


def _spelled(value: Any) -> Any:  # noqa: ANN401  (whatever the file holds)
    """A bare word is a model call where it is `call`, else the station of that name."""
    if isinstance(value, str):
        return {"call": DEFAULT_POOL} if value == "call" else {"station": value}
    return value


class ChainStep(Section):
    """A step of a request: a visit to a station, a model call, or time that passes."""

    name: str | None = Field(None, description="Unset: the station's name, `call`, or `delay`.")
    station: str | None = Field(None, description="The station visited.")
    call: str | None = Field(None, description="The pool called; `default` is `engine`.")
    delay_s: Distribution | None = Field(None, description="Time that passes, no limit on it.")
    after: tuple[str, ...] | None = Field(
        None,
        description="Steps that must have ended; unset: the one above; []: begins at once.",
    )
    classes: tuple[str, ...] = Field((), description="Only for these; empty: for all.")
    share: float = Field(1.0, gt=0, le=1, description="Requests that take it.")
    input_tokens: Distribution | None = Field(
        None, description="call: unset: those of the request's class."
    )
    output_tokens: Distribution | None = Field(None, description="call: as for the input.")
    model: str = Field("model", description="call: name of the model in the tables.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [self.station is not None, self.call is not None, self.delay_s is not None]
        if sum(given) != 1:
            raise ValueError("a step is one of `station`, `call` and `delay_s`")
        if self.call is None and (self.input_tokens or self.output_tokens):
            raise ValueError("input_tokens and output_tokens belong to a call")
        return self

    @property
    def label(self) -> str:
        """What `after` calls it."""
        return self.name or self.station or ("call" if self.call is not None else "delay")


Step = Annotated[ChainStep, BeforeValidator(_spelled)]


class StationSpec(Station):
    """A station, and how long its work takes."""

    service_s: Distribution = Field(description="Time of work without waiting, seconds.")
    stage: StationStage | None = Field(
        None, description="What its time counts as; unset: its name, where that is a stage."
    )
    pool: str | None = Field(None, description="Workers shared with stations that say the same.")
    queue_limit: int | None = Field(
        None, ge=0, le=10**9, description="Waiting visits; more are refused."
    )
    rate_per_s: float | None = Field(
        None, gt=0, le=1e9, description="Visits over this rate are refused."
    )
    burst: int = Field(1, ge=1, le=10**6, description="Visits at once that the rate lets through.")
    drift: tuple[tuple[float, Annotated[float, Field(gt=0, le=1e6)]], ...] = Field(
        (), description="[start_s, factor]: from then on work takes factor times as long."
    )

    @model_validator(mode="after")
    def _drift_ascends(self) -> Self:
        starts = [start for start, _ in self.drift]
        if starts != sorted(starts):
            raise ValueError("drift: the times must ascend")
        return self

    @property
    def levels(self) -> tuple[tuple[float, float], ...]:
        """`drift` with the level before its first time, which is 1."""
        if self.drift and self.drift[0][0] > 0:
            return ((0.0, 1.0), *self.drift)
        return self.drift


class StepTable(StepModel):
    """Step times given in the file."""

    provenance: Provenance = Provenance.ASSUMED
    source: str = "scenario file"

    @model_validator(mode="after")
    def _no_negative_time(self) -> Self:
        for name in ("base_s", "slope_s_per_token", "prefill_base_s", "front_samples_s"):
            if min(getattr(self, name), default=0.0) < 0:
                raise ValueError(f"{name} holds a time below 0")
        return self


class PoolSpec(Deployment):
    """Engine replicas behind a router. Their step times come from `step`, from `fitted`, or from
    `model` and `accelerator` (roofline); KV blocks from `kv_blocks` or from the memory left."""

    step: StepTable | None = Field(None, description="Step times, as a table.")
    fitted: str | None = Field(
        None, description="File of `sojourn calibrate -o`: step times and flags of its engine."
    )
    scheduler: Scheduler = Field(default_factory=Scheduler, description="How steps are filled.")
    prefix_cache: PrefixCache | None = Field(
        None, description="Unset, prefixes are shared by block where `prefix_caching` is on."
    )
    speculative: Speculative | None = Field(None, description="Draft and verify.")
    router: Router = Field(default_factory=Router, description="Which replica a call goes to.")
    prefill: PrefillPool | None = Field(None, description="Prompts are computed in another pool.")
    encoder: Encoder | None = Field(None, description="Vision or audio encoder.")
    autoscaler: Autoscaler | None = Field(None, description="Replicas by load.")
    abort_on_cancel: bool = Field(
        True, description="Whether a call whose client has gone is aborted."
    )


class ScenarioClient(Client):
    """Who sends the requests, and how long he thinks."""

    think_s: Distribution | None = Field(
        None, description="closed_loop: time between an answer and the next request, seconds."
    )

    def sampled(self) -> Client:
        """The record that the simulator runs: think times as samples."""
        given = self.model_dump(exclude={"think_s"})
        if self.think_s is not None:
            given["think_samples_s"] = tuple(self.think_s.strata().tolist())
        return Client.model_validate(given)

    @model_validator(mode="after")
    def _one_think_time(self) -> Self:
        if self.think_s is not None and self.think_samples_s:
            raise ValueError("give one of think_s and think_samples_s")
        return self


class ScenarioFile(Section):
    """A scenario file."""

    description: str = Field("", description="For people.")
    workload: Workload = Field(description="What arrives.")
    chain: tuple[Step, ...] = Field(
        (),
        max_length=1000,
        description="What a request goes through; empty: one model call (replay: as recorded).",
    )
    stations: dict[str, StationSpec] = Field(
        default_factory=dict, description="Parts of the chain outside the engine, by name."
    )
    engine: PoolSpec | None = Field(
        None, description="What serves the calls; replay: unset, it is fitted to the recording."
    )
    pools: dict[str, PoolSpec] = Field(
        default_factory=dict,
        description="Further engines, beside `engine`, by the name that `call` gives.",
    )
    client: ScenarioClient = Field(
        default_factory=ScenarioClient, description="Closed loop, caps, retry budget."
    )
    retry: Retry = Field(default_factory=Retry, description="Attempts and their time limit.")
    admission: Admission | None = Field(None, description="What the gateway sheds.")
    ladder: Ladder | None = Field(None, description="What is left out as load grows.")
    slo: dict[str, Slo] = Field(
        default_factory=dict, description="Targets by bucket; `default` serves the rest."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Of every random draw.")
    replications: int = Field(
        3, ge=1, le=MOST_REPLICATIONS, description="Runs with seeds from `seed` on."
    )
    warm_up_s: float = Field(
        0.0, ge=0, le=LONGEST_S, description="Requests that arrive before are left out of results."
    )
    confidence: float = Field(
        CONFIDENCE, gt=0, le=MAX_CONFIDENCE, description="Of every interval printed."
    )

    @model_validator(mode="after")
    def _served(self) -> Self:
        if self.workload.replay is None and self.engine is None:
            have = (
                f"missing; of pools {', '.join(self.pools)} make one the `engine`, which calls name"
                f" {DEFAULT_POOL!r}; `pools` are further ones"
                if self.pools
                else "nothing serves the calls; name what does"
            )
            raise ValueError(f"engine: {have}")
        if DEFAULT_POOL in self.pools:
            raise ValueError(f"pools.{DEFAULT_POOL}: that name is `engine`; choose another")
        return self

    @property
    def all_pools(self) -> dict[str, PoolSpec]:
        """Every pool that is written down, `engine` first."""
        own = {} if self.engine is None else {DEFAULT_POOL: self.engine}
        return own | self.pools
