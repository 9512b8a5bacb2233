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


def name_of(head: Head) -> str | None:
    """Name of a known format that is not served yet, or None."""
    data = head.data
    if data.startswith(b"SQLite format 3\x00"):
        return "SQLite database (Nsight Systems export?)"
    if data[257:262] == b"ustar":
        return "tar archive (ServeGen client data?)"
    if data.startswith(b"PK\x03\x04"):
        return "zip archive (unpack it first)"
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstandard file (unpack it first)"
    if data.startswith(b"PAR1"):
        return "Parquet file with unknown columns (map them under `columns:` in sojourn.yaml)"
    if head.is_binary:
        return None
    if head.is_json:
        return next((name for name, keys in _KEYED if keys <= head.keys), None)
    start = head.text[:2048].lstrip()
    if start.startswith(("# HELP", "# TYPE", "DCGM_FI_", "vllm:", "sglang:")):
        return "Prometheus scrape"
    if start.startswith(("# gpu", "# Idx", "#Date")):
        return "nvidia-smi dmon output"
    return None
