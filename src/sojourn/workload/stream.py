"""`Stream`: requests to come, each with its program. What the simulator is fed.

A stream comes from measured tables (`sojourn.workload.replay`) or from a profile
(`sojourn.workload.synthesis`). Actions of the planner transform it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

STREAM_REQUESTS: Final = pa.schema(
    [
        ("request_id", pa.string()),
        ("arrival_s", pa.float64()),
        ("session_id", pa.string()),
        ("tenant", pa.string()),
        ("route", pa.string()),
        ("priority", pa.int64()),
        ("bucket", pa.string()),
    ]
)
STREAM_STEPS: Final = pa.schema(
    [
        ("request", pa.int64()),  # row in the requests table
        ("group", pa.int64()),  # equal: at once; ascending: one after the other
        ("kind", pa.string()),  # station, call, delay
        ("stage", pa.string()),
        ("name", pa.string()),  # station name, or model of a call
        ("service_s", pa.float64()),
        ("pool", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("image_tokens", pa.int64()),
    ]
)
STREAM_IDENTITIES: Final = pa.schema(
    [
        ("block_hashes", pa.list_(pa.int64())),  # one per full block of the call's tokens
        ("image_id", pa.int64()),  # equal: the same image; 0: never seen again
    ]
)
"""Columns that steps may have beside: what caches know calls by."""


@dataclass(frozen=True)
class Stream:
    """Requests sorted by arrival, and their steps sorted by (request, group).

    `steps.request` is the row number in `requests`. Every request has at least one step. Steps
    may carry the columns of `STREAM_IDENTITIES`. A block's hash tells the block and all before
    it; hashes beyond the prompt are those of what the call will write.
    """

    requests: pa.Table
    steps: pa.Table

    def __post_init__(self) -> None:
        for table in (self.requests, self.steps):
            if not isinstance(table, pa.Table):
                raise TypeError(f"a stream is of two Arrow tables, not of a {type(table).__name__}")
        if not self.requests.schema.equals(STREAM_REQUESTS):
            raise TypeError(f"stream requests need the schema {STREAM_REQUESTS}")
        known = self.steps.schema.names[: len(STREAM_STEPS)]
        if not self.steps.select(known).schema.equals(STREAM_STEPS):
            raise TypeError(f"stream steps need the schema {STREAM_STEPS}")
        for column in self.steps.schema.names[len(STREAM_STEPS) :]:
            if column not in STREAM_IDENTITIES.names:
                raise TypeError(f"stream steps have no column {column!r}")
            if self.steps.schema.field(column) != STREAM_IDENTITIES.field(column):
                raise TypeError(f"stream steps need {STREAM_IDENTITIES.field(column)}")

    @property
    def duration_s(self) -> float:
        """Last arrival minus first, seconds."""
        arrivals = self.requests.column("arrival_s").to_numpy()
        return float(arrivals[-1] - arrivals[0]) if len(arrivals) else 0.0
