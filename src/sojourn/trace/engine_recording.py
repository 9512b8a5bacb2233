"""A recorded engine run: every step it scheduled, every request as its client saw it.

What `examples/engine/record.py` writes; its README says what each column means.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sojourn.errors import InputError
from sojourn.yaml_file import YamlError, read_yaml

FACTS: Final = "recording.yaml"
TODO: Final = (
    "A recorded run has steps, requests and events (.parquet) beside recording.yaml, as"
    " examples/engine/record.py writes them"
)
PARTS: Final = {
    "steps": ("step_start_s", "elapsed_s", "context_tokens", "context_pairs",
              "generation_requests", "generation_tokens", "generation_context"),
    "requests": ("request_id", "send_s", "first_chunk_s", "last_chunk_s", "end_s",
                 "prompt_tokens", "output_tokens", "cached_tokens", "block_hashes",
                 "computed_block_hashes"),
    "events": ("t_s", "step", "event", "request_id", "computed_tokens", "tokens"),
}  # fmt: skip


@dataclass(frozen=True)
class EngineRecording:
    """One run. Times are epoch seconds on one clock; rows of `steps` and `events` in their order
    in time, `requests` in that of sending. `facts` is what `recording.yaml` says (settings of the
    engine and its scheduler, totals, seeds)."""

    facts: dict[str, Any]
    steps: pa.Table
    requests: pa.Table
    events: pa.Table


def read(folder: Path) -> EngineRecording:
    """Read the folder of one run.

    Raises:
        InputError: a file or a column is missing, or one cannot be read.
    """
    facts = _facts(folder / FACTS)
    parts = {name: _table(folder / f"{name}.parquet", columns) for name, columns in PARTS.items()}
    return EngineRecording(facts, **parts)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = read_yaml(path)
    except YamlError as error:
        raise InputError(str(error), path=path, todo=TODO) from error
    if not isinstance(facts, dict):
        raise InputError("holds no mapping", path=path, todo=TODO)
    return facts


def _table(path: Path, columns: tuple[str, ...]) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"cannot be read as Parquet: {error}", path=path, todo=TODO) from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InputError(f"lacks {', '.join(missing)}", path=path, todo=TODO)
    return table
