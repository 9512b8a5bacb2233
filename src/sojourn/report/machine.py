"""A `Document` for machines: JSON with every record, CSV of each table."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from sojourn.report.document import Document, Heading, TableBlock


def to_json(document: Document) -> str:
    """The document as JSON: `verdict`, `exit_code`, `blocks`, and the records under `data`.

    Numbers that JSON has no word for (not a number, infinite) are null.
    """
    tree = _strict(document.model_dump(mode="json"))
    return json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False)


def _strict(value: Any) -> Any:  # noqa: ANN401  (any tree of JSON)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return value


def to_csv(document: Document) -> str:
    """Every table, one below the other, each opened by a comment line: its caption, or the
    heading it stands under."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heading = document.title
    for block in document.blocks:
        if isinstance(block, Heading):
            heading = block.text
        if isinstance(block, TableBlock):
            out.write(f"# {' '.join((block.caption or heading).split())}\n")
            writer.writerow(block.columns)
            writer.writerows(block.rows)
    return out.getvalue()
