"""A fixed probe of the idle engine: how fast this machine is at this moment."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import numpy as np
from app.task import words

PROMPT_WORDS = 512
OUTPUT_TOKENS = 96
CALLS = 8


async def probe(url: str) -> dict[str, float]:
    """Return the median time to first token and per output token, ms, of a few lone calls."""
    first, per_token = [], []
    async with aiohttp.ClientSession() as session:
        for number in range(CALLS):
            body = {
                "model": "sojourn-tiny",
                "prompt": words(f"probe {time.time_ns()} {number}", PROMPT_WORDS),
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
            ttft, tpot = await _call(session, url, body)
            first.append(ttft)
            per_token.append(tpot)
    return {
        "ttft_ms": round(float(np.median(first)) * 1e3, 2),
        "tpot_ms": round(float(np.median(per_token)) * 1e3, 3),
    }


async def _call(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[float, float]:
    start = time.perf_counter()
    first = last = None
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
    if first is None or last is None:
        raise RuntimeError(f"the engine at {url} sent no tokens")
    return first - start, (last - first) / (OUTPUT_TOKENS - 1)
