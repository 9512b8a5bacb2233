"""The report: on the console, as docs/reference/accuracy.md, and as JSON to drill down."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from . import why
from .rows import Loaded
from .running import Outcome
from .scoring import BARS, COVERAGE, KINDS, Bar, Error, Summary, of_bar

COVERED: Final = ("roofline", "roofline held out")
"""Sources whose 80% intervals are held against a bar."""
WORST: Final = 3
"""Groups listed for each set, source and figure that has a bar."""
SCORES: Final = (
    "set",
    "source",
    "figure",
    "rows",
    "groups",
    "median",
    "bias",
    "P90",
    "covered",
    "",
)
GROUPS: Final = ("set", "source", "figure", "group", "rows", "median", "bias")
REASON: Final = 110
"""Characters of a reason that are printed: what an engine says can be long."""


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as a percentage; nothing for None."""
    if value is None:
        return ""
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, aligned for reading as text too. A bar within a cell would end it."""
    cells = [[text.replace("|", " ") for text in row] for row in [list(heads), *map(list, rows)]]
    wide = [max(3, *(len(row[i]) for row in cells)) for i in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)) + " |"
        for row in cells
    ]
    rule = "| " + " | ".join("-" * w for w in wide) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def said(median: float, most: float) -> str:
    """Whether a bar is reached."""
    return "hit" if median <= most else "MISS"


RANGES: Final = {
    "means": ("ITL", "TTFT mean", "TTFT P50", "E2E mean"),
    "all": tuple(KINDS),
}
"""Kinds whose ranges are counted together. Step times have ranges; tails and throughput near the
knee also hold the luck of a run, so all kinds together are covered less."""


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
            table(SCORES, self.scores()),
            self.bars(),
            table(GROUPS, self.worst()),
            "Left out:\n\n" + self.left_out(),
        ]
        return "\n\n".join(parts)

    def scores(self) -> list[list[str]]:
        """A row for each set, source and kind of figure; the last column is the bar, if any."""
        found = []
        for outcome in self.outcomes:
            for kind in KINDS:
                mine = [e for e in outcome.errors if e.kind == kind]
                if mine:
                    told = Summary.of(mine)
                    bar = bar_for(outcome.source, kind)
                    verdict = "" if bar is None else said(told.median, bar.most)
                    found.append([outcome.set, outcome.source, kind, *_cells(told), verdict])
        return found

    def bars(self) -> str:
        """Each bar over all rows, over groups, and in how many sets it is reached."""
        rows = [self._bar(bar) for bar in BARS]
        rows += [
            row
            for source in COVERED
            for name, kinds in RANGES.items()
            for row in self._covered(source, name, kinds)
        ]
        heads = ("source", "figure", "bar", "rows", "median", "of groups", "sets", "")
        return table(heads, rows)

    def _covered(self, source: str, name: str, kinds: tuple[str, ...]) -> list[list[str]]:
        """Whether the 80% intervals of a source hold as many rows as they say."""
        mine = [
            e
            for e in self.errors
            if e.source == source and e.covered is not None and e.kind in kinds
        ]
        if not mine:
            return []
        low, high = COVERAGE
        told = Summary.of(mine)
        share = told.coverage or 0.0
        sets = [Summary.of(part).coverage or 0.0 for part in by(mine, "set").values()]
        inside = sum(low <= each <= high for each in sets)
        return [
            [source, f"80% ranges, {name}", f"{low:.0%} to {high:.0%}", str(told.rows),
             percent(share), "", f"{inside} of {len(sets)}",
             "hit" if low <= share <= high else "MISS"]
        ]  # fmt: skip

    def _bar(self, bar: Bar) -> list[str]:
        mine = of_bar(bar, self.errors)
        name = [bar.source, bar.kind, percent(bar.most)]
        if not mine:
            reason = self.absent.get(bar.source, "no row tests it")
            return [*name, "0", "", "", "", f"not scored: {reason}"]
        told = Summary.of(mine)
        groups = [Summary.of(part).median for part in by(mine, "group").values()]
        sets = [Summary.of(part).median <= bar.most for part in by(mine, "set").values()]
        return [
            *name, str(told.rows), percent(told.median),
            percent(sorted(groups)[len(groups) // 2]), f"{sum(sets)} of {len(sets)}",
            said(told.median, bar.most),
        ]  # fmt: skip

    def worst(self) -> list[list[str]]:
        """The worst groups by median, of the kinds that have a bar."""
        found = []
        for outcome in self.outcomes:
            for kind in KINDS:
                if bar_for(outcome.source, kind) is None:
                    continue
                groups = by([e for e in outcome.errors if e.kind == kind], "group")
                told = {name: Summary.of(part) for name, part in groups.items()}
                for name in sorted(told, key=lambda name: -told[name].median)[:WORST]:
                    one = told[name]
                    found.append(
                        [outcome.set, outcome.source, kind, name, str(one.rows),
                         percent(one.median), percent(one.bias, signed=True)]
                    )  # fmt: skip
        return found

    def left_out(self) -> str:
        """Rows that were not used, by reason."""
        counted: Counter[tuple[str, str]] = Counter()
        for name, loaded in self.loaded.items():
            for reason, count in loaded.left_out.items():
                counted[name, _short(reason)] += count
        for outcome in self.outcomes:
            for reason, count in outcome.left_out.items():
                counted[f"{outcome.set}, {outcome.source}", _short(reason)] += count
        lines = [f"- {name}: {n or 'no'} rows: {reason}" for (name, reason), n in counted.items()]
        lines += [f"- {source}: not asked: {reason}" for source, reason in self.absent.items()]
        return "\n".join(lines or ["- nothing"])

    def assumed(self) -> str:
        """What was assumed for lack of data, and on how many predictions."""
        counted: Counter[tuple[str, str]] = Counter()
        for outcome in self.outcomes:
            for note, count in outcome.notes.items():
                counted[outcome.set, note] = max(counted[outcome.set, note], count)
        lines = [f"- {name}: {note} ({n} rows)" for (name, note), n in counted.items()]
        return "\n".join(lines or ["- nothing"])

    def json(self) -> str:
        """Every error of every row."""
        rows = [
            {**asdict(error), "error": error.error, "covered": error.covered}
            for error in self.errors
        ]
        return json.dumps({"errors": rows}, indent=1)

    def why(self) -> str:
        """The sets that miss a bar: which, and why."""
        missed: dict[str, list[str]] = {}
        for name, source, kind, *_, verdict in self.scores():
            if verdict == "MISS":
                missed.setdefault(name, []).append(f"{source} {kind}")
        lines = [
            f"- **{name}** ({', '.join(what)}): {why.WHY.get(name, 'not looked into yet')}."
            for name, what in missed.items()
        ]
        return "\n".join(lines or ["- none misses"])

    def markdown(self) -> str:
        """The page."""
        replays = "\n".join(f"- {text}" for text in why.NOT_EXPRESSED)
        tools = table(("tool", "E2E", "ITL", "TTFT"), why.PUBLISHED)
        return PAGE.format(
            bars=self.bars(),
            tools=tools,
            tools_source=why.PUBLISHED_SOURCE,
            scores=table(SCORES, self.scores()),
            why=self.why(),
            replays=replays,
            worst=table(GROUPS, self.worst()),
            left_out=self.left_out(),
            assumed=self.assumed(),
        )


def bar_for(source: str, kind: str) -> Bar | None:
    """The bar that a kind of figure is held against."""
    plain = "TTFT" if kind == "TTFT mean" else kind
    return next((b for b in BARS if b.source == source and b.kind in (kind, plain)), None)


def by(errors: Iterable[Error], name: str) -> dict[str, list[Error]]:
    """Errors by one of their fields."""
    found: dict[str, list[Error]] = {}
    for error in errors:
        found.setdefault(str(getattr(error, name)), []).append(error)
    return found


def _short(reason: str) -> str:
    """A reason without what differs from row to row (numbers in braces, long tails)."""
    plain = re.sub(r"\s*\{.*", "", reason.replace("|", " ").replace("\n", " "))
    return plain if len(plain) <= REASON else plain[: REASON - 1].rstrip() + "…"


def _cells(told: Summary) -> list[str]:
    return [
        str(told.rows),
        str(told.groups),
        percent(told.median),
        percent(told.bias, signed=True),
        percent(told.p90),
        percent(told.coverage),
    ]


PAGE: Final = """# Accuracy: predicted against published measurements

Written by `make accuracy`; do not edit. It reads measured runs that may not be passed on here
(a folder `shared/` beside the checkout), predicts each by simulating the same finite run (the
arrivals, lengths, slots, token budget, KV blocks and client cap that it had), and compares. What
each set is and where it is from stands at the head of its loader in `benchmarks/accuracy`.

Sources of step times:

- `fitted`: fitted to a part of the same server's runs, scored on the others (servers taken evenly
  over a set, up to some 150,000 requests);
- `silicon`: measured operator tables (extra `[silicon]`), for deployments never seen;
- `roofline`: a config.json and an accelerator row, with the shipped constants. Some of these
  rows took part in their fit; `roofline held out` has constants fitted on groups (model, weight
  dtype, card) of other folds alone: the honest figure of a deployment never seen.

Errors are of predicted over measured less one. *Median* is of absolute errors over rows; *of
groups* is the median over model x weight dtype x card of the groups' own medians (a set with many
rows of one model does not outvote the others); *bias* is the median signed error; nine tenths of
the absolute errors are below *P90*; *covered* is the share of rows inside the 80% range of the
step times, `means` of ITL, TTFT and E2E, `all` with tails and throughput.
Throughput is scored only where the load was above what could be done: below the knee it is the
offered rate, told for nothing. TTFT P99 is held against its bar below the knee only.

## Bars

{bars}

TTFT is a row's mean, else its median.

What other tools reach, for comparison (median absolute error of means):

{tools}

{tools_source}

## Every set

{scores}

## Why sets miss

{why}

## What the replay leaves out

{replays}

## Worst groups

`--json FILE` writes every error of every row.

{worst}

## Left out

{left_out}

## Assumed

{assumed}
"""
