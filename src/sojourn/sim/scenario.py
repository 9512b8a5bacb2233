"""`Scenario` in, `SimRun` out: the border behind which engines are interchangeable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import Fleet
from sojourn.progress import Progress
from sojourn.sim import record
from sojourn.sim.legend import Legend
from sojourn.sim.log import ERROR, NONE, STATUSES, Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.record import Outcomes, Told
from sojourn.sim.spans import spans
from sojourn.trace.tables import Clock, Issue, Quality, Tables
from sojourn.workload.stream import Stream

Engine = Callable[[Lowered, Progress], Log]
"""A simulator: runs to the end of every request, and tells how far it is."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated. Equal scenarios and seeds give equal bytes.

    Random draws (a retry's service times, jitter) are keyed by (seed, request, attempt, step),
    so two scenarios that differ in one policy see the same luck (common random numbers).
    """

    stream: Stream
    fleet: Fleet
    seed: int = 0


@dataclass(frozen=True, eq=False)
class SimRun:
    """A simulated run: its log, and what can be told from it, made when it is asked for.

    `scenario` is the one that was run (not a copy). Pickled, a run is its scenario, log and legend;
    `sojourn.sim.replicate` sends back the last two alone.
    """

    scenario: Scenario = field(repr=False)
    log: Log = field(repr=False)
    legend: Legend = field(repr=False)
    engine: str

    @property
    def seed(self) -> int:
        """Of the simulator's own luck."""
        return self.scenario.seed

    @cached_property
    def counts(self) -> dict[str, int]:
        """The conservation law: arrived = ok + error + timeout + cancelled + shed + in_flight."""
        status = self.log.ends["status"]
        found = np.bincount(status[status != NONE], minlength=len(STATUSES)).tolist()
        each = {s.value: found[place] for place, s in enumerate(STATUSES)}
        return {"arrived": len(status), **each, "in_flight": len(status) - sum(found)}

    @cached_property
    def end_s(self) -> float:
        """When the last request ended, seconds of the stream; 0 without any."""
        return record.end_s(self._told)

    @cached_property
    def outcomes(self) -> Outcomes:
        """What became of the requests, as arrays: the cheap way to judge a run."""
        return record.outcomes(self._told)

    @cached_property
    def tables(self) -> Tables:
        """The run as ingestion would have read it; each table is made at its first use."""
        fleet, told = self.scenario.fleet, self._told
        hashes = {
            name: pool.prefix_cache.tokens_per_hash
            for name, pool in {record.DEFAULT_POOL: fleet.engine, **fleet.pools}.items()
            if pool.prefix_cache is not None
        }
        return Tables.lazily(
            {
                "requests": partial(record.requests, told),
                "calls": partial(record.calls, told, hashes),
                "spans": partial(spans, told),
                "engine_samples": partial(record.engine_samples, told),
            },
            clock=Clock(kind="simulated"),
            quality=Quality(
                read=len(self.log.ends),
                kept=len(told.ended),
                issues=self._issues(),
                sources=("simulated",),
            ),
            meta={
                "provenance": "simulated",
                "simulator": self.engine,
                "seed": str(self.seed),
                "step_model": fleet.engine.step.source,
                "step_model_provenance": fleet.engine.step.provenance.value,
            },
        )

    @cached_property
    def changes(self) -> pa.Table:
        """What autoscalers and the degrade ladder did: t_s, what, which."""
        return record.changes(self._told)

    @cached_property
    def _told(self) -> Told:
        return Told(self.scenario.stream, self.log, self.legend)

    def _issues(self) -> tuple[Issue, ...]:
        calls = self.log.calls
        refused = int(((calls["status"] == ERROR) & (calls["replica"] == NONE)).sum())
        if not refused:
            return ()
        reason = "call longer than the KV blocks of a replica: refused, its request ends in error"
        return (Issue(action="noted", reason=reason, count=refused, example=""),)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
