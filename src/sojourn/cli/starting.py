"""Verbs to start with: demo, init, schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.app import app
from sojourn.cli.options import (
    Json,
    Quiet,
    Seed,
    deliver,
    progress_bar,
    require_output,
)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the HTML report goes.")
    ] = Path("sojourn-report.html"),
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """Once round the loop on the packaged recordings. Exits 0 whatever the verdicts are."""
    from sojourn.cli.demo import run

    require_output(output, [])
    with progress_bar(quiet) as tell:
        document = run(seed, tell)
    deliver(document, output=output, json=json, quiet=quiet)


@app.command()
def init(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path(
        "sojourn.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented sojourn.yaml to start from."""
    from sojourn.config import commented_yaml
    from sojourn.errors import UsageError
    from sojourn.records import write_atomic

    if output.exists() and not force:
        raise UsageError(f"{output} exists already. Use --force to overwrite it")
    write_atomic(output, commented_yaml())
    typer.echo(f"written: {output}", err=True)


@app.command()
def schema(
    what: Annotated[
        str, typer.Argument(help="config (sojourn.yaml) or scenario (of `sojourn simulate`).")
    ] = "config",
) -> None:
    """Print the JSON Schema of sojourn.yaml, or of a scenario file."""
    import json as encoder

    from sojourn.errors import UsageError

    if what == "config":
        from sojourn.config import json_schema

        found = json_schema()
    elif what == "scenario":
        from sojourn.sim.scenario_records import ScenarioFile

        found = ScenarioFile.model_json_schema()
    else:
        raise UsageError(f"no schema {what!r}; there are config and scenario")
    typer.echo(encoder.dumps(found, indent=1))
