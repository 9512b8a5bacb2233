"""Spans of every convention to requests, calls and stages."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tests.trace.conftest import CHAT, ENGINE, T0, S, lines, sample, span, task

from sojourn.errors import InputError
from sojourn.trace.reading import detect, read


def rows(table):
    return table.to_pylist()


def by_id(tables):
    return {row["span_id"].rstrip("0") or "0": row for row in rows(tables.spans)}


def reasons(tables):
    return {issue.reason: issue.count for issue in tables.quality.issues}


def test_a_task_with_two_attempts_becomes_one_request_and_one_call(write):
    tables = read(write("t.jsonl", lines(*task())))
    (request,) = rows(tables.requests)
    assert (request["tenant"], request["session_id"], request["route"]) == (
        "acme", "c1", "/v1/task",
    )  # fmt: skip
    assert (request["priority"], request["success"], request["attempts"]) == (2, True, 2)
    assert (request["arrival_s"], request["end_s"], request["status"]) == (0.0, 10.0, "ok")
    (call,) = rows(tables.calls)
    assert call["attempt"] == 1
    assert call["replica"] == "10.0.0.1:8000"
    assert (call["input_tokens"], call["output_tokens"], call["model"]) == (100, 20, "m")
    assert call["ttft_origin"] == "server_arrival"
    assert call["arrival_s"] == pytest.approx(6.05)
    assert call["scheduled_s"] == pytest.approx(6.2)
    assert call["first_token_s"] == pytest.approx(6.35)
    assert call["end_s"] == pytest.approx(6.85)


def test_stages_come_from_attributes_and_cover_the_engine_without_gap(write):
    tables = read(write("t.jsonl", lines(*task())))
    spans = {row["name"]: row for row in rows(tables.spans)}
    stages = {name: row["stage"] for name, row in spans.items()}
    assert stages["retrieval kb"] == "retrieval"
    assert stages["rerank first pass"] == "rerank"
    assert stages["execute_tool search"] == "tool"
    assert (stages["guardrail"], stages["backoff"], stages["postprocess"]) == (
        "guardrail", "backoff", "postprocess",
    )  # fmt: skip
    assert stages["chat m"] is None
    assert stages["llm_request"] is None
    assert spans["retrieval kb"]["wait_s"] == 1.25
    assert spans["retrieval kb"]["attempt"] == 0
    assert spans["backoff"]["attempt"] is None
    parts = [spans[n] for n in ("engine front", "queue", "prefill", "decode", "engine back")]
    assert [p["stage"] for p in parts] == ["gateway", "queue", "prefill", "decode", "gateway"]
    assert parts[0]["start_s"] == spans["llm_request"]["start_s"]
    assert parts[-1]["end_s"] == spans["llm_request"]["end_s"]
    for before, after in pairwise(parts):
        assert before["end_s"] == after["start_s"]
    covered = sum(p["end_s"] - p["start_s"] for p in parts)
    assert covered == pytest.approx(0.9, abs=1e-6)


def test_one_trace_may_lie_in_several_files_formats_and_packings(write, tmp_path):
    spans = task()
    write("in/a.jsonl", lines(*spans[:5]))
    write("in/b.jsonl.gz", gzip.compress(lines(*spans[5:]).encode()))
    whole = read(write("t.jsonl", lines(*spans)))
    parts = read(tmp_path / "in")
    assert rows(parts.requests) == rows(whole.requests)
    assert sorted(map(str, rows(parts.calls))) == sorted(map(str, rows(whole.calls)))


def test_one_document_tempo_and_protobuf_hold_the_same(write):
    spans = task()
    grouped = [
        {"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]},
         "scopeSpans": [{"spans": [raw]}]}
        for service, raw in spans
    ]  # fmt: skip
    expected = read(write("t.jsonl", lines(*spans)))
    document = read(write("d.json", json.dumps({"resourceSpans": grouped}, indent=2)))
    tempo = read(write("tempo.json", json.dumps({"batches": grouped})))
    data = TracesData()
    for group in grouped:
        target = data.resource_spans.add()
        _fill(target.resource.attributes, group["resource"]["attributes"])
        scope = target.scope_spans.add()
        for raw in group["scopeSpans"][0]["spans"]:
            one = scope.spans.add()
            one.trace_id = bytes.fromhex(raw["traceId"])
            one.span_id = raw["spanId"].encode()[:8]
            one.parent_span_id = raw["parentSpanId"].encode()[:8]
            one.name = raw["name"]
            one.start_time_unix_nano = int(raw["startTimeUnixNano"])
            one.end_time_unix_nano = int(raw["endTimeUnixNano"])
            one.status.code = raw["status"].get("code", 0)
            _fill(one.attributes, raw["attributes"])
    body = data.SerializeToString()
    plain = read(write("p.bin", body))
    framed = read(write("f.bin", (len(body).to_bytes(4, "big") + body) * 2))
    for other in (document, tempo, plain):
        assert rows(other.requests) == rows(expected.requests)
        assert [r["arrival_s"] for r in rows(other.calls)] == [
            r["arrival_s"] for r in rows(expected.calls)
        ]
        assert other.quality.read == other.quality.kept == 11
    assert reasons(framed)["duplicate span"] == 11
    assert rows(framed.requests) == rows(expected.requests)


def _fill(target, items):
    for item in items:
        one = target.add()
        one.key = item["key"]
        ((kind, value),) = item["value"].items()
        if kind == "intValue":
            one.value.int_value = int(value)
        elif kind == "boolValue":
            one.value.bool_value = value
        elif kind == "doubleValue":
            one.value.double_value = value
        else:
            one.value.string_value = value


def test_an_llm_span_without_a_root_is_a_request_of_its_own(write):
    engines = [
        span(f"e{i}", "llm_request", i, i + 0.9, parent=f"gone{i}", attrs=ENGINE, service="vllm")
        for i in range(3)
    ]
    tables = read(write("t.jsonl", lines(*engines)))
    assert tables.counts()["requests"] == tables.counts()["calls"] == 3
    assert {row["route"] for row in rows(tables.requests)} == {None}
    assert reasons(tables)["parent not exported: taken as root"] == 3


def test_children_of_a_root_that_was_not_exported_stay_one_request(write):
    tables = read(write("t.jsonl", lines(*task()[1:])))
    (request,) = rows(tables.requests)
    assert request["end_s"] - request["arrival_s"] == 10.0
    assert request["attempts"] == 2
    assert tables.quality.kept == 10


def test_an_engine_span_without_context_joins_its_call_by_the_response_id(write):
    chat = span("c", "chat m", 1, 3, attrs=CHAT | {"gen_ai.response.id": "chatcmpl-7"})
    engine = span("e", "llm_request", 1.1, 2.9, trace="b" * 32, service="vllm",
                  attrs=ENGINE | {"gen_ai.request.id": "chatcmpl-7"})  # fmt: skip
    tables = read(write("t.jsonl", lines(chat, engine)))
    (call,) = rows(tables.calls)
    assert call["arrival_s"] == pytest.approx(0.1)
    assert call["scheduled_s"] is not None
    assert tables.counts()["requests"] == 1


def test_a_wrapped_llm_span_counts_once(write):
    outer = span("o", "ChatOpenAI", 0, 2, attrs={"openinference.span.kind": "LLM",
                 "llm.token_count.prompt": 100, "llm.token_count.completion": 20})  # fmt: skip
    inner = span("i", "openai.chat", 0.1, 1.9, parent="o",
                 attrs={"gen_ai.system": "openai", "gen_ai.request.model": "m",
                        "llm.request.type": "chat", "gen_ai.usage.prompt_tokens": 100,
                        "gen_ai.usage.completion_tokens": 20})  # fmt: skip
    tables = read(write("t.jsonl", lines(outer, inner)))
    (call,) = rows(tables.calls)
    assert (call["input_tokens"], call["output_tokens"]) == (100, 20)
    assert by_id(tables)["i"]["name"] == "chat m"


def test_first_chunk_of_the_client_gives_the_first_token(write):
    chat = span("c", "chat m", 2, 5, attrs=CHAT | {"gen_ai.response.time_to_first_chunk": 0.75})
    (call,) = rows(read(write("t.jsonl", lines(chat))).calls)
    assert call["first_token_s"] == 0.75
    assert call["ttft_origin"] == "client_send"
    assert call["scheduled_s"] is None


def test_a_skewed_service_is_shifted_and_work_after_a_timeout_is_cut(write):
    root = span("r", "task", 0, 4, error=True, attrs={"error.type": "timeout"})
    chat = span("c", "chat m", 1, 4, parent="r", error=True,
                attrs=CHAT | {"error.type": "timeout"})  # fmt: skip
    early = span("e", "llm_request", -30, -29.1, parent="c", attrs=ENGINE, service="vllm")
    late = span("k", "retrieval kb", 0.5, 9, parent="r",
                attrs={"gen_ai.operation.name": "retrieval"})  # fmt: skip
    tables = read(write("t.jsonl", lines(root, chat, early, late)))
    spans = by_id(tables)
    assert spans["e"]["start_s"] == 1.0
    assert spans["e"]["end_s"] == pytest.approx(1.9)
    assert spans["k"]["end_s"] == 4.0
    found = reasons(tables)
    assert found["clock skew between services: span shifted into its parent"] == 1
    assert found["span outside its parent"] == 1
    assert rows(tables.requests)[0]["status"] == "timeout"


def test_an_engine_that_works_on_after_its_caller_left_keeps_its_end(write):
    root = span("r", "chat m", 0, 2, error=True, attrs=CHAT | {"error.type": "timeout"})
    engine = span("e", "llm_request", 0.1, 5.1, parent="r", service="vllm",
                  attrs=ENGINE | {"gen_ai.latency.time_in_model_decode": 4.6,
                                  "gen_ai.latency.e2e": 5.0})  # fmt: skip
    tables = read(write("t.jsonl", lines(root, engine)))
    (call,) = rows(tables.calls)
    assert call["status"] == "timeout"
    assert call["end_s"] == pytest.approx(0.1 + 0.3 + 4.6 - 0.0, abs=0.06)
    assert max(row["end_s"] for row in rows(tables.spans)) == 2.0


def test_every_broken_span_is_counted(write):
    good = task()
    no_id = span("q", "x", 1, 2, parent="r")
    no_id[1]["spanId"] = ""
    twin = span("p", "another", 1, 2, parent="r")
    circle = [span("y", "y", 1, 2, parent="z"), span("z", "z", 1, 2, parent="y")]
    unended = span("u", "u", 1, None, parent="r")
    ancient = span("h", "h", -T0 / S + 5, 3, parent="r")
    wrong = ("gateway", {"traceId": 5, "spanId": None})
    text = lines(*good, good[3], no_id, twin, *circle, unended, ancient, wrong) + '{"resourceSp\n'
    tables = read(write("t.jsonl", text))
    found = reasons(tables)
    assert found["duplicate span"] == 1
    assert found["span without an id"] == 1
    assert found["two spans share an id, both kept"] == 1
    assert found["parents form a circle"] == 2
    assert found["span never ended"] == 1
    assert found["span starts at no plausible time"] == 1
    assert found["span that cannot be read"] == 1
    assert found["line is no whole JSON"] == 1
    assert tables.quality.read == 11 + 9
    assert tables.quality.read == tables.quality.kept + tables.quality.dropped
    measured = [r for r in rows(tables.spans) if "." not in r["span_id"]]
    assert len(measured) == tables.quality.kept


def test_health_checks_are_left_out_and_counted(write):
    health = span("h", "GET /health", 0, 1, trace="c" * 32, attrs={"http.route": "/health"})
    tables = read(write("t.jsonl", lines(*task(), health)))
    assert tables.counts()["requests"] == 1
    assert reasons(tables)["span of a route that never calls a model"] == 1


def test_a_shared_address_is_named_by_its_engine_instances(write):
    spans = []
    for i in range(2):
        trace = str(i) * 32
        spans.append(span(f"c{i}", "chat m", i, i + 1, trace=trace, attrs=CHAT))
        spans.append(span(f"e{i}", "llm_request", i, i + 0.9, parent=f"c{i}", trace=trace,
                          attrs=ENGINE, service=f"vllm-{i}"))  # fmt: skip
    tables = read(write("t.jsonl", lines(*spans)))
    assert sorted(row["replica"] for row in rows(tables.calls)) == ["vllm-0", "vllm-1"]


def test_images_and_their_tokens_are_counted(write):
    part = "llm.input_messages.{}.message.contents.{}.message_content.type"
    kinds = {part.format(0, 0): "image", part.format(0, 1): "text", part.format(1, 0): "image"}
    attrs = CHAT | kinds | {"gen_ai.usage.image.input_tokens": 60}
    (call,) = rows(read(write("t.jsonl", lines(span("c", "chat m", 0, 1, attrs=attrs)))).calls)
    assert (call["images"], call["image_tokens"]) == (2, 60)


def test_constructed_sample_of_rag_vllm_and_sglang():
    tables = read(sample("samples", "_constructed", "otlp_rag_vllm.jsonl"))
    assert tables.counts()["requests"] == tables.counts()["calls"] == 13
    assert tables.quality.read == tables.quality.kept == 83
    sglang = next(r for r in rows(tables.calls) if r["model"] is None)
    assert sglang["first_token_s"] - sglang["arrival_s"] == pytest.approx(0.21)
    assert sglang["cached_tokens"] == 768
    assert sglang["scheduled_s"] is not None


@pytest.mark.parametrize(
    ("parts", "format_name", "kept"),
    [
        (("samples", "otlp_json", "trace.json"), "otlp", 1),
        (("samples", "jaeger_json", "otlp2jaeger-out.json"), "jaeger", 1),
    ],
)
def test_real_samples(parts, format_name, kept):
    path = sample(*parts)
    assert detect(path) == format_name
    assert read(path).quality.kept == kept


def test_jaeger_spans_make_the_same_tables_as_otlp(write):
    def tag(key, value):
        return {"key": key, "type": "string", "value": value}

    spans = [
        {"traceID": "AB", "spanID": "1", "operationName": "POST /v1/task", "references": [],
         "startTime": 1_700_000_000_000_000, "duration": 2_000_000, "processID": "p1",
         "tags": [tag("http.route", "/v1/task"), tag("span.kind", "server")]},
        {"traceID": "AB", "spanID": "2", "operationName": "chat m", "processID": "p1",
         "references": [{"refType": "CHILD_OF", "traceID": "AB", "spanID": "1"}],
         "startTime": 1_700_000_000_500_000, "duration": 1_000_000,
         "tags": [tag("gen_ai.operation.name", "chat"), tag("gen_ai.usage.input_tokens", "12"),
                  {"key": "error", "type": "bool", "value": True}]},
    ]  # fmt: skip
    document = {"data": [{"traceID": "AB", "spans": spans,
                          "processes": {"p1": {"serviceName": "gw", "tags": []}}}]}  # fmt: skip
    tables = read(write("j.json", json.dumps(document)))
    (call,) = rows(tables.calls)
    assert (call["input_tokens"], call["status"], call["arrival_s"]) == (12, "error", 0.5)
    assert rows(tables.requests)[0]["route"] == "/v1/task"
    assert tables.clock.origin_epoch_s == 1_700_000_000


def test_undecodable_protobuf_is_an_input_error(write):
    with pytest.raises(InputError, match="decoded"):
        read(write("x.bin", b"\x0a\x08\x0a\x06\x0a\x04\xff\xff\xff\xff"), format="otlp_protobuf")
