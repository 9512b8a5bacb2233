"""A loopback OTLP/HTTP receiver that keeps spans and writes them as OTLP/JSON lines."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

ID_FIELDS = ("traceId", "spanId", "parentSpanId")
KEPT_RESOURCE_KEYS = frozenset({"service.name", "service.instance.id"})
ENGINE_SPAN = "llm_request"
GATEWAY_SCOPE = "sojourn.example.incident"


class OtlpReceiver:
    """Takes POST /v1/traces (protobuf, optionally gzip). Bodies are parsed after the run."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> str:
        """Listen on the loopback interface; return the endpoint to export to."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{port}/v1/traces"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        self._bodies.append(await request.read())
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def resource_spans(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Return all resourceSpans received, and how many spans were left out by name.

        Left out are the engine's start-up spans (loading the model and the like), and resource
        attributes that say nothing about a request. Nothing of a request is left out.
        """
        kept: list[dict[str, Any]] = []
        dropped: Counter[str] = Counter()
        for body in self._bodies:
            message = MessageToDict(ExportTraceServiceRequest.FromString(body))
            for resource in message.get("resourceSpans", []):
                _thin(resource, dropped)
                if resource["scopeSpans"]:
                    kept.append(resource)
        return kept, dropped


def _thin(resource: dict[str, Any], dropped: Counter[str]) -> None:
    attributes = resource.get("resource", {}).get("attributes", [])
    resource["resource"] = {"attributes": [a for a in attributes if a["key"] in KEPT_RESOURCE_KEYS]}
    scopes = []
    for scope in resource.get("scopeSpans", []):
        spans = []
        for span in scope["spans"]:
            if scope["scope"]["name"] == GATEWAY_SCOPE or span["name"] == ENGINE_SPAN:
                spans.append(_as_otlp_json(span))
            else:
                dropped[span["name"]] += 1
        if spans:
            scopes.append({"scope": {"name": scope["scope"]["name"]}, "spans": spans})
    resource["scopeSpans"] = scopes


def _as_otlp_json(span: dict[str, Any]) -> dict[str, Any]:
    """Turn protobuf's own JSON into OTLP/JSON: hex ids, enums as numbers."""
    for name in ID_FIELDS:
        if name in span:
            span[name] = base64.b64decode(span[name]).hex()
    kinds = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
    span["kind"] = kinds.index(span["kind"].removeprefix("SPAN_KIND_"))
    code = span.get("status", {}).get("code", "STATUS_CODE_UNSET")
    status = {"code": ("UNSET", "OK", "ERROR").index(code.removeprefix("STATUS_CODE_"))}
    span["status"] = {**span.get("status", {}), **status} if status["code"] else {}
    span.pop("flags", None)
    return span


def write_lines(resource_spans: list[dict[str, Any]], path: Path) -> None:
    """Write one `{"resourceSpans": [..]}` object per line, gzipped without a time stamp."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for resource in resource_spans:
            line = json.dumps({"resourceSpans": [resource]}, separators=(",", ":"))
            packed.write(line.encode() + b"\n")
