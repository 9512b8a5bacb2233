"""A `Document` on a terminal, down to 80 columns."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as Line

from sojourn.report.document import Card, Chart, Document, Heading, TableBlock, Text, printable

_TONES: Final = {"good": "green", "bad": "red", "warn": "yellow", "muted": "dim", "plain": ""}
_PADDING: Final = 1
_LEAST: Final = 8
"""Columns of text get at least so many characters before a table is written as a list."""


def render(document: Document, console: Console) -> None:
    """Print the document; charts are named, their figures stand in the tables beside them."""
    console.print(_line(document.title, "dim"))
    for block in document.blocks:
        shown = _renderable(block, console.width)
        if shown is not None:
            console.print(shown)
    console.print()
    verdict = _line(document.verdict, "bold")
    console.print(Panel(verdict, title="Verdict", title_align="left"))


def to_text(document: Document, width: int = 100) -> str:
    """The document as plain text."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        render(document, console)
    return captured.get()


def _line(text: str, style: str = "") -> Line:
    """Text as it is: no markup is read from it, no control character passed on."""
    return Line(printable(text), style=style)


def _renderable(
    block: Heading | Text | Card | TableBlock | Chart, width: int
) -> RenderableType | None:
    match block:
        case Heading(text=text, level=1):
            return _line(f"\n{text}\n{'=' * min(len(text), width)}", "bold")
        case Heading(text=text):
            return _line(f"\n{text}", "bold")
        case Text(text=text, tone=tone):
            return _line(text, _TONES.get(tone, ""))
        case Card(question=question, answer=answer, tone=tone):
            line = _line(f"{question} ", "bold")
            line.append(printable(answer), style=f"not bold {_TONES.get(tone, '')}".strip())
            return line
        case TableBlock():
            return _table(block, width)
        case Chart(caption=caption):
            return _line(f"(chart: {caption})", "dim")


def _words(cells: list[str]) -> int:
    """Longest part of any cell that must not be broken."""
    return max((len(part) for cell in cells for part in cell.split()), default=1)


def _table(block: TableBlock, width: int) -> RenderableType:
    """A table whose figures are never broken; a list of its rows where it would not fit."""
    aligned = block.align.ljust(len(block.columns), "l")
    cells = [[name, *column] for name, column in _columns(block)]
    least = [
        _words(column) if side == "r" else min(_words(column), _LEAST)
        for column, side in zip(cells, aligned, strict=False)
    ]
    if sum(least) + 2 * _PADDING * len(least) > width:
        return _listed(block)
    table = Table(
        title=_line(block.caption) if block.caption else None,
        title_justify="left",
        title_style="italic",
        box=None,
        padding=(0, _PADDING),
    )
    for name, side, size in zip(block.columns, aligned, least, strict=False):
        table.add_column(
            _line(name),
            justify="right" if side == "r" else "left",
            overflow="fold",
            min_width=size,
        )
    for row in block.rows:
        table.add_row(*(_line(cell) for cell in row))
    return table


def _columns(block: TableBlock) -> list[tuple[str, list[str]]]:
    return [
        (name, [row[place] for row in block.rows if place < len(row)])
        for place, name in enumerate(block.columns)
    ]


def _listed(block: TableBlock) -> Line:
    rows = [
        "\n".join(
            [
                row[0],
                *(
                    f"  {name}: {cell}"
                    for name, cell in list(zip(block.columns, row, strict=False))[1:]
                ),
            ]
        )
        for row in block.rows
        if row
    ]
    return _line("\n".join([block.caption, *rows]))
