"""Actions on the request: retries, timeouts, lengths, order of tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import Fleet
from sojourn.interval import Excuse
from sojourn.plan.action import (
    Action,
    Changed,
    Context,
    fixed,
    integers,
    is_call,
    shrink_inputs,
    step_buckets,
    with_retry,
    with_steps,
)
from sojourn.records import Bottleneck, Bucket, Layer, Stage
from sojourn.trace.arrays import Floats, texts
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import STREAM_STEPS, Stream

INPUT_CUT: Final = 0.30
"""Share of the uncached prompt that trimming or compression takes away: the mild end of what
compression studies call safe for answers; the quality is for the team to check."""
COMPRESSOR_SHARE: Final = 0.2
"""Assumed time of the compressor over the prefill time of the whole prompt. A 0.5B encoder beside
an 8B model needs 0.07 of its operations, and runs less efficiently."""
IMAGE_CUT: Final = 0.5
OUTPUT_PERCENTILE: Final = 0.95
TIMEOUT_ROOM: Final = 2.0
"""A timeout at twice the unloaded P99: room for a queue at half load (M/M/1 doubles the time)."""


def _no_blind_retries(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    retry = fleet.retry
    if retry.max_attempts <= 1 or not retry.retry_on_timeout:
        return Excuse(reason="Timed-out attempts are not retried today")
    if retry.attempt_timeout_s is None:
        return Excuse(
            reason="No attempt timeout is known, so no retry follows a timeout",
            collect=("set retry.attempt_timeout_s",),
        )
    return stream, with_retry(fleet, retry_on_timeout=False)


def _degrade(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    if fleet.retry.attempt_timeout_s is None:
        return Excuse(
            reason="No attempt timeout is known, so there is no moment to answer early",
            collect=("set retry.attempt_timeout_s",),
        )
    if fleet.retry.degrade_on_timeout:
        return Excuse(reason="Timed-out attempts answer with what they have today")
    return stream, with_retry(fleet, retry_on_timeout=False, degrade_on_timeout=True)


def _fewer_attempts(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    if fleet.retry.max_attempts <= 2:
        return Excuse(reason=f"There are at most {fleet.retry.max_attempts} attempts today")
    return stream, with_retry(fleet, max_attempts=2)


def unloaded_s(stream: Stream, fleet: Fleet) -> Floats:
    """Time of each request alone in the system: groups one after the other, each its longest."""
    step = fleet.engine.step
    inputs = integers(stream, "input_tokens").astype(float)
    cached = integers(stream, "cached_tokens").astype(float)
    written = integers(stream, "output_tokens").astype(float)
    work = np.nan_to_num(stream.steps.column("service_s").to_numpy().astype(float))
    base, slope = step.decode_step_s(1, 0.0), step.decode_step_s(1, 1.0) - step.decode_step_s(1, 0)
    decode = np.maximum(written - 1, 0) * (base + slope * (inputs + written / 2))
    called = step.front_s + step.decode_step_s(0, 0.0) + step.prefill_s(inputs, cached) + decode
    spent = np.where(is_call(stream), called, work)
    owner, group = integers(stream, "request"), integers(stream, "group")
    starts = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(group) != 0)))
    longest = np.maximum.reduceat(spent, starts)
    total = np.bincount(owner[starts], longest, minlength=stream.requests.num_rows)
    return np.asarray(total, dtype=float)


def _longer_timeout(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    now = fleet.retry.attempt_timeout_s
    if now is None:
        return Excuse(
            reason="No attempt timeout is known", collect=("set retry.attempt_timeout_s",)
        )
    wanted = TIMEOUT_ROOM * float(np.quantile(unloaded_s(stream, fleet), 0.99))
    if wanted <= now:
        return Excuse(
            reason=f"The timeout of {now:g} s leaves room already: 99% of the requests would need"
            f" {wanted / TIMEOUT_ROOM:.2g} s alone in the system"
        )
    return stream, with_retry(fleet, attempt_timeout_s=round(wanted, 2))


def _output_cap(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    written, calls = integers(stream, "output_tokens"), is_call(stream)
    buckets, capped = step_buckets(stream), written.copy()
    for name in sorted(set(buckets[calls].tolist())):
        mine = calls & (buckets == name)
        cap = int(np.quantile(written[mine], OUTPUT_PERCENTILE, method="lower"))
        capped[mine] = np.minimum(written[mine], max(cap, 1))
    if (capped == written).all():
        return Excuse(reason="Outputs have no long tail: a cap at each bucket's P95 cuts nothing")
    return with_steps(stream, output_tokens=capped), fleet


def _retrieval_trim(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    owner = integers(stream, "request")
    retrieving = np.isin(texts(stream.steps["stage"]), [Stage.RETRIEVAL, Stage.RERANK])
    has = np.bincount(owner[retrieving], minlength=stream.requests.num_rows) > 0
    where = has[owner] | (step_buckets(stream) == Bucket.LONG_DOCUMENT.value)
    changed = shrink_inputs(stream, where, INPUT_CUT)
    if changed is None:
        return Excuse(reason="No request retrieves documents or is a long document")
    return changed[0], fleet


def _prompt_compression(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    """Net = T_prefill(n) - T_prefill(n') - T_compress must be positive."""
    changed = shrink_inputs(stream, step_buckets(stream) == Bucket.LONG_DOCUMENT.value, INPUT_CUT)
    if changed is None:
        return Excuse(reason="No long documents in this traffic")
    shorter, cut = changed
    where = cut > 0
    step, cached = fleet.engine.step, integers(stream, "cached_tokens").astype(float)
    before = step.prefill_s(integers(stream, "input_tokens").astype(float), cached)[where]
    after = step.prefill_s(integers(shorter, "input_tokens").astype(float), cached)[where]
    compress = COMPRESSOR_SHARE * before
    net = float((before - after - compress).mean())
    if net <= 0:
        return Excuse(
            reason=f"The compressor would cost {compress.mean():.3g} s and save"
            f" {(before - after).mean():.3g} s of prefill per call: no gain"
        )
    return _with_delay(shorter, where, compress), fleet


def _with_delay(
    stream: Stream, where: np.ndarray[tuple[int], np.dtype[np.bool_]], wait: Floats
) -> Stream:
    """A delay in a group of its own before each chosen step."""
    doubled = with_steps(stream, group=integers(stream, "group") * 2)
    chosen = doubled.steps.filter(pa.array(where))
    n = chosen.num_rows
    columns = {
        "request": chosen.column("request"),
        "group": pa.array(np.asarray(chosen.column("group").to_numpy()) - 1, pa.int64()),
        "kind": pa.array([StepKind.DELAY.value] * n),
        "stage": pa.array([Stage.GATEWAY.value] * n),
        "name": pa.array(["prompt compression"] * n),
        "service_s": pa.array(wait, pa.float64()),
        "pool": chosen.column("pool"),
    }
    for name in ("input_tokens", "cached_tokens", "output_tokens", "image_tokens"):
        columns[name] = pa.array(np.zeros(n, dtype=np.int64))
    delays = pa.table(columns, schema=STREAM_STEPS)
    steps = pa.concat_tables([doubled.steps, delays])
    order = np.lexsort((steps.column("group").to_numpy(), steps.column("request").to_numpy()))
    return replace(stream, steps=steps.take(pa.array(order)).combine_chunks())


def _smaller_images(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    images = integers(stream, "image_tokens")
    cut = np.round(images * IMAGE_CUT).astype(np.int64)
    if not cut.any():
        return Excuse(reason="No image tokens in this traffic")
    tokens = np.maximum(integers(stream, "input_tokens") - cut, 1)
    cached = np.minimum(integers(stream, "cached_tokens"), np.maximum(tokens - 1, 0))
    changed = with_steps(
        stream, image_tokens=images - cut, input_tokens=tokens, cached_tokens=cached
    )
    return changed, fleet


def _parallel_tools(stream: Stream, fleet: Fleet, _context: Context) -> Changed | Excuse:
    """Tool steps that follow one another directly share a group: their sum becomes a maximum."""
    owner, group = integers(stream, "request"), integers(stream, "group")
    tool = (texts(stream.steps["stage"]) == Stage.TOOL.value) & ~is_call(stream)
    starts = np.append(True, (np.diff(owner) != 0) | (np.diff(group) != 0))
    run = np.cumsum(starts) - 1  # number of the step's group, counted through the stream
    pure = np.bincount(run, tool) == np.bincount(run)  # groups of nothing but tools
    first_owner = owner[np.flatnonzero(starts)]
    joins = np.append(False, pure[1:] & pure[:-1] & (first_owner[1:] == first_owner[:-1]))
    if not joins.any():
        return Excuse(reason="No request calls tools one directly after the other")
    return with_steps(stream, group=np.cumsum(~joins)[run] - 1), fleet


_RETRY_SOURCE = (
    "AWS Builders' Library (M. Brooker), Timeouts, retries and backoff with jitter; Bronson et al.,"
    " Metastable failures in distributed systems, HotOS 2021: attempts = (1-p^(r+1))/(1-p), and p"
    " grows with the load that retries add"
)
_RETRY = frozenset({Bottleneck.RETRY_AMPLIFICATION, Bottleneck.TIMEOUT_TOO_SHORT})
_LENGTHY = frozenset(
    {
        Bottleneck.PREFILL_COMPUTE,
        Bottleneck.KV_CAPACITY,
        Bottleneck.QUEUE_ADMISSION,
        Bottleneck.HEAD_OF_LINE,
    }
)

REQUEST_ACTIONS: Final = (
    Action(
        name="no_blind_retries",
        title="Do not retry attempts that timed out",
        layer=Layer.REQUEST,
        opens_for=_RETRY,
        apply=_no_blind_retries,
        price=fixed(quality="slight", risk="low", effort="minutes"),
        source=_RETRY_SOURCE,
        wrong_when="timeouts come from single slow draws that a second try would escape, not load",
        live=True,
        implies=frozenset({"fewer_attempts"}),
    ),
    Action(
        name="degrade_on_timeout",
        title="Answer with what there is at the timeout, instead of retrying",
        layer=Layer.REQUEST,
        opens_for=_RETRY | {Bottleneck.RETRIEVAL, Bottleneck.RERANK, Bottleneck.TOOL},
        apply=_degrade,
        price=fixed(
            quality="visible", risk="low", effort="days", note="partial answers at the timeout"
        ),
        source="AWS Builders' Library, Avoiding fallback and Using load shedding to avoid overload;"
        " Google SRE book, chapter 22 (graceful degradation)",
        wrong_when="a partial answer is worth nothing to the user: check the task's success",
        live=True,
        implies=frozenset({"no_blind_retries", "fewer_attempts"}),
    ),
    Action(
        name="fewer_attempts",
        title="At most one retry per request",
        layer=Layer.REQUEST,
        opens_for=frozenset({Bottleneck.RETRY_AMPLIFICATION}),
        apply=_fewer_attempts,
        price=fixed(quality="slight", effort="minutes"),
        source=_RETRY_SOURCE,
        wrong_when="errors are short and independent of load: then each further try helps",
        live=True,
    ),
    Action(
        name="longer_timeout",
        title="Raise the attempt timeout above the time requests need unloaded",
        layer=Layer.REQUEST,
        opens_for=frozenset({Bottleneck.TIMEOUT_TOO_SHORT}),
        apply=_longer_timeout,
        price=fixed(risk="medium", effort="minutes"),
        source="AWS Builders' Library (M. Brooker), Timeouts, retries and backoff with jitter: a"
        " timeout is the latency percentile of the accepted share of false timeouts",
        wrong_when="attempts time out because of a queue: waiting longer keeps more work in it",
    ),
    Action(
        name="output_cap",
        title="Cap output tokens at each bucket's P95",
        layer=Layer.REQUEST,
        opens_for=frozenset(
            {
                Bottleneck.DECODE_BANDWIDTH,
                Bottleneck.BATCH_SLOTS,
                Bottleneck.KV_CAPACITY,
                Bottleneck.QUEUE_ADMISSION,
                Bottleneck.HEAD_OF_LINE,
            }
        ),
        apply=_output_cap,
        price=fixed(quality="visible", effort="hours", note="the longest 5% of outputs are cut"),
        source="Yang et al., arXiv:2407.05347: clipping few outputs cuts the queue through E[S^2]",
        wrong_when="long outputs are the product (code, reports), or users ask again for the rest",
        live=True,
    ),
    Action(
        name="retrieval_trim",
        title="Fewer or shorter retrieved passages (prompt 30% shorter where not cached)",
        layer=Layer.REQUEST,
        opens_for=_LENGTHY,
        apply=_retrieval_trim,
        price=fixed(quality="slight", risk="medium", effort="days", note="check answer quality"),
        source="Prefill FLOPs l(a n^2 d + b n d^2), Mooncake, FAST'25, eq. 1",
        wrong_when="answers need the passages that are cut; prefill is no large part of the time",
        live=True,
    ),
    Action(
        name="prompt_compression",
        title="Compress long documents by 30% before the model",
        layer=Layer.REQUEST,
        opens_for=_LENGTHY,
        apply=_prompt_compression,
        price=fixed(quality="slight", risk="medium", effort="weeks"),
        source="Independent study of LLMLingua, arXiv:2604.02985: at most 18% end to end, nothing"
        " outside a window of length, ratio and hardware; compressor assumed at 0.2 of the prefill",
        wrong_when="the compressor shares the accelerator or a CPU that is busy; a gain above 18%"
        " is more than was ever measured",
    ),
    Action(
        name="smaller_images",
        title="Halve the pixels of images (max_pixels)",
        layer=Layer.REQUEST,
        opens_for=frozenset({Bottleneck.ENCODER, Bottleneck.PREFILL_COMPUTE}),
        apply=_smaller_images,
        price=fixed(quality="visible", risk="medium", effort="hours"),
        source="Qwen2-VL model card: one token per 28x28 pixels, min_pixels and max_pixels",
        wrong_when="small print must be read; the encoder's own time is not shortened here",
        live=True,
    ),
    Action(
        name="parallel_tools",
        title="Run independent tool calls at once",
        layer=Layer.REQUEST,
        opens_for=frozenset({Bottleneck.TOOL}),
        apply=_parallel_tools,
        price=fixed(risk="medium", effort="days"),
        source="Kim et al., An LLM compiler for parallel function calling, arXiv:2312.04511",
        wrong_when="a tool needs the answer of the one before it: then the order is no choice",
    ),
)
