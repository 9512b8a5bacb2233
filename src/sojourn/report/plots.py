"""Curves as text, for terminals: what a chart shows where there is no page to draw it on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

WIDTH: Final = 58
HEIGHT: Final = 11
GUTTER: Final = 9
"""Columns of the labels of the vertical axis."""
WIDE: Final = 20.0
"""Largest over smallest value from which the vertical axis is logarithmic."""


@dataclass(frozen=True)
class Curve:
    """Points (x, y) ascending in x, drawn with one glyph."""

    label: str
    glyph: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Axes:
    """The names of both axes and how values of the vertical one are written. `marks`: (x, name)
    of vertical lines; `level`: (y, name) of a horizontal one; `may_log`: whether the vertical axis
    may be logarithmic."""

    x: str
    y: str
    write: Callable[[float], str]
    marks: tuple[tuple[float, str], ...] = ()
    level: tuple[float, str] | None = None
    may_log: bool = True


def plot(curves: Sequence[Curve], axes: Axes) -> str:
    """The curves over one another, later ones on top; empty where there is nothing to draw."""
    points = [point for curve in curves for point in curve.points]
    if len({x for x, _ in points}) < 2:
        return ""
    low_x, high_x = (f(x for x, _ in points) for f in (min, max))
    values = [y for _, y in points] + ([axes.level[0]] if axes.level else [])
    positive = [y for y in values if y > 0]
    log = axes.may_log and min(values) > 0 and max(values) > WIDE * min(values)
    bottom, top = (min(positive), max(positive)) if log else (0.0, max(values) or 1.0)

    def column(x: float) -> int:
        return round((x - low_x) / (high_x - low_x) * (WIDTH - 1))

    def row(y: float) -> int:
        share = math.log(y / bottom) / math.log(top / bottom) if log else y / top
        return HEIGHT - 1 - round(min(max(share, 0.0), 1.0) * (HEIGHT - 1))

    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    if axes.level is not None:
        grid[row(axes.level[0])] = ["-"] * WIDTH
    for x, _ in axes.marks:
        if low_x <= x <= high_x:
            for line in grid:
                line[column(x)] = "¦"
    for curve in curves:
        _draw(grid, curve, column, row)
    ticks = {HEIGHT - 1: bottom, 0: top, HEIGHT // 2: _middle(bottom, top, log=log)}
    lines = [f"{axes.y}{' (logarithmic)' if log else ''}"]
    for number, cells in enumerate(grid):
        label = axes.write(ticks[number]) if number in ticks else ""
        lines.append(f"{label:>{GUTTER}} |{''.join(cells)}".rstrip())
    lines.append(f"{'':>{GUTTER}} +{'-' * WIDTH}")
    lines.append(_foot(low_x, high_x, axes.x))
    named = [f"{curve.glyph} {curve.label}" for curve in curves if curve.label]
    named += [f"¦ {name} ({x:.3g})" for x, name in axes.marks]
    if axes.level is not None:
        named.append(f"- {axes.level[1]} ({axes.write(axes.level[0])})")
    return "\n".join([*lines, *_legend(named)])


def _middle(bottom: float, top: float, *, log: bool) -> float:
    return math.sqrt(bottom * top) if log else (bottom + top) / 2


def _draw(
    grid: list[list[str]],
    curve: Curve,
    column: Callable[[float], int],
    row: Callable[[float], int],
) -> None:
    """Points with the glyph, what lies between them dotted."""
    places = [(column(x), row(y)) for x, y in curve.points]
    for (left, first), (right, last) in pairwise(places):
        for at in range(left + 1, right):
            between = round(first + (last - first) * (at - left) / (right - left))
            grid[between][at] = "·"
    for at, line in places:
        grid[line][at] = curve.glyph


def _legend(named: Sequence[str]) -> list[str]:
    """Names side by side, as many in a line as fit below the axis."""
    lines: list[str] = []
    for name in named:
        if lines and len(lines[-1]) + len(name) + 3 <= GUTTER + 2 + WIDTH:
            lines[-1] += f"   {name}"
        else:
            lines.append(f"{'':>{GUTTER}}  {name}")
    return lines


def _foot(low: float, high: float, name: str) -> str:
    left, right = f"{low:.3g}", f"{high:.3g}"
    room = WIDTH - len(left) - len(right)
    return f"{'':>{GUTTER}}  {left}{name:^{room}}{right}"
