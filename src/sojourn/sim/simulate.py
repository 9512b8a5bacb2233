"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from sojourn.errors import UsageError
from sojourn.sim.checks import check
from sojourn.sim.legend import Legend
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Engine, Scenario, SimRun

ENGINES: Final = {"reference": "sojourn.sim.reference"}
"""Module of each engine, which is the function of that name in it; loaded when it is used."""


def simulate(scenario: Scenario, *, engine: str = "reference") -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: no such engine, or a scenario that no engine can run.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(sorted(ENGINES))}")
    run = cast(Engine, getattr(import_module(ENGINES[engine]), engine))
    check(scenario)
    lowered = lower(scenario)
    return SimRun(scenario, run(lowered), Legend.of(lowered), engine)
