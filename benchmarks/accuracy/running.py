"""Every row by every source, over cores, in an order that does not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn.interval import Excuse

from . import sources
from .predicting import Predicted, predict
from .rows import Loaded, Row
from .scoring import Error, scored

BUNDLE: Final = 6
"""Rows that are sent to a core at once."""
Progress = Callable[[int, int], None]
MEMORY: Final = "memory"
"""The source of rows that are about the KV pool alone."""


@dataclass
class Outcome:
    """One set by one source."""

    set: str
    source: str
    errors: list[Error] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    """Assumptions, and on how many rows."""


def only_kv(row: Row) -> bool:
    """Whether a row is about the KV pool alone: no step time is asked for."""
    return set(row.measured) == {"kv_tokens"}


def bundle(rows: Sequence[Row], source: str) -> list[Predicted | Excuse]:
    """Predictions of some rows (what a core is given)."""
    ask = sources.BY_NAME[source]
    return [predict(row, ask) for row in rows]


@dataclass(frozen=True)
class Task:
    """Some rows of a set for one source."""

    set: str
    source: str
    rows: tuple[Row, ...]


def tasks(sets: dict[str, Loaded], chosen: Iterable[str]) -> list[Task]:
    """All work, in small bundles. KV rows are asked for once."""
    found = []
    for name, loaded in sets.items():
        kv = [row for row in loaded.rows if only_kv(row)]
        rest = [row for row in loaded.rows if not only_kv(row)]
        parts = [(MEMORY, kv)] + [(source, rest) for source in chosen]
        for source, rows in parts:
            found += [
                Task(name, source, tuple(rows[at : at + BUNDLE]))
                for at in range(0, len(rows), BUNDLE)
            ]
    return found


def run(
    sets: dict[str, Loaded], chosen: Sequence[str], *, jobs: int, progress: Progress
) -> list[Outcome]:
    """Outcomes by set and source, in the order of the sets."""
    work = tasks(sets, chosen)
    found: dict[tuple[str, str], Outcome] = {}
    for done, (task, told) in enumerate(zip(work, _told(work, jobs), strict=True), 1):
        outcome = found.setdefault((task.set, task.source), Outcome(task.set, task.source))
        errors, left_out = scored(task.rows, task.source, told)
        outcome.errors += errors
        for reason, count in left_out.items():
            outcome.left_out[reason] = outcome.left_out.get(reason, 0) + count
        for row, one in zip(task.rows, told, strict=True):
            if isinstance(one, Predicted):
                for note in dict.fromkeys((*row.notes, *one.notes)):
                    outcome.notes[note] = outcome.notes.get(note, 0) + 1
        progress(done, len(work))
    return list(found.values())


def _told(work: Sequence[Task], jobs: int) -> Iterator[list[Predicted | Excuse]]:
    if jobs == 1:
        yield from (bundle(task.rows, task.source) for task in work)
        return
    from joblib import Parallel, delayed  # noqa: PLC0415  (only where asked for)

    yield from Parallel(n_jobs=jobs, return_as="generator")(
        delayed(bundle)(task.rows, task.source) for task in work
    )
