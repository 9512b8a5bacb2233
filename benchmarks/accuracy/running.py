"""Every row by every source, over cores, in an order that does not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from sojourn.interval import Excuse

from . import sources
from .fitting import fitted
from .predicting import SEEDS, Predicted, predict
from .rows import Arrivals, Loaded, Row
from .scoring import Error, scored

BUNDLE: Final = 6
"""Rows that are sent to a core at once."""
Progress = Callable[[int, int], None]
MOST_FITTED: Final = 150_000
"""Requests of a set's fitted servers, about: a fit simulates each some hundred times."""
FITTED: Final = "fitted"
HELD_OUT: Final = "roofline held out"
"""The roofline with constants fitted on other models and cards than the row's."""
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


@dataclass(frozen=True)
class Task:
    """Some rows of a set for one source."""

    set: str
    source: str
    rows: tuple[Row, ...]
    constants: tuple[object, ...] = ()
    """Of the roofline, by fold, where the source is `HELD_OUT`."""


def done(task: Task) -> list[tuple[Row, Predicted | Excuse]]:
    """Rows of a task with what was told of them (what a core is given)."""
    if task.source == FITTED:
        return fitted(task.rows)
    if task.source == HELD_OUT:
        from .held_out import source  # noqa: PLC0415  (only where its fit is wanted)

        ask: sources.Source = partial(source, task.constants)
    else:
        ask = sources.BY_NAME[task.source]
    return [(row, predict(row, ask)) for row in task.rows]


def tasks(
    sets: dict[str, Loaded], chosen: Iterable[str], constants: tuple[object, ...] = ()
) -> list[Task]:
    """All work, in small parts. KV rows are asked for once; fits need the rows of a server."""
    found = []
    for name, loaded in sets.items():
        kv = [row for row in loaded.rows if only_kv(row)]
        rest = [row for row in loaded.rows if not only_kv(row)]
        found += _bundles(name, MEMORY, kv)
        for source in chosen:
            if source == FITTED:
                found += [Task(name, FITTED, rows) for rows in servers(rest)]
            else:
                parts = _bundles(name, source, rest)
                with_them = source == HELD_OUT
                found += [replace(p, constants=constants) for p in parts] if with_them else parts
    return found


def _bundles(name: str, source: str, rows: Sequence[Row]) -> list[Task]:
    return [Task(name, source, tuple(rows[at : at + BUNDLE])) for at in range(0, len(rows), BUNDLE)]


def servers(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows of each server; at most `MOST_FITTED` requests of a set, of servers spread evenly over
    the list, so that a set of thousands of rows does not take all the time."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.server:
            found.setdefault(row.server, []).append(row)
    able = [tuple(each) for each in found.values() if len(each) > 1 or each[0].recorded]
    sizes = [sum(simulated(row) for row in each) for each in able]
    every = max(1, -(-sum(sizes) // MOST_FITTED))
    return able[::every]


def simulated(row: Row) -> int:
    """Requests that one replay of a row simulates: random arrivals are drawn several times."""
    return len(row.load.inputs) * (SEEDS if row.load.arrivals is Arrivals.POISSON else 1)


def run(
    sets: dict[str, Loaded],
    chosen: Sequence[str],
    *,
    jobs: int,
    progress: Progress,
    root: Path | None = None,
) -> list[Outcome]:
    """Outcomes by set and source, in the order of the sets. `root`: the measured files, which the
    constants of `HELD_OUT` are fitted on."""
    work = tasks(sets, chosen, _constants(root, jobs) if HELD_OUT in chosen and root else ())
    found: dict[tuple[str, str], Outcome] = {}
    for count, (task, told) in enumerate(zip(work, _told(work, jobs), strict=True), 1):
        outcome = found.setdefault((task.set, task.source), Outcome(task.set, task.source))
        _add(outcome, task.source, told)
        progress(count, len(work))
    return list(found.values())


def _constants(root: Path, jobs: int) -> tuple[object, ...]:
    from joblib import Parallel, delayed  # noqa: PLC0415  (only where asked for)

    from .held_out import FOLDS, constants  # noqa: PLC0415

    return tuple(Parallel(n_jobs=jobs)(delayed(constants)(root, fold) for fold in range(FOLDS)))


def _add(outcome: Outcome, source: str, told: list[tuple[Row, Predicted | Excuse]]) -> None:
    errors, left_out = scored([r for r, _ in told], source, [one for _, one in told])
    outcome.errors += errors
    for reason, count in left_out.items():
        outcome.left_out[reason] = outcome.left_out.get(reason, 0) + count
    for row, one in told:
        if isinstance(one, Predicted):
            for note in dict.fromkeys((*row.notes, *one.notes)):
                outcome.notes[note] = outcome.notes.get(note, 0) + 1


def _told(work: Sequence[Task], jobs: int) -> Iterator[list[tuple[Row, Predicted | Excuse]]]:
    if jobs == 1:
        yield from (done(task) for task in work)
        return
    from joblib import Parallel, delayed  # noqa: PLC0415  (only where asked for)

    yield from Parallel(n_jobs=jobs, return_as="generator")(delayed(done)(task) for task in work)
