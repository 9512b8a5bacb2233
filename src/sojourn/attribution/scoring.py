"""From facts to a confidence: weights of evidence.

A rule reads facts; each known fact is for or against its bottleneck and moves the log-odds by its
weight; unknown facts move nothing. confidence = 1 / (1 + exp(-(PRIOR + sum of weights))).

| weight | odds times | for a fact that |
|---|---|---|
| DIRECT 2.0 | 7.4 | measures the cause itself (slots full, KV full, a stage carrying the tail) |
| SIGN 1.0 | 2.7 | is a usual consequence of it, seldom of something else |
| HINT 0.5 | 1.6 | goes along with it |

PRIOR -2 is odds of 1 to 7: before any fact, one of about eight plausible bottlenecks.
No rule is surer than `CEILING`: facts seen beside each other are no experiment.
Wrong when: facts depend on each other; a rule therefore reads one symptom once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sojourn.attribution.facts import SHARE_HIGH, SHARE_LOW
from sojourn.attribution.records import Evidence
from sojourn.records import Bottleneck

DIRECT: Final = 2.0
SIGN: Final = 1.0
HINT: Final = 0.5
PRIOR: Final = -2.0
CEILING: Final = 0.97


@dataclass(frozen=True)
class Reading:
    """A fact read by a rule; `weight` > 0 is for the bottleneck, < 0 against."""

    statement: str
    value: float | None
    weight: float


@dataclass(frozen=True)
class Finding:
    """What a rule says. `share` is the part of the P99 it explains; `importance` ranks findings
    of equal confidence (the share, where there is one)."""

    rule: str
    bottleneck: Bottleneck
    readings: tuple[Reading, ...]
    share: float | None
    importance: float

    @property
    def confidence(self) -> float:
        """Probability from prior odds and weights."""
        odds = PRIOR + sum(reading.weight for reading in self.readings)
        return min(1.0 / (1.0 + math.exp(-odds)), CEILING)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The readings that say something, heaviest first."""
        heaviest = sorted(self.readings, key=lambda r: -abs(r.weight))
        return tuple(
            Evidence(statement=r.statement, value=r.value, supports=r.weight > 0, rule=self.rule)
            for r in heaviest
            if abs(r.weight) > 1e-9
        )


def finding(
    rule: str,
    bottleneck: Bottleneck,
    readings: Sequence[Reading | None],
    *,
    share: float | None,
    importance: float | None = None,
) -> Finding:
    """A finding from the readings that are known."""
    known = tuple(reading for reading in readings if reading is not None)
    rank = importance if importance is not None else share if share is not None else 0.0
    return Finding(rule, bottleneck, known, share, rank)


def above(
    statement: str, value: float | None, high: float, low: float, weight: float
) -> Reading | None:
    """For the bottleneck from `high` on, against it below `low`, graded between; None unknown."""
    if value is None or math.isnan(value):
        return None
    place = (value - low) / (high - low) if high > low else 1.0 if value >= high else 0.0
    return Reading(statement, value, weight * (2 * min(max(place, 0.0), 1.0) - 1))


def below(
    statement: str, value: float | None, low: float, high: float, weight: float
) -> Reading | None:
    """For the bottleneck up to `low`, against it from `high` on, graded between."""
    read = above(statement, value, high, low, weight)
    return None if read is None else Reading(read.statement, read.value, -read.weight)


def carries(what: str, share: float, weight: float = DIRECT) -> Reading | None:
    """Whether a part carries the tail: against below `SHARE_LOW`, for from `SHARE_HIGH` on."""
    return above(f"{what}: {share:.0%} of the P99", share, SHARE_HIGH, SHARE_LOW, weight)


def holds(statement: str, condition: bool | None, weight: float) -> Reading | None:
    """For when the condition holds, against when it does not, nothing when it is unknown."""
    if condition is None:
        return None
    return Reading(statement, None, weight if condition else -weight)


def only_for(reading: Reading | None) -> Reading | None:
    """Counts when it supports; its absence says nothing."""
    return reading if reading is not None and reading.weight > 0 else None


def only_against(reading: Reading | None) -> Reading | None:
    """Counts when it contradicts; its absence says nothing."""
    return reading if reading is not None and reading.weight < 0 else None
