"""The one entrance: `simulate(scenario, engine=...)`. Engines are interchangeable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.reference.run import reference

ENGINES: Final[dict[str, Callable[[Lowered], Log]]] = {"reference": reference}
"""Each runs to the end of every request."""
