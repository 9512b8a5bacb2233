"""What a span is: a model call, an engine's span, a stage of the chain, or a mere holder."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

from sojourn.records import Stage
from sojourn.trace.readers.spans import ENGINE_LATENCIES, Span, text


class Role(StrEnum):
    """How a span takes part in the tables."""

    CALL = "call"
    ENGINE = "engine"
    STAGE = "stage"
    HOLDER = "holder"


OPERATIONS: Final[dict[str, Stage | Role]] = {
    "chat": Role.CALL,
    "generate_content": Role.CALL,
    "text_completion": Role.CALL,
    "completion": Role.CALL,
    "embeddings": Stage.RETRIEVAL,
    "retrieval": Stage.RETRIEVAL,
    "search_memory": Stage.RETRIEVAL,
    "execute_tool": Stage.TOOL,
    "create_memory": Stage.TOOL,
    "update_memory": Stage.TOOL,
    "upsert_memory": Stage.TOOL,
    "delete_memory": Stage.TOOL,
    "create_agent": Role.HOLDER,
    "invoke_agent": Role.HOLDER,
    "invoke_workflow": Role.HOLDER,
    "plan": Role.HOLDER,
}
OPENINFERENCE: Final[dict[str, Stage | Role]] = {
    "LLM": Role.CALL,
    "EMBEDDING": Stage.RETRIEVAL,
    "RETRIEVER": Stage.RETRIEVAL,
    "RERANKER": Stage.RERANK,
    "TOOL": Stage.TOOL,
    "GUARDRAIL": Stage.GUARDRAIL,
    "EVALUATOR": Stage.POSTPROCESS,
    "AGENT": Role.HOLDER,
}
"""CHAIN, PROMPT, DECISION and UNKNOWN say too little: their name decides."""
REQUEST_TYPES: Final[dict[str, Stage | Role]] = {
    "chat": Role.CALL,
    "completion": Role.CALL,
    "embedding": Stage.RETRIEVAL,
    "rerank": Stage.RERANK,
}
"""OpenLLMetry's `llm.request.type`."""
VECTOR_STORES: Final = frozenset(
    {"chroma", "pinecone", "qdrant", "weaviate", "milvus", "marqo", "lancedb", "faiss", "pgvector",
     "elasticsearch", "opensearch", "vespa"}
)  # fmt: skip
SGLANG_STAGES: Final[dict[str, Stage]] = {
    "tokenize": Stage.GATEWAY,
    "api_server_dispatch": Stage.GATEWAY,
    "dpc_dispatch": Stage.GATEWAY,
    "request_process": Stage.GATEWAY,
    "prefill_waiting": Stage.QUEUE,
    "decode_waiting": Stage.QUEUE,
    "prefill_prepare": Stage.QUEUE,
    "decode_prepare": Stage.QUEUE,
    "prefill_forward": Stage.PREFILL,
    "chunked_prefill": Stage.PREFILL,
    "decode_forward": Stage.DECODE,
    "decode_loop": Stage.DECODE,
    "spec_draft": Stage.DECODE,
    "spec_verify": Stage.DECODE,
    "mm_encode": Stage.ENCODE,
    "prefill_bootstrap": Stage.KV_TRANSFER,
    "decode_bootstrap": Stage.KV_TRANSFER,
    "prefill_transfer_kv_cache": Stage.KV_TRANSFER,
    "decode_transferred": Stage.KV_TRANSFER,
}
_NAMES: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), stage)
    for pattern, stage in (
        (r"re-?rank", Stage.RERANK),
        (r"\bback-?off\b|retry.?(wait|delay|sleep)", Stage.BACKOFF),
        (r"guard-?rail|moderation|safety.?check|\bpii\b|jailbreak", Stage.GUARDRAIL),
        (r"retriev|vector.?(search|store|db)|similarity.?search|\bembed", Stage.RETRIEVAL),
        (r"knowledge.?base|\bbm25\b|full.?text", Stage.RETRIEVAL),
        (r"web.?search|\btool\b|function.?call|execute_tool|\bmcp\b", Stage.TOOL),
        (r"post-?process|output.?pars|format.?(answer|response)", Stage.POSTPROCESS),
        (r"(image|vision|audio|multi-?modal|mm).?(encod|preprocess)", Stage.ENCODE),
        (r"kv.?(cache.?)?transfer", Stage.KV_TRANSFER),
        (r"\b(auth\w*|rate.?limit\w*|gateway|router|routing|admission)\b", Stage.GATEWAY),
    )
)
"""Last resort: what names of spans say, the more telling word first."""
ATTEMPT_NAME: Final = re.compile(r"^(attempt|try|retry)\b", re.IGNORECASE)
_STAGES: Final = {str(stage): stage for stage in Stage}


def classify(span: Span) -> tuple[Role, Stage | None]:
    """Role and stage of a span, from the most explicit attribute down to its name."""
    attrs = span.attrs
    told = attrs.get("sojourn.stage")
    if told is not None and str(told) in _STAGES:
        return Role.STAGE, _STAGES[str(told)]
    if is_engine(span):
        return Role.ENGINE, None
    found = _by_attributes(attrs)
    if found is None:
        found = _by_name(span)
    if isinstance(found, Stage):
        return Role.STAGE, found
    return found, None


def is_engine(span: Span) -> bool:
    """Whether an inference engine wrote this span about one request."""
    attrs = span.attrs
    return span.name == "llm_request" or any(key in attrs for key in ENGINE_LATENCIES)


def is_sglang(span: Span) -> bool:
    """Whether the engine's span is SGLang's, whose prefill time includes the queue."""
    return "rid" in span.attrs or str(span.attrs.get("module", "")).startswith("sglang")


def _by_attributes(attrs: dict[str, Any]) -> Stage | Role | None:
    found = OPERATIONS.get(text(attrs.get("gen_ai.operation.name")) or "")
    if found is None:
        found = OPENINFERENCE.get((text(attrs.get("openinference.span.kind")) or "").upper())
    if found is None:
        found = REQUEST_TYPES.get(text(attrs.get("llm.request.type")) or "")
    if found is not None:
        return found
    kind = attrs.get("traceloop.span.kind")
    if kind == "tool":
        return Stage.TOOL
    if kind in ("workflow", "agent"):
        return Role.HOLDER
    store = str(attrs.get("db.system.name") or attrs.get("db.system") or "").lower()
    if "db.vector.query.top_k" in attrs or store in VECTOR_STORES:
        return Stage.RETRIEVAL
    provider = attrs.get("gen_ai.provider.name") or attrs.get("gen_ai.system")
    if provider and attrs.get("gen_ai.request.model") and "gen_ai.tool.name" not in attrs:
        return Role.CALL
    return None


def _by_name(span: Span) -> Stage | Role:
    if ATTEMPT_NAME.match(span.name) or "http.route" in span.attrs:
        return Role.HOLDER
    if span.name in SGLANG_STAGES and span.name not in ("tokenize",):
        return SGLANG_STAGES[span.name]
    for pattern, stage in _NAMES:
        if pattern.search(span.name):
            return stage
    return Role.HOLDER
