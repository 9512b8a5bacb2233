"""`Ledger`: the count of what a reader saw, kept, changed and dropped, by reason."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from sojourn.trace.tables import Issue, Quality

EXAMPLE_LENGTH: Final = 160


class Ledger:
    """Counts by (action, reason) with the first example of each.

    `read` counts the source's own records (rows, lines, spans); what is kept is `read` less
    what was dropped, so a reader that loses a record without a line here breaks the sum
    `read = kept + dropped` that the tests check against the tables.
    """

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.read = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, action: str, reason: str, count: int = 1, example: object = "") -> None:
        """Count `count` records; the first example of a reason is kept."""
        if count <= 0:
            return
        key = (action, reason)
        self._counts[key] += count
        if key not in self._examples:
            self._examples[key] = str(example)[:EXAMPLE_LENGTH]

    def drop(self, reason: str, count: int = 1, example: object = "") -> None:
        """Records that cannot be used."""
        self.add("dropped", reason, count, example)

    def drop_where(self, reason: str, mask: np.ndarray, first_row: int = 1) -> None:
        """Count the true rows of a mask as dropped, the first as example."""
        self.add_where("dropped", reason, mask, first_row)

    def add_where(self, action: str, reason: str, mask: np.ndarray, first_row: int = 1) -> None:
        """Count the true rows of a mask, the first as example."""
        count = int(np.count_nonzero(mask))
        if count:
            self.add(action, reason, count, f"row {int(np.argmax(mask)) + first_row}")

    @property
    def dropped(self) -> int:
        """Records dropped so far."""
        return sum(n for (action, _), n in self._counts.items() if action == "dropped")

    def quality(self) -> Quality:
        """The counts as a record."""
        issues = tuple(
            Issue(
                action=action,
                reason=reason,
                count=count,
                source=self.source,
                example=self._examples[(action, reason)],
            )
            for (action, reason), count in self._counts.items()
        )
        return Quality(
            read=self.read,
            kept=self.read - self.dropped,
            issues=issues,
            sources=(self.source,) if self.source else (),
        )
