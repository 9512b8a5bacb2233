"""Counts and percentiles of a recording, from its own spans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

STAGES = ("retrieval", "rerank", "execute_tool", "chat", "backoff")


def summarize(resource_spans: list[dict[str, Any]], peak: tuple[float, float]) -> dict[str, Any]:
    """Return what `recording.yaml` says about the requests; `peak` is in epoch seconds."""
    spans = list(_spans(resource_spans))
    roots = [span for span in spans if "parentSpanId" not in span]
    attempts = [span for span in spans if span["name"] == "attempt"]
    at_peak = [span for span in roots if peak[0] <= _start(span) < peak[1]]
    timed_out = [span for span in attempts if _attribute(span, "error.type") == "timeout"]
    failed = Counter(_attribute(span, "error.type") for span in roots)
    resent = [span for span in attempts if _attribute(span, "http.request.resend_count") != "0"]
    return {
        "counts": {
            "requests": len(roots),
            "ok": failed.pop(None, 0),
            "failed": {str(name): count for name, count in failed.items()},
            "attempts": len(attempts),
            "attempts_timed_out": len(timed_out),
            "retries": len(resent),
            "model_calls": sum(span["name"].startswith("chat ") for span in spans),
            "engine_spans": sum(span["name"] == "llm_request" for span in spans),
            "spans": len(spans),
        },
        "e2e_s": _percentiles(roots),
        "e2e_at_peak_s": _percentiles(at_peak),
        "attempts_per_request_at_peak": _attempts_per_request(at_peak, attempts),
        "stage_s_at_peak": _stage_percentiles(spans, peak),
        "outside_s_p95_at_peak": _outside(spans, peak),
    }


def _outside(spans: list[dict[str, Any]], peak: tuple[float, float]) -> float:
    """Return P95 of the time a finished attempt spends in retrieval, rerank and tools, s."""
    total: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        if span["name"].startswith(("retrieval", "rerank", "execute_tool")):
            total[span["parentSpanId"]] += _seconds(span)
    done = [
        total[span["spanId"]]
        for span in spans
        if span["name"] == "attempt" and peak[0] <= _start(span) < peak[1]
    ]
    return round(float(np.percentile(done, 95)), 3) if done else 0.0


def _stage_percentiles(
    spans: list[dict[str, Any]], peak: tuple[float, float]
) -> dict[str, dict[str, float]]:
    result = {}
    for stage in STAGES:
        chosen = [
            s for s in spans if s["name"].startswith(stage) and peak[0] <= _start(s) < peak[1]
        ]
        if chosen:
            result[stage] = _percentiles(chosen)
    for part in ("queue", "model_prefill", "model_decode"):
        key = f"gen_ai.latency.time_in_{part}"
        values = [
            float(_attribute(s, key) or 0.0)
            for s in spans
            if s["name"] == "llm_request" and peak[0] <= _start(s) < peak[1]
        ]
        if values:
            result[f"engine {part.removeprefix('model_')}"] = _of(np.array(values))
    return result


def _attempts_per_request(roots: list[dict[str, Any]], attempts: list[dict[str, Any]]) -> float:
    traces = {span["traceId"] for span in roots}
    made = sum(span["traceId"] in traces for span in attempts)
    return round(made / len(roots), 3) if roots else 0.0


def _percentiles(spans: list[dict[str, Any]]) -> dict[str, float]:
    return _of(np.array([_seconds(span) for span in spans]))


def _of(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    names = ("p50", "p95", "p99")
    found = {n: float(v) for n, v in zip(names, np.percentile(values, (50, 95, 99)), strict=True)}
    return {name: round(v, 3) for name, v in ({"mean": float(values.mean())} | found).items()}


def _spans(resource_spans: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for resource in resource_spans:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _start(span: dict[str, Any]) -> float:
    return int(span["startTimeUnixNano"]) / 1e9


def _seconds(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def _attribute(span: dict[str, Any], key: str) -> str | None:
    for attribute in span.get("attributes", []):
        if attribute["key"] == key:
            return str(next(iter(attribute["value"].values())))
    return None
