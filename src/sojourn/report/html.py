"""A `Document` as one HTML page that needs no network: text, tables and drawn charts.

Charts are drawn to SVG here (vl-convert carries Vega), so the page holds no script at all.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final

import jinja2

from sojourn.report.charts import FAINT, INK
from sojourn.report.document import Chart, Document

_TEMPLATE: Final = Path(__file__).with_name("report.html.j2")
_SLUG: Final = re.compile(r"[^a-z0-9]+")


def draw(chart: Chart) -> str:
    """A chart as an SVG element whose ink follows the page's text colour."""
    import vl_convert  # noqa: PLC0415  (60 MB of Vega: only who draws loads it)

    svg: str = vl_convert.vegalite_to_svg(chart.spec)
    svg = svg.replace(INK, "currentColor").replace(FAINT, "currentColor")
    svg = re.sub(
        r'(<svg [^>]*?)width="(\d+)" height="(\d+)"', r'\1style="max-width:\2px"', svg, count=1
    )
    label = html.escape(chart.caption, quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def slug(text: str) -> str:
    """An anchor name from a heading."""
    return _SLUG.sub("-", text.lower()).strip("-")


def to_html(document: Document) -> str:
    """The page. Self-contained: no script, no font, no picture from elsewhere."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = {
        index: draw(block)
        for index, block in enumerate(document.blocks)
        if isinstance(block, Chart)
    }
    return template.render(document=document, drawn=drawn, slug=slug)
