"""From an engine's own span of a request: its times, and the spans of queue, prefill and decode.

vLLM gives durations on its span (`llm_request`): time to first token from the arrival at the
API server, and queue, prefill and decode by the engine core's clock. So

    engine front = TTFT - queue - prefill      (tokenise, hand over)
    engine back  = end - arrival - front - queue - prefill - decode

SGLang's `time_in_model_prefill` runs from the dispatch and so includes the queue; where its
stage spans (`prefill_waiting`, `prefill_forward`) are there, these are used instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sojourn.interval import Provenance
from sojourn.records import Stage
from sojourn.trace.readers.spans import (
    DECODE,
    E2E,
    INFERENCE,
    PREFILL,
    QUEUE,
    TTFT,
    Span,
    nanoseconds,
)
from sojourn.trace.readers.stages import SGLANG_STAGES, is_sglang

FRONT: Final = "engine front"
BACK: Final = "engine back"


@dataclass(frozen=True, slots=True)
class Part:
    """One derived piece of an engine's span, nanoseconds."""

    stage: Stage
    name: str
    start: int
    end: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """When one engine request arrived, was scheduled, gave its first and last token."""

    arrival: int
    scheduled: int | None
    first_token: int | None
    end: int
    parts: tuple[Part, ...]


def engine_times(span: Span) -> EngineTimes:
    """Times and derived pieces of an engine's span."""
    if any(c.name in SGLANG_STAGES and c.name != "tokenize" for c in _below(span)):
        return _from_stage_spans(span)
    attrs, start, end = span.attrs, span.true_start, span.true_end
    ttft, queue = nanoseconds(attrs.get(TTFT)), nanoseconds(attrs.get(QUEUE))
    prefill, decode = nanoseconds(attrs.get(PREFILL)), nanoseconds(attrs.get(DECODE))
    inference, e2e = nanoseconds(attrs.get(INFERENCE)), nanoseconds(attrs.get(E2E))
    if prefill is None and inference is not None and decode is not None:
        prefill = max(0, inference - decode)
    if is_sglang(span):
        return _sglang(span, ttft, prefill, decode)
    if queue is None or prefill is None:
        first_token = None if ttft is None else start + ttft
        last = start + e2e if e2e is not None else end
        return EngineTimes(start, None, first_token, last, ())
    front = 0 if ttft is None else max(0, ttft - queue - prefill)
    scheduled = start + front + queue
    first_token = scheduled + prefill
    last = first_token + decode if decode is not None else max(first_token, end)
    stop = max(end, last)
    measured = Provenance.MEASURED
    parts = (
        Part(Stage.GATEWAY, FRONT, start, start + front, measured),
        Part(Stage.QUEUE, "queue", start + front, scheduled, measured),
        Part(Stage.PREFILL, "prefill", scheduled, first_token, measured),
        Part(Stage.DECODE, "decode", first_token, last, measured),
        Part(Stage.GATEWAY, BACK, last, stop, measured),
    )
    return EngineTimes(start, scheduled, first_token, last, parts)


def _sglang(span: Span, ttft: int | None, prefill: int | None, decode: int | None) -> EngineTimes:
    start, end = span.true_start, span.true_end
    if ttft is None:
        return EngineTimes(start, None, None, end, ())
    first_token = start + ttft
    front = max(0, ttft - prefill) if prefill is not None else 0
    last = min(first_token + decode, end) if decode is not None else end
    inferred = Provenance.INFERRED
    parts = (
        Part(Stage.GATEWAY, FRONT, start, start + front, Provenance.MEASURED),
        Part(Stage.PREFILL, "prefill (with queue)", start + front, first_token, inferred),
        Part(Stage.DECODE, "decode", first_token, last, Provenance.MEASURED),
        Part(Stage.GATEWAY, BACK, last, max(end, last), Provenance.MEASURED),
    )
    return EngineTimes(start, None, first_token, last, parts)


def _from_stage_spans(span: Span) -> EngineTimes:
    below = list(_below(span))
    prefills = [s for s in below if SGLANG_STAGES.get(s.name) is Stage.PREFILL]
    waits = [s for s in below if s.name == "prefill_waiting"]
    scheduled = min((s.true_start for s in prefills), default=None)
    if scheduled is None:
        scheduled = max((s.true_end for s in waits), default=None)
    ttft = nanoseconds(span.attrs.get(TTFT))
    first_token = (
        span.true_start + ttft
        if ttft is not None
        else max((s.true_end for s in prefills), default=None)
    )
    return EngineTimes(span.true_start, scheduled, first_token, span.true_end, ())


def _below(span: Span) -> Iterator[Span]:
    stack = list(span.children)
    while stack:
        inner = stack.pop()
        yield inner
        stack.extend(inner.children)
