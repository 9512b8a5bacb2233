"""`Action`: one thing a team can change, as a pure function on the stream and the fleet.

An action is opened by a verdict (`opens_for`), never by fashion. `apply` returns the changed pair,
or an `Excuse` where it cannot help here or the simulator does not model it; it never changes its
arguments. `wrong_when` says where the effect model fails, as a formula's docstring does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.attribution.records import Diagnosis, Verdict
from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.config import Config, Retry
from sojourn.interval import Excuse
from sojourn.plan.records import Price
from sojourn.plan.usage import union_s
from sojourn.records import Bottleneck, Layer
from sojourn.trace.arrays import Bools, Floats, floats, texts, whole
from sojourn.trace.tables import Tables
from sojourn.workload.profile_records import Profile, StepKind
from sojourn.workload.stream import Stream

MIN_CONFIDENCE: Final = 0.5
"""A verdict opens actions when it is more likely right than wrong."""
PEAK_SHARE: Final = 0.7
"""A request is in the peak when the trailing window holds this share of the busiest window's
arrivals: what a gateway can know when the request comes. Flat traffic is all peak."""


@dataclass(frozen=True)
class EngineLoad:
    """How the baseline loaded the engine. None where no sample says."""

    running_mean: float | None = None
    running_p95: float | None = None
    waiting_share: float | None = None
    kv_p95: float | None = None
    gpu_share: float | None = None


@dataclass(frozen=True)
class Context:
    """What an action may look at besides the stream and the fleet."""

    config: Config
    profile: Profile
    diagnosis: Diagnosis
    load: EngineLoad = EngineLoad()

    def verdicts(self, wanted: frozenset[Bottleneck]) -> list[Verdict]:
        """The verdicts, sure enough, that name one of the bottlenecks.

        None where the diagnosis as a whole is a refusal: what it lists after that is no answer.
        """
        if self.diagnosis.excuse is not None:
            return []
        return [
            v
            for v in self.diagnosis.verdicts
            if v.bottleneck in wanted and v.confidence >= MIN_CONFIDENCE
        ]

    def named(self, *wanted: Bottleneck) -> bool:
        """Whether a sure verdict names one of the bottlenecks."""
        return bool(self.verdicts(frozenset(wanted)))


Changed = tuple[Stream, Fleet]
Apply = Callable[[Stream, Fleet, Context], Changed | Excuse]


def unpriced(_fleet: Fleet, _context: Context) -> Price:
    """No price but a setting changed."""
    return Price(effort="minutes")


@dataclass(frozen=True)
class Action:
    """One change. `simulated` False: listed so that its absence is no silence, always refused."""

    name: str
    title: str
    layer: Layer
    opens_for: frozenset[Bottleneck]
    apply: Apply
    source: str
    wrong_when: str
    price: Callable[[Fleet, Context], Price] = unpriced
    simulated: bool = True
    always: bool = False
    live: bool = False
    """Whether it can be switched while serving, without a deploy: a rung of the degrade ladder."""
    implies: frozenset[str] = frozenset()
    """Names of actions that add nothing beside it."""

    def called_for(self, context: Context) -> list[Verdict]:
        """The verdicts that open it; empty where none does."""
        return context.verdicts(self.opens_for)


def fixed(**what: str) -> Callable[[Fleet, Context], Price]:
    """A price that does not depend on the fleet."""
    price = Price.model_validate(what)
    return lambda _fleet, _context: price


def not_modelled(reason: str, *collect: str) -> Apply:
    """The `apply` of an action that `plan` knows and does not try: why, and what would tell."""
    excuse = Excuse(reason=f"Not tried here: {reason}", collect=collect)
    return lambda _stream, _fleet, _context: excuse


# Changes of the fleet


def with_engine(fleet: Fleet, **changes: object) -> Fleet:
    """The fleet with fields of its engine replaced (and validated)."""
    engine = EngineModel.model_validate({**_shallow(fleet.engine), **changes})
    return fleet.model_copy(update={"engine": engine})


def with_step(fleet: Fleet, **changes: object) -> Fleet:
    """The fleet with fields of its step model replaced (and validated)."""
    step = StepModel.model_validate({**_shallow(fleet.engine.step), **changes})
    return with_engine(fleet, step=step)


def with_retry(fleet: Fleet, **changes: object) -> Fleet:
    """The fleet with fields of its retry policy replaced (and validated)."""
    return fleet.model_copy(
        update={"retry": Retry.model_validate({**_shallow(fleet.retry), **changes})}
    )


def _shallow(record: EngineModel | StepModel | Retry) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).model_fields}


# Changes of the stream


def integers(stream: Stream, name: str) -> npt.NDArray[np.int64]:
    """An integer column of the steps, nulls as 0."""
    return whole(stream.steps.column(name))


def is_call(stream: Stream) -> Bools:
    """Which steps are model calls."""
    found: Bools = texts(stream.steps["kind"]) == StepKind.CALL.value
    return found


def step_buckets(stream: Stream) -> npt.NDArray[np.object_]:
    """The bucket of the request of each step."""
    found: npt.NDArray[np.object_] = texts(stream.requests["bucket"])[integers(stream, "request")]
    return found


def with_steps(stream: Stream, **columns: npt.NDArray[np.int64]) -> Stream:
    """The stream with columns of its steps replaced."""
    steps = stream.steps
    for name, values in columns.items():
        at = steps.schema.get_field_index(name)
        array = pa.array(values, type=steps.schema.field(name).type)
        steps = steps.set_column(at, steps.schema.field(name), array)
    return replace(stream, steps=steps)


def without_steps(stream: Stream, drop: Bools) -> Stream | None:
    """The stream without some steps; a request always keeps its last one. None: nothing to drop."""
    owner = integers(stream, "request")
    kept = np.bincount(owner[~drop], minlength=stream.requests.num_rows)
    last = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, dtype=bool)
    drop = drop & ~(last & (kept[owner] == 0))
    if not drop.any():
        return None
    return replace(stream, steps=stream.steps.filter(pa.array(~drop)))


def shrink_inputs(
    stream: Stream, where: Bools, share: float
) -> tuple[Stream, npt.NDArray[np.int64]] | None:
    """Inputs of the chosen calls cut by `share` of what no cache holds; and tokens cut per step.

    The cached prefix stays: cutting the retrieved part does not change what stands before it.
    """
    tokens, cached = integers(stream, "input_tokens"), integers(stream, "cached_tokens")
    cut = np.where(where & is_call(stream), np.round(share * (tokens - cached)), 0).astype(np.int64)
    cut = np.clip(cut, 0, np.maximum(tokens - 1, 0))
    if not cut.any():
        return None
    image = np.minimum(integers(stream, "image_tokens"), tokens - cut)
    return with_steps(stream, input_tokens=tokens - cut, image_tokens=image), cut


def in_peak(stream: Stream, window_s: float) -> Bools:
    """Which requests arrive in a peak (see `PEAK_SHARE`).

    A window longer than a tenth of the stream would hold most of it: it is cut to that.
    """
    arrivals = np.asarray(stream.requests.column("arrival_s").to_numpy(), dtype=float)
    window = min(window_s, stream.duration_s / 10)
    before = np.searchsorted(arrivals, arrivals - window, side="left")
    counts = np.arange(1, len(arrivals) + 1) - before
    found: Bools = counts >= PEAK_SHARE * counts.max(initial=0)
    return found


def engine_load(tables: Tables) -> EngineLoad:
    """Figures of the engine's samples, and the device's busy share where it was traced."""
    samples = tables.engine_samples

    def column(name: str) -> Floats:
        values = floats(samples[name])
        known: Floats = values[~np.isnan(values)]
        return known

    running, waiting, kv = column("running"), column("waiting"), column("kv_usage")
    return EngineLoad(
        running_mean=float(running.mean()) if running.size else None,
        running_p95=float(np.quantile(running, 0.95)) if running.size else None,
        waiting_share=float((waiting > 0).mean()) if waiting.size else None,
        kv_p95=float(np.quantile(kv, 0.95)) if kv.size else None,
        gpu_share=_gpu_share(tables),
    )


def _gpu_share(tables: Tables) -> float | None:
    """Busy share of the traced device between its first and last activity."""
    activity = tables.gpu_activity
    if not activity.num_rows:
        return None
    start, end = floats(activity["start_s"]), floats(activity["end_s"])
    span = float(end.max() - start.min())
    return union_s(start, end) / span if span > 0 else None
