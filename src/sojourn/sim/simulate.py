"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from typing import Final

from sojourn.errors import UsageError
from sojourn.sim.reference import reference, stepwise
from sojourn.sim.scenario import Engine, Scenario, SimRun

ENGINES: Final[dict[str, Engine]] = {"reference": reference, "stepwise": stepwise}


def simulate(scenario: Scenario, *, engine: str = "reference") -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: no such engine, or a stream that no engine can run.
    """
    found = ENGINES.get(engine)
    if found is None:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(sorted(ENGINES))}")
    return found(scenario)
