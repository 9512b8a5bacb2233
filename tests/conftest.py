"""The simulator's kernel is compiled once, before tests run side by side; linear algebra keeps to
one thread, as under the command (`sojourn.cli`): its threads only wait for each other."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile in the process that hands out the tests; the others find it on disk."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    from sojourn.sim.kernel.compiled import KEPT

    if not KEPT.ready:
        from tests.sim.making import call, scenario

        from sojourn.sim.simulate import simulate

        simulate(scenario([0.0], [[call(10, 5)]]), engine="kernel")
