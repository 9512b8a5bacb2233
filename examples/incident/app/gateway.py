"""The gateway: POST /v1/task with a timeout per attempt and retries. `python -m app.gateway -h`."""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web
from opentelemetry.trace import SpanKind

from app.config import GatewayConfig, load_scenario
from app.engine import EngineError, EngineFleet
from app.pipeline import Attempt, Backends, BlockedError
from app.pools import WorkerPool
from app.retrieval import KnowledgeBase
from app.task import Task
from app.telemetry import AttributeValue, fail, span, start_telemetry

ROUTE = "/v1/task"
RETRIED = (TimeoutError, EngineError, aiohttp.ClientError)
POLICY = web.AppKey("policy", GatewayConfig)
BACKENDS = web.AppKey("backends", Backends)


async def handle_task(request: web.Request) -> web.Response:
    """Serve one task; the root span covers all its attempts."""
    task = Task.from_json(await request.json())
    policy = request.app[POLICY]
    with span(f"POST {ROUTE}", _root_attributes(task), SpanKind.SERVER) as root:
        error, attempts = await _try_until_done(request.app[BACKENDS], policy, task)
        status = 200 if error is None else 504 if error == "timeout" else 502
        root.set_attribute("http.response.status_code", status)
        root.set_attribute("sojourn.success", error is None)
        if error is not None:
            fail(root, error)
    return web.json_response({"attempts": attempts, "error": error}, status=status)


async def _try_until_done(
    backends: Backends, policy: GatewayConfig, task: Task
) -> tuple[str | None, int]:
    """Return the error that is left after the last attempt (None: done) and the attempts made."""
    error: str | None = None
    for number in range(policy.max_attempts):
        if number:
            with span("backoff", {"sojourn.stage": "backoff"}):
                await asyncio.sleep(_backoff_s(policy, task, number))
        try:
            with span("attempt", {"http.request.resend_count": number}):
                async with asyncio.timeout(policy.attempt_timeout_s):
                    await Attempt(backends, task, number).run()
        except BlockedError:
            return "blocked", number + 1
        except RETRIED as raised:
            error = "timeout" if isinstance(raised, TimeoutError) else "engine_error"
        else:
            return None, number + 1
    return error, policy.max_attempts


def _backoff_s(policy: GatewayConfig, task: Task, number: int) -> float:
    """Return the exponential backoff before retry `number`, with seeded symmetric jitter."""
    jitter = random.Random(f"backoff {task.index} {number}").uniform(-1.0, 1.0)
    base = policy.backoff_base_s * policy.backoff_factor ** (number - 1)
    return base * (1.0 + policy.backoff_jitter * jitter)


def _root_attributes(task: Task) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": "POST",
        "http.route": ROUTE,
        "user.id": task.tenant,
        "sojourn.priority": task.priority,
    }
    if task.session is not None:
        attributes["gen_ai.conversation.id"] = task.session
    return attributes


def build_app(arguments: argparse.Namespace) -> web.Application:
    """Wire the application from its scenario file."""
    scenario = load_scenario(arguments.scenario)
    app = web.Application()
    app[POLICY] = scenario.gateway

    async def backends(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            app[BACKENDS] = Backends(
                KnowledgeBase(),
                {name: WorkerPool(name, pool) for name, pool in scenario.pools.items()},
                EngineFleet(session, arguments.engine, arguments.model),
            )
            yield

    async def telemetry(app: web.Application) -> AsyncIterator[None]:
        provider = start_telemetry(arguments.otlp)
        yield
        await asyncio.to_thread(provider.shutdown)

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app.cleanup_ctx.extend([telemetry, backends])
    app.router.add_post(ROUTE, handle_task)
    app.router.add_get("/health", health)
    return app


def main() -> None:
    """Parse the command line and serve on the loopback interface."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, required=True)
    parser.add_argument("--engine", action="append", required=True, help="base URL, repeatable")
    parser.add_argument("--model", default="sojourn-tiny")
    parser.add_argument("--otlp", required=True, help="OTLP/HTTP traces endpoint")
    parser.add_argument("--port", type=int, default=8200)
    arguments = parser.parse_args()
    web.run_app(build_app(arguments), host="127.0.0.1", port=arguments.port, access_log=None)


if __name__ == "__main__":
    main()
