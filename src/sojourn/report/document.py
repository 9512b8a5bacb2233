"""`Document`: blocks that the console, the HTML page and JSON all render."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sojourn.records import Record

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Without control characters: a span may be named by anyone, and a terminal obeys them."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Heading(Record):
    """A heading; level 1 opens an answer."""

    kind: Literal["heading"] = "heading"
    text: str
    level: int = 2


class Text(Record):
    """A paragraph. `tone`: plain, good, bad, warn, muted."""

    kind: Literal["text"] = "text"
    text: str
    tone: str = "plain"


class Card(Record):
    """One of the three answers in one sentence, shown side by side at the top."""

    kind: Literal["card"] = "card"
    question: str
    answer: str
    tone: str = "plain"


class TableBlock(Record):
    """A table of written cells; `align` per column is l or r."""

    kind: Literal["table"] = "table"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str = ""


class Chart(Record):
    """A Vega-Lite chart, with the sentence that says what to see in it."""

    kind: Literal["chart"] = "chart"
    caption: str
    spec: dict[str, Any]
    plain: str = Field("", description="The same in characters, for a terminal; empty: not drawn.")


Block = Annotated[Heading | Text | Card | TableBlock | Chart, Field(discriminator="kind")]


class Document(Record):
    """A report. `verdict` is its one sentence; `exit_code` as the design says: 0, 3 or 4."""

    title: str
    verdict: str
    exit_code: int
    blocks: tuple[Block, ...]
    data: dict[str, Any] = Field(default_factory=dict, description="The records, for machines.")
