"""The task a client posts, and the words its prompts are made of."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

VOCABULARY = 32_768
FIRST_WORD = 3
"""Ids 0 to 2 of the tokenizer are special tokens; every other id n is the word `w<n>`."""


@dataclass(frozen=True)
class Call:
    """One model call: words added to the context before it, and the exact output length."""

    added_words: int
    output_tokens: int


@dataclass(frozen=True)
class Task:
    """One request. The same seed always gives the same tasks (see `workload.py`)."""

    index: int
    at_s: float
    bucket: str
    tenant: str
    priority: int
    calls: tuple[Call, ...]
    system_words: int
    session: str | None = None
    session_words: int = 0
    image_tokens: int = 0
    images: int = 0
    tools: tuple[tuple[str, ...], ...] = field(default=())
    """Tools run after call i, in parallel when there are several."""

    def to_json(self) -> dict[str, Any]:
        """Return the body to post."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Task:
        """Parse a posted body; an unknown key raises TypeError."""
        calls = tuple(Call(**call) for call in raw["calls"])
        tools = tuple(tuple(step) for step in raw["tools"])
        return cls(**{**raw, "calls": calls, "tools": tools})


def words(label: str, count: int) -> str:
    """Return `count` pseudo-random words; the same label gives the same words."""
    rng = random.Random(label)
    return " ".join(f"w{rng.randrange(FIRST_WORD, VOCABULARY)}" for _ in range(count))


@lru_cache(maxsize=4)
def system_prompt(count: int) -> str:
    """Return the system prompt that all requests share (the engine can cache its prefix)."""
    return words("system", count)


def context_before_call(task: Task, turn: int) -> str:
    """Return the prompt of call `turn`: system, session history, then all words added so far.

    One word is one token, so the prompt's length in tokens is exact. Image tokens of the
    multimodal bucket are words too: the image itself is simulated.
    """
    parts = [system_prompt(task.system_words)]
    if task.session is not None and task.session_words:
        parts.append(words(f"session {task.session}", task.session_words))
    if task.image_tokens:
        parts.append(words(f"image {task.index}", task.image_tokens))
    parts.extend(
        words(f"task {task.index} call {i}", task.calls[i].added_words) for i in range(turn + 1)
    )
    return " ".join(parts)
