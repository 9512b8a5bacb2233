"""The verb that says what would be: simulate, on a scenario file or on recorded requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sojourn.cli.app import app
from sojourn.cli.options import (
    Configured,
    Json,
    Quiet,
    Seed,
    deliver,
    load_config,
    progress_bar,
    require_output,
    require_paths,
    telemetry,
)
from sojourn.config import MAX_REPLICAS
from sojourn.errors import UsageError

if TYPE_CHECKING:
    from sojourn.report.document import Document
    from sojourn.trace.tables import Tables

MAX_LOAD: Final = 100.0
"""Multiple of the recorded load: past any forecast, and every request is simulated."""
MAX_REPLICATIONS: Final = 1_000
REPORTS: Final = (".html", ".htm", ".json", ".csv", ".txt")


Load = Annotated[
    float | None, typer.Option(help="Telemetry: load, as a multiple of the recorded one.")
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=MAX_REPLICAS, help="Telemetry: engine replicas; else as recorded."),
]
Replications = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_REPLICATIONS, help="Scenario: runs with other seeds; else as it says."
    ),
]
EngineName = Annotated[
    str | None, typer.Option(help="kernel (compiled) or reference (readable); equal results.")
]
Kept = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Keep the simulated trace (of the first replication) as a store; or write the"
        " report: .html, .json, .csv, .txt.",
    ),
]


@app.command()
def simulate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A scenario file (YAML with `workload:`), or telemetry as other verbs read it.",
            show_default=False,
        ),
    ],
    config: Configured = None,
    load: Load = None,
    replicas: Replicas = None,
    replications: Replications = None,
    engine: EngineName = None,
    output: Kept = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """Simulate a scenario file; or recorded requests through the model, at another load or size.

    Exit 3: the system is unstable, or the scenario's SLO is missed; 4: the SLO is undecided, or
    the telemetry is too thin to fit a model.
    """
    from sojourn.sim.scenario_file import is_scenario
    from sojourn.sim.simulate import DEFAULT, ENGINES

    named = engine or DEFAULT
    if named not in ENGINES:
        raise UsageError(f"no engine {named!r}; there are {', '.join(sorted(ENGINES))}")
    _check_load(load)
    tables: Tables | None
    scenario = next((path for path in paths if is_scenario(path)), None)
    if scenario is not None:
        _check_alone(scenario, paths, changed=load is not None or replicas is not None)
        document, tables = _scenario(
            scenario, (config, seed, replications), named, output=output, quiet=quiet
        )
    else:
        if replications is not None:
            raise UsageError("--replications goes with a scenario file, not with telemetry")
        document, tables = _telemetry(
            paths, (config, seed), (load, replicas), named, output=output, quiet=quiet
        )
    _keep(document, tables, output, json=json, quiet=quiet)


def _check_alone(scenario: Path, paths: list[Path], *, changed: bool) -> None:
    if len(paths) > 1:
        raise UsageError(f"{scenario} is a scenario file: give it alone")
    if changed:
        raise UsageError(
            f"{scenario} is a scenario file: set its rates (a replay: workload.load) and"
            " engine.replicas in it"
        )


def _check_load(load: float | None) -> None:
    if load is not None and not 0 < load <= MAX_LOAD:
        raise UsageError(f"--load {load:g}: expected a number above 0, at most {MAX_LOAD:g}")


def _scenario(
    path: Path,
    settings: tuple[Path | None, int | None, int | None],
    engine: str,
    *,
    output: Path | None,
    quiet: bool,
) -> tuple[Document, Tables]:
    from sojourn import loop
    from sojourn.report import compose, simulated
    from sojourn.sim.scenario_file import read_scenario

    config, seed, replications = settings
    _require_output(output, [path])
    file = read_scenario(path)
    given = {"seed": seed, "replications": replications}
    file = file.model_copy(update={k: v for k, v in given.items() if v is not None})
    with progress_bar(quiet) as tell:
        recording = None
        if file.workload.replay is not None:
            source = path.parent / file.workload.replay
            require_paths([source])
            recording = loop.recording(source, load_config(config, [source], seed), tell)
        result = loop.simulated_scenario(file, path, engine, recording=recording, progress=tell)
    document = compose.single(
        "sojourn simulate",
        simulated.blocks(result.simulated),
        verdict=simulated.verdict(result.simulated, result.judged, result.config),
        data=simulated.data(result.simulated),
    )
    return document, result.first.tables


def _telemetry(
    paths: list[Path],
    settings: tuple[Path | None, int | None],
    changed: tuple[float | None, int | None],
    engine: str,
    *,
    output: Path | None,
    quiet: bool,
) -> tuple[Document, Tables | None]:
    from sojourn import loop
    from sojourn.interval import Excuse
    from sojourn.plan import slo
    from sojourn.report import compose, decisions, simulated
    from sojourn.sim.stability import stability

    config, seed = settings
    load, replicas = changed
    factor = 1.0 if load is None else load
    _require_output(output, paths)
    with telemetry(paths, config=config, quiet=quiet, seed=seed) as it:
        seen = loop.look(it.tables, it.config)
        built = loop.fleet(seen)
        if isinstance(built, Excuse):
            return compose.single("sojourn simulate", [], verdict=(str(built), 4)), None
        it.tell("simulating", 0.5)
        run, used = loop.simulated(seen, built, load=factor, replicas=replicas, engine=engine)
    measured = slo.outcome(seen.tables, it.config, built)
    outcome = slo.outcome(run.tables, it.config, used)
    differs = (factor, used.engine.replicas) != (1.0, built.engine.replicas)
    found = stability(run)
    document = compose.single(
        "sojourn simulate",
        [decisions.compared(measured, outcome, changed=differs)],
        verdict=simulated.verdict_of_replay(outcome, found, factor, used.engine.replicas),
        data={
            "counts": run.counts,
            "outcome": outcome.model_dump(mode="json"),
            "stability": found.model_dump(mode="json"),
        },
    )
    return document, run.tables


def _require_output(output: Path | None, inputs: list[Path]) -> None:
    if output is not None and output.suffix in REPORTS:
        require_output(output, inputs)


def _keep(
    document: Document, tables: Tables | None, output: Path | None, *, json: bool, quiet: bool
) -> None:
    """The report where a file is named, else the trace as a store."""
    from sojourn.trace import store

    if output is None or output.suffix in REPORTS:
        deliver(document, output=output, json=json, quiet=quiet)
        return
    if tables is not None:
        store.save(tables, output)
    deliver(document, output=None, json=json)
