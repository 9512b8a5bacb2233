"""`Scenario` in, `SimRun` out: the border behind which engines are interchangeable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sojourn.capacity.records import Fleet
from sojourn.trace.tables import Tables
from sojourn.workload.stream import Stream


@dataclass(frozen=True)
class Scenario:
    """What is simulated. Equal scenarios and seeds give equal bytes.

    Random draws (a retry's service times, jitter) are keyed by (seed, request, attempt, step),
    so two scenarios that differ in one policy see the same luck (common random numbers).
    """

    stream: Stream
    fleet: Fleet
    seed: int = 0


@dataclass(frozen=True)
class SimRun:
    """A simulated run. `tables` has the schema of ingestion; `counts` the conservation law:
    arrived = ok + error + timeout + shed + cancelled + in_flight."""

    tables: Tables
    counts: dict[str, int]
    end_s: float
    seed: int


class Engine(Protocol):
    """A simulator: the readable reference now, a compiled kernel beside it later."""

    def __call__(self, scenario: Scenario) -> SimRun:
        """Run to the end of every request."""
        ...
