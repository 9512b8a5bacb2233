"""A fitted fleet, matched to its own recording by simulation where that pays and is worth it."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sojourn.capacity.engine_calls import main_engine
from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.errors import UsageError
from sojourn.interval import Provenance
from sojourn.progress import Progress
from sojourn.records import Record
from sojourn.sim.matching import Case, match
from sojourn.trace.tables import Tables
from sojourn.workload import replay

MOST_CALLS: Final = 20_000
"""Beyond it a match takes minutes, and a regression over so many calls needs no last touch."""


class Calibrated(Record):
    """The fleet; the factors that simulate-and-match put on its costs (empty: not matched, `note`
    says why), and the root mean square of log(simulated / recorded) before and after on the half of
    the calls that the factors were not turned on."""

    fleet: Fleet
    factors: dict[str, float] = Field(default_factory=dict)
    before: float | None = None
    after: float | None = None
    note: str = ""


def matched(tables: Tables, fleet: Fleet, config: Config, progress: Progress) -> Calibrated:
    """The fleet with its step times turned until a replay of the tables gives their times."""
    step = fleet.engine.step
    if step.provenance is not Provenance.FITTED:
        return Calibrated(fleet=fleet, note="step times are not from this telemetry: not matched")
    calls = main_engine(tables.calls)[0] if tables.calls.num_rows else tables.calls
    if not 0 < calls.num_rows <= MOST_CALLS:
        many = f"{calls.num_rows:,} calls: a simulation of them is not matched"
        return Calibrated(fleet=fleet, note=f"{many} (0 < calls <= {MOST_CALLS:,})")
    stream = replay.replay(tables, seed=config.analysis.seed)

    def tell(done: int, most: int) -> None:
        progress("simulating and matching", 0.3 + 0.65 * done / most)

    try:
        found = match([Case(stream, calls)], fleet, seed=config.analysis.seed, progress=tell)
    except UsageError as error:
        return Calibrated(fleet=fleet, note=f"not matched: {error}")
    turned = found.fleet.engine.step
    if found.fleet is fleet:
        return Calibrated(
            fleet=fleet,
            before=found.before,
            after=found.after,
            note="a simulation of the recording gives its times as the fit stands",
        )
    said = ", ".join(f"{name} x{factor:.3f}" for name, factor in found.factors.items())
    told = turned.model_copy(update={"source": f"{turned.source}; matched by simulation: {said}"})
    engine = found.fleet.engine.model_copy(update={"step": told})
    return Calibrated(
        fleet=found.fleet.model_copy(update={"engine": engine}),
        factors=found.factors,
        before=found.before,
        after=found.after,
    )
