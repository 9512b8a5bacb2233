"""Several runs: the same scenario under other seeds, or a list of scenarios, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.workload.stream import Stream

Progress = Callable[[int, int], None]
"""Called with (runs done, runs in all) after every run."""


def replicate(
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    redraw: Callable[[int], Stream] | None = None,
    engine: str = "reference",
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> list[SimRun]:
    """Runs of one scenario, one per seed, in the order of the seeds.

    `redraw` gives each seed a stream of its own (a synthesis from a profile); without it only
    the simulator's own luck differs: retries' service times and jitter.
    """
    scenarios = [
        replace(scenario, seed=seed, stream=redraw(seed) if redraw else scenario.stream)
        for seed in seeds
    ]
    return run_all(scenarios, engine=engine, n_jobs=n_jobs, progress=progress)


def run_all(
    scenarios: Sequence[Scenario],
    *,
    engine: str = "reference",
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> list[SimRun]:
    """Run every scenario; the results come in the order of the scenarios. `n_jobs` as joblib
    has it: 1 runs here, -1 on every core."""
    runs: list[SimRun] = []
    for result in _results(scenarios, engine, n_jobs):
        runs.append(result)
        if progress is not None:
            progress(len(runs), len(scenarios))
    return runs


def _results(scenarios: Sequence[Scenario], engine: str, n_jobs: int) -> Iterable[SimRun]:
    if n_jobs == 1 or len(scenarios) < 2:
        return (simulate(scenario, engine=engine) for scenario in scenarios)
    from joblib import Parallel, delayed  # noqa: PLC0415  (processes only where asked for)

    work = (delayed(simulate)(scenario, engine=engine) for scenario in scenarios)
    results: Iterable[SimRun] = Parallel(n_jobs=n_jobs, return_as="generator")(work)
    return results
