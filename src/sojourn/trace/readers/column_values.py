"""Columns of strings or numbers to times, numbers, words and statuses; what is none is counted."""

from __future__ import annotations

from functools import cache
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.trace.ledger import Ledger
from sojourn.trace.readers.words import status_of_text
from sojourn.trace.schema import TABLES
from sojourn.trace.sources import Raw

UNIT_NS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
EPOCH_FLOORS: Final = (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8))
"""A number above the floor is a time since 1970 in that unit: 1e8 s is 1973, and no two floors
overlap before the year 5138."""
MAX_NS: Final = 2**62
NOT_MAPPED: Final = frozenset(
    {"calls.call_id", "calls.attempt", "calls.turn", "calls.block_tokens", "calls.ttft_origin"}
)
"""One row is one request with one call: these follow from that."""
SHARES: Final = ("kv_usage", "gpu_busy", "sm_active", "tensor_active", "dram_active", "host_cpu")


def known_targets() -> frozenset[str]:
    """What `columns:` may name: one value per row of a request, its call, or an engine sample."""
    names = {
        f"{table}.{column.name}"
        for table in ("requests", "calls", "engine_samples")
        for column in TABLES[table]
        if not pa.types.is_list(column.type)
    }
    return frozenset(names - NOT_MAPPED | {"requests.duration_s", "calls.ttft_s"})


def truths(column: pa.Array) -> pa.Array:
    """Words such as true, yes, 1 or false, no, 0 as booleans; others are null."""
    meaning = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    words = column.dictionary_encode()
    known = [meaning.get(str(word).strip().lower()) for word in words.dictionary.to_pylist()]
    if not known:
        return pa.nulls(len(column), pa.bool_())
    return pa.array(known, pa.bool_()).take(words.indices)


def strings(column: pa.ChunkedArray) -> pa.Array:
    """Any column as strings; empty ones are null."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        column = pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())
    text = column.cast(pa.string(), safe=False)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One database in memory for all casts: opening one takes longer than a small cast."""
    return duckdb.connect()


def _tried(column: pa.Array, cast: str) -> pa.Array:
    """DuckDB's TRY_CAST of a string column `v`, null where it fails."""
    table = pa.table({"v": column})
    with _database().cursor() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("column_values", table)
        result = connection.sql(f"SELECT {cast} AS v FROM column_values").to_arrow_table()
    return result.column("v").combine_chunks()


def numbers(column: pa.ChunkedArray, ledger: Ledger, name: str) -> np.ndarray:
    """A column as float64; NaN where it is empty, and counted where it is no finite number."""
    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        column = strings(column)
        array = _tried(column, "TRY_CAST(trim(v) AS DOUBLE)")
    else:
        array = column.cast(pa.float64(), safe=False)
    given = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values = np.array(array.to_numpy(zero_copy_only=False), dtype=np.float64)
    bad = given & ~np.isfinite(values)
    ledger.add_where("repaired", f"{name}: no finite number, removed", bad)
    return np.where(bad, np.nan, values)


def instants(
    column: pa.ChunkedArray, unit: str, ledger: Ledger, name: str
) -> tuple[np.ndarray, np.ndarray, str]:
    """A column as integer nanoseconds: (times, which are known, clock kind).

    Numbers without a unit are told by their size; dates without a zone are taken as UTC.
    """
    if pa.types.is_timestamp(column.type):
        known = pc.is_valid(column).to_numpy(zero_copy_only=False)
        unit_ns = UNIT_NS[column.type.unit]
        raw = column.cast(pa.int64()).fill_null(0).to_numpy()
        inside = np.abs(raw.astype(np.float64)) * unit_ns < MAX_NS
        return np.where(inside, raw, 0) * unit_ns, known & inside, "epoch"
    integers = pa.types.is_integer(column.type)
    if not integers and not pa.types.is_floating(column.type):
        text = strings(column)
        dates = _tried(
            text,
            "CASE WHEN TRY_CAST(trim(v) AS DOUBLE) IS NULL"
            " THEN epoch_us(TRY_CAST(trim(v) AS TIMESTAMPTZ)) END",
        )
        if dates.null_count < len(dates):
            known = pc.is_valid(dates).to_numpy(zero_copy_only=False)
            micros = dates.fill_null(0).to_numpy(zero_copy_only=False)
            inside = np.abs(micros.astype(np.float64)) * 1000 < MAX_NS
            return np.where(inside, micros, 0) * 1000, known & inside, "epoch"
        column = _tried(text, "TRY_CAST(trim(v) AS BIGINT)")
        whole = column
        floating = _tried(text, "TRY_CAST(trim(v) AS DOUBLE)")
        exact = _tried(text, "CASE WHEN NOT contains(v, '.') THEN TRY_CAST(trim(v) AS BIGINT) END")
        integers = exact.null_count == floating.null_count
        column = whole if integers else floating
    return _numeric_instants(column, unit, ledger, name, integers=integers)


def _numeric_instants(
    column: Raw, unit: str, ledger: Ledger, name: str, *, integers: bool
) -> tuple[np.ndarray, np.ndarray, str]:
    values = np.array(
        column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
    )
    known = np.isfinite(values)
    middle = float(np.median(values[known])) if known.any() else 0.0
    told = unit
    if not unit:
        unit = next((u for u, floor in EPOCH_FLOORS if middle >= floor), "s")
        ledger.add("noted", f"{name}: unit not named, taken as {unit}")
    kind = "epoch" if middle * UNIT_NS[unit] >= 1e17 else "relative"
    if told and kind == "relative" and middle >= 1e17:
        kind = "epoch"
    inside = known & (np.abs(values) * UNIT_NS[unit] < MAX_NS)
    if integers:
        filled = column.cast(pa.int64(), safe=False).fill_null(0)
        whole = np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.where(inside, whole, 0) * UNIT_NS[unit], inside, kind
    scaled = np.where(inside, values, 0.0)
    seconds = np.floor(scaled)
    fraction = scaled - seconds
    ns = seconds.astype(np.int64) * UNIT_NS[unit] + np.rint(fraction * UNIT_NS[unit]).astype(
        np.int64
    )
    return ns, inside, kind


def duration_unit(name: str) -> float:
    """Seconds in one unit of a duration column, told by its name; seconds without a hint."""
    plain = name.lower()
    for suffix, factor in (("ms", 1e-3), ("milliseconds", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if plain.endswith(tuple(f"{mark}{suffix}" for mark in ("_", "(", " ", ".", "-"))):
            return factor
        if plain.endswith(f"({suffix})"):
            return factor
    return 1.0


def statuses(column: pa.Array) -> pa.Array:
    """Words or HTTP codes as our statuses; null stays null."""
    encoded = (
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    ).dictionary_encode()
    words = pa.array([status_of_text(str(v)) for v in encoded.dictionary.to_pylist()], pa.string())
    if not len(words):
        return pa.nulls(len(column), pa.string())
    return words.take(encoded.indices)


def as_share(name: str, values: np.ndarray, ledger: Ledger) -> np.ndarray:
    """A share as 0..1: a column that goes above 1.5 is in percent."""
    if name in SHARES and np.nanmax(values, initial=0.0) > 1.5:
        ledger.add("noted", f"{name}: given in percent, divided by 100")
        return values / 100
    return values
