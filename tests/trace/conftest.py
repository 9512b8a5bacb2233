"""Small traces by hand, and where the real samples lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
T0 = 1_780_000_000_000_000_000
S = 1_000_000_000


def sample(*parts: str) -> Path:
    """A real sample, or a skip when the samples do not lie beside the checkout."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"sample {'/'.join(parts)} is not beside this checkout")
    return path


def _value(value):
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": value}


def attributes(values):
    return [{"key": key, "value": _value(item)} for key, item in values.items()]


def span(span_id, name, start, end, *, parent="", trace="a" * 32, error=False, **more):
    """One OTLP span; times in seconds after T0. `attrs` and `service` in `more`."""
    raw = {
        "traceId": trace,
        "spanId": span_id.ljust(16, "0"),
        "parentSpanId": parent.ljust(16, "0") if parent else "",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(T0 + round(start * S)),
        "endTimeUnixNano": str(T0 + round(end * S)) if end is not None else "0",
        "attributes": attributes(more.get("attrs", {})),
        "status": {"code": 2} if error else {},
    }
    return more.get("service", "gateway"), raw


def lines(*spans):
    """JSON lines, one span each."""
    out = []
    for service, raw in spans:
        resource = {"attributes": attributes({"service.name": service})}
        scope = {"scopeSpans": [{"spans": [raw]}]}
        out.append(json.dumps({"resourceSpans": [{"resource": resource, **scope}]}))
    return "\n".join(out) + "\n"


@pytest.fixture
def write(tmp_path):
    """Write text or bytes to a file of the test's folder."""

    def writer(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        return path

    return writer


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20,
        "server.address": "10.0.0.1", "server.port": 8000}  # fmt: skip
ENGINE = {"gen_ai.latency.time_to_first_token": 0.3, "gen_ai.latency.time_in_queue": 0.1,
          "gen_ai.latency.time_in_model_prefill": 0.15, "gen_ai.latency.time_in_model_decode": 0.5,
          "gen_ai.latency.e2e": 0.85, "gen_ai.usage.prompt_tokens": 100,
          "gen_ai.usage.completion_tokens": 20}  # fmt: skip


def task(trace="a" * 32):
    """A request of two attempts: the first times out, the second calls an engine."""
    return [
        span("r", "POST /v1/task", 0, 10, trace=trace,
             attrs={"http.route": "/v1/task", "user.id": "acme", "gen_ai.conversation.id": "c1",
                    "sojourn.priority": 2, "sojourn.success": True,
                    "http.response.status_code": 200}),
        span("t0", "attempt", 0, 4, parent="r", trace=trace, error=True,
             attrs={"http.request.resend_count": 0, "error.type": "timeout"}),
        span("k0", "retrieval kb", 0.5, 4, parent="t0", trace=trace,
             attrs={"gen_ai.operation.name": "retrieval", "sojourn.wait_s": 1.25}),
        span("b", "backoff", 4, 5, parent="r", trace=trace, attrs={"sojourn.stage": "backoff"}),
        span("t1", "attempt", 5, 10, parent="r", trace=trace,
             attrs={"http.request.resend_count": 1}),
        span("g", "guardrail", 5, 5.1, parent="t1", trace=trace,
             attrs={"openinference.span.kind": "GUARDRAIL"}),
        span("n", "rerank first pass", 5.1, 5.6, parent="t1", trace=trace,
             attrs={"openinference.span.kind": "RERANKER"}),
        span("c", "chat m", 6, 7, parent="t1", trace=trace, attrs=CHAT),
        span("e", "llm_request", 6.05, 6.95, parent="c", trace=trace, attrs=ENGINE,
             service="vllm"),
        span("x", "execute_tool search", 7, 9, parent="t1", trace=trace,
             attrs={"gen_ai.operation.name": "execute_tool"}),
        span("p", "postprocess", 9, 9.5, parent="t1", trace=trace,
             attrs={"sojourn.stage": "postprocess"}),
    ]  # fmt: skip
