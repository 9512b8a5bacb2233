"""`Trial`: one simulated run, judged against the SLO. Trials of one plan run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from sojourn.config import Config
from sojourn.plan.action import EngineLoad, engine_load, integers
from sojourn.plan.slo import Judged, judge
from sojourn.plan.usage import Usage, usage
from sojourn.sim import replicate
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.trace.arrays import rows_of
from sojourn.workload.stream import Stream


@dataclass(frozen=True)
class Trial:
    """What is kept of a run: the requests judged, its cost, how it loaded the engine."""

    judged: Judged
    used: Usage
    load: EngineLoad


def trial_of(run: SimRun, config: Config) -> Trial:
    """A finished run, judged."""
    fleet = run.scenario.fleet
    return Trial(judge(run, config), usage(run.tables, config, fleet), engine_load(run.tables))


def run_all(
    scenarios: Sequence[Scenario],
    config: Config,
    *,
    jobs: int = 1,
    tell: Callable[[int], None] | None = None,
) -> list[Trial]:
    """Simulate and judge each, in order; `tell` is called with the number done."""
    return replicate.run_each(
        scenarios,
        partial(trial_of, config=config),
        n_jobs=jobs,
        progress=None if tell is None else lambda done, _: tell(done),
    )


def with_dropped(trial: Trial, before: Stream, after: Stream) -> Trial:
    """Requests that lost steps to an action count as degraded."""
    if before.steps is after.steps or before.steps.num_rows == after.steps.num_rows:
        return trial
    ids = before.requests.column("request_id")
    had = np.bincount(integers(before, "request"), minlength=len(ids))
    counts = np.bincount(integers(after, "request"), minlength=after.requests.num_rows)
    place = rows_of(ids, after.requests.column("request_id"))
    has = np.where(place >= 0, np.append(counts, 0)[place], 0)
    lost = ids.filter(pa.array(has < had)).combine_chunks()
    judged = trial.judged
    hit = rows_of(judged.request_id, lost) >= 0
    return replace(trial, judged=replace(judged, degraded=judged.degraded | hit))
