"""The reference page of the tables, generated from the schema."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from sojourn.trace.schema import TABLES, Column

_WORDS: Final[dict[str, str]] = {
    "requests": "One row per request: what a user waits for.",
    "calls": "One row per model call of a request.",
    "spans": "One row per interval of a stage, and per span that holds others.",
    "engine_samples": "One row per sample of an engine replica.",
    "gpu_activity": "One row per activity of a device, from a GPU profile.",
    "aggregates": "What only a summary told; never expanded into rows of the other tables.",
}


def tables_page() -> str:
    """Markdown of `docs/reference/tables.md`."""
    parts = [
        "# The tables\n",
        "Readers fill these six tables, the store writes them, and a simulated run has the same.\n"
        "Times are seconds (float64) since the origin of the set's clock. A column may be empty\n"
        "unless it is *required*. This page is generated from `sojourn.trace.schema`.\n",
    ]
    for name, columns in TABLES.items():
        parts += [f"## {name}\n", f"{_WORDS[name]}\n", _rows(columns)]
    return "\n".join(parts)


def _rows(columns: tuple[Column, ...]) -> str:
    lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
    for column in columns:
        required = " *Required.*" if column.required else ""
        lines.append(
            f"| `{column.name}` | {_type(column.type)} | {column.unit} |"
            f" {column.meaning}{required} |"
        )
    return "\n".join(lines) + "\n"


def _type(kind: pa.DataType) -> str:
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)
