"""The command line: parse, one library call, render. Only this room prints or exits."""


def main() -> None:
    """Entry point of the `sojourn` command."""
