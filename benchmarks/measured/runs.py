"""Measured runs as tables: what the engine was sent, and when it answered."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.trace.tables import Tables, conform
from sojourn.workload import replay
from sojourn.workload.stream import Stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """Calls of one engine, sorted by arrival; seconds on one clock, NaN where not recorded.

    `cached` is the assumed part of each prompt that the engine need not compute.
    """

    arrival: Floats
    scheduled: Floats
    first: Floats
    end: Floats
    input: Floats
    cached: Floats
    output: Floats

    def take(self, chosen: npt.NDArray[np.bool_]) -> Run:
        """The calls chosen."""
        return Run(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def ttft(self) -> Floats:
        """Time to first token, s."""
        return self.first - self.arrival

    @property
    def e2e(self) -> Floats:
        """Whole time of a call, s."""
        return self.end - self.arrival


def joined(runs: list[Run]) -> tuple[Run, list[str]]:
    """Runs of one engine, one after the other in time but on a clock of their own, as one list of
    calls, and the replica that keeps each run apart."""
    whole = Run(*(np.concatenate([getattr(r, f.name) for r in runs]) for f in fields(Run)))
    names = [str(index) for index, run in enumerate(runs) for _ in range(len(run))]
    order = np.argsort(whole.arrival, kind="stable")
    placed = replace(whole, **{f.name: getattr(whole, f.name)[order] for f in fields(Run)})
    return placed, [names[row] for row in order]


def tables(
    run: Run, replicas: list[str] | None = None, known: npt.NDArray[np.bool_] | None = None
) -> Tables:
    """The run as ingestion would have it. Calls not `known` are in the state the others saw, but
    tell neither tokens written nor that they ended well: no equation comes from them."""
    count = len(run)
    told = np.ones(count, dtype=bool) if known is None else known
    ids = [f"{i:06d}" for i in range(count)]
    status = np.where(told, "ok", "cancelled")
    calls = pa.table(
        {
            "call_id": ids,
            "request_id": ids,
            "model": ["m"] * count,
            "replica": replicas or ["0"] * count,
            "input_tokens": run.input.astype(np.int64),
            "cached_tokens": run.cached.astype(np.int64),
            "output_tokens": pa.array(run.output.astype(np.int64), mask=~told),
            "arrival_s": run.arrival,
            "scheduled_s": pa.array(run.scheduled, mask=~np.isfinite(run.scheduled)),
            "first_token_s": run.first,
            "end_s": run.end,
            "ttft_origin": ["client_send"] * count,
            "preemptions": np.zeros(count, dtype=np.int64),
            "status": status,
        }
    )
    requests = pa.table(
        {
            "request_id": ids,
            "arrival_s": run.arrival,
            "end_s": run.end,
            "status": status,
            "attempts": np.ones(count, dtype=np.int64),
        }
    )
    return Tables.of({"calls": conform("calls", calls), "requests": conform("requests", requests)})


def stream(run: Run) -> Stream:
    """All that was sent, to be replayed."""
    return replay.replay(tables(run))


def columns(path: Path, names: list[str]) -> dict[str, Floats]:
    """Numeric columns of a CSV that begins with `# SOURCE` lines; rows with a gap are left out."""
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    data = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
    whole = np.all([np.isfinite(values) for values in data.values()], axis=0)
    return {name: values[whole] for name, values in data.items()}
