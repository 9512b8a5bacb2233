"""A `Document` on a terminal, down to 80 columns."""

from __future__ import annotations

import io
import re
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as Line

from sojourn.report.document import Card, Chart, Document, Heading, TableBlock, Text, printable

_TONES: Final = {"good": "green", "bad": "red", "warn": "yellow", "muted": "dim", "plain": ""}
_RANGE: Final = re.compile(r" (?=[\[(])")
Rows = tuple[tuple[str, ...], ...]
_PADDING: Final = 1
_LEAST: Final = 8
"""Columns of text get at least so many characters before a table is written as a list."""


def render(document: Document, console: Console, *, brief: bool = False) -> None:
    """Print the document; of charts the sentence, or what is drawn of them in characters.

    `brief`: the answers only, down to the first section (the page has the rest).
    """
    console.print(_line(document.title, "dim"))
    for block in document.blocks:
        if brief and isinstance(block, Heading) and block.level == 1:
            break
        console.print(_renderable(block, console.width))
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


def _renderable(block: Heading | Text | Card | TableBlock | Chart, width: int) -> RenderableType:
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
        case Chart():
            return _chart(block, width)


def _chart(block: Chart, width: int) -> Line:
    """What is drawn in characters where it fits, else the sentence."""
    if block.plain and max(cell_len(line) for line in block.plain.splitlines()) <= width:
        return Line.assemble(_line(f"\n{block.caption}\n", "italic"), _line(block.plain))
    return _line(f"[chart] {block.caption}", "dim")


def _table(block: TableBlock, width: int) -> RenderableType:
    """A table whose figures are never broken.

    Where it is too narrow for whole figures, a range goes on the line below its figure; where
    that is too wide as well, the rows are written one below the other.
    """
    for rows in (block.rows, _ranges_below(block)):
        least = _least_widths(block, rows)
        room = width - 2 * _PADDING * len(least)
        if sum(least) <= room:
            return _drawn(block, rows, _shared(least, _whole_widths(block, rows), room))
    return _listed(block)


def _least_widths(block: TableBlock, rows: Rows) -> list[int]:
    """Characters each column needs: a figure its whole line, text its longest word at most."""
    aligned = block.align.ljust(len(block.columns), "l")
    least = []
    for place, (name, side) in enumerate(zip(block.columns, aligned, strict=False)):
        cells = [row[place] for row in rows if place < len(row)]
        if side == "r":
            lines = [line for cell in cells for line in cell.split("\n")] + name.split()
            least.append(max((cell_len(line) for line in lines), default=1))
        else:
            parts = [part for cell in (name, *cells) for part in cell.split()]
            least.append(min(_LEAST, max((cell_len(part) for part in parts), default=1)))
    return least


def _whole_widths(block: TableBlock, rows: Rows) -> list[int]:
    """Characters each column would take on a terminal without end."""
    cells = [
        [name, *(row[i] for row in rows if i < len(row))] for i, name in enumerate(block.columns)
    ]
    return [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in cells]


def _shared(least: list[int], whole: list[int], room: int) -> list[int]:
    """Widths: what each needs, then the rest of the room by turns to the narrowest that wants."""
    widths = list(least)
    for _ in range(room - sum(least)):
        wanting = [place for place, size in enumerate(whole) if widths[place] < size]
        if not wanting:
            break
        widths[min(wanting, key=lambda place: widths[place])] += 1
    return widths


def _ranges_below(block: TableBlock) -> Rows:
    aligned = block.align.ljust(len(block.columns), "l")
    return tuple(
        tuple(
            _RANGE.sub("\n", cell) if side == "r" else cell
            for cell, side in zip(row, aligned, strict=False)
        )
        for row in block.rows
    )


def _drawn(block: TableBlock, rows: Rows, widths: list[int]) -> Table:
    table = Table(
        title=_line(block.caption) if block.caption else None,
        title_justify="left",
        title_style="italic",
        box=None,
        padding=(0, _PADDING),
    )
    aligned = block.align.ljust(len(block.columns), "l")
    for name, side, size in zip(block.columns, aligned, widths, strict=False):
        justify: Literal["right", "left"] = "right" if side == "r" else "left"
        table.add_column(_line(name), justify=justify, overflow="fold", width=size)
    for row in rows:
        table.add_row(*(_line(cell) for cell in row))
    return table


def _listed(block: TableBlock) -> Line:
    lines = [block.caption] if block.caption else []
    for row in block.rows:
        for place, (name, cell) in enumerate(zip(block.columns, row, strict=False)):
            lines.append(f"{'  ' if place else ''}{name}: {cell}" if name else cell)
    return _line("\n".join(lines))
