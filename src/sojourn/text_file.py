"""Text of a file that somebody named: an ordinary file, bounded in size, UTF-8; JSON in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sojourn.errors import InputError

MAX_BYTES: Final = 64_000_000
"""Of one file that is read whole. A saved fleet has 100 kB, the largest config.json 2 MB."""


def read_text(path: Path | str, *, todo: str = "Check the path") -> str:
    """The text of a file. A device or a pipe, which may never end, is no file.

    Raises:
        InputError: missing, a folder, a device, too large, or not UTF-8; `todo` says what to do.
    """
    where = Path(path)
    try:
        if not where.is_file():
            problem = "is no file" if where.exists() else "does not exist"
            raise InputError(f"cannot be read ({problem})", path=where, todo=todo)
        size = where.stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                f"has {size:,} bytes, more than the {MAX_BYTES:,} such a file may have",
                path=where,
                todo=todo,
            )
        return where.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", path=where, todo=todo) from error


def read_object(path: Path | str, *, what: str, todo: str = "Check the path") -> dict[str, Any]:
    """A JSON object in a file; `what` it should be ("a config.json").

    Raises:
        InputError: as `read_text`; no JSON, nested too deeply, or no object.
    """
    text = read_text(path, todo=todo)
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg}", path=path, row=error.lineno, todo=f"Pass {what}"
        ) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", path=path, todo=f"Pass {what}") from error
    except ValueError as error:  # a number of more digits than Python takes
        raise InputError(f"is not JSON: {error}", path=path, todo=f"Pass {what}") from error
    if not isinstance(raw, dict):
        raise InputError("holds no JSON object", path=path, todo=f"Pass {what}")
    return raw
