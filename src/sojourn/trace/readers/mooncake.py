"""Mooncake JSON lines, and Qwen-Bailian's: arrivals, lengths and prefix block hashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sojourn.config import Config
from sojourn.progress import Progress, silent
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import MAX_SPREAD_S, MAX_TOKENS, far_off
from sojourn.trace.sources import Head, Raw, json_values
from sojourn.trace.tables import Clock, Tables

NAME: Final = "mooncake"
MOONCAKE_BLOCK: Final = 512
BAILIAN_BLOCK: Final = 16
_FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
_SIGN: Final = 1 << 63
_MASK: Final = (1 << 64) - 1


def sniff(head: Head) -> bool:
    """JSON lines with timestamp, input_length, output_length and hash_ids."""
    return head.is_json and set(_FIELDS) <= head.keys


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """One request with one call per line; hashes are prefix chains."""
    del config
    return merge([_read_one(path, progress, path.stem if len(paths) > 1 else "") for path in paths])


def _read_one(path: Path, progress: Progress, prefix: str) -> Tables:
    ledger = Ledger(str(path))
    rows: list[tuple[Any, ...]] = []
    bailian = False
    for number, value in json_values(path, ledger, progress):
        ledger.read += 1
        row = _row(number, value)
        if row is None:
            ledger.drop("line without a usable timestamp and lengths", 1, f"row {number}")
            continue
        bailian = bailian or "chat_id" in value
        rows.append(row)
    unit = "ns" if rows and isinstance(rows[0][6], str) else "s" if bailian else "ms"
    block = BAILIAN_BLOCK if bailian else MOONCAKE_BLOCK
    ids = [f"{prefix}-{row[0]}" if prefix else str(row[0]) for row in rows]
    return _tables(rows, ids, ledger, unit=unit, block=block)


def _row(number: int, value: Raw) -> tuple[Any, ...] | None:
    """(row, time, input, output, hashes, session, raw time), or None."""
    if not isinstance(value, dict):
        return None
    raw = value.get("timestamp")
    time, tokens_in = _number(raw), _number(value.get("input_length"))
    tokens_out = _number(value.get("output_length"))
    if time is None or tokens_in is None or tokens_out is None:
        return None
    if not (0 <= tokens_in <= MAX_TOKENS and 0 <= tokens_out <= MAX_TOKENS):
        return None
    hashes = value.get("hash_ids")
    ok = isinstance(hashes, list) and all(type(h) is int for h in hashes)
    blocks = [_signed(h) for h in hashes] if ok and isinstance(hashes, list) else None
    chat = value.get("parent_chat_id")
    session = value.get("chat_id") if chat in (None, -1) else chat
    return number, time, int(tokens_in), int(tokens_out), blocks, session, raw


def _number(value: Raw) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) and abs(number) < 2.0**62 else None


def _signed(value: int) -> int:
    """A 64-bit hash as a signed integer: equal stays equal."""
    return (value & _MASK) - (_MASK + 1) if value & _SIGN else value & _MASK


def _tables(
    rows: list[tuple[Any, ...]], ids: list[str], ledger: Ledger, *, unit: str, block: int
) -> Tables:
    factor = {"ns": 1e-9, "ms": 1e-3, "s": 1.0}[unit]
    times = np.array([row[1] for row in rows], dtype=np.float64)
    origin = float(times.min()) if times.size and times.min() * factor > 1e8 else 0.0
    seconds = (times - origin) * factor
    far = far_off(seconds, MAX_SPREAD_S)
    ledger.drop_where("arrival more than a year from the others", far)
    if far.any():
        rows = [row for row, bad in zip(rows, far, strict=True) if not bad]
        ids = [key for key, bad in zip(ids, far, strict=True) if not bad]
        seconds = seconds[~far]
    ledger.add(
        "noted",
        "hash_ids is no list of whole numbers, left out",
        sum(row[4] is None for row in rows),
    )
    sessions = [None if row[5] is None else str(row[5]) for row in rows]
    zeros = np.zeros(len(rows), dtype=np.int64)
    requests = pa.table(
        {"request_id": pa.array(ids, pa.string()), "arrival_s": seconds,
         "session_id": pa.array(sessions, pa.string())}
    )  # fmt: skip
    calls = pa.table(
        {
            "call_id": pa.array(ids, pa.string()),
            "request_id": pa.array(ids, pa.string()),
            "attempt": zeros,
            "turn": zeros,
            "arrival_s": seconds,
            "input_tokens": pa.array([row[2] for row in rows], pa.int64()),
            "output_tokens": pa.array([row[3] for row in rows], pa.int64()),
            "block_hashes": pa.array([row[4] for row in rows], pa.list_(pa.int64())),
            "block_tokens": pa.array([block] * len(rows), pa.int64()),
        }
    )
    kind = "epoch" if origin else "relative"
    return Tables.of(
        {"requests": requests, "calls": calls},
        clock=Clock(kind=kind, origin_epoch_s=origin * factor),
        quality=ledger.quality(),
        meta={"mooncake.block_tokens": str(block)},
    )
