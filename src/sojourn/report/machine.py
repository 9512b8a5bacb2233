"""A `Document` for machines: JSON with every record, CSV of each table."""

from __future__ import annotations

import csv
import io

from sojourn.report.document import Document, TableBlock


def to_json(document: Document) -> str:
    """The document as JSON: `verdict`, `exit_code`, `blocks`, and the records under `data`."""
    return document.model_dump_json(indent=1)


def to_csv(document: Document) -> str:
    """Every table, one below the other, each opened by its caption in a comment line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for block in document.blocks:
        if isinstance(block, TableBlock):
            out.write(f"# {block.caption}\n")
            writer.writerow(block.columns)
            writer.writerows(block.rows)
    return out.getvalue()
