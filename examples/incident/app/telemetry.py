"""OpenTelemetry set-up and the one way spans are opened here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

AttributeValue: TypeAlias = str | bool | int | float
SCOPE = "sojourn.example.incident"


def start_telemetry(endpoint: str) -> TracerProvider:
    """Export spans to `endpoint` (OTLP over HTTP, protobuf). Shut the provider down at the end."""
    identity = {"service.name": "gateway", "service.instance.id": "gateway-0"}
    provider = TracerProvider(resource=Resource.create(identity))
    exporter = OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=65_536, schedule_delay_millis=1_000)
    )
    trace.set_tracer_provider(provider)
    return provider


@contextmanager
def span(
    name: str,
    attributes: dict[str, AttributeValue] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Iterator[Span]:
    """Open a span as the current one; on any way out it ends, with status ERROR if by a raise.

    Unlike the SDK's own context manager this also marks cancellation, which is how an attempt
    that ran out of time ends its children.
    """
    tracer = trace.get_tracer(SCOPE)
    with tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except asyncio.CancelledError:
            fail(opened, "cancelled")
            raise
        except Exception as error:
            fail(opened, "timeout" if isinstance(error, TimeoutError) else type(error).__name__)
            raise


def fail(opened: Span, error_type: str) -> None:
    """Mark a span as failed."""
    opened.set_attribute("error.type", error_type)
    opened.set_status(Status(StatusCode.ERROR, error_type))
