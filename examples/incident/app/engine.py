"""Streaming client of the engine's OpenAI completions API."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from opentelemetry import propagate
from yarl import URL


class EngineError(RuntimeError):
    """The engine answered with an error or cut the stream short."""


@dataclass
class Completion:
    """What one streamed call told: token counts and the time to the first chunk."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_chunk_s: float | None = None


class EngineFleet:
    """Round-robin over the engine replicas."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], model: str) -> None:
        self._session = session
        self._turns = itertools.cycle([URL(url) for url in urls])
        self.model = model

    def next_replica(self) -> URL:
        """Return the replica whose turn it is."""
        return next(self._turns)

    async def complete(self, replica: URL, prompt: str, output_tokens: int) -> Completion:
        """Stream one completion of exactly `output_tokens` tokens.

        The current span travels in `traceparent`. Cancelling this coroutine closes the
        connection, on which the engine aborts the request.
        """
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers: dict[str, str] = {}
        propagate.inject(headers)
        done = Completion()
        sent = time.perf_counter()
        url = replica / "v1" / "completions"
        async with self._session.post(url, json=body, headers=headers) as answer:
            if answer.status != 200:
                raise EngineError(f"HTTP {answer.status} from {replica.authority}")
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    _read_chunk(done, line, time.perf_counter() - sent)
        if done.output_tokens != output_tokens:
            raise EngineError(f"{done.output_tokens} of {output_tokens} tokens")
        return done


def _read_chunk(done: Completion, line: bytes, since_send_s: float) -> None:
    if done.first_chunk_s is None:
        done.first_chunk_s = since_send_s
    if b'"usage":{' not in line:
        return
    usage = json.loads(line[6:])["usage"]
    done.input_tokens = usage["prompt_tokens"]
    done.output_tokens = usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    done.cached_tokens = details.get("cached_tokens") or 0
