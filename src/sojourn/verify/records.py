"""`Acceptance`: whether a change was worth it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sojourn.interval import Excuse, Interval
from sojourn.records import Record


class Finding(StrEnum):
    """The answer to one question."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNKNOWN = "unknown"


class Figure(Record):
    """One compared figure. `change` is relative (after/before - 1); absent for shares."""

    name: str
    unit: str
    before: Interval | None
    after: Interval | None
    change: Interval | None = None
    finding: Finding
    judged: bool = Field(
        True, description="False: it has no good direction, or no known noise: only shown."
    )


class Answer(Record):
    """One of the eight acceptance questions."""

    question: str
    finding: Finding
    text: str
    figures: tuple[Figure, ...] = ()
    excuse: Excuse | None = None


class Acceptance(Record):
    """The eight answers and the verdict: accepted True, False, or None when evidence is thin."""

    answers: tuple[Answer, ...]
    accepted: bool | None
    reason: str
    mix_shift: Figure = Field(description="P99 change that the change of mix alone explains.")
    same_mix: tuple[Figure, ...] = Field(
        (), description="Before reweighted to the mix of after: the figures the verdict rests on."
    )
    unseen: float = Field(0.0, description="Share of after that is of a kind before never had.")
