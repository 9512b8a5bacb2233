"""What a step takes beyond its operators: the host's time, by engine; and how far off we are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.capacity.records import StepSpread


@dataclass(frozen=True)
class Host:
    """Time of a step, and of each sequence in it, that no operator table holds, s."""

    step_s: float
    sequence_s: float


HELD_OUT_ERROR: Final = 0.08


def host_of(engine: str) -> Host:
    """The host time of an engine."""
    return Host(step_s=0.0, sequence_s=0.0)


def spread(batches: int) -> StepSpread:
    """80% range of real / told."""
    return StepSpread(decode=((0.9, 1.2),) * batches, prefill=(0.8, 1.25))
