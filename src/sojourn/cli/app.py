"""The `sojourn` command itself: its name, its help, its version."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="sojourn",
    help="Where LLM requests spend their time, how long the fleet holds, what to fix first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 SLO met or change accepted; 1 tool error; 2 usage or input;"
    " 3 SLO missed or regression; 4 evidence too thin.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from sojourn import __version__

        typer.echo(f"sojourn {__version__}")
        raise typer.Exit
