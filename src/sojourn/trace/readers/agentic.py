"""kv-cache-tester's agentic sessions: one JSON object per session with its model calls.

Each call of a session is one request (the user's agent waits for it); sessions start at their
own zero, so their times are offsets within the session: the trace holds every session as if
all had started together, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sojourn.config import Config
from sojourn.progress import Progress, silent
from sojourn.records import TtftOrigin
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import MAX_TOKENS
from sojourn.trace.sources import Head, Raw, json_values
from sojourn.trace.tables import Clock, Tables, from_rows

NAME: Final = "agentic_sessions"
MAX_SESSION_S: Final = 366 * 86_400.0
_SHIFT: Final = 32


def sniff(head: Head) -> bool:
    """Sessions with block_size, hash_id_scope and requests."""
    return head.is_json and {"block_size", "hash_id_scope", "requests"} <= head.keys


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """One request with one call per model call, grouped by session."""
    del config
    return merge([_read_one(path, progress) for path in paths])


def _read_one(path: Path, progress: Progress) -> Tables:
    ledger = Ledger(str(path))
    requests: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, session in json_values(path, ledger, progress):
        if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
            ledger.read += 1
            ledger.drop("line is no session", 1, f"row {number}")
            continue
        name = str(session.get("id") or f"session-{number}")
        if name in seen:
            name = f"{name}~{number}"
        seen.add(name)
        scope = len(seen) if session.get("hash_id_scope") == "local" else 0
        for turn, call in enumerate(_calls(session["requests"])):
            ledger.read += 1
            pair = _pair(call, name, turn, session, scope)
            if pair is None:
                ledger.drop("call without usable time and lengths", 1, f"row {number}, call {turn}")
                continue
            requests.append(pair[0])
            calls.append(pair[1])
    ledger.add(
        "noted", "sessions carry no common clock: each starts at zero", len(seen) if requests else 0
    )
    order = sorted(range(len(requests)), key=lambda i: float(requests[i]["arrival_s"]))
    requests = [requests[i] for i in order]
    return Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)},
        clock=Clock(kind="relative"),
        quality=ledger.quality(),
        meta={"agentic_sessions.sessions": str(len(seen))},
    )


def _calls(items: list[Any], start: float = 0.0, depth: int = 0) -> Iterator[Any]:
    """Calls of a session; those of a subagent stand at their own times."""
    for item in items:
        inner = item.get("requests") if isinstance(item, dict) else None
        if isinstance(inner, list) and depth < 8:
            yield from _calls(inner, start, depth + 1)
        else:
            yield item


def _whole(value: Raw) -> int | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if ok and 0 <= value <= MAX_TOKENS else None


def _seconds(value: Raw) -> float | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if ok and 0 <= value <= MAX_SESSION_S else None


def _blocks(hashes: Raw, scope: int) -> list[int] | None:
    """Block hashes; those of a local scope are told apart by session in the upper bits."""
    if not isinstance(hashes, list):
        return None
    if not all(type(h) is int and 0 <= h < 1 << _SHIFT for h in hashes):
        return None
    return [h | scope << _SHIFT for h in hashes] if scope < 1 << 30 else None


def _pair(
    call: Raw, session: str, turn: int, header: dict[str, Any], scope: int
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if not isinstance(call, dict):
        return None
    arrival, tokens_in, tokens_out = (
        _seconds(call.get("t")),
        _whole(call.get("in")),
        _whole(call.get("out")),
    )
    if arrival is None or tokens_in is None or tokens_out is None:
        return None
    lasted, first = _seconds(call.get("api_time")), _seconds(call.get("ttft"))
    end = None if lasted is None else arrival + lasted
    if first is not None and (lasted is None or first > lasted):
        first = None
    key = f"{session}.{turn}"
    model = call.get("model")
    blocks = _blocks(call.get("hash_ids"), scope)
    request = {
        "request_id": key,
        "session_id": session,
        "arrival_s": arrival,
        "end_s": end,
        "attempts": 1,
    }
    row = {
        "call_id": key,
        "request_id": key,
        "attempt": 0,
        "turn": 0,
        "model": model if isinstance(model, str) else None,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "block_hashes": blocks,
        "block_tokens": _whole(header.get("block_size")) if blocks else None,
        "arrival_s": arrival,
        "first_token_s": None if first is None else arrival + first,
        "end_s": end,
        "ttft_origin": None if first is None else str(TtftOrigin.CLIENT_SEND),
    }
    return request, row
