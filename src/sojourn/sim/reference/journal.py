"""What the engine writes down: rows in the order of events, made a `Log` at the end."""

from __future__ import annotations

import numpy as np

from sojourn.sim.log import ATTEMPTS, CALLS, CHANGES, ENDS, NONE, SAMPLES, VISITS, Log

Row = tuple[int, ...]


class End:
    """A row of `ENDS` as it fills."""

    __slots__ = ("arrival", "attempts", "degraded", "end", "status")

    def __init__(self) -> None:
        self.arrival = self.end = self.status = NONE
        self.degraded = self.attempts = 0


class Journal:
    """Rows of every kind; those of calls and visits in the order of the fields of `log`."""

    def __init__(self, requests: int) -> None:
        self.ends = [End() for _ in range(requests)]
        self.calls: list[Row] = []
        self.visits: list[Row] = []
        self.attempts: list[Row] = []
        self.samples: list[Row] = []
        self.changes: list[Row] = []

    def log(self) -> Log:
        """All rows as arrays."""
        ends = [(e.arrival, e.end, e.degraded, e.attempts, e.status) for e in self.ends]
        return Log(
            ends=np.array(ends, dtype=ENDS),
            calls=np.array(self.calls, dtype=CALLS),
            visits=np.array(self.visits, dtype=VISITS),
            attempts=np.array(self.attempts, dtype=ATTEMPTS),
            samples=np.array(self.samples, dtype=SAMPLES),
            changes=np.array(self.changes, dtype=CHANGES),
        )
