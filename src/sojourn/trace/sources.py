"""Files as readers see them: found, opened (gzip by its magic), looked at, read line by line."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from sojourn.errors import InputError
from sojourn.progress import Progress, silent
from sojourn.trace.ledger import Ledger

HEAD_BYTES: Final = 1 << 16
GZIP_MAGIC: Final = b"\x1f\x8b"
BROKEN_STREAM: Final = (EOFError, zlib.error, gzip.BadGzipFile)
PROGRESS_LINES: Final = 5_000
_NO_FILE: Final = "is a pipe or a device; a file is looked at first and then read again"
_WRITE_FIRST: Final = "Write its content to a file first"
_KEY: Final = re.compile(rb'"([^"\\\x00-\x1f]{1,80})"\s*:')

Raw: TypeAlias = Any
"""A JSON value before anyone has looked at it: of any shape."""
Stream = io.BufferedReader | gzip.GzipFile


@dataclass(frozen=True)
class Head:
    """The first 64 KiB of a file, unpacked; every reader's `sniff` looks at this only."""

    path: Path
    data: bytes
    whole: bool = field(default=False)

    @cached_property
    def text(self) -> str:
        """The bytes as text; what is no text becomes U+FFFD."""
        return decoded(self.data)

    @cached_property
    def lines(self) -> list[str]:
        """Its non-empty lines; the last may be cut."""
        return [line for line in self.text.splitlines() if line.strip()]

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every word that stands where a JSON key stands."""
        return frozenset(m.decode("utf-8", "replace") for m in _KEY.findall(self.data))

    @cached_property
    def first_object(self) -> dict[str, Any] | None:
        """The first line as a JSON object, where it is one."""
        for line in self.lines[:3]:
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            return value if isinstance(value, dict) else None
        return None

    @property
    def is_json(self) -> bool:
        """Whether it starts like a JSON object or array."""
        return self.text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[")

    @property
    def is_binary(self) -> bool:
        """Whether it holds bytes that no text has."""
        return b"\x00" in self.data[:4096] and not self.data.startswith(
            (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        )


def decoded(data: bytes) -> str:
    """Bytes as text: UTF-8 (with or without mark) or UTF-16 with its mark; else U+FFFD."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def open_bytes(path: Path) -> Stream:
    """Open for reading, unpacked when the content is gzip.

    Raises:
        InputError: the file cannot be opened, or is a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise InputError(_NO_FILE, path=path, todo=_WRITE_FIRST)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(
            f"cannot be opened ({error.strerror})", path=path, todo="Check the path and the rights"
        ) from error
    with raw:
        magic = raw.read(2)
    return gzip.open(path, "rb") if magic == GZIP_MAGIC else path.open("rb")


def head_of(path: Path) -> Head:
    """The first bytes of a file.

    Raises:
        InputError: the file cannot be opened or read, or is empty.
    """
    with open_bytes(path) as stream:
        data = _read_some(stream, HEAD_BYTES + 1, path)
    if not data.strip(b"\x00 \t\r\n"):
        raise InputError("is empty", path=path, todo="Check that the export finished")
    return Head(path, data[:HEAD_BYTES], whole=len(data) <= HEAD_BYTES)


def _read_some(stream: Stream, size: int, path: Path) -> bytes:
    parts: list[bytes] = []
    try:
        while size > 0:
            part = stream.read(min(size, 4096))
            if not part:
                break
            parts.append(part)
            size -= len(part)
    except BROKEN_STREAM:
        pass
    except OSError as error:
        raise InputError(f"cannot be read ({error})", path=path) from error
    return b"".join(parts)


def read_all(path: Path, ledger: Ledger) -> bytes:
    """The whole content, unpacked; of a broken gzip stream what comes before the break.

    Raises:
        InputError: the file cannot be read.
    """
    parts: list[bytes] = []
    try:
        with open_bytes(path) as stream:
            while part := stream.read(1 << 20):
                parts.append(part)
    except BROKEN_STREAM as error:
        ledger.add("noted", "compressed stream broken: what follows is lost", 1, error)
    except OSError as error:
        raise InputError(f"cannot be read ({error})", path=path) from error
    return b"".join(parts)


def read_text(path: Path, ledger: Ledger) -> str:
    """The whole content as text; lines with bytes that are no text are counted.

    Raises:
        InputError: the file cannot be read.
    """
    data = read_all(path, ledger)
    text = decoded(data)
    if "\ufffd" in text:
        bad = [i for i, line in enumerate(text.splitlines(), 1) if "\ufffd" in line]
        ledger.add("repaired", "bytes that are no UTF-8 replaced", len(bad), f"row {bad[0]}")
    return text


def lines_of(
    path: Path, ledger: Ledger, progress: Progress = silent
) -> Iterator[tuple[int, bytes]]:
    """Non-empty lines with their 1-based numbers, unpacked, without loading the file.

    Raises:
        InputError: the file cannot be read.
    """
    size = max(1, path.stat().st_size)
    try:
        with open_bytes(path) as stream:
            lines: Iterable[bytes] = stream
            if stream.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                lines = decoded(stream.read()).encode("utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                content = line.strip()
                if number == 1 and content.startswith(codecs.BOM_UTF8):
                    content = content[3:]
                if content:
                    yield number, content
                if number % PROGRESS_LINES == 0:
                    progress(f"reading {path.name}", min(1.0, _position(stream) / size))
    except BROKEN_STREAM as error:
        ledger.add("noted", "compressed stream broken: what follows is lost", 1, error)
    except OSError as error:
        raise InputError(f"cannot be read ({error})", path=path) from error


def _position(stream: Stream) -> int:
    raw = getattr(stream, "fileobj", None) or stream
    return int(raw.tell())


def json_values(
    path: Path, ledger: Ledger, progress: Progress = silent
) -> Iterator[tuple[int, Raw]]:
    """JSON values of a file, each with its row: JSON lines, one document, or one array.

    A line that is no JSON counts as one record read and dropped.

    Raises:
        InputError: the file is one JSON document and that document is broken.
    """
    if _is_one_document(path):
        value = _document(path, ledger)
        values = value if isinstance(value, list) else [value]
        yield from enumerate(values, 1)
        return
    for number, line in lines_of(path, ledger, progress):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            ledger.read += 1
            ledger.drop("line is no whole JSON", 1, f"row {number}: {error}")
            continue
        yield number, value


def _is_one_document(path: Path) -> bool:
    """Whether the file is one JSON document rather than a document per line.

    It is lines when one of the first lines is an object by itself and is not all there is.
    """
    ledger = Ledger()
    for seen, (_, line) in enumerate(lines_of(path, ledger)):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            if seen >= 4:
                return True
            continue
        return not isinstance(value, dict)
    return True


def _document(path: Path, ledger: Ledger) -> Raw:
    data = read_text(path, ledger)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"is no whole JSON ({error.msg})",
            path=path,
            row=error.lineno,
            todo="The export was cut or damaged: export it again",
        ) from error


def expand(paths: str | Path | Sequence[str | Path]) -> list[tuple[Path, bool]]:
    """Files named or found below folders, sorted, hidden ones left out.

    Returns:
        (file, whether it was named itself).

    Raises:
        InputError: a path does not exist, or a folder holds no file.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    found: dict[Path, bool] = {}
    for entry in named:
        path = Path(entry)
        if path.is_dir():
            inside = sorted(_walk(path))
            if not inside:
                raise InputError("holds no file", path=path, todo="Pass the folder of the export")
            for file in inside:
                found.setdefault(file, False)
        elif path.is_file():
            found[path] = True
        elif path.exists():
            raise InputError(_NO_FILE, path=path, todo=_WRITE_FIRST)
        else:
            raise InputError("does not exist", path=path, todo="Check the path")
    if not found:
        raise InputError("nothing to read", todo="Pass files or folders")
    return list(found.items())


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(place) / name
