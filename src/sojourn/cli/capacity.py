"""`sojourn capacity`: how much load the fleet takes, per resource and within the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.app import app
from sojourn.cli.options import Configured, Json, Output, Paths, Quiet, Seed, deliver, telemetry

if TYPE_CHECKING:
    from sojourn.capacity.catalogue import Gpu as Accelerator
    from sojourn.capacity.records import CapacityModel
    from sojourn.interval import Excuse
    from sojourn.plan.capacity_records import CapacityAnswer

Flags = Annotated[
    bool, typer.Option("--flags", help="Also how each engine flag moves the load held.")
]
TargetRate = Annotated[
    str | None,
    typer.Option(
        "--target-rate",
        help="Also replicas that hold this rate at the peak, by cost: 2/s, 120/min or 7200/h.",
    ),
]
Gpu = Annotated[
    list[str] | None,
    typer.Option("--gpu", help="Accelerators to count replicas of; else all of the catalogue."),
]


@app.command()
def capacity(
    paths: Paths,
    flags: Flags = False,
    target_rate: TargetRate = None,
    gpu: Gpu = None,
    config: Configured = None,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = None,
) -> None:
    """How much load the fleet takes: per resource, within the SLO, for ever, and what moves it."""
    from sojourn import loop
    from sojourn.cli import rates
    from sojourn.errors import UsageError
    from sojourn.interval import Excuse
    from sojourn.plan.capacity_answer import Asked
    from sojourn.report import capacity_blocks, compose, deployment_blocks
    from sojourn.report.document import Block, Text

    target = None if target_rate is None else rates.parse(target_rate)
    if gpu and target is None:
        raise UsageError("--gpu names accelerators for a target. Give it with --target-rate")
    chosen = _gpus(gpu)
    with telemetry(paths, config=config, quiet=quiet, seed=seed, output=output) as it:
        seen = loop.traffic(it.tables, it.config)
        model = loop.capacity_of(seen)
        if not quiet:
            _say_first(model)
        per_s = None if target is None else target.per_s
        found = loop.capacity_answer(seen, model, Asked(flags, per_s, chosen), it.tell)
    blocks: list[Block] = []
    doubted = rates.doubt(target, seen.profile.arrivals.rate_per_s) if target else None
    if doubted is not None:
        blocks.append(Text(text=f"{doubted}.", tone="warn"))
    if isinstance(found, Excuse):
        blocks.append(Text(text=str(found), tone="warn"))
    else:
        blocks += capacity_blocks.answer(found, it.config.slo_of("default"))
        blocks += deployment_blocks.in_force(seen.tables, seen.config)
    document = compose.single(
        "sojourn capacity",
        blocks,
        verdict=capacity_blocks.verdict(found),
        data=_data(model, found),
    )
    deliver(document, output=output, json=json, quiet=quiet)


def _gpus(names: list[str] | None) -> tuple[Accelerator, ...]:
    """Accelerators by name, before any work is done.

    Raises:
        UsageError: one is unknown, or its figures are of no machine. InputError: a row's file.
    """
    if not names:
        return ()
    from sojourn.capacity import plausible

    return tuple(plausible.credible_gpu(name) for name in names)


def _say_first(model: CapacityModel | Excuse) -> None:
    """The closed form on standard error, while the simulation has yet to begin."""
    from sojourn.interval import Excuse
    from sojourn.plan.traps import binding_first

    if not isinstance(model, Excuse):
        typer.echo(f"{binding_first(model)}. Simulating within the SLO ...", err=True)


def _data(model: CapacityModel | Excuse, found: CapacityAnswer | Excuse) -> dict[str, object]:
    """`capacity` and `holding` as ever, and beside them the parts of the answer."""
    from sojourn.interval import Excuse

    told: dict[str, object] = {"capacity": model.model_dump(mode="json")}
    if isinstance(found, Excuse):
        return told | {"holding": found.model_dump(mode="json")}
    return told | found.model_dump(mode="json", exclude={"model"})
