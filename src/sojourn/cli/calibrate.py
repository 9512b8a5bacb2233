"""`sojourn calibrate`: step times from telemetry, and whether a saved fit still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.app import app
from sojourn.cli.options import Configured, Format, Json, Paths, Quiet, deliver, telemetry
from sojourn.errors import UsageError

if TYPE_CHECKING:
    from sojourn.interval import Excuse
    from sojourn.report.document import Block, Document
    from sojourn.sim.calibrated import Calibrated


@app.command()
def calibrate(
    paths: Paths,
    config: Configured = None,
    format: Format = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the fitted fleet as JSON.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="A fleet saved before with -o: has the engine drifted from it?"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit the engine's step times and the stations from the telemetry.

    With --against: exit 3 the engine has drifted from the saved fit, 0 it has not, 4 the
    telemetry is too thin to say.
    """
    from sojourn import loop
    from sojourn.capacity.records import Fleet
    from sojourn.interval import Excuse
    from sojourn.report import calibration_blocks, compose, deployment_blocks

    if against is not None and output is not None and against.resolve() == output.resolve():
        raise UsageError("--against and -o name one file: the saved fit would be lost")
    saved = None if against is None else Fleet.load(against)
    with telemetry(paths, config=config, quiet=quiet, format=format, output=output) as it:
        built = loop.calibrated(it.tables, it.config, it.tell)
        moved = None if saved is None else loop.drift_of(it.tables, saved, it.config)
    flags = deployment_blocks.blocks(it.tables, it.config)
    if output is not None and not isinstance(built, Excuse):
        built.fleet.save(output)
    if moved is None:
        document = _document(built, flags)
    else:
        fitted = [] if isinstance(built, Excuse) else calibration_blocks.blocks(built)
        compared = [] if isinstance(moved, Excuse) else calibration_blocks.drift(moved)
        document = compose.single(
            "sojourn calibrate",
            [*compared, *fitted, *flags],
            verdict=calibration_blocks.drifted(moved),
            data={"drift": moved.model_dump(mode="json"), **_data(built)},
        )
    deliver(document, output=None, json=json)


def _document(built: Calibrated | Excuse, flags: list[Block]) -> Document:
    from sojourn.interval import Excuse
    from sojourn.report import calibration_blocks, compose

    if isinstance(built, Excuse):
        return compose.single("sojourn calibrate", flags, verdict=(str(built), 4))
    return compose.single(
        "sojourn calibrate",
        [*calibration_blocks.blocks(built), *flags],
        verdict=calibration_blocks.fitted(built.fleet),
        data=_data(built),
    )


def _data(built: Calibrated | Excuse) -> dict[str, object]:
    from sojourn.interval import Excuse

    if isinstance(built, Excuse):
        return {"fleet": None}
    told = built.model_dump(mode="json")
    return {"fleet": told.pop("fleet"), "matched": told}
