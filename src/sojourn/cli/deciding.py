"""Verbs that say what to do and whether it worked: plan, verify, check, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.app import app
from sojourn.cli.options import (
    Configured,
    Json,
    Output,
    Paths,
    Quiet,
    Seed,
    deliver,
    load_config,
    progress_bar,
    require_paths,
    telemetry,
)


@app.command()
def plan(
    paths: Paths,
    config: Configured = None,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """What to fix first: actions ranked by simulated effect and price, and why not the others."""
    from sojourn import loop
    from sojourn.report import answers, compose, decisions

    with telemetry(paths, config=config, quiet=quiet, seed=seed, output=output) as it:
        found = loop.go_round(str(paths[0]), it.tables, it.config, progress=it.tell)
    document = compose.single(
        "sojourn plan",
        [*compose.cards(found), *(decisions.plan(found.plan) if found.plan is not None else [])],
        verdict=answers.verdict(found),
        data={"plan": None if found.plan is None else found.plan.model_dump(mode="json")},
    )
    deliver(document, output=output, json=json, quiet=quiet)


@app.command()
def verify(
    before: Annotated[Path, typer.Argument(help="Telemetry before the change.")],
    after: Annotated[Path, typer.Argument(help="Telemetry after the change.")],
    rollback: Annotated[
        Path | None, typer.Option(help="Telemetry after the change was taken back.")
    ] = None,
    control: Annotated[
        list[Path] | None,
        typer.Option(help="A repeat of before, unchanged: what it differs by is no effect."),
    ] = None,
    config: Configured = None,
    config_after: Annotated[
        Path | None, typer.Option(help="sojourn.yaml of the changed fleet, where it differs.")
    ] = None,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """Whether a change was worth it: the eight questions of acceptance."""
    from sojourn import loop
    from sojourn.report import answers, compose, decisions

    repeats = control or []
    paths = [path for path in (before, after, rollback, *repeats) if path is not None]
    require_paths(paths, output)
    settings = load_config(config, [before], seed)
    changed = load_config(config_after or config, [after], seed)
    with progress_bar(quiet) as tell:
        old = loop.read(before, config=settings, progress=tell)
        new = loop.read(after, config=changed, progress=tell)
        back = None if rollback is None else loop.read(rollback, config=settings, progress=tell)
        again = [loop.read(path, config=settings, progress=tell) for path in repeats]
        accepted = loop.accept(
            old, new, settings, rollback=back, after_config=changed, controls=again
        )
    document = compose.single(
        "sojourn verify",
        decisions.acceptance(accepted),
        verdict=answers.acceptance_verdict(accepted),
        data={"acceptance": accepted.model_dump(mode="json")},
    )
    deliver(document, output=output, json=json, quiet=quiet)


@app.command()
def check(
    paths: Paths,
    config: Configured = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Whether the recorded requests meet the SLO: exit 0 met, 3 missed, 4 too thin to say."""
    from sojourn.plan import slo
    from sojourn.report import answers, compose, decisions
    from sojourn.trace.tables import require_requests
    from sojourn.workload import buckets

    with telemetry(paths, config=config, quiet=quiet) as it:
        require_requests(it.tables)
        tables = buckets.assign(it.tables, it.config)
    outcome = slo.outcome(tables, it.config)
    document = compose.single(
        "sojourn check",
        [decisions.attainment(outcome)],
        verdict=answers.checked(slo.judge(tables, it.config), it.config),
        data={"outcome": outcome.model_dump(mode="json")},
    )
    deliver(document, output=None, json=json)


@app.command()
def report(
    paths: Paths,
    after: Annotated[
        Path | None, typer.Option(help="Telemetry after a change: adds the acceptance.")
    ] = None,
    config: Configured = None,
    output: Output = Path("sojourn-report.html"),
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """The whole loop on one recording, as one page."""
    from sojourn import loop
    from sojourn.report import compose

    require_paths([*paths, *([after] if after is not None else [])], output)
    settings = load_config(config, paths, seed)
    with progress_bar(quiet) as tell:
        tables = loop.read(paths, config=settings, progress=tell)
        changed = None
        if after is not None:
            there = load_config(config, [after], seed)
            changed = (loop.read(after, config=there, progress=tell), there)
        found = loop.go_round(paths[0].name, tables, settings, after=changed, progress=tell)
    deliver(compose.report([found], "sojourn report"), output=output, json=json, quiet=quiet)
