"""A closed loop on one engine, event by event: how far its means are from a lone mean step.

`factor` of a row is the mean that the loop gives over the surrogate of `fit_roofline`; it depends
little on the constants, so a fit holds it and makes it again once the constants have moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BUDGET = 8192
ROUNDS = 10
"""Requests per client."""


@dataclass(frozen=True)
class Steps:
    """Times of a deployment, seconds: a decode step, prompt tokens beside it, attention."""

    base: Callable[[int], float]
    slope: float
    prompt: Callable[[int], float]
    look: float
    mixed: bool


@dataclass
class _Running:
    left: int
    context: int
    first: float
    output: int


def closed_loop(
    steps: Steps, *, clients: int, prompt: float, output: float, even: bool
) -> tuple[float, float]:
    """Mean TTFT (front end left out; the burst at the start counts) and mean TPOT, seconds.

    `even`: all lengths equal, else uniform between 8/9 and 10/9 of the mean.
    """
    rng = np.random.default_rng(1)
    spread = (1.0, 1.0) if even else (8 / 9, 10 / 9)
    lengths = deque(
        (max(int(prompt * a), 1), max(int(output * b), 2))
        for a, b in rng.uniform(*spread, size=(clients * ROUNDS, 2))
    )
    now = 0.0
    waiting: deque[list[float]] = deque()  # [arrival, tokens left, prompt, output]
    running: list[_Running] = []
    ttft: list[float] = []
    tpot: list[float] = []

    def arrive() -> None:
        if lengths:
            size, out = lengths.popleft()
            waiting.append([now, size, size, out])

    for _ in range(clients):
        arrive()
    while waiting or running:
        batch = len(running)
        looks = steps.slope * sum(r.context for r in running)
        if waiting:
            taken, pairs, done = _take(waiting)
            alone = not steps.mixed
            now += steps.base(0 if alone else batch) + (0.0 if alone else looks)
            now += steps.prompt(int(taken)) + steps.look * pairs
            advanced = 1 if steps.mixed else 0
        else:
            advanced = min(r.left for r in running)
            grown = steps.slope * batch * (advanced - 1) / 2
            now += advanced * (steps.base(batch) + looks + grown)
            done = []
        for r in running:
            r.left -= advanced
            r.context += advanced
        for r in [r for r in running if r.left <= 0]:
            running.remove(r)
            tpot.append((now - r.first) / max(r.output - 1, 1))
            arrive()
        for arrival, _, size, out in done:
            ttft.append(now - arrival)
            running.append(_Running(int(out) - 1, int(size) + 1, now, int(out)))
    return float(np.mean(ttft)), float(np.mean(tpot))


def _take(waiting: deque[list[float]]) -> tuple[float, float, list[list[float]]]:
    """Prompt tokens of the next step: their number, sum of contexts, and prompts that end."""
    taken = pairs = 0.0
    done = []
    while waiting and taken < BUDGET:
        call = waiting[0]
        n = min(call[1], BUDGET - taken)
        before = call[2] - call[1]
        pairs += n * (before + n / 2)
        taken += n
        call[1] -= n
        if call[1] <= 0:
            done.append(waiting.popleft())
    return taken, pairs, done
