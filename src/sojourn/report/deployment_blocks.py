"""What is in force in `deployment`, where each value comes from, and what contradicts."""

from __future__ import annotations

from sojourn.capacity.flags import Resolved, findings, resolve
from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.report.document import Block, TableBlock, Text
from sojourn.trace.tables import Tables


def blocks(tables: Tables, config: Config) -> list[Block]:
    """A line for each finding and the table of values.

    Raises:
        UsageError, InputError: as `flags.resolve`.
    """
    told: list[Block] = [
        Text(text=f"{finding}.", tone="bad" if finding.error else "warn")
        for finding in findings(config, tables)
    ]
    return told + in_force(tables, config)


def in_force(tables: Tables, config: Config) -> list[Block]:
    """The table of values; none where nothing is told of the deployment and nothing was printed.

    Raises:
        UsageError, InputError: as `flags.resolve`.
    """
    _, values = resolve(config, tables)
    known = any(row.provenance is not Provenance.ASSUMED for row in values)
    return [_table(values)] if known else []


def _table(values: tuple[Resolved, ...]) -> TableBlock:
    rows = tuple(
        (row.name, "–" if row.value is None else str(row.value), row.source) for row in values
    )
    return TableBlock(
        caption="Deployment: what is in force",
        columns=("key", "value", "where from"),
        rows=rows,
        align="lll",
    )
