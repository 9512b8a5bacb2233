"""A `Document` as one HTML page that needs no network: text, tables and drawn charts.

Charts are drawn to SVG here (vl-convert carries Vega), so the page holds no script at all.
"""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any, Final

import jinja2

from sojourn.errors import SojournError
from sojourn.report.charts import FAINT, INK
from sojourn.report.document import Chart, Document, Heading, printable

_TEMPLATE: Final = Path(__file__).with_name("report.html.j2")
_SLUG: Final = re.compile(r"[^a-z0-9]+")


def draw(chart: Chart) -> str:
    """A chart as an SVG element whose ink follows the page's text colour."""
    import vl_convert  # noqa: PLC0415  (60 MB of Vega: only who draws loads it)

    try:
        svg: str = vl_convert.vegalite_to_svg(_drawable(chart.spec))
    except ValueError as error:
        raise SojournError(f"the chart {chart.caption!r} cannot be drawn: {error}") from error
    svg = svg.replace(INK, "currentColor").replace(FAINT, "currentColor")
    svg = re.sub(
        r'(<svg [^>]*?)width="(\d+)" height="(\d+)"', r'\1style="max-width:\2px"', svg, count=1
    )
    label = html.escape(printable(chart.caption), quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _drawable(value: Any) -> Any:  # noqa: ANN401  (any tree of JSON)
    """A specification as Vega takes it: no NaN, no control character."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _drawable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_drawable(item) for item in value]
    return value


def anchors(document: Document) -> dict[int, str]:
    """An anchor name for each heading, by its place among the blocks; each name once."""
    names: dict[int, str] = {}
    for place, block in enumerate(document.blocks):
        if isinstance(block, Heading):
            name = _SLUG.sub("-", block.text.lower()).strip("-") or "section"
            names[place] = f"{name}-{place}" if name in names.values() else name
    return names


def to_html(document: Document) -> str:
    """The page. Self-contained: no script, no font, no picture from elsewhere."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = {
        index: draw(block)
        for index, block in enumerate(document.blocks)
        if isinstance(block, Chart)
    }
    return template.render(document=document, drawn=drawn, anchors=anchors(document))
