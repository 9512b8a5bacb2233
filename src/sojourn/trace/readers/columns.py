"""CSV, JSON lines and Parquet with one row per request, by a column map or known headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.progress import Progress, silent
from sojourn.records import Status, TtftOrigin
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import MAX_SPREAD_S, MAX_TOKENS, far_off
from sojourn.trace.readers import column_files, column_values
from sojourn.trace.readers.column_layouts import (
    DURATIONS,
    UNIT_SUFFIX,
    Layout,
    has_arrivals,
    layout_of,
)
from sojourn.trace.sources import Head
from sojourn.trace.tables import Clock, Tables, empty

NAME: Final = "columns"


def sniff(head: Head) -> bool:
    """Whether the header names known columns (arrival with tokens, or lengths alone)."""
    names = column_files.header(head)
    return bool(names) and layout_of(names, Config()) is not None


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """One row per request with one call.

    Raises:
        InputError: a column of the map is absent, or rows have lengths but no arrivals.
    """
    parts = []
    for number, path in enumerate(paths):
        progress(f"reading {path.name}", number / len(paths))
        parts.append(_read_one(path, config, many=len(paths) > 1))
    return merge(parts)


def _read_one(path: Path, config: Config, *, many: bool) -> Tables:
    ledger = Ledger(str(path))
    data = column_files.load(path, ledger, config)
    layout = layout_of(data.column_names, config)
    if layout is None:
        raise InputError(
            f"has the columns {', '.join(data.column_names[:12])}: none known as arrival or tokens",
            path=path,
            todo="Say which is which under `columns:` in sojourn.yaml",
        )
    layout = _present(layout, data, path)
    for note in layout.notes:
        ledger.add("noted", f"{layout.name}: {note}")
    if any(ours.startswith("engine_samples.") for ours in layout.columns):
        return _engine_samples(data, layout, ledger)
    return _requests(data, layout, ledger, prefix=f"{path.stem}-" if many else "")


def _present(layout: Layout, data: pa.Table, path: Path) -> Layout:
    absent = [theirs for theirs in layout.columns.values() if theirs not in data.column_names]
    if absent:
        raise InputError(
            f"has no column {absent[0]!r}; it has {', '.join(data.column_names[:20])}",
            path=path,
            field=absent[0],
            todo="Correct `columns:` in sojourn.yaml",
        )
    known = column_values.known_targets()
    for ours in layout.columns:
        if ours not in known:
            raise InputError(
                f"`columns:` names {ours!r}, which is no column of the tables",
                path=path,
                field=ours,
                todo="docs/reference/tables.md lists them; durations are "
                + " and ".join(DURATIONS),
            )
    if not has_arrivals(layout):
        raise InputError(
            "has token lengths but no arrival times: lengths without arrivals make no trace",
            path=path,
            todo="Pass a trace with arrivals (`--arrivals poisson:RATE` is not served yet)",
        )
    return layout


def _times(
    data: pa.Table, layout: Layout, ours: str, ledger: Ledger
) -> tuple[np.ndarray, np.ndarray, str]:
    theirs = layout.columns[ours]
    unit = layout.unit if ours == "requests.arrival_s" else ""
    unit = unit or next((u for suffix, u in UNIT_SUFFIX if theirs.lower().endswith(suffix)), "")
    return column_values.instants(data.column(theirs), unit, ledger, theirs)


def _requests(data: pa.Table, layout: Layout, ledger: Ledger, *, prefix: str) -> Tables:
    arrival_key = (
        "requests.arrival_s" if "requests.arrival_s" in layout.columns else "calls.arrival_s"
    )
    arrival, known, kind = _times(data, layout, arrival_key, ledger)
    keep = known.copy()
    ledger.drop_where("arrival missing or no time", ~known)
    far = known & far_off(np.where(known, arrival, np.nan) / 1e9, MAX_SPREAD_S)
    ledger.drop_where("arrival more than a year from the others", far)
    keep &= ~far
    ids = _identities(data, layout, prefix)
    keep &= _first_of_each(ids, keep, ledger)
    data, arrival = data.filter(pa.array(keep)), arrival[keep]
    ids = ids.filter(pa.array(keep))
    origin = int(arrival.min()) if arrival.size else 0
    values = _Values(data, layout, ledger, arrival, origin)
    clock = Clock(kind=kind, origin_epoch_s=origin / 1e9 if kind == "epoch" else 0.0)
    requests, calls = _columns(values, ids)
    return Tables.of(
        {"requests": requests, "calls": calls},
        clock=clock,
        quality=ledger.quality(),
        meta={"columns.layout": layout.name},
    )


def _identities(data: pa.Table, layout: Layout, prefix: str) -> pa.Array:
    theirs = layout.columns.get("requests.request_id") or layout.columns.get("calls.request_id")
    # joined by Arrow: from a large numpy array of text it would make several chunks, not one array
    numbers = pa.array(np.arange(1, data.num_rows + 1)).cast(pa.string())
    made = pc.binary_join_element_wise(pa.scalar(prefix), numbers, "")
    if theirs is None:
        return made
    given = column_values.strings(data.column(theirs))
    return pc.coalesce(given, made) if len(given) else made


def _first_of_each(ids: pa.Array, keep: np.ndarray, ledger: Ledger) -> np.ndarray:
    if not len(ids):
        return keep
    codes = ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(keep)
    first = np.zeros(len(codes), dtype=bool)
    first[rows[np.unique(codes[rows], return_index=True)[1]]] = True
    ledger.drop_where("duplicate request_id", keep & ~first)
    return first


@dataclass(frozen=True)
class _Values:
    """Columns of one file by our names, null where the file has none."""

    data: pa.Table
    layout: Layout
    ledger: Ledger
    arrival_ns: np.ndarray
    origin_ns: int

    def text(self, ours: str) -> pa.Array:
        theirs = self.layout.columns.get(ours)
        if theirs is None:
            return pa.nulls(self.data.num_rows, pa.string())
        return column_values.strings(self.data.column(theirs))

    def number(self, ours: str) -> np.ndarray:
        theirs = self.layout.columns.get(ours)
        if theirs is None:
            return np.full(self.data.num_rows, np.nan)
        return column_values.numbers(self.data.column(theirs), self.ledger, theirs)

    def whole(self, ours: str) -> pa.Array:
        values = self.number(ours)
        name = self.layout.columns.get(ours, ours)
        for reason, bad in (("negative", values < 0), ("absurd", values > MAX_TOKENS)):
            self.ledger.add_where("repaired", f"{reason} {name} removed", bad)
            values = np.where(bad, np.nan, values)
        return pa.array(np.rint(values), from_pandas=True).cast(pa.int64())

    def time(self, ours: str) -> np.ndarray:
        """Seconds from the origin; NaN where unknown. A duration counts from the arrival."""
        for duration, target in DURATIONS.items():
            if target == ours and duration in self.layout.columns:
                theirs = self.layout.columns[duration]
                length = self.number(duration) * column_values.duration_unit(theirs)
                return (self.arrival_ns - self.origin_ns) / 1e9 + length
        if ours not in self.layout.columns:
            return np.full(self.data.num_rows, np.nan)
        ns, known, _ = _times(self.data, self.layout, ours, self.ledger)
        return np.where(known, (ns - self.origin_ns) / 1e9, np.nan)


def _columns(values: _Values, ids: pa.Array) -> tuple[pa.Table, pa.Table]:
    layout, n = values.layout, values.data.num_rows
    arrival = (values.arrival_ns - values.origin_ns) / 1e9
    end = values.time("requests.end_s" if _ends(layout, "requests") else "calls.end_s")
    output = values.whole("calls.output_tokens")
    status = column_values.statuses(
        values.text("requests.status" if "requests.status" in layout.columns else "calls.status")
    )
    if layout.zero_output_failed:
        failed = pc.fill_null(pc.equal(output, 0), False)
        status = pc.if_else(failed, pa.scalar(str(Status.ERROR)), pa.scalar(str(Status.OK)))
    ends = pa.array(end, from_pandas=True)
    requests: dict[str, Any] = {"request_id": ids, "arrival_s": arrival, "end_s": ends}
    for name in ("session_id", "tenant", "route", "risk", "bucket"):
        requests[name] = values.text(f"requests.{name}")
    for name in ("priority", "attempts"):
        requests[name] = values.whole(f"requests.{name}")
    for name in ("quality", "cost_usd"):
        requests[name] = pa.array(values.number(f"requests.{name}"), from_pandas=True)
    requests["status"] = status
    requests["success"] = column_values.truths(values.text("requests.success"))
    first = values.time("calls.first_token_s")
    calls: dict[str, Any] = {
        "call_id": ids,
        "request_id": ids,
        "attempt": np.zeros(n, dtype=np.int64),
        "turn": np.zeros(n, dtype=np.int64),
        "arrival_s": arrival,
        "scheduled_s": pa.array(values.time("calls.scheduled_s"), from_pandas=True),
        "first_token_s": pa.array(first, from_pandas=True),
        "end_s": ends,
        "output_tokens": output,
        "status": status,
    }
    for name in ("model", "pool", "replica"):
        calls[name] = values.text(f"calls.{name}")
    for name in (
        "input_tokens", "cached_tokens", "reasoning_tokens", "image_tokens", "images",
        "preemptions",
    ):  # fmt: skip
        calls[name] = values.whole(f"calls.{name}")
    told = pa.array(~np.isnan(first))
    calls["ttft_origin"] = pc.if_else(told, pa.scalar(str(TtftOrigin.GATEWAY)), None)
    return pa.table(requests), pa.table(calls)


def _ends(layout: Layout, table: str) -> bool:
    return bool({f"{table}.end_s", f"{table}.duration_s"} & set(layout.columns))


def _engine_samples(data: pa.Table, layout: Layout, ledger: Ledger) -> Tables:
    times, known, kind = _times(data, layout, "engine_samples.t_s", ledger)
    ledger.drop_where("time missing or no time", ~known)
    data, times = data.filter(pa.array(known)), times[known]
    origin = int(times.min()) if times.size else 0
    samples: dict[str, Any] = {"t_s": (times - origin) / 1e9}
    for ours, theirs in layout.columns.items():
        table, _, name = ours.partition(".")
        if table != "engine_samples" or name == "t_s":
            continue
        if name == "replica":
            samples[name] = column_values.strings(data.column(theirs))
            continue
        values = column_values.numbers(data.column(theirs), ledger, theirs)
        samples[name] = column_values.as_share(name, values, ledger)
    clock = Clock(kind=kind, origin_epoch_s=origin / 1e9 if kind == "epoch" else 0.0)
    samples = {k: v if not isinstance(v, np.ndarray) else pa.array(v, from_pandas=True)
               for k, v in samples.items()}  # fmt: skip
    table = pa.table(samples) if samples else empty("engine_samples")
    return Tables.of({"engine_samples": table}, clock=clock, quality=ledger.quality())
