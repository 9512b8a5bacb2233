"""Several sources to one set of tables: one clock, one origin, nothing joined that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.errors import InputError
from sojourn.trace.schema import TABLES, TIME_COLUMNS
from sojourn.trace.tables import Clock, Issue, Quality, Tables

_ROW_TABLES: Final = ("requests", "calls", "spans", "gpu_activity")


def merge(parts: Sequence[Tables]) -> Tables:
    """One set of tables from several; the origin becomes the earliest arrival.

    Sources on the epoch clock are joined by absolute time. A source on its own clock
    (monotonic, or relative to its own start) is joined only when it is the only one with
    requests; engine samples on another clock are left out and counted.

    Raises:
        InputError: requests come from two clocks that share no zero.
    """
    if not parts:
        return Tables()
    parts = _one_clock(list(parts))
    clock = next((part.clock for part in parts if _timed(part)), parts[0].clock)
    shift = 0.0
    if clock.kind == "epoch":
        zeros = [part.clock.origin_epoch_s for part in parts if _timed(part)]
        zero = min(zeros, default=clock.origin_epoch_s)
        parts = [
            _shifted(part, part.clock.origin_epoch_s - zero) if _timed(part) else part
            for part in parts
        ]
        clock = Clock(kind="epoch", origin_epoch_s=zero)
    tables = {
        name: pa.concat_tables([part.table(name) for part in parts]).combine_chunks()
        for name in TABLES
    }
    quality = Quality()
    for part in parts:
        quality = quality.merged(part.quality)
    merged = Tables.of(tables, clock=clock, quality=quality, meta=_meta(parts))
    shift = -_earliest(merged)
    if not shift:
        return merged
    zero = clock.origin_epoch_s - shift if clock.kind == "epoch" else clock.origin_epoch_s
    return replace(_shifted(merged, shift), clock=Clock(kind=clock.kind, origin_epoch_s=zero))


def _one_clock(parts: list[Tables]) -> list[Tables]:
    """The parts that can share a clock; samples that cannot are counted and left out."""
    timed = [part for part in parts if _timed(part)]
    if len(timed) < 2 or all(part.clock.kind == "epoch" for part in timed):
        return parts
    with_rows = [part for part in timed if any(part.table(t).num_rows for t in _ROW_TABLES)]
    keepers = with_rows or timed[:1]
    if all(part.clock.kind == "epoch" for part in keepers):
        dated = [part for part in timed if part.clock.kind == "epoch"]
        parts = [_dated(part, dated) for part in parts]
    if len(keepers) > 1 and any(part.clock.kind != "epoch" for part in keepers):
        raise InputError(
            "two sources with requests have clocks without a common zero: "
            + " and ".join(
                f"{', '.join(part.quality.sources) or 'a source'} ({part.clock.kind})"
                for part in sorted(keepers, key=lambda part: part.clock.kind == "epoch")[:2]
            ),
            todo="Read them one at a time",
        )
    kind = keepers[0].clock.kind
    sampled = any(part.engine_samples.num_rows and part.clock.kind == kind for part in timed)
    return [
        part
        if not _timed(part) or part in keepers or (kind == "epoch" == part.clock.kind)
        else _without_samples(part, kind, sampled=sampled)
        for part in parts
    ]


def _dated(log: Tables, keepers: Sequence[Tables]) -> Tables:
    """A log without a year, placed in the year of the traces when it then overlaps them.

    Only where no other engine samples are there: two accounts of one replica would count twice.
    """
    told = log.meta.get("engine_log.first_line")
    others = any(part.engine_samples.num_rows for part in keepers)
    if told is None or others or not log.engine_samples.num_rows:
        return log
    begin = min(part.clock.origin_epoch_s for part in keepers)
    ends = [
        part.clock.origin_epoch_s + float(pc.max(part.requests.column("arrival_s")).as_py())
        for part in keepers
        if part.requests.num_rows
    ]
    first = datetime.fromisoformat(told)
    year = datetime.fromtimestamp(begin, tz=UTC).year
    length = float(pc.max(log.engine_samples.column("t_s")).as_py())
    try:
        origin = first.replace(year=year).timestamp()
    except ValueError:
        return log
    if not ends or origin > max(ends) or origin + length < begin:
        return log
    issue = Issue(
        action="noted",
        reason=f"engine log placed in {year}, UTC: so it overlaps the traces",
        count=1,
        source=", ".join(log.quality.sources),
    )
    quality = log.quality.model_copy(update={"issues": (*log.quality.issues, issue)})
    return replace(log, clock=Clock(kind="epoch", origin_epoch_s=origin), quality=quality)


def _without_samples(part: Tables, kind: str, *, sampled: bool) -> Tables:
    count = part.engine_samples.num_rows
    issue = Issue(
        action="dropped",
        reason=f"engine samples on a {part.clock.kind} clock cannot be joined to the {kind} clock"
        + ("; another source samples the engines" if sampled else "; read them alone"),
        count=count,
        source=", ".join(part.quality.sources),
    )
    quality = part.quality.model_copy(
        update={"kept": part.quality.kept - count, "issues": (*part.quality.issues, issue)}
    )
    index = part.aggregates.column_names.index("t_s")
    no_times = pa.nulls(part.aggregates.num_rows, pa.float64())
    aggregates = part.aggregates.set_column(index, part.aggregates.schema.field(index), no_times)
    return Tables(aggregates=aggregates, quality=quality, meta=part.meta, clock=part.clock)


def _timed(part: Tables) -> bool:
    return any(part.table(name).num_rows for name in TABLES if name != "aggregates")


def _shifted(part: Tables, seconds: float) -> Tables:
    if not seconds:
        return part
    moved = {}
    for name, columns in TIME_COLUMNS.items():
        table = part.table(name)
        for column in columns:
            if table.num_rows:
                index = table.column_names.index(column)
                values = pc.add(table.column(column), seconds)
                table = table.set_column(index, table.schema.field(index), values)
        moved[name] = table
    return replace(part, **moved)


def _earliest(part: Tables) -> float:
    for name, column in (
        ("requests", "arrival_s"),
        ("spans", "start_s"),
        ("engine_samples", "t_s"),
        ("gpu_activity", "start_s"),
    ):
        values = part.table(name).column(column)
        if len(values) > values.null_count:
            return float(np.nanmin(values.to_numpy()))
    return 0.0


def _meta(parts: Sequence[Tables]) -> Mapping[str, str]:
    out: dict[str, str] = {}
    for part in parts:
        for key, value in part.meta.items():
            known = out.get(key)
            if known is None:
                out[key] = value
            elif value not in known.split("; "):
                out[key] = f"{known}; {value}"
    return out
