"""A `Document` on a terminal, down to 80 columns."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as Line

from sojourn.report.document import Card, Chart, Document, Heading, TableBlock, Text

_TONES: Final = {"good": "green", "bad": "red", "warn": "yellow", "muted": "dim", "plain": ""}


def render(document: Document, console: Console) -> None:
    """Print the document; of charts the sentence, since their figures stand in tables too."""
    console.print(Line(document.title, style="dim"))
    for block in document.blocks:
        console.print(_renderable(block))
    console.print()
    console.print(Panel(Line(document.verdict, style="bold"), title="Verdict", title_align="left"))


def to_text(document: Document, width: int = 100) -> str:
    """The document as plain text."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        render(document, console)
    return captured.get()


def _renderable(
    block: Heading | Text | Card | TableBlock | Chart,
) -> RenderableType:
    match block:
        case Heading(text=text, level=1):
            return Line(f"\n{text}\n{'=' * len(text)}", style="bold")
        case Heading(text=text):
            return Line(f"\n{text}", style="bold")
        case Text(text=text, tone=tone):
            return Line(text, style=_TONES.get(tone, ""))
        case Card(question=question, answer=answer, tone=tone):
            line = Line(f"{question} ", style="bold")
            line.append(answer, style=f"not bold {_TONES.get(tone, '')}".strip())
            return line
        case TableBlock():
            return _table(block)
        case Chart(caption=caption):
            return Line(f"[chart] {caption}", style="dim")


def _table(block: TableBlock) -> Table:
    table = Table(title=block.caption, title_justify="left", title_style="italic", box=None)
    aligned = block.align.ljust(len(block.columns), "l")
    for name, side in zip(block.columns, aligned, strict=False):
        table.add_column(name, justify="right" if side == "r" else "left", overflow="fold")
    for row in block.rows:
        table.add_row(*row)
    return table
