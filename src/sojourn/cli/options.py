"""Options that verbs share, and how a document leaves: stdout, file, exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sojourn.config import MAX_SEED, Config
from sojourn.errors import InputError, UsageError

if TYPE_CHECKING:
    from sojourn.report.document import Document
    from sojourn.trace.tables import Tables

Paths = Annotated[
    list[Path],
    typer.Argument(help="Files or folders of telemetry, or a store.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write to this file; .html, .json, .csv, else text."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no talk.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, max=MAX_SEED, help="Of every random draw.")
]
Configured = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="sojourn.yaml; else the one beside the telemetry, else ./sojourn.yaml.",
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="Read every file as this format; else detected.")
]

CONFIG_NAME: Final = "sojourn.yaml"


def load_config(flag: Path | None, paths: list[Path], seed: int | None) -> Config:
    """The configuration: the flag's, else one beside the telemetry, else ./sojourn.yaml.

    What lies beside a recording was said of that recording, so it comes before what lies where
    the command happens to run.

    Raises:
        ConfigError: the file is wrong.
    """
    places = [folder / CONFIG_NAME for path in paths for folder in (path, path.parent)]
    places.append(Path(CONFIG_NAME))
    found = flag or next((place for place in places if place.is_file()), None)
    config = Config.load(found)
    if seed is None:
        return config
    analysis = config.analysis.model_copy(update={"seed": seed})
    return config.model_copy(update={"analysis": analysis})


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error where that is a terminal; nothing when quiet."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    logging.getLogger("sojourn").setLevel(logging.ERROR if quiet else logging.WARNING)
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _text, _fraction: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(text: str, fraction: float) -> None:
            bar.update(task, description=text, completed=fraction)

        yield tell


@dataclass(frozen=True)
class Telemetry:
    """What a verb works on: tables, the configuration that goes with them, and the bar to tell."""

    tables: Tables
    config: Config
    tell: Callable[[str, float], None]


@contextmanager
def telemetry(
    paths: list[Path],
    *,
    config: Path | None,
    quiet: bool,
    seed: int | None = None,
    format: str | None = None,
    output: Path | None = None,
) -> Iterator[Telemetry]:
    """The paths read, with the progress bar open while the verb works.

    Raises:
        InputError: a path does not exist or cannot be read.
        ConfigError: sojourn.yaml is wrong.
    """
    from sojourn import loop

    require_paths(paths, output)
    settings = load_config(config, paths, seed)
    with progress_bar(quiet) as tell:
        tables = loop.read(paths, format=format, config=settings, progress=tell)
        yield Telemetry(tables, settings, tell)


def deliver(document: Document, *, output: Path | None, json: bool, quiet: bool = False) -> None:
    """Write the document where it is wanted, and end with its exit code.

    Raises:
        typer.Exit: with the document's exit code, when it is not 0.
    """
    import sys

    from rich.console import Console

    from sojourn.records import write_atomic
    from sojourn.report import console as terminal
    from sojourn.report import html, machine

    if output is not None:
        match output.suffix:
            case ".html" | ".htm":
                write_atomic(output, html.to_html(document))
            case ".json":
                write_atomic(output, machine.to_json(document))
            case ".csv":
                write_atomic(output, machine.to_csv(document))
            case _:
                write_atomic(output, terminal.to_text(document))
    if json:
        sys.stdout.write(machine.to_json(document) + "\n")
    elif output is None or output.suffix in (".html", ".htm"):
        terminal.render(document, Console(), brief=output is not None)
    if output is not None and not quiet:
        typer.echo(f"written: {output}", err=True)
    if document.exit_code:
        raise typer.Exit(document.exit_code)


def require_paths(paths: list[Path], output: Path | None = None) -> None:
    """Every path exists, and the output can go where it shall before any work is done.

    Raises:
        InputError: a path does not exist, or there is no folder for the output.
        UsageError: no path was given, or the output would replace an input.
    """
    if not paths:
        raise UsageError("No telemetry was named. Give files or folders")
    for path in paths:
        if not path.exists():
            raise InputError("does not exist", path=path, todo="Check the path")
    if output is not None:
        require_output(output, paths)


def require_output(output: Path, inputs: list[Path]) -> None:
    """A file can be written there, and none that is read would be lost.

    Raises:
        InputError: it is a folder, or its folder does not exist.
        UsageError: it is one of the inputs, or a file of the recording that lies in one.
    """
    todo = "Choose another path with -o"
    if output.is_dir():
        raise InputError("is a folder, a file is written", path=output, todo=todo)
    if not output.resolve().parent.is_dir():
        raise InputError(
            "cannot be written (no such folder)",
            path=output,
            todo="Create the folder or choose another path with -o",
        )
    if not output.is_file():
        return
    read = (".html", ".htm", ".txt")
    for path in inputs:
        inside = path.is_dir() and output.resolve().is_relative_to(path.resolve())
        if (path.is_file() and output.samefile(path)) or (inside and output.suffix not in read):
            raise UsageError(f"{output} is part of the input and would be replaced. {todo}")
