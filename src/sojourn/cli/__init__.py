"""The command line: parse, one library call, render. Only this room prints or exits."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `sojourn` command: errors become one message and an exit code."""
    from sojourn.cli.verbs import app
    from sojourn.errors import SojournError

    try:
        app()
    except SojournError as error:
        sys.stderr.write(f"sojourn: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("sojourn: interrupted\n")
        sys.exit(130)
