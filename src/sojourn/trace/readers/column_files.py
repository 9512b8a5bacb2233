"""CSV, JSON lines and Parquet to one Arrow table of raw columns; broken rows are counted."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.trace.ledger import Ledger
from sojourn.trace.sources import Head, Raw, json_values, read_all, read_text

DELIMITERS: Final = (",", "\t", ";", "|")
PARQUET_MAGIC: Final = b"PAR1"
MAX_BLOCK: Final = 2**31 - 1
"""Bytes that the CSV parser takes at once: all, so that no row and no quote is cut in two."""
MAX_HEADER: Final = 16_384


def header(head: Head) -> list[str]:
    """Column names: of the first line, the first JSON object, or the Parquet schema."""
    if head.data.startswith(PARQUET_MAGIC):
        return parquet_names(head.path)
    if head.is_binary:
        return []
    if head.is_json:
        record = head.first_object
        return list(_flat(record)) if record else []
    first = _header_line(head.lines)
    return _split(first) if 0 < len(first) <= MAX_HEADER else []


def _header_line(lines: list[str]) -> str:
    """The first line that is neither empty nor a comment."""
    return next((line for line in lines if line.strip() and not line.startswith("#")), "")


def parquet_names(path: Path) -> list[str]:
    """Column names of a Parquet file; none when its footer is broken."""
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return []


def _split(line: str) -> list[str]:
    delimiter = max(DELIMITERS, key=line.count)
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def load(path: Path, ledger: Ledger, config: Config) -> pa.Table:
    """The file as a table of raw columns.

    Raises:
        InputError: it cannot be read as what it looks like.
    """
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic == PARQUET_MAGIC:
        return _parquet(path, ledger)
    text_start = read_all(path, ledger)[:4096].lstrip(b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n")[:1]
    if text_start in (b"{", b"["):
        return _json(path, ledger, config)
    return _csv(path, ledger)


def _parquet(path: Path, ledger: Ledger) -> pa.Table:
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"is a broken Parquet file ({_short(error)})", path=path, todo="Write it again"
        ) from error
    ledger.read += table.num_rows
    return table


def _csv(path: Path, ledger: Ledger) -> pa.Table:
    text = read_text(path, ledger).replace("\x00", "")
    first = _header_line(text.splitlines())
    names = _unique(_split(first))
    delimiter = max(DELIMITERS, key=first.count)
    skipped: list[str] = []
    lines = 0

    def bad_row(row: Raw) -> str:
        nonlocal lines
        held = row.text.rstrip("\r\n").count("\n") + 1
        lines += held
        tail = f"; a quote left open takes in {held:,} lines" if held > 1 else ""
        skipped.append(f"row {row.number}: {row.actual_columns} cells, expected {len(names)}{tail}")
        return "skip"

    body = text[text.index(first) + len(first) :].lstrip("\r\n") if first else ""
    if not body.strip():
        return pa.table({name: pa.array([], pa.string()) for name in names})
    data = body.encode("utf-8", "replace")
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(
                column_names=names, use_threads=False, block_size=min(len(data) + 1, MAX_BLOCK)
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=bad_row, newlines_in_values=True
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=["", "null", "NULL", "None", "NA", "N/A", "-"],
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"cannot be read as CSV ({_short(error)})", path=path, todo="Check its quoting"
        ) from error
    ledger.read += table.num_rows + lines
    if skipped:
        ledger.drop("row with another number of cells", lines, skipped[0])
    return table


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        out.append(f"{name}.{count}" if count else name)
    return out


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; lists stay values."""
    out: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict) and len(prefix) < 200:
            out.update(_flat(item, f"{prefix}{key}."))
        else:
            out[f"{prefix}{key}"] = item
    return out


def _json(path: Path, ledger: Ledger, config: Config) -> pa.Table:
    wanted = set(config.columns.values())
    rows: list[dict[str, Any]] = []
    for number, value in json_values(path, ledger):
        ledger.read += 1
        if isinstance(value, dict):
            rows.append(_flat(value))
        else:
            ledger.drop("line is no JSON object", 1, f"row {number}")
    names = wanted or {name for row in rows[:100] for name in row}
    columns = {name: _column([row.get(name) for row in rows]) for name in sorted(names)}
    return pa.table(columns) if columns else pa.table({})


def _column(values: list[Any]) -> pa.Array:
    """Numbers stay numbers where all are; else strings."""
    kinds = {type(v) for v in values if v is not None}
    if kinds == {int} and all(v is None or abs(v) < 2**63 for v in values):
        return pa.array(values, pa.int64())
    if kinds and kinds <= {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    texts = (None if v is None else v if isinstance(v, str) else str(v)[:4096] for v in values)
    return pa.array([None if t is None else t.encode("utf-8", "replace").decode() for t in texts],
                    pa.string())  # fmt: skip


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
