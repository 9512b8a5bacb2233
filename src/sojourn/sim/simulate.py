"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from typing import Final

from sojourn.errors import UsageError
from sojourn.sim.checks import check
from sojourn.sim.legend import Legend
from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.lowering import lower
from sojourn.sim.reference.run import reference
from sojourn.sim.scenario import Engine, Scenario, SimRun


def _kernel(lowered: Lowered) -> Log:
    from sojourn.sim.kernel.run import kernel  # noqa: PLC0415  loads the compiler: only where asked

    return kernel(lowered)


ENGINES: Final[dict[str, Engine]] = {"reference": reference, "kernel": _kernel}
"""Each runs to the end of every request, and all write the same log."""
DEFAULT: Final = "reference"


def simulate(scenario: Scenario, *, engine: str = DEFAULT) -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: no such engine, or a scenario that no engine can run.
    """
    found = ENGINES.get(engine)
    if found is None:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(sorted(ENGINES))}")
    check(scenario)
    lowered = lower(scenario)
    return SimRun(scenario, found(lowered), Legend.of(lowered), engine)
