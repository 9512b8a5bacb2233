"""Several runs: one scenario under several seeds, or a list of scenarios, over cores.

Runs of equal seeds share their luck (`sojourn.sim.luck`): differences between two scenarios are
taken seed by seed (`sojourn.sim.estimates.paired`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from sojourn.sim.legend import Legend
from sojourn.sim.log import Log
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import DEFAULT, simulate
from sojourn.workload.stream import Stream

Progress = Callable[[int, int], None]
"""Called with (runs done, runs in all) after every run."""
T = TypeVar("T")
U = TypeVar("U")
TURNS: Final = 4
"""Bundles per core: a bundle is sent at once, with the streams its scenarios share sent only once;
several per core let a core that is done early take from the rest."""


def replicate(
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    redraw: Callable[[int], Stream] | None = None,
    engine: str = DEFAULT,
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> list[SimRun]:
    """Runs of one scenario, one per seed, in the order of the seeds.

    `redraw` gives each seed a stream of its own (a synthesis from a profile); without it only
    the simulator's own luck differs: retries' service times, jitter, think times, drafts.
    """
    scenarios = [
        replace(scenario, seed=seed, stream=redraw(seed) if redraw else scenario.stream)
        for seed in seeds
    ]
    return run_all(scenarios, engine=engine, n_jobs=n_jobs, progress=progress)


def run_all(
    scenarios: Sequence[Scenario],
    *,
    engine: str = DEFAULT,
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> list[SimRun]:
    """Run every scenario; the results come in their order. `n_jobs` as joblib has it: 1 runs
    here, -1 on every core. Logs come back, scenarios do not."""
    found = run_each(scenarios, _log_of, engine=engine, n_jobs=n_jobs, progress=progress)
    return [
        SimRun(scenario, log, legend, engine)
        for scenario, (log, legend) in zip(scenarios, found, strict=True)
    ]


def run_each(
    scenarios: Sequence[Scenario],
    then: Callable[[SimRun], T],
    *,
    engine: str = DEFAULT,
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> list[T]:
    """What `then` makes of every scenario's run, in the order of the scenarios. It is called where
    the run was made, so that only its answer travels."""
    found: list[T] = []
    for answer in _answers(scenarios, then, engine, n_jobs):
        found.append(answer)
        if progress is not None:
            progress(len(found), len(scenarios))
    return found


def _answers(
    scenarios: Sequence[Scenario], then: Callable[[SimRun], T], engine: str, n_jobs: int
) -> Iterator[T]:
    if n_jobs == 1 or len(scenarios) < 2:
        yield from (then(simulate(scenario, engine=engine)) for scenario in scenarios)
        return
    from joblib import Parallel, delayed, effective_n_jobs  # noqa: PLC0415  only where asked for

    size = max(1, len(scenarios) // (effective_n_jobs(n_jobs) * TURNS))
    bundles = (scenarios[at : at + size] for at in range(0, len(scenarios), size))
    work = (delayed(_bundle)(bundle, then, engine) for bundle in bundles)
    for answers in Parallel(n_jobs=n_jobs, return_as="generator")(work):
        yield from answers


def _bundle(scenarios: Sequence[Scenario], then: Callable[[SimRun], U], engine: str) -> list[U]:
    return [then(simulate(scenario, engine=engine)) for scenario in scenarios]


def _log_of(run: SimRun) -> tuple[Log, Legend]:
    return run.log, run.legend
