"""Actions at the gateway and the router: who is let in, who tries again, who goes where."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.capacity.policies import Admission, AdmissionPolicy, RouterPolicy
from sojourn.capacity.records import Fleet
from sojourn.interval import Excuse
from sojourn.plan.action import Action, Changed, Context, fixed, with_engine
from sojourn.plan.request_layer import unloaded_s
from sojourn.records import Bottleneck, Layer
from sojourn.trace.arrays import texts
from sojourn.workload.stream import Stream

RETRIES_PER_SUCCESS: Final = 0.1
"""One retry for ten successes: retries then add a tenth of the load at most."""


def _least_loaded(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    engine = fleet.engine
    if engine.replicas == 1 and engine.autoscaler is None:
        return Excuse(reason="There is one replica only: nothing to choose from")
    if engine.router.policy is RouterPolicy.LEAST_LOADED:
        return Excuse(reason="Calls go to the replica with the fewest of them today")
    router = engine.router.model_copy(update={"policy": RouterPolicy.LEAST_LOADED})
    return stream, with_engine(fleet, router=router)


def _retry_budget(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    retry, client = fleet.retry, fleet.client
    on_timeout = retry.retry_on_timeout and retry.attempt_timeout_s is not None
    if retry.max_attempts <= 1 or not (on_timeout or client.retry_on_error):
        return Excuse(reason="Nothing is retried today")
    today = client.retry_budget_per_success
    if today is not None and today <= RETRIES_PER_SUCCESS:
        return Excuse(reason=f"A budget of {today:g} retries per success is in force today")
    client = client.model_copy(update={"retry_budget_per_success": RETRIES_PER_SUCCESS})
    return stream, fleet.model_copy(update={"client": client})


def _shed_hopeless(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """The wait allowed is the least slack of any bucket: its target less what its requests take
    alone in the system (their median); less for a first token, which nothing precedes."""
    if fleet.admission is not None:
        return Excuse(reason="The gateway sheds by a rule of its own today")
    slack: dict[str, float] = {}
    alone, buckets = unloaded_s(stream, fleet), texts(stream.requests["bucket"])
    for name in sorted(set(buckets.tolist())):
        slo = context.config.slo_of(name)
        if slo is None or (slo.e2e_s is None and slo.ttft_s is None):
            continue
        whole = np.inf if slo.e2e_s is None else slo.e2e_s - np.median(alone[buckets == name])
        slack[name] = float(min(whole, np.inf if slo.ttft_s is None else slo.ttft_s))
    if not slack:
        return Excuse(
            reason="No target says which wait is too long",
            collect=("set slo.<bucket>.ttft_s or e2e_s",),
        )
    tightest = min(slack, key=lambda name: slack[name])
    if slack[tightest] <= 0:
        return Excuse(reason=f"Requests of {tightest} miss their target alone in the system")
    gate = Admission(policy=AdmissionPolicy.PREDICTED_MISS, wait_s=slack[tightest])
    return stream, fleet.model_copy(update={"admission": gate})


GATEWAY_ACTIONS: Final = (
    Action(
        name="least_loaded_router",
        title="Route each call to the replica with the fewest",
        layer=Layer.SYSTEM,
        opens_for=frozenset(
            {Bottleneck.QUEUE_ADMISSION, Bottleneck.HEAD_OF_LINE, Bottleneck.NOISY_NEIGHBOUR}
        ),
        apply=_least_loaded,
        price=fixed(quality="none", risk="low", effort="hours"),
        source="Join the shortest queue; Mitzenmacher, The power of two choices in randomized load"
        " balancing, IEEE TPDS 12(10), 2001",
        wrong_when="the router of today heeds load already (the telemetry does not say, round robin"
        " is assumed), or hits are lost because requests of one prefix are spread",
    ),
    Action(
        name="retry_budget",
        title=f"A retry budget (token bucket: {RETRIES_PER_SUCCESS:g} per success)",
        layer=Layer.SYSTEM,
        opens_for=frozenset({Bottleneck.RETRY_AMPLIFICATION}),
        apply=_retry_budget,
        price=fixed(quality="slight", risk="low", effort="hours"),
        source="M. Brooker, 2022-02-28, Fixing retries with token buckets and circuit breakers;"
        " Finagle: 20% of requests and 10 per second",
        wrong_when="many clients with a bucket each: together they hold many more retries than the"
        " one bucket simulated",
    ),
    Action(
        name="shed_hopeless",
        title="Shed requests whose wait in the queue would miss their target",
        layer=Layer.SYSTEM,
        opens_for=frozenset(
            {
                Bottleneck.QUEUE_ADMISSION,
                Bottleneck.BATCH_SLOTS,
                Bottleneck.PREFILL_COMPUTE,
                Bottleneck.DECODE_BANDWIDTH,
                Bottleneck.KV_CAPACITY,
            }
        ),
        apply=_shed_hopeless,
        price=fixed(
            quality="visible", risk="medium", effort="days", note="those that are shed get an error"
        ),
        source="AWS Builders' Library, Using load shedding to avoid overload; Google SRE book,"
        " chapter 21 (client-side and criticality-based shedding)",
        wrong_when="a late answer is worth more than none, or callers try again at once",
    ),
)
