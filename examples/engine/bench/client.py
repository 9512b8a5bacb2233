"""The load generator: sends each request at its time and notes what came back, and when."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

import aiohttp

from bench.plan import Request

MARK, USAGE = b"data: {", b'"usage":{'
MODEL = "sojourn-tiny"


def request_id(run: str, request: Request) -> str:
    """Return the id sent as X-Request-Id; the engine's span and events carry it too."""
    return f"{run}.{request.index:04d}"


async def drive(run: str, requests: list[Request], url: str) -> tuple[float, list[dict[str, Any]]]:
    """Send every request at its time; return the start (epoch s) and a row for each request.

    A session's later turn is sent when its turn before has ended, if that is later than planned.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3600)
    texts = {r.index: as_text(r.new_tokens) for r in requests if r.before is None}
    done: dict[int, asyncio.Task[dict[str, Any]]] = {}
    gc.collect()
    gc.disable()
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await asyncio.sleep(0.2)
            started = time.time()
            caller = _Caller(session, f"{url}/v1/completions", run, started)
            for request in requests:
                await asyncio.sleep(max(0.0, started + request.planned_s - time.time()))
                earlier = done[request.before.index] if request.before else None
                text = texts.get(request.index)
                done[request.index] = asyncio.create_task(caller.call(request, text, earlier))
            rows = [await task for task in done.values()]
    finally:
        gc.enable()
    return started, [_complete(row) for row in rows]


class _Caller:
    def __init__(self, session: aiohttp.ClientSession, url: str, run: str, started: float) -> None:
        self._session, self._url, self._run, self._started = session, url, run, started

    async def call(
        self, request: Request, text: str | None, earlier: asyncio.Task[dict[str, Any]] | None
    ) -> dict[str, Any]:
        request.prompt = request.new_tokens
        if earlier is not None and request.before is not None:
            await earlier
            request.prompt = request.before.prompt + request.before.answer + request.new_tokens
        body = {
            "model": MODEL,
            "prompt": text if text is not None else as_text(request.prompt),
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        name = request_id(self._run, request)
        sent, first, last = time.time(), 0.0, 0.0
        parts: list[bytes] = []
        headers = {"X-Request-Id": name}
        async with self._session.post(self._url, json=body, headers=headers) as answer:
            status = answer.status
            async for data in answer.content.iter_any():
                now = time.time()
                first = first or now
                parts.append(data)
                if data.count(MARK) > data.count(USAGE):
                    last = now
        ended = time.time()
        raw = b"".join(parts)
        if request.session >= 0:
            request.answer = as_tokens(_read(raw)[1])
        return {
            "request_id": name,
            "index": request.index,
            "kind": request.kind,
            "session": request.session,
            "turn": request.turn,
            "planned_s": self._started + request.planned_s,
            "send_s": sent,
            "first_chunk_s": first,
            "last_chunk_s": last,
            "end_s": ended,
            "status": status,
            "asked_output_tokens": request.output_tokens,
            "prompt": request.prompt,
            "answer": request.answer,
            "raw": raw,
        }


def _complete(row: dict[str, Any]) -> dict[str, Any]:
    """Put what the answer says in place of the answer."""
    raw = row.pop("raw")
    usage, _ = _read(raw)
    details = usage.get("prompt_tokens_details") or {}
    return row | {
        "chunks": raw.count(MARK) - raw.count(USAGE),
        "prompt_tokens": usage.get("prompt_tokens", -1),
        "output_tokens": usage.get("completion_tokens", -1),
        "cached_tokens": details.get("cached_tokens") or 0,
    }


def as_text(tokens: list[int]) -> str:
    """Return the tokens as words: one word is one token."""
    return " ".join(f"w{token}" for token in tokens)


SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}


def as_tokens(text: str) -> list[int]:
    """Return the token ids of a text made by the engine."""
    for word in SPECIAL:
        text = text.replace(word, f" {word} ")
    return [SPECIAL[w] if w in SPECIAL else int(w[1:]) for w in text.split()]


def _read(raw: bytes) -> tuple[dict[str, Any], str]:
    """Return the usage and the whole text of a streamed answer."""
    usage: dict[str, Any] = {}
    text = []
    for line in raw.split(b"\n"):
        if line.startswith(MARK):
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            text += [choice["text"] for choice in chunk.get("choices", [])]
    return usage, "".join(text)
