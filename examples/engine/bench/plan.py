"""The plan: which loads run one after another, and the seeded requests of each."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FIRST_WORD, VOCABULARY = 3, 32_768
"""Ids below FIRST_WORD are special tokens; every other id n is the word `w<n>`."""


@dataclass(frozen=True)
class Run:
    """One load, in a server's life.

    `seed` decides arrivals and lengths, `name` the words: no two runs share any.
    """

    name: str
    load: str
    seed: int
    duration_s: float
    main: bool
    life: int
    rate_per_s: float
    kinds: tuple[dict[str, Any], ...]


@dataclass
class Request:
    """One planned request. A session's later turn repeats prompt and answer of the one before."""

    index: int
    planned_s: float
    kind: str
    output_tokens: int
    new_tokens: list[int]
    session: int = -1
    turn: int = 0
    before: Request | None = None
    prompt: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)


def read_plan(path: Path) -> tuple[dict[str, Any], list[Run]]:
    """Return the whole file, and its runs in order."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    runs = []
    for entry in raw["runs"]:
        load = raw["loads"][entry["load"]]
        runs.append(
            Run(
                name=entry["name"],
                load=entry["load"],
                seed=entry.get("seed", load["seed"]),
                duration_s=float(entry.get("duration_s", load["duration_s"])),
                main=entry["name"] == entry["load"],
                life=entry.get("life", 1),
                rate_per_s=float(load["rate_per_s"]),
                kinds=tuple(raw["mixes"][load["mix"]]),
            )
        )
    return raw, runs


def make_requests(run: Run) -> list[Request]:
    """Return the run's requests in order of planned time; the same run gives the same ones."""
    rng = random.Random(f"arrivals and lengths {run.seed}")
    requests: list[Request] = []
    for session, at_s in enumerate(_arrivals(rng, run.rate_per_s, run.duration_s)):
        kind = rng.choices(run.kinds, [kind["share"] for kind in run.kinds])[0]
        turns = rng.randint(*kind.get("turns", (1, 1)))
        group = rng.randrange(kind["groups"]) if "groups" in kind else -1
        before, planned_s = None, at_s
        for turn in range(turns):
            if turn:
                planned_s += kind["gap_s"] + rng.expovariate(1.0 / kind["think_s"])
            if planned_s > run.duration_s:
                break
            label = f"{run.name} {session} {turn}"
            length = _draw(rng, kind["input"] if turn == 0 else kind["later_input"])
            added = words(label, length)
            if turn == 0 and group >= 0:
                added = words(f"{run.name} {kind['name']} {group}", kind["prefix"]) + added
            before = Request(
                index=0,
                planned_s=planned_s,
                kind=kind["name"],
                output_tokens=_draw(rng, kind["output"]),
                new_tokens=added,
                session=session if turns > 1 else -1,
                turn=turn,
                before=before,
            )
            requests.append(before)
    requests.sort(key=lambda request: request.planned_s)
    for index, request in enumerate(requests):
        request.index = index
    return requests


def words(label: str, count: int) -> list[int]:
    """Return `count` pseudo-random token ids; the same label gives the same ones."""
    rng = random.Random(label)
    return [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]


def _arrivals(rng: random.Random, rate_per_s: float, duration_s: float) -> Iterator[float]:
    """Yield the times of a Poisson process, s."""
    now = rng.expovariate(rate_per_s)
    while now < duration_s:
        yield now
        now += rng.expovariate(rate_per_s)


def _draw(rng: random.Random, shape: dict[str, float]) -> int:
    """Draw a length: lognormal with the given median and sigma, cut off at low and high."""
    value = math.exp(rng.gauss(math.log(shape["median"]), shape["sigma"]))
    return int(min(max(value, shape["low"]), shape["high"]))
