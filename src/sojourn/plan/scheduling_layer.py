"""Actions on scheduling: batch slots, step budget, whose turn it is in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity.policies import Order
from sojourn.capacity.records import Fleet
from sojourn.interval import Excuse
from sojourn.plan.action import (
    Action,
    Apply,
    Changed,
    Context,
    fixed,
    in_peak,
    integers,
    is_call,
    with_engine,
)
from sojourn.records import Bottleneck, Layer, words
from sojourn.trace.arrays import texts
from sojourn.workload.stream import STREAM_STEPS, Stream

KV_FULL: Final = 0.9
"""KV usage from which more slots would only be preempted."""
LONG: Final = 2
"""A long prompt computes at least twice what the median one does: below, a cap changes nothing."""


def _more_slots(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    kv = context.load.kv_p95
    if kv is not None and kv >= KV_FULL:
        return Excuse(
            reason=f"KV memory is the limit before the slots: usage is {kv:.0%} at P95, more"
            " sequences would be preempted"
        )
    used = context.load.running_p95
    slots = fleet.engine.max_num_seqs
    if used is not None and used < KV_FULL * slots:
        return Excuse(reason=f"The batch does not fill its {slots} slots: {used:.0f} run at P95")
    return stream, with_engine(fleet, max_num_seqs=2 * slots)


def _fewer_slots(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    used = context.load.running_p95
    slots = fleet.engine.max_num_seqs
    wanted = max(1, int(min(slots, used if used is not None else slots) // 2))
    if wanted >= slots or slots == 1:
        return Excuse(reason="There is one slot only")
    return stream, with_engine(fleet, max_num_seqs=wanted)


def _larger_budget(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    budget = fleet.engine.max_num_batched_tokens
    longest = int(integers(stream, "input_tokens").max(initial=0))
    if budget >= longest * 2:
        return Excuse(
            reason=f"A step of {budget} tokens takes two of the longest prompts ({longest}) already"
        )
    return stream, with_engine(fleet, max_num_batched_tokens=2 * budget)


def _smaller_budget(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    engine = fleet.engine
    wanted = engine.max_num_batched_tokens // 2
    if wanted < engine.max_num_seqs:
        return Excuse(
            reason=f"A step must fit one token for each of the {engine.max_num_seqs} slots:"
            f" {wanted} tokens are too few"
        )
    return stream, with_engine(fleet, max_num_batched_tokens=wanted)


def _long_prompt_cap(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    """Half of the prompts, by what they compute, still pass in one step; the others in pieces."""
    computed = integers(stream, "input_tokens") - integers(stream, "cached_tokens")
    computed = computed[is_call(stream)]
    if not computed.size:
        return Excuse(reason="No request calls a model")
    cap, longest = max(1, int(np.median(computed))), int(computed.max())
    if longest < LONG * cap:
        return Excuse(
            reason=f"No prompt is long beside the others: the median computes {cap} tokens, the"
            f" longest {longest}"
        )
    scheduler = fleet.engine.scheduler
    today = min(fleet.engine.max_num_batched_tokens, scheduler.long_prompt_cap or longest)
    if cap >= today:
        return Excuse(reason=f"A step takes at most {today} tokens of a prompt today")
    capped = scheduler.model_copy(update={"long_prompt_cap": cap})
    return stream, with_engine(fleet, scheduler=capped)


def _in_order(wanted: Order, *, instead_of: Order) -> Apply:
    """Steps filled in another order, where they are filled in that one today."""

    def apply(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
        scheduler = fleet.engine.scheduler
        if scheduler.order is not instead_of:
            return Excuse(reason=f"The order of the engine is {words(scheduler.order)} today")
        changed = scheduler.model_copy(update={"order": wanted})
        return stream, with_engine(fleet, scheduler=changed)

    return apply


def _by_priority(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    calling = np.unique(integers(stream, "request")[is_call(stream)])
    priority = np.asarray(stream.requests.column("priority").fill_null(0).to_numpy())
    if np.unique(priority[calling]).size < 2:
        return Excuse(
            reason="All requests have one priority",
            collect=("record the priority of requests (larger is more important)",),
        )
    return _in_order(Order.PRIORITY, instead_of=Order.FCFS)(stream, fleet, context)


def _async_low_priority(stream: Stream, fleet: Fleet, context: Context) -> Changed | Excuse:
    """Requests that may wait (priority below 0) run after the peak, at the stream's mean rate.

    Only those: that a request ranks below another does not say that its user can wait. Negative
    means sheddable in the Gateway API Inference Extension.
    """
    priority = np.asarray(stream.requests.column("priority").fill_null(0).to_numpy())
    if not (priority < 0).any():
        return Excuse(
            reason="No request is marked as one that may wait (a priority below 0)",
            collect=("record a negative priority on batch work",),
        )
    low = (priority < 0) & in_peak(stream, context.config.analysis.peak_window_s)
    if not low.any() or low.all():
        return Excuse(reason="Not only requests that may wait, or none, arrive in the peak")
    arrivals = np.array(stream.requests.column("arrival_s").to_numpy(), dtype=float)
    gap = stream.duration_s / len(arrivals)
    arrivals[low] = arrivals[-1] + gap * np.arange(1, int(low.sum()) + 1)
    return reordered(stream, arrivals), fleet


def reordered(stream: Stream, arrivals: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Stream:
    """The stream with other arrival times, sorted again."""
    order = np.argsort(arrivals, kind="stable")
    requests = stream.requests.set_column(
        stream.requests.schema.get_field_index("arrival_s"), "arrival_s", pa.array(arrivals)
    ).take(pa.array(order))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    owner = rank[integers(stream, "request")]
    steps_order = np.lexsort((np.arange(len(owner)), owner))
    steps = stream.steps.set_column(
        STREAM_STEPS.get_field_index("request"), "request", pa.array(owner)
    ).take(pa.array(steps_order))
    return replace(stream, requests=requests.combine_chunks(), steps=steps.combine_chunks())


def _split_pools(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    excuse = Excuse(
        reason="Not modelled: a plan's prices and its engine's load count one pool; compare pools"
        " of their own for long and short requests in a scenario file"
    )
    if len(set(texts(stream.steps["pool"]).tolist())) > 1:
        return excuse.model_copy(update={"reason": excuse.reason + " (the stream names pools)"})
    return excuse if fleet.engine.replicas > 1 else Excuse(reason="There is one replica only")


_SLOTS = frozenset({Bottleneck.BATCH_SLOTS, Bottleneck.QUEUE_ADMISSION})

SCHEDULING_ACTIONS: Final = (
    Action(
        name="more_slots",
        title="Double the batch slots (max_num_seqs)",
        layer=Layer.SCHEDULING,
        opens_for=_SLOTS,
        apply=_more_slots,
        price=fixed(quality="none", risk="medium", effort="minutes", note="TPOT grows with B"),
        source="ITL = alpha + beta B: llm-d workload-variant-autoscaler, modeling-optimization;"
        " vLLM docs, optimization and tuning",
        wrong_when="beyond the knee more concurrency is only a queue inside the batch",
    ),
    Action(
        name="fewer_slots",
        title="Halve the sequences that run at once (max_num_seqs)",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.KV_CAPACITY, Bottleneck.DECODE_BANDWIDTH}),
        apply=_fewer_slots,
        price=fixed(risk="medium", effort="minutes", note="TTFT pays for TPOT"),
        source="vLLM docs, optimization and tuning (preemption: lower max_num_seqs)",
        wrong_when="the queue, not the gap between tokens, is what users wait for",
    ),
    Action(
        name="larger_step_budget",
        title="Double the token budget of a step (max_num_batched_tokens)",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.PREFILL_COMPUTE, Bottleneck.QUEUE_ADMISSION}),
        apply=_larger_budget,
        price=fixed(risk="low", effort="minutes", note="the worst gap between tokens grows"),
        source="vLLM docs, optimization and tuning; Sarathi-Serve, arXiv:2403.02310",
        wrong_when="a tight TPOT target: the worst gap is one whole mixed step",
    ),
    Action(
        name="smaller_step_budget",
        title="Halve the token budget of a step (chunked prefill)",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.HEAD_OF_LINE, Bottleneck.DECODE_BANDWIDTH}),
        apply=_smaller_budget,
        price=fixed(risk="low", effort="minutes", note="TTFT of long prompts grows"),
        source="Sarathi-Serve, arXiv:2403.02310: 2.6x to 3.7x capacity at an equal tail target",
        wrong_when="below saturation halving the chunk doubles TTFT, and the cost of a step that"
        " does not depend on its tokens is paid more often",
    ),
    Action(
        name="async_low_priority",
        title="Run low-priority requests of the peak after it",
        layer=Layer.SCHEDULING,
        opens_for=_SLOTS
        | {
            Bottleneck.NOISY_NEIGHBOUR,
            Bottleneck.RETRIEVAL,
            Bottleneck.RERANK,
            Bottleneck.TOOL,
            Bottleneck.PREFILL_COMPUTE,
            Bottleneck.DECODE_BANDWIDTH,
            Bottleneck.KV_CAPACITY,
        },
        apply=_async_low_priority,
        price=fixed(
            quality="visible", risk="low", effort="days", note="their wait is not in the figures"
        ),
        source="llm-d batch gateway measurements (TTFT P99 2617 to 1273 ms); Google SRE book,"
        " chapter 21 (criticality)",
        wrong_when="the low-priority work has a deadline of its own",
        live=True,
    ),
    Action(
        name="split_pools",
        title="Pools of their own for long and short requests",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.HEAD_OF_LINE, Bottleneck.NOISY_NEIGHBOUR}),
        apply=_split_pools,
        source="Queueing: E[wait] grows with E[S^2], Pollaczek-Khinchine",
        wrong_when="too few replicas to split without losing the shared reserve",
        simulated=False,
    ),
    Action(
        name="priority_scheduling",
        title="Let urgent requests overtake in the engine's queue",
        layer=Layer.SCHEDULING,
        opens_for=frozenset(
            {Bottleneck.NOISY_NEIGHBOUR, Bottleneck.HEAD_OF_LINE, Bottleneck.QUEUE_ADMISSION}
        ),
        apply=_by_priority,
        price=fixed(risk="medium", effort="hours", note="what is less important waits longer"),
        source="vLLM docs, engine arguments (scheduling_policy: priority); Sheng et al., Fairness"
        " in serving LLMs (VTC), OSDI'24",
        wrong_when="everything is urgent, or urgent work alone fills the engine: the rest starves",
    ),
    Action(
        name="long_prompt_cap",
        title="Cap what a step takes of one prompt at the median prompt",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.HEAD_OF_LINE, Bottleneck.NOISY_NEIGHBOUR}),
        apply=_long_prompt_cap,
        price=fixed(risk="low", effort="minutes", note="TTFT of long prompts grows"),
        source="vLLM docs, engine arguments (long_prefill_token_threshold); Sarathi-Serve,"
        " arXiv:2403.02310",
        wrong_when="long prompts are the traffic that matters, or what a step costs without tokens"
        " is large: a prompt in pieces pays it once a piece",
    ),
    Action(
        name="prefill_first",
        title="Compute prompts before decodes (prefill first)",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.QUEUE_ADMISSION, Bottleneck.PREFILL_COMPUTE}),
        apply=_in_order(Order.PREFILL_FIRST, instead_of=Order.FCFS),
        price=fixed(risk="medium", effort="weeks", note="not every engine has it; decodes stall"),
        source="Sarathi-Serve, arXiv:2403.02310, section 3: prefill-prioritising schedulers raise"
        " throughput and stall generation",
        wrong_when="a tight TPOT target: decodes stand still while prompts come",
    ),
    Action(
        name="decode_first",
        title="Take decodes before prompts in a step",
        layer=Layer.SCHEDULING,
        opens_for=frozenset({Bottleneck.HEAD_OF_LINE, Bottleneck.DECODE_BANDWIDTH}),
        apply=_in_order(Order.FCFS, instead_of=Order.PREFILL_FIRST),
        price=fixed(risk="low", effort="minutes", note="TTFT pays for TPOT"),
        source="Sarathi-Serve, arXiv:2403.02310: stall-free batching",
        wrong_when="the wait for the first token, not the gap between tokens, is what users see",
    ),
)
