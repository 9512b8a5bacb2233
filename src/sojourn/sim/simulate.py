"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from typing import Final

from sojourn.errors import UsageError
from sojourn.progress import Progress, silent
from sojourn.sim.checks import check
from sojourn.sim.legend import Legend
from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.lowering import lower
from sojourn.sim.reference.run import reference
from sojourn.sim.scenario import Engine, Scenario, SimRun


def _reference(lowered: Lowered, progress: Progress) -> Log:
    log = reference(lowered)
    progress("simulating", 1.0)
    return log


def _kernel(lowered: Lowered, progress: Progress) -> Log:
    from sojourn.sim.kernel.run import kernel  # noqa: PLC0415  loads the compiler: only where asked

    return kernel(lowered, progress)


ENGINES: Final[dict[str, Engine]] = {"kernel": _kernel, "reference": _reference}
"""Each runs to the end of every request, and all write the same log."""
DEFAULT: Final = "kernel"


def simulate(scenario: Scenario, *, engine: str = DEFAULT, progress: Progress = silent) -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: no such engine, or a scenario that no engine can run.
    """
    found = ENGINES.get(engine)
    if found is None:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(sorted(ENGINES))}")
    check(scenario)
    lowered = lower(scenario)
    return SimRun(scenario, found(lowered, progress), Legend.of(lowered), engine)
