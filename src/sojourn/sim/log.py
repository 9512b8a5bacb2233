"""What an engine writes down while it runs: rows of whole numbers, in the order of events.

Times are ticks since the run's origin, `NONE` where a thing did not happen. Two engines agree when
their logs are equal. `sojourn.sim.record` turns a log into the tables of ingestion.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sojourn.records import Status

Rows = npt.NDArray[Any]

NONE: Final = -1
STATUSES: Final = tuple(Status)
OK, ERROR, TIMEOUT, CANCELLED, SHED = (
    STATUSES.index(s)
    for s in (Status.OK, Status.ERROR, Status.TIMEOUT, Status.CANCELLED, Status.SHED)
)
PARTIAL_ANSWER: Final = 0
SHORT_ANSWER: Final = 1
FIRST_SKIP: Final = 2
"""Bits of `ENDS.degraded`; bit FIRST_SKIP + s: station s was left out."""
MOST_STATIONS: Final = 60

ENDS: Final = np.dtype(
    [("arrival", "i8"), ("end", "i8"), ("degraded", "u8"), ("attempts", "i4"), ("status", "i4")]
)
"""One row per request of the stream, in its order. `status` NONE: still in flight."""

CALLS: Final = np.dtype(
    [
        ("arrival", "i8"),  # the step began: routed, front end entered
        ("encode", "i8"),  # asked for the encoder; NONE: needed none
        ("encode_start", "i8"),
        ("queued", "i8"),  # in the engine's queue
        ("scheduled", "i8"),  # first time in a step
        ("first", "i8"),  # first token
        ("moved", "i8"),  # KV has arrived in the decode pool; NONE: one pool
        ("resumed", "i8"),  # first time in a step of the decode pool
        ("end", "i8"),
        ("request", "i4"),
        ("attempt", "i4"),
        ("place", "i4"),  # of the step in its program
        ("pool", "i4"),
        ("replica", "i4"),  # number over all pools; of the decode pool once there
        ("cached", "i4"),  # prompt tokens not computed, when first scheduled
        ("written", "i4"),
        ("preemptions", "i4"),
        ("status", "i4"),
    ]
)
VISITS: Final = np.dtype(
    [
        ("entered", "i8"),
        ("started", "i8"),  # NONE: given up while waiting, or refused
        ("ended", "i8"),
        ("request", "i4"),
        ("attempt", "i4"),
        ("place", "i4"),
        ("station", "i4"),  # NONE: a delay
        ("status", "i4"),
    ]
)
ATTEMPTS: Final = np.dtype(
    [
        ("started", "i8"),
        ("ended", "i8"),
        ("backoff", "i8"),  # wait before the next attempt; NONE: there is none
        ("request", "i4"),
        ("attempt", "i4"),
        ("status", "i4"),
    ]
)
SAMPLES: Final = np.dtype(
    [
        ("t", "i8"),
        ("busy", "i8"),  # ticks in steps since the start, up to now
        ("prompt_tokens", "i8"),  # the counters: totals since the start
        ("written_tokens", "i8"),
        ("hit_tokens", "i8"),
        ("query_tokens", "i8"),
        ("preemptions", "i8"),
        ("used_blocks", "i8"),
        ("running", "i4"),
        ("waiting", "i4"),
        ("replica", "i4"),
    ]
)
CHANGES: Final = np.dtype([("t", "i8"), ("what", "i4"), ("which", "i4")])
"""Controllers at work: `which` is a replica, or the ladder's new level."""
STARTING, READY, DRAINING, STOPPED, LEVEL = range(5)


@dataclass(frozen=True)
class Log:
    """All rows of a run."""

    ends: Rows
    calls: Rows
    visits: Rows
    attempts: Rows
    samples: Rows
    changes: Rows

    def same(self, other: Log) -> bool:
        """Whether two runs did the same, row for row."""
        return all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )
