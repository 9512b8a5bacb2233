"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from sojourn.errors import UsageError
from sojourn.sim.checks import check
from sojourn.sim.legend import Legend
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Engine, Scenario, SimRun

ENGINES: Final = {
    "reference": "sojourn.sim.reference.run",
    "kernel": "sojourn.sim.kernel.run",
}
"""Module of each engine, which is the function of that name in it; loaded when it is used."""
DEFAULT: Final = "reference"


def engine_of(name: str) -> Engine:
    """An engine by name.

    Raises:
        UsageError: no such engine.
    """
    if name not in ENGINES:
        raise UsageError(f"no engine {name!r}; there are {', '.join(sorted(ENGINES))}")
    return cast(Engine, getattr(import_module(ENGINES[name]), name))


def simulate(scenario: Scenario, *, engine: str = DEFAULT) -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: no such engine, or a scenario that no engine can run.
    """
    run = engine_of(engine)
    check(scenario)
    lowered = lower(scenario)
    return SimRun(scenario, run(lowered), Legend.of(lowered), engine)
