"""The seeded request list: open-loop Poisson arrivals with a time-varying rate, five buckets."""

from __future__ import annotations

import random
from collections.abc import Iterator

from app.config import BucketConfig, LoadConfig
from app.task import Call, Task

TOOLS = ("search_orders", "run_sql", "fetch_page", "calculator")
PARALLEL_TOOLS_SHARE = 0.4
SESSIONS = 24
WORDS_PER_TURN = 60
SESSION_WORDS_KEPT = 240
WORDS_PER_IMAGE = 144
URGENT_SHARE = 0.1


def make_tasks(load: LoadConfig) -> list[Task]:
    """Return the whole request list; the same load configuration gives the same list."""
    rng = random.Random(load.seed)
    turns: dict[str, int] = {}
    return [_make_task(load, rng, turns, arrival) for arrival in enumerate(_arrivals(load, rng))]


def _arrivals(load: LoadConfig, rng: random.Random) -> Iterator[float]:
    """Yield the arrival times, s: a Poisson process thinned to the phases' rate."""
    top = max(max(phase[1:]) for phase in load.phases)
    now = 0.0
    while True:
        now += rng.expovariate(top)
        if now >= load.duration_s:
            return
        if rng.random() * top < rate_at(load, now):
            yield now


def rate_at(load: LoadConfig, at_s: float) -> float:
    """Return the planned rate, requests/s: linear within each phase."""
    start = 0.0
    for length, first, last in load.phases:
        if at_s < start + length:
            return first + (last - first) * (at_s - start) / length
        start += length
    return 0.0


def _make_task(
    load: LoadConfig, rng: random.Random, turns: dict[str, int], arrival: tuple[int, float]
) -> Task:
    name = rng.choices(list(load.buckets), [b.share for b in load.buckets.values()])[0]
    bucket = load.buckets[name]
    count = rng.randint(bucket.calls_low, bucket.calls_high)
    calls = tuple(_make_call(bucket, rng, turn) for turn in range(count))
    images = rng.randint(1, 4) if name == "multimodal" else 0
    session = None
    if name in {"short_chat", "tool_agent"} and rng.random() < load.session_share:
        session = f"s{rng.randrange(SESSIONS):02d}"
    if session is not None:
        turns[session] = turns.get(session, -1) + 1
    return Task(
        index=arrival[0],
        at_s=arrival[1],
        bucket=name,
        tenant=_tenant(load, rng),
        priority=1 if rng.random() < URGENT_SHARE else 0,
        calls=calls,
        system_words=load.system_words,
        session=session,
        session_words=min(SESSION_WORDS_KEPT, WORDS_PER_TURN * turns.get(session or "", 0)),
        image_tokens=images * WORDS_PER_IMAGE,
        images=images,
        tools=tuple(_tools(rng) for _ in range(count - 1)) if name == "tool_agent" else (),
    )


def _make_call(bucket: BucketConfig, rng: random.Random, turn: int) -> Call:
    """Draw one call; later turns of an agent add a third of the words (the tools' results)."""
    shape = bucket.shape
    added = rng.randint(shape.input_low, shape.input_high)
    return Call(
        added_words=added if turn == 0 else max(20, added // 3),
        output_tokens=rng.randint(shape.output_low, shape.output_high),
    )


def _tenant(load: LoadConfig, rng: random.Random) -> str:
    return rng.choices(list(load.tenants), list(load.tenants.values()))[0]


def _tools(rng: random.Random) -> tuple[str, ...]:
    count = 2 if rng.random() < PARALLEL_TOOLS_SHARE else 1
    return tuple(rng.sample(TOOLS, count))
