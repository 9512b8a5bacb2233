"""Every error sojourn raises on purpose.

    SojournError                exit 1   the tool could not do its work
    ├── UsageError              exit 2   the call was wrong
    │   └── ConfigError         exit 2   sojourn.yaml was wrong
    ├── InputError              exit 2   a file cannot be used: says file, row, field, what to do
    │   └── UnknownFormatError  exit 2   no reader recognises the file
    └── DomainError             exit 1   a formula was asked outside the range it holds in

A message says what was wrong, where, and what to do. Thin evidence is no error: it is an
`Excuse` (see `sojourn.interval`), a value.
"""

from __future__ import annotations

from pathlib import Path


class SojournError(Exception):
    """Base of the tree. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(SojournError):
    """The call was wrong: unknown name, contradicting options, nothing to work on."""

    exit_code = 2


class ConfigError(UsageError):
    """A key of sojourn.yaml is unknown, missing or out of range."""


class InputError(SojournError):
    """A file cannot be used as input.

    Args:
        problem: what was found.
        path: the file.
        row: 1-based row or line, where one is to blame.
        field: the column or attribute, where one is to blame.
        todo: what the reader of the message should do.
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        path: Path | str | None = None,
        row: int | None = None,
        field: str | None = None,
        todo: str = "",
    ) -> None:
        self.problem = problem
        self.path = None if path is None else str(path)
        self.row = row
        self.field = field
        self.todo = todo
        where = ", ".join(
            part
            for part in (
                self.path or "",
                f"row {row}" if row is not None else "",
                f"field {field!r}" if field else "",
            )
            if part
        )
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}. {todo}" if todo else text)


class UnknownFormatError(InputError):
    """No reader recognises the content of a file."""


class DomainError(SojournError):
    """A formula was asked outside the range in which it holds (for example rho >= 1)."""
