"""Readers, tables, quality, store: telemetry in, tables out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.trace.reading import read
    from sojourn.trace.tables import Tables

__all__ = ["Tables", "read"]


def __getattr__(name: str) -> object:
    """`read` and `Tables`, imported when first asked for."""
    if name == "read":
        from sojourn.trace.reading import read  # noqa: PLC0415  keeps `import sojourn` light

        return read
    if name == "Tables":
        from sojourn.trace.tables import Tables  # noqa: PLC0415  keeps `import sojourn` light

        return Tables
    raise AttributeError(name)
