"""The report: on the console, as docs/reference/accuracy.md, and as JSON to drill down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from .rows import Loaded
from .running import Outcome
from .scoring import BARS, COVERAGE, KINDS, Bar, Error, Summary, hit, of_bar

WORST: Final = 5
"""Groups listed for each set and source."""
HEADS: Final = ("set", "source", "figure", "rows", "groups", "median", "bias", "P90", "covered")


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as a percentage; nothing for None."""
    if value is None:
        return ""
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, aligned for reading as text too."""
    cells = [list(heads), *[list(row) for row in rows]]
    wide = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 2) for w in wide) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


@dataclass(frozen=True)
class Report:
    """What was loaded, what came of it, and the sources that could not be asked."""

    loaded: dict[str, Loaded]
    outcomes: list[Outcome]
    absent: dict[str, str]

    @property
    def errors(self) -> list[Error]:
        """Of all sets and sources."""
        return [error for outcome in self.outcomes for error in outcome.errors]

    def console(self) -> str:
        """Scores of every set, bars, worst groups, and what was left out."""
        parts = [
            table(HEADS, self.scores()),
            table(("bar", "rows", "median", "at most", ""), self.bars()),
            table(("set", "source", "figure", "group", "rows", "median", "bias"), self.worst()),
            self.left_out(),
        ]
        return "\n\n".join(parts)

    def scores(self) -> list[list[str]]:
        """A row for each set, source and kind of figure."""
        found = []
        for outcome in self.outcomes:
            for kind in KINDS:
                mine = [e for e in outcome.errors if e.kind == kind]
                if mine:
                    found.append([outcome.set, outcome.source, kind, *_cells(Summary.of(mine))])
        return found

    def bars(self) -> list[list[str]]:
        """A row for each bar, over all sets."""
        found = [self._bar(bar) for bar in BARS]
        covered = [e.covered for e in self.errors if e.source == "roofline"]
        known = [c for c in covered if c is not None]
        low, high = COVERAGE
        if known:
            share = sum(known) / len(known)
            said = "hit" if low <= share <= high else "MISS"
            found.append(
                ["roofline 80% intervals cover", str(len(known)), percent(share),
                 f"{low:.0%} to {high:.0%}", said]
            )  # fmt: skip
        return found

    def _bar(self, bar: Bar) -> list[str]:
        mine = of_bar(bar, self.errors)
        if not mine:
            why = self.absent.get(bar.source, "no row tests it")
            return [f"{bar.source} {bar.kind}", "0", "", percent(bar.most), f"not scored: {why}"]
        told = Summary.of(mine)
        said = "hit" if hit(bar, self.errors) else "MISS"
        name = f"{bar.source} {bar.kind}"
        return [name, str(told.rows), percent(told.median), percent(bar.most), said]

    def worst(self) -> list[list[str]]:
        """The worst groups by median, of the kinds that have a bar."""
        found = []
        barred = {bar.kind for bar in BARS} | {"TTFT mean"}
        for outcome in self.outcomes:
            for kind in KINDS:
                groups: dict[str, list[Error]] = {}
                for error in outcome.errors:
                    if error.kind == kind and kind in barred:
                        groups.setdefault(error.group, []).append(error)
                told = {name: Summary.of(errors) for name, errors in groups.items()}
                order = sorted(told, key=lambda name: -told[name].median)[:WORST]
                found += [
                    [outcome.set, outcome.source, kind, name, str(told[name].rows),
                     percent(told[name].median), percent(told[name].bias, signed=True)]
                    for name in order
                ]  # fmt: skip
        return found

    def left_out(self) -> str:
        """Rows that were not used, by reason."""
        lines = []
        for name, loaded in self.loaded.items():
            lines += [f"- {name}: {n} x {why}" for why, n in loaded.left_out.items()]
        for outcome in self.outcomes:
            lines += [
                f"- {outcome.set}, {outcome.source}: {n} x {why}"
                for why, n in outcome.left_out.items()
            ]
        lines += [f"- {source}: not asked: {why}" for source, why in self.absent.items()]
        return "Left out:\n\n" + "\n".join(lines or ["- nothing"])

    def json(self) -> str:
        """Every error of every row."""
        rows = [
            {**asdict(error), "error": error.error, "covered": error.covered}
            for error in self.errors
        ]
        return json.dumps({"errors": rows}, indent=1)

    def markdown(self) -> str:
        """The page."""
        return "# Accuracy\n\n" + self.console() + "\n"


def _cells(told: Summary) -> list[str]:
    return [
        str(told.rows),
        str(told.groups),
        percent(told.median),
        percent(told.bias, signed=True),
        percent(told.p90),
        percent(told.coverage),
    ]
