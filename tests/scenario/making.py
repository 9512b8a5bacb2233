"""Scenario files for tests: a small whole one, and changes to it by key path."""

from __future__ import annotations

import copy
from pathlib import Path

from sojourn.sim.scenario_build import build
from sojourn.sim.scenario_file import scenario_from

STEP = {
    "batches": [0, 1, 64],
    "base_s": [0.002, 0.01, 0.02],
    "slope_s_per_token": [0.0, 1e-7, 1e-7],
    "prefill_s_per_token": 2e-5,
}
SMALL = {
    "workload": {
        "arrivals": {"rate_per_s": 5},
        "duration_s": 60,
        "classes": [
            {
                "name": "chat",
                "share": 0.75,
                "input_tokens": {"distribution": "lognormal", "mean": 300, "cv": 1, "most": 3000},
                "output_tokens": {"distribution": "exponential", "mean": 60, "most": 600},
                "prefix": {"tokens": 100, "groups": 3},
            },
            {
                "name": "agent",
                "share": 0.25,
                "input_tokens": 200,
                "output_tokens": 40,
                "agent": {"turns": 3, "tools": {"search": 1}, "result_tokens": 50},
            },
        ],
    },
    "chain": ["gateway", {"station": "retrieval", "classes": ["chat"]}, "call"],
    "stations": {
        "gateway": {"servers": 4, "service_s": 0.002},
        "retrieval": {"servers": 8, "service_s": {"distribution": "exponential", "mean": 0.2}},
        "search": {"stage": "tool", "service_s": {"distribution": "uniform", "low": 0, "high": 1}},
    },
    "engine": {"step": STEP, "kv_blocks": 4000, "max_num_seqs": 64},
    "replications": 2,
}


def small(**changes):
    """`SMALL` with changes: `small(**{"engine.kv_blocks": 3})`; None takes the key out."""
    raw = copy.deepcopy(SMALL)
    for path, value in changes.items():
        here = raw
        *folders, last = path.split(".")
        for part in folders:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        if isinstance(here, list):
            here[int(last)] = value
        elif value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return raw


def built(raw, seed=0):
    """The scenario of a raw file, drawn."""
    return build(scenario_from(raw), Path("scenario.yaml"), seed)
