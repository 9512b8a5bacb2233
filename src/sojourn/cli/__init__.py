"""The command line: parse, one library call, render. Only this room prints or exits."""

from __future__ import annotations

import contextlib
import os
import sys

_ONE_THREAD = "OPENBLAS_NUM_THREADS"
"""Matrices here are small: threads of linear algebra only wait for each other, on a busy machine
ten times as long as the work takes. Set before numpy is loaded, and only for the command."""
INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""


def main() -> None:
    """Entry point of the `sojourn` command: errors become one message and an exit code."""
    os.environ.setdefault(_ONE_THREAD, "1")
    try:
        code = _run()
    except BrokenPipeError:
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
        _say("interrupted")
    except OSError as error:
        code = 1
        _say(f"standard output cannot be written ({error.strerror}). Send it elsewhere")
    if code:
        _forget_output()
    sys.exit(code)


def _run() -> int:
    """The verb, and everything it said really written; its exit code."""
    from sojourn.cli.verbs import app
    from sojourn.errors import SojournError

    code = 0
    try:
        app()
    except SojournError as error:
        code = error.exit_code
        _say(str(error))
    except MemoryError as error:
        code = SojournError.exit_code
        _say(f"out of memory ({str(error) or 'no more to be had'}). Give it less data at once")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if code == INTERRUPTED:  # typer turns Ctrl-C into an exit, without a word
            _say("interrupted")
    if sys.stdout is not None:
        sys.stdout.flush()
    return code


def _say(text: str) -> None:
    """One line on standard error, where there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"sojourn: {text}\n")
            sys.stderr.flush()


def _forget_output() -> None:
    """What a stream that is closed or full still holds is not tried again at exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
