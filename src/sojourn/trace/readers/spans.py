"""`Span`: one span of any tracing format, and the attribute names of every convention we read."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from sojourn.trace.sources import Raw

MAX_INT: Final = 2**62

SESSION: Final = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
)
TENANT: Final = (
    "user.id",
    "enduser.id",
    "langfuse.user.id",
    "traceloop.association.properties.tenant",
    "traceloop.association.properties.user_id",
    "gen_ai.user",
    "llm.user",
)
ROUTE: Final = ("http.route", "url.path", "http.target")
MODEL: Final = (
    "gen_ai.response.model",
    "gen_ai.request.model",
    "llm.response.model_name",
    "llm.model_name",
    "llm.request.model_name",
)
INPUT: Final = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
CACHED: Final = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.token_count.prompt_details.cache_input",
)
OUTPUT: Final = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
REASONING: Final = (
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)
IMAGE_TOKENS: Final = ("gen_ai.usage.image.input_tokens",)
IMAGES: Final = ("sojourn.images", "input.images.count")
FIRST_CHUNK: Final = ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")
STATUS_CODE: Final = ("http.response.status_code", "http.status_code", "rpc.grpc.status_code")
RESEND: Final = ("http.request.resend_count", "http.resend_count")
TTFT: Final = "gen_ai.latency.time_to_first_token"
QUEUE: Final = "gen_ai.latency.time_in_queue"
PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
DECODE: Final = "gen_ai.latency.time_in_model_decode"
INFERENCE: Final = "gen_ai.latency.time_in_model_inference"
E2E: Final = "gen_ai.latency.e2e"
ENGINE_LATENCIES: Final = (TTFT, QUEUE, PREFILL, DECODE, INFERENCE, E2E)
COST: Final = ("sojourn.cost_usd", "llm.cost.total")

WANTED: Final = frozenset(
    {
        *SESSION, *TENANT, *ROUTE, *MODEL, *INPUT, *CACHED, *OUTPUT, *REASONING, *IMAGE_TOKENS,
        *IMAGES, *FIRST_CHUNK, *STATUS_CODE, *RESEND, *ENGINE_LATENCIES, *COST,
        "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.request.id", "gen_ai.response.id",
        "gen_ai.system", "gen_ai.provider.name", "gen_ai.data_source.id",
        "gen_ai.request.num_preemptions",
        "openinference.span.kind", "traceloop.span.kind", "llm.request.type",
        "db.system", "db.system.name", "db.vector.query.top_k", "http.request.method",
        "http.method", "error.type", "error", "exception.type",
        "server.address", "server.port", "net.peer.name", "net.peer.port",
        "service.name", "service.instance.id", "host.name", "k8s.pod.name",
        "k8s.namespace.name", "rid", "module", "thread_label", "span.kind",
        "otel.status_code", "otel.status_description",
        "sojourn.stage", "sojourn.wait_s", "sojourn.priority", "sojourn.success", "sojourn.risk",
        "sojourn.quality", "sojourn.degraded", "sojourn.pool", "sojourn.bucket",
    }
)  # fmt: skip
"""Attributes that are kept; prompts and answers are never held in memory."""
NAMES: Final = {name: sys.intern(name) for name in WANTED}
IMAGE_MESSAGES: Final = "llm.input_messages."
IMAGE_TYPE: Final = ".message_content.type"


@dataclass(slots=True)
class Span:
    """One span. Times are nanoseconds since 1970; `end` is 0 where it never ended."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attrs: dict[str, Any]
    resource: dict[str, Any]
    error: bool = False
    message: str = ""
    first_token: int | None = None
    row: int = 0
    true_start: int = 0
    true_end: int = 0
    children: list[Span] = field(default_factory=list)


def first(attrs: dict[str, Any], names: tuple[str, ...]) -> Raw:
    """The first of several attributes that is present and not empty."""
    for name in names:
        value = attrs.get(name)
        if value is not None and value != "":
            return value
    return None


def text(value: Raw) -> str | None:
    """A value as a word, None when there is none."""
    if value is None or isinstance(value, list | dict):
        return None
    word = str(value)[:512].encode("utf-8", "replace").decode()
    return word or None


def number(value: Raw) -> float | None:
    """A value as a finite number, None when it is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def whole(value: Raw) -> int | None:
    """A value as an integer that fits 63 bits, None when it is none."""
    if type(value) is int:
        return value if -MAX_INT < value < MAX_INT else None
    result = number(value)
    return None if result is None or abs(result) >= MAX_INT else round(result)


def truth(value: Raw) -> bool | None:
    """A value as true or false, None when it is neither."""
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())


def nanoseconds(seconds: Raw) -> int | None:
    """A duration in seconds as nanoseconds; None when absent, negative or beyond a century."""
    value = number(seconds)
    return round(value * 1e9) if value is not None and 0 <= value < 3.2e9 else None
