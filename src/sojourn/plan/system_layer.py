"""Actions on the system: stations, time limits, degrade at the peak, more replicas."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.records import Fleet, StationModel
from sojourn.interval import Excuse
from sojourn.plan.action import (
    Action,
    Apply,
    Changed,
    Context,
    fixed,
    in_peak,
    integers,
    not_modelled,
    with_engine,
    without_steps,
)
from sojourn.plan.records import Price
from sojourn.records import Bottleneck, Layer, Stage
from sojourn.trace.arrays import texts
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream

SCALE: Final = 2
"""What "add GPUs" means here: twice the replicas."""
LIMIT_PERCENTILE: Final = "p90"
"""Optional stages are cut off at the P90 of their work without waiting: at calm times one visit
in ten is skipped, at the peak those that would wait longer."""
STATION_OF: Final = {
    Bottleneck.RETRIEVAL: Stage.RETRIEVAL,
    Bottleneck.RERANK: Stage.RERANK,
    Bottleneck.TOOL: Stage.TOOL,
    Bottleneck.GATEWAY: Stage.GATEWAY,
}
_OUTSIDE: Final = frozenset(STATION_OF)
PARTIAL_STAGES: Final = frozenset({Stage.RETRIEVAL.value, Stage.RERANK.value, Stage.TOOL.value})
"""Stages that can be asked for what they have: passages found, passages ranked, no tool result."""
ENGINE_BOTTLENECKS: Final = frozenset(
    {
        Bottleneck.QUEUE_ADMISSION,
        Bottleneck.BATCH_SLOTS,
        Bottleneck.PREFILL_COMPUTE,
        Bottleneck.DECODE_BANDWIDTH,
        Bottleneck.KV_CAPACITY,
        Bottleneck.HEAD_OF_LINE,
        Bottleneck.ENCODER,
    }
)


def _blamed(fleet: Fleet, context: Context) -> list[StationModel]:
    """Stations of the stages that a verdict names."""
    stages = {STATION_OF[v.bottleneck].value for v in context.verdicts(_OUTSIDE)}
    return [s for s in fleet.stations.values() if s.stage in stages]


def _updated(fleet: Fleet, changed: list[StationModel]) -> Fleet:
    return fleet.model_copy(update={"stations": fleet.stations | {s.name: s for s in changed}})


def _more_workers(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    blamed = _blamed(fleet, context)
    limited = [s for s in blamed if s.servers is not None]
    if not limited:
        names = ", ".join(s.name for s in blamed) or "none"
        return Excuse(
            reason=f"No blamed station ({names}) has a known number of workers: its time does not"
            " depend on a queue of ours",
            collect=("set stations.<name>.servers",),
        )
    more = [s.model_copy(update={"servers": SCALE * (s.servers or 1)}) for s in limited]
    return stream, _updated(fleet, more)


def _workers_price(_fleet: Fleet, _context: Context) -> Price:
    """What a worker costs is not in the telemetry."""
    return Price(risk="medium", effort="hours", unpriced=True, note="price of a worker unknown")


def _time_limits(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    every = context.named(Bottleneck.RETRY_AMPLIFICATION, Bottleneck.TIMEOUT_TOO_SHORT)
    candidates = list(fleet.stations.values()) if every else _blamed(fleet, context)
    optional = [s for s in candidates if s.optional]
    if not optional:
        return Excuse(
            reason="No slow station is marked as one that a request can do without; a limit on"
            " the others would only fail more attempts",
            collect=("set stations.<name>.optional: true where it holds",),
        )
    return _limited(stream, fleet, optional)


def _stage_budgets(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """Limits on the stages that can answer in part, whether the request can do without or not.

    A stage at its limit gives what it has (fewer passages, no tool result) and the request goes
    on, degraded.
    """
    every = context.named(Bottleneck.RETRY_AMPLIFICATION, Bottleneck.TIMEOUT_TOO_SHORT)
    candidates = list(fleet.stations.values()) if every else _blamed(fleet, context)
    partial = [s for s in candidates if s.stage in PARTIAL_STAGES]
    if not partial:
        return Excuse(reason="No slow stage is one that can answer in part")
    return _limited(stream, fleet, partial)


def _limited(stream: Stream, fleet: Fleet, stations: list[StationModel]) -> Changed | Excuse:
    """Each station given up at a percentile of its work, the request going on without the rest."""
    limited = []
    for station in stations:
        limit = getattr(station.service_s, LIMIT_PERCENTILE)
        if limit > 0 and (station.timeout_s is None or limit < station.timeout_s):
            limited.append(station.model_copy(update={"timeout_s": limit, "optional": True}))
    if not limited:
        return Excuse(reason="Every such station has a tighter limit today")
    return stream, _updated(fleet, limited)


def _drop_at_peak(stage: Stage) -> Apply:
    """Optional stations of a stage are skipped by requests that arrive in the peak."""

    def apply(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
        names = [s.name for s in fleet.stations.values() if s.optional and s.stage == stage.value]
        if not names:
            return Excuse(
                reason=f"No {stage.value} station is marked as one that a request can do without",
                collect=("set stations.<name>.optional: true where it holds",),
            )
        peak = in_peak(stream, context.config.analysis.peak_window_s)
        chosen = np.isin(texts(stream.steps["name"]), names) & (
            texts(stream.steps["kind"]) == StepKind.STATION.value
        )
        changed = without_steps(stream, chosen & peak[integers(stream, "request")])
        if changed is None:
            return Excuse(reason=f"No request of the peak visits {', '.join(names)}")
        return changed, fleet

    return apply


def _scale_out(stream: Stream, fleet: Fleet, _context: Context) -> Changed:
    return stream, with_engine(fleet, replicas=SCALE * fleet.engine.replicas)


def scale_out_price(fleet: Fleet, context: Context) -> Price:
    """Added replicas at the price of those that run."""
    each = fleet.engine.usd_per_replica_hour
    if each is None:
        each = context.config.deployment.usd_per_replica_hour
    added = (SCALE - 1) * fleet.engine.replicas
    note = f"{added} more replica{'s' * (added > 1)}"
    if each is None:
        note += "; price unknown: set deployment.usd_per_replica_hour"
    return Price(
        usd_per_hour=(each or 0.0) * added,
        quality="none",
        risk="low",
        effort="days",
        note=note,
        unpriced=each is None,
    )


SYSTEM_ACTIONS: Final = (
    Action(
        name="station_workers",
        title="Double the workers of the slow stations",
        layer=Layer.SYSTEM,
        opens_for=_OUTSIDE,
        apply=_more_workers,
        price=_workers_price,
        source="Erlang C: the wait falls steeply with servers near saturation; no wait, no gain",
        wrong_when="the service itself is slow (the wait is short), or workers share one database"
        " that is the real limit",
    ),
    Action(
        name="stage_limits",
        title="A time limit of its own for each optional stage (P90 of its work)",
        layer=Layer.SYSTEM,
        opens_for=_OUTSIDE | {Bottleneck.RETRY_AMPLIFICATION, Bottleneck.TIMEOUT_TOO_SHORT},
        apply=_time_limits,
        price=fixed(quality="visible", risk="low", effort="hours", note="late stages are skipped"),
        source="AWS Builders' Library (M. Brooker), Timeouts, retries and backoff with jitter;"
        " Dean and Barroso, The tail at scale, CACM 2013 (good enough answers)",
        wrong_when="the stage that is cut off carries the answer",
        live=True,
    ),
    Action(
        name="stage_budgets",
        title="A time limit for retrieval, rerank and tools (P90 of their work), going on with"
        " what they have",
        layer=Layer.SYSTEM,
        opens_for=_OUTSIDE | {Bottleneck.RETRY_AMPLIFICATION, Bottleneck.TIMEOUT_TOO_SHORT},
        apply=_stage_budgets,
        price=fixed(quality="visible", risk="medium", effort="days", note="answers in part"),
        source="Google SRE book, chapter 22 (deadlines, graceful degradation); Dean and Barroso,"
        " The tail at scale, CACM 2013 (good enough answers)",
        wrong_when="a stage cannot answer in part, or the cut part carries the answer",
        live=True,
        implies=frozenset({"stage_limits"}),
    ),
    Action(
        name="no_second_rerank_at_peak",
        title="Skip optional reranking at the peak",
        layer=Layer.SYSTEM,
        opens_for=frozenset(
            {Bottleneck.RERANK, Bottleneck.RETRIEVAL, Bottleneck.RETRY_AMPLIFICATION}
        ),
        apply=_drop_at_peak(Stage.RERANK),
        price=fixed(quality="slight", risk="low", effort="hours", note="ranking is coarser"),
        source="Google SRE book, chapter 22: degrade by doing less work per request",
        wrong_when="answers rest on the second ranking: check the quality",
        live=True,
    ),
    Action(
        name="no_optional_tools_at_peak",
        title="Skip low-value tools at the peak",
        layer=Layer.SYSTEM,
        opens_for=frozenset({Bottleneck.TOOL, Bottleneck.RETRY_AMPLIFICATION}),
        apply=_drop_at_peak(Stage.TOOL),
        price=fixed(quality="visible", risk="low", effort="hours", note="answers lack a source"),
        source="Google SRE book, chapter 22: degrade by doing less work per request",
        wrong_when="the model then asks for another tool, or users ask again",
        live=True,
    ),
    Action(
        name="scale_out",
        title=f"Add GPUs: {SCALE} times the engine replicas",
        layer=Layer.SYSTEM,
        opens_for=ENGINE_BOTTLENECKS,
        apply=_scale_out,
        price=scale_out_price,
        source="New P99 = outside + inside at half the load: with 80% outside, doubling removes at"
        " most 20%; DistServe, arXiv:2401.09670, on goodput per GPU",
        wrong_when="replicas share a limit (gateway, database), start too late (minutes), or lose"
        " prefix hits because requests of one prefix are spread over them",
        always=True,
    ),
    Action(
        name="pd_split",
        title="Prefill and decode on replicas of their own",
        layer=Layer.SYSTEM,
        opens_for=frozenset(
            {Bottleneck.PREFILL_COMPUTE, Bottleneck.HEAD_OF_LINE, Bottleneck.DECODE_BANDWIDTH}
        ),
        apply=not_modelled(
            "how fast KV moves between your replicas is not in the telemetry, and a plan's prices"
            " count one pool",
            "measure a transfer, then compare both in a scenario file (prefill)",
        ),
        source="DistServe, arXiv:2401.09670: goodput = min(n_p mu_p, n_d mu_d)/(n_p + n_d)",
        wrong_when="short outputs, slow links, or pools out of proportion",
        simulated=False,
    ),
)
