"""One attempt of a task: guardrail, retrieval, rerank, model calls with tools, postprocess."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind

from app.engine import EngineFleet
from app.pools import Job, WorkerPool
from app.retrieval import KnowledgeBase, Passage, query_for, rerank
from app.task import Task, context_before_call
from app.telemetry import AttributeValue, span

BLOCKED = re.compile(r"\b(w66666|w99999)\b")
RERANKED_TWICE = frozenset({"long_document", "tool_agent"})
NOT_RERANKED = frozenset({"multimodal"})


class BlockedError(RuntimeError):
    """The guardrail refused the prompt."""


@dataclass(frozen=True)
class Backends:
    """What an attempt needs."""

    knowledge: KnowledgeBase
    pools: dict[str, WorkerPool]
    fleet: EngineFleet


class Attempt:
    """One try of a task. Every stage is a span; the caller cancels it when its time is over."""

    def __init__(self, backends: Backends, task: Task, number: int) -> None:
        self._backends = backends
        self._task = task
        self._label = f"task {task.index} attempt {number}"

    async def run(self) -> None:
        """Do the whole attempt, or raise."""
        task = self._task
        self._guard()
        query = query_for(task.index)
        passages = await self._retrieve(query)
        if task.bucket not in NOT_RERANKED:
            passages = await self._rerank(query, passages, "first pass", keep=10)
        if task.bucket in RERANKED_TWICE:
            passages = await self._rerank(query, passages, "second pass", keep=4)
        for turn in range(len(task.calls)):
            await self._chat(turn)
            if turn < len(task.tools):
                await self._use_tools(turn, task.tools[turn])
        with span("postprocess", {"sojourn.stage": "postprocess"}):
            await asyncio.sleep(0.002 + 0.00002 * task.calls[-1].output_tokens)

    def _guard(self) -> None:
        with span("guardrail", {"openinference.span.kind": "GUARDRAIL"}):
            if BLOCKED.search(context_before_call(self._task, 0)):
                raise BlockedError(f"task {self._task.index}")

    async def _retrieve(self, query: str) -> list[Passage]:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "retrieval",
            "gen_ai.data_source.id": "kb",
        }
        with span("retrieval kb", attributes, SpanKind.CLIENT) as opened:
            return await self._backends.pools["retrieval"].run(
                lambda: self._backends.knowledge.search(query),
                job=Job(f"{self._label} retrieval", self._task.at_s),
                on_wait=_noted(opened),
            )

    async def _rerank(
        self, query: str, passages: list[Passage], which: str, keep: int
    ) -> list[Passage]:
        name = f"rerank {which}"
        with span(name, {"openinference.span.kind": "RERANKER"}, SpanKind.CLIENT) as opened:
            return await self._backends.pools["rerank"].run(
                lambda: rerank(query, passages, keep),
                job=Job(f"{self._label} {name}", self._task.at_s),
                on_wait=_noted(opened),
            )

    async def _chat(self, turn: int) -> None:
        task, fleet = self._task, self._backends.fleet
        replica = fleet.next_replica()
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": fleet.model,
            "server.address": replica.host or "",
            "server.port": replica.port or 0,
        }
        if task.images:
            attributes["gen_ai.usage.image.input_tokens"] = task.image_tokens
            attributes["sojourn.images"] = task.images
        with span(f"chat {fleet.model}", attributes, SpanKind.CLIENT) as opened:
            prompt = context_before_call(task, turn)
            done = await fleet.complete(replica, prompt, task.calls[turn].output_tokens)
            opened.set_attribute("gen_ai.usage.input_tokens", done.input_tokens)
            opened.set_attribute("gen_ai.usage.output_tokens", done.output_tokens)
            opened.set_attribute("gen_ai.usage.cache_read.input_tokens", done.cached_tokens)
            if done.first_chunk_s is not None:
                opened.set_attribute(
                    "gen_ai.response.time_to_first_chunk", round(done.first_chunk_s, 6)
                )

    async def _use_tools(self, turn: int, names: tuple[str, ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._use_tool(turn, name))

    async def _use_tool(self, turn: int, name: str) -> None:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
        }
        with span(f"execute_tool {name}", attributes) as opened:
            await self._backends.pools["tools"].run(
                lambda: len(name),
                job=Job(f"{self._label} turn {turn} tool {name}", self._task.at_s),
                on_wait=_noted(opened),
            )


def _noted(opened: Span) -> Callable[[float], None]:
    """Return what writes the wait for a worker on a span."""
    return lambda waited_s: opened.set_attribute("sojourn.wait_s", round(waited_s, 6))
