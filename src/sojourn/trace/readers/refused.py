"""Formats that are recognised so that they can be refused by name."""

from __future__ import annotations

from typing import Final

from sojourn.trace.sources import Head

_KEYED: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Kineto / Chrome trace (GPU profile)", frozenset({"traceEvents"})),
    ("Langfuse trace export", frozenset({"observations", "projectId"})),
    ("Jaeger domain-model JSON", frozenset({"operationName", "vType"})),
    ("flattened OTel spans", frozenset({"trace_id", "span_count", "spans"})),
    ("guidellm report", frozenset({"guidellm_version"})),
    ("guidellm report", frozenset({"benchmarks", "scheduler_state"})),
    ("aiperf export", frozenset({"request_start_ns", "credit_issued_ns"})),
    ("aiperf export", frozenset({"input_config"})),
    ("llmperf individual responses", frozenset({"inter_token_latency_s", "ttft_s"})),
    ("inference-perf summary", frozenset({"load_summary", "successes"})),
    ("LiteLLM spend log", frozenset({"litellm_call_id"})),
    ("LiteLLM spend log", frozenset({"model_group", "response_cost"})),
    ("LiteLLM spend log", frozenset({"custom_llm_provider", "completionStartTime"})),
    ("vLLM response with per-request metrics", frozenset({"generation_time_ms", "mean_itl_ms"})),
    ("SGLang request log", frozenset({"rid", "meta_info"})),
    ("SGLang request log", frozenset({"event", "rid"})),
    ("Dynamo request trace", frozenset({"event_time_unix_ms"})),
    ("TensorRT-LLM perf_metrics", frozenset({"timing_metrics"})),
    ("llama.cpp timings", frozenset({"predicted_per_second"})),
    ("k6 points", frozenset({"metric", "type", "data", "tags"})),
    ("TraceLab rounds", frozenset({"timing_events", "round_id"})),
    ("TraceLab rounds", frozenset({"rounds", "timing_events"})),
    ("SWE-agent trajectory", frozenset({"trajectory"})),
    ("OTLP metrics", frozenset({"resourceMetrics"})),
    ("OTLP logs", frozenset({"resourceLogs"})),
    ("Zipkin v2 JSON", frozenset({"localEndpoint", "traceId"})),
    ("LangSmith runs", frozenset({"dotted_order"})),
    ("Envoy AI Gateway access log (map its fields under `columns:`)",
     frozenset({"x-request-id", "response_flags"})),
)  # fmt: skip


_MAGIC: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"SQLite format 3\x00", "SQLite database (Nsight Systems export?)"),
    (257, b"ustar", "tar archive (ServeGen client data?)"),
    (0, b"PK\x03\x04", "zip archive (unpack it first)"),
    (0, b"\x28\xb5\x2f\xfd", "zstandard file (unpack it first)"),
    (0, b"PAR1", "Parquet with unknown columns (map them under `columns:` in sojourn.yaml)"),
)
_STARTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("# HELP", "# TYPE", "DCGM_FI_", "vllm:", "sglang:"), "Prometheus scrape"),
    (("# gpu", "# Idx", "#Date"), "nvidia-smi dmon output"),
)


def name_of(head: Head) -> str | None:
    """Name of a known format that is not served yet, or None."""
    for at, magic, name in _MAGIC:
        if head.data[at : at + len(magic)] == magic:
            return name
    if head.is_binary:
        return None
    if head.is_json:
        return next((name for name, keys in _KEYED if keys <= head.keys), None)
    start = head.text[:2048].lstrip()
    return next((name for marks, name in _STARTS if start.startswith(marks)), None)
