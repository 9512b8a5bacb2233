"""sojourn: where requests spend their time, how long the fleet holds, what to fix first.

import sojourn as sj

    tables = sj.read("logs/")
    seen = sj.look(tables, sj.Config.load("sojourn.yaml"))
    seen.diagnosis.top
    sj.go_round("today", tables)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__version__ = "0.1.0"

_HOME: Final = {
    "Config": "sojourn.config",
    "Excuse": "sojourn.interval",
    "Interval": "sojourn.interval",
    "SojournError": "sojourn.errors",
    "Tables": "sojourn.trace.tables",
    "Profile": "sojourn.workload.profile_records",
    "Diagnosis": "sojourn.attribution.records",
    "Scenario": "sojourn.sim.scenario",
    "SimRun": "sojourn.sim.scenario",
    "simulated": "sojourn.loop",
    "read": "sojourn.loop",
    "look": "sojourn.loop",
    "profile": "sojourn.loop",
    "attribute": "sojourn.loop",
    "fleet": "sojourn.loop",
    "capacity_of": "sojourn.loop",
    "plan_for": "sojourn.loop",
    "accept": "sojourn.loop",
    "go_round": "sojourn.loop",
}
__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605  (computed from the one list above)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    """Public names are loaded on first use, so that `import sojourn` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'sojourn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
