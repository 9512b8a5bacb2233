"""The step log's files: what the engine writes (`steplog.py`) and the recorder reads."""

from __future__ import annotations

import numpy as np

DIRECTORY_VARIABLE = "SOJOURN_STEP_LOG"
"""The environment variable that names the folder to write to."""
STEPS, EVENTS, SETTINGS = "steps.bin", "events.csv", "settings.json"
STEP = np.dtype(
    [
        ("t_s", "<f8"),
        ("schedule_s", "<f8"),
        ("model_s", "<f8"),
        ("update_s", "<f8"),
        ("context_requests", "<i4"),
        ("context_tokens", "<i4"),
        ("context_pairs", "<i8"),
        ("generation_requests", "<i4"),
        ("generation_tokens", "<i4"),
        ("generation_context", "<i8"),
        ("running", "<i4"),
        ("waiting", "<i4"),
        ("free_blocks", "<i4"),
        ("preempted", "<i4"),
    ]
)
EVENT_COLUMNS = ("t_s", "step", "event", "request_id", "computed_tokens", "tokens")
