"""`Trial`: one simulated run, judged against the SLO. Trials of one plan run side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.plan.action import EngineLoad, engine_load, integers
from sojourn.plan.slo import Judged, judge
from sojourn.plan.usage import Usage, usage
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.trace.arrays import texts
from sojourn.workload.stream import Stream


@dataclass(frozen=True)
class Trial:
    """What is kept of a run: the requests judged, its cost, how it loaded the engine."""

    judged: Judged
    used: Usage
    load: EngineLoad


def trial_of(run: SimRun, config: Config, fleet: Fleet) -> Trial:
    """A finished run, judged."""
    return Trial(
        judge(run.tables, config), usage(run.tables, config, fleet), engine_load(run.tables)
    )


def run(scenario: Scenario, config: Config) -> Trial:
    """Simulate and judge."""
    return trial_of(simulate(scenario), config, scenario.fleet)


def run_all(
    scenarios: Sequence[Scenario],
    config: Config,
    *,
    jobs: int = 1,
    tell: Callable[[int], None] | None = None,
) -> list[Trial]:
    """Simulate each, in order; `tell` is called with the number done."""
    found: list[Trial] = []
    if jobs == 1 or len(scenarios) == 1:
        results = (run(scenario, config) for scenario in scenarios)
    else:
        from joblib import Parallel, delayed  # noqa: PLC0415  only where runs go side by side

        results = Parallel(n_jobs=jobs, return_as="generator")(
            delayed(run)(scenario, config) for scenario in scenarios
        )
    for trial in results:
        found.append(trial)
        if tell is not None:
            tell(len(found))
    return found


def with_dropped(trial: Trial, before: Stream, after: Stream) -> Trial:
    """Requests that lost steps to an action count as degraded."""
    if before.steps is after.steps or before.steps.num_rows == after.steps.num_rows:
        return trial
    ids_before, ids_after = (
        texts(before.requests["request_id"]),
        texts(after.requests["request_id"]),
    )
    had = Counter(ids_before[integers(before, "request")].tolist())
    has = Counter(ids_after[integers(after, "request")].tolist())
    lost = [name for name, count in had.items() if has[name] < count]
    judged = trial.judged
    hit = np.isin(judged.request_id.astype(str), np.array(lost, dtype=str))
    return replace(trial, judged=replace(judged, degraded=judged.degraded | hit))
