"""Engine flags: what sojourn.yaml says, else what the engine printed, else the default."""

from __future__ import annotations

import math

from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.trace.tables import Tables

META_NAMES = {"kv_blocks": ("num_gpu_blocks", "kv_blocks", "num_gpu_blocks_override")}
"""Names an engine gives to a flag, where they differ from ours; best first."""


def set_in(config: Config, name: str) -> bool:
    """Whether sojourn.yaml sets this key of `deployment` itself."""
    return "deployment" in config.model_fields_set and name in config.deployment.model_fields_set


def flag(name: str, tables: Tables, config: Config) -> tuple[int, Provenance]:
    """A whole-number flag of the engine and where it comes from; 0 where nothing says it.

    name: max_num_seqs, max_num_batched_tokens, block_size or kv_blocks.
    """
    value = getattr(config.deployment, name)
    if set_in(config, name) and value is not None:
        return int(value), Provenance.MEASURED
    for key in META_NAMES.get(name, (name,)):
        for place in (key, f"engine.{key}"):
            printed = _whole(tables.meta.get(place))
            if printed is not None:
                return printed, Provenance.MEASURED
    return int(value or 0), Provenance.ASSUMED


def _whole(text: str | None) -> int | None:
    """A positive whole number, also written as 1024.0; None for anything else."""
    try:
        value = float(str(text).strip())
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value >= 1 else None
