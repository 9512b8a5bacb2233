"""What foreign words mean: statuses of requests and calls."""

from __future__ import annotations

import re
from typing import Final

from sojourn.records import Status

_TIMEOUT: Final = re.compile(r"time[d ._-]*out|deadline|\b(408|504)\b", re.IGNORECASE)
_CANCELLED: Final = re.compile(r"cancel|abort|disconnect|\b499\b", re.IGNORECASE)
_SHED: Final = re.compile(r"shed|rate.?limit|too many|overload|reject|quota|\b429\b", re.IGNORECASE)
_OK: Final = frozenset(
    {"ok", "success", "succeeded", "successful", "completed", "complete", "true", "unset", "stop",
     "length", "tool_calls", "finished", "done", ""}
)  # fmt: skip


def status_of_text(text: str) -> str:
    """A status word, an HTTP code or an error type as one of ours."""
    plain = text.strip().lower().removesuffix(".0")
    if plain in _OK:
        return str(Status.OK)
    if plain.isdecimal() and len(plain) == 3 and plain[0] in "123":
        return str(Status.OK)
    for pattern, status in (
        (_TIMEOUT, Status.TIMEOUT),
        (_CANCELLED, Status.CANCELLED),
        (_SHED, Status.SHED),
    ):
        if pattern.search(plain):
            return str(status)
    return str(Status.ERROR)
