"""The source "fitted": step times from a part of a deployment's own runs, scored on the others.

Rows of one `server` are split by load: every second one fits, the others are scored, and the
other way round (runs left out one by one where there are fewer than six). Summaries are fitted by
`sim.sweep_matching`, from the hardware's step times where they are known; runs recorded request by
request by `capacity.calibration` and `sim.matching`, as `sojourn calibrate` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from measured.runs import joined, tables
from measured.runs import stream as sent

from sojourn.capacity import calibration, catalogue, step_sources
from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.config import Config
from sojourn.errors import SojournError
from sojourn.interval import Excuse
from sojourn.sim.finite_runs import SweepRun
from sojourn.sim.matching import Case, match
from sojourn.sim.sweep_matching import fit_sweep
from sojourn.trace.arrays import Bools
from sojourn.trace.tables import Tables

from .engines import Settings, settings
from .figures import figures_of
from .predicting import KERNEL, Predicted, mean_context, run, unknown
from .rows import Row

Told = list[tuple[Row, Predicted | Excuse]]
LEAVE_ONE_OUT: Final = 6
"""Fewer runs than this are left out one by one."""
MOST_MATCHED: Final = 8
"""Recorded runs whose replays are matched, spread over the loads: the regression reads all."""


def fitted(rows: Sequence[Row]) -> Told:
    """Every row of a server predicted by a fit that has not seen it (of recorded runs: every
    second one)."""
    try:
        model, gpu = catalogue.model(rows[0].model), catalogue.gpu(rows[0].gpu)
        engines = [settings(row, model, gpu) for row in rows]
    except SojournError as error:
        reason = unknown(rows[0]) if "catalogue" in str(error) else f"refused: {error}"
        return [(row, Excuse(reason=reason)) for row in rows]
    if rows[0].recorded is not None:
        return _of_requests(rows, engines)
    if len(rows) < 2:
        return [(rows[0], Excuse(reason="fitted: the only run of its server"))]
    found: list[Predicted | Excuse] = [Excuse(reason="not reached")] * len(rows)
    for fold in folds(rows):
        rest = [place for place in range(len(rows)) if place not in fold]
        step = _from_sweep([rows[i] for i in rest], [engines[i] for i in rest])
        for place in fold:
            found[place] = _run(rows[place], step, engines[place])
    return list(zip(rows, found, strict=True))


def _run(row: Row, step: StepModel | Excuse, engine: Settings) -> Predicted | Excuse:
    if isinstance(step, Excuse):
        return step
    try:
        return run(row, step, engine)
    except SojournError as error:
        return Excuse(reason=f"refused: {error}")


def load_of(row: Row) -> tuple[float, float]:
    """What orders the runs of a server: offered rate or clients, then mean prompt and output."""
    load = row.load
    offered = load.rate_per_s or load.concurrency or len(load.inputs)
    return float(load.inputs.mean() + load.outputs.mean()), float(offered)


def folds(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Places of the rows that are scored together."""
    order = sorted(range(len(rows)), key=lambda place: load_of(rows[place]))
    if len(rows) < LEAVE_ONE_OUT:
        yield from ([place] for place in order)
        return
    yield order[::2]
    yield order[1::2]


def _from_sweep(rows: Sequence[Row], engines: Sequence[Settings]) -> StepModel | Excuse:
    """The step model that summaries tell, starting at the hardware's."""
    row = rows[0]
    context = float(np.mean([mean_context(each.load) for each in rows]))
    try:
        start = step_sources.step_model(
            catalogue.model(row.model),
            catalogue.gpu(row.gpu),
            row.deployment,
            mean_context=context,
        )
        return fit_sweep(
            [_sweep_run(each, engine) for each, engine in zip(rows, engines, strict=True)],
            None if isinstance(start, Excuse) else start,
        )
    except SojournError as error:
        return Excuse(reason=f"refused: {error}")


def _sweep_run(row: Row, engine: Settings) -> SweepRun:
    load = row.load
    scored = {n: v for n, v in row.measured.items() if not row.scored or n in row.scored}
    return SweepRun(
        arrivals=load.arrivals.value,
        inputs=load.inputs,
        outputs=load.outputs,
        measured=scored,
        cached=load.cached,
        rate_per_s=load.rate_per_s,
        concurrency=load.concurrency,
        times_s=load.times_s,
        skip=load.skip,
        max_num_seqs=engine.slots,
        max_num_batched_tokens=engine.budget,
        block_size=engine.block,
        kv_blocks=engine.kv_tokens // engine.block,
        replicas=engine.engines,
        scheduler=engine.scheduler,
        label=row.id,
    )


def _of_requests(rows: Sequence[Row], engines: Sequence[Settings]) -> Told:
    """Recorded runs: every second rate fits, the others are scored; of a run alone its first
    third fits and the rest is scored."""
    if len(rows) == 1:
        return _of_one(rows[0], engines[0])
    order = sorted(range(len(rows)), key=lambda place: load_of(rows[place])[1])
    rates = sorted({load_of(row)[1] for row in rows})
    known = set(rates[::2])
    fit = [place for place in order if load_of(rows[place])[1] in known]
    scored = [place for place in order if place not in fit]
    whole, names = joined([rows[place].recorded for place in fit])
    step = _calibrated(tables(whole, names), [rows[p] for p in fit], engines[fit[0]])
    return [(rows[place], _run(rows[place], step, engines[place])) for place in scored]


def _of_one(row: Row, engine: Settings) -> Told:
    run_ = row.recorded
    third = np.arange(len(run_)) < len(run_) // 3
    step = _calibrated(tables(run_, known=third), [row], engine, known=third)
    rest = replace(
        row,
        load=replace(row.load, skip=int(third.sum())),
        measured=figures_of(run_.take(~third)),
        id=f"{row.id}, without the third fitted",
    )
    return [(rest, _run(rest, step, engine))]


def _calibrated(
    told: Tables, rows: Sequence[Row], engine: Settings, known: Bools | None = None
) -> StepModel | Excuse:
    """Calls to step times by regression, then turned until replays of the runs match."""
    flags = {"max_num_seqs": engine.slots, "max_num_batched_tokens": engine.budget}
    step = calibration.fit(told, Config.from_dict({"deployment": flags}))
    if isinstance(step, Excuse):
        return step
    blocks = max(1, engine.kv_tokens // engine.block)
    fleet = Fleet(engine=EngineModel(step=step, replicas=1, kv_blocks=blocks, **flags))
    places = np.unique(np.linspace(0, len(rows) - 1, MOST_MATCHED).round().astype(int))
    runs = [rows[place].recorded for place in places]
    cases = [Case(sent(run_), tables(run_, known=known).calls) for run_ in runs]
    return match(cases, fleet, engine=KERNEL).fleet.engine.step
