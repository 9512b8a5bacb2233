"""One document, three faces: HTML without network, an 80-column terminal, strict JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console
from tests.report.documents import HOSTILE, SPEC, plan, small

from sojourn.errors import SojournError
from sojourn.report import console, decisions, html, machine
from sojourn.report.compose import single
from sojourn.report.document import (
    Card,
    Chart,
    Document,
    Heading,
    TableBlock,
    Text,
    printable,
)


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains about what does not nest."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def everything(document):
    """Every text that a document shows on the page."""
    found = [document.title, document.verdict]
    for block in document.blocks:
        match block:
            case Heading(text=text) | Text(text=text):
                found.append(text)
            case Card(question=question, answer=answer):
                found += [question, answer]
            case TableBlock(caption=caption, columns=columns, rows=rows):
                found += [caption, *columns, *(cell for row in rows for cell in row)]
            case Chart(caption=caption):
                found.append(caption)
    return found


@pytest.mark.parametrize("name", ["kb", HOSTILE])
def test_the_page_shows_everything_and_loads_nothing(name):
    document = small(name)
    text = html.to_html(document)
    page = Page(text)
    assert page.open == []
    for shown in everything(document):
        assert " ".join(printable(shown).split()) in page.text
    assert not {"script", "link", "iframe", "object", "embed", "img", "image"} & set(page.tags)
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    for key, value in page.attributes:
        if key in ("href", "src", "xlink:href"):
            assert value.startswith("#")
        if key != "xmlns" and not key.startswith("xmlns:") and key != "aria-label":
            assert "://" not in (value or "")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "\x1b" not in text


def test_headings_are_linked_by_anchors_of_their_own():
    blocks = tuple(Heading(text=text, level=1) for text in ("Same", "Same", "标题", "标题", ""))
    document = Document(title="t", verdict="v", exit_code=0, blocks=blocks)
    page = Page(html.to_html(document))
    ids = [value for key, value in page.attributes if key == "id"]
    links = [value[1:] for key, value in page.attributes if key == "href"]
    assert len(set(ids)) == len(blocks)
    assert links == ids


def test_a_chart_is_drawn_in_the_ink_of_the_page():
    svg = html.draw(Chart(caption='a "quoted" caption', spec=SPEC))
    assert svg.startswith('<svg role="img" aria-label="a &quot;quoted&quot; caption"')
    assert not re.search(r'<svg [^>]*\swidth="\d', svg)


def test_a_chart_of_unknown_numbers_is_drawn_and_a_broken_one_is_named():
    spec = SPEC | {"data": {"values": [{"what": "a", "seconds": float("nan")}]}}
    assert "<svg" in html.draw(Chart(caption="x", spec=spec))
    with pytest.raises(SojournError, match="'broken' cannot be drawn"):
        html.draw(Chart(caption="broken", spec={"mark": 7}))


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("name", ["kb", HOSTILE, "a" * 300])
def test_a_terminal_shows_every_figure_whole(width, name):
    document = small(name)
    text = console.to_text(document, width)
    assert "\x1b" not in text
    assert "…" not in text
    for whole in ("3.20", "[3.10", "3.31", "13.0", "[12.1", "14.2", "1200", "1460"):
        assert re.search(rf"(^|\s){re.escape(whole)}(\s|\]|$)", text, re.M), whole


def test_no_line_is_wider_than_the_terminal():
    lines = console.to_text(small("a name of some length"), 80).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_word_of_a_table_is_lost(width):
    document = single("plan", decisions.plan(plan()), verdict=("v", 0))
    shown = "".join(console.to_text(document, width).split())
    for block in document.blocks:
        if isinstance(block, TableBlock):
            words = [word for row in block.rows for cell in row for word in cell.split()]
            assert words
            assert not [word for word in words if word[:6] not in shown]
    text = console.to_text(document, width)
    assert "6.60 s]" in text


def test_markup_in_a_name_is_text():
    text = console.to_text(small("[bold]x[/bold]"), 120)
    assert "[bold]x[/bold]" in text


def test_a_coloured_terminal_gets_colours_from_the_tones_alone():
    out = io.StringIO()
    console.render(small(), Console(file=out, force_terminal=True, width=80))
    assert "\x1b[31m" in out.getvalue()  # the bad card is red


def test_a_document_survives_json():
    document = small(HOSTILE)
    assert Document.model_validate_json(machine.to_json(document)) == document
    assert Document.model_validate_json(document.model_dump_json()) == document


def test_numbers_that_json_lacks_are_null():
    document = small().model_copy(
        update={"data": {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}}}
    )

    def refuse(name):
        raise AssertionError(name)

    tree = json.loads(machine.to_json(document), parse_constant=refuse)
    assert tree["data"] == {"a": None, "b": [None, 1.5], "c": {"d": None}}
    assert tree["exit_code"] == 3


def test_csv_has_every_table_under_its_caption_or_heading():
    table = TableBlock(caption="", columns=("a", "b"), rows=(('x,"y"', "line\nbreak"),))
    blocks = (*small().blocks, Heading(text="Question 8"), table)
    text = machine.to_csv(small().model_copy(update={"blocks": blocks}))
    first, second = text.split("# Question 8\n")
    assert first.startswith("# End to end by bucket, kb\n")
    rows = list(csv.reader(io.StringIO(first.split("\n", 1)[1])))
    assert rows[0] == ["bucket", "at", "requests", "end to end", "largest stages"]
    assert rows[2][3] == "13.0 s [12.1 s, 14.2 s]"
    assert list(csv.reader(io.StringIO(second))) == [["a", "b"], ['x,"y"', "line\nbreak"]]


def test_a_document_without_blocks_has_three_faces():
    document = Document(title="t", verdict="Nothing was found.", exit_code=4, blocks=())
    assert "Nothing was found." in Page(html.to_html(document)).text
    assert "Nothing was found." in console.to_text(document, 80)
    assert machine.to_csv(document) == ""
