"""`sojourn demo`: both recordings round the loop, opposite repairs, one page that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from sojourn.cli.verbs import app

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_ends_with_two_opposite_verdicts_and_a_page(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["demo", "--quiet", "--json", "-o", str(page)])
    assert result.exit_code == 0, result.output[-2000:]
    document = json.loads(result.stdout)
    assert set(document["data"]) == {"incident", "saturated"}
    assert "incident: the bottleneck is" in document["verdict"]
    incident, saturated = document["verdict"].split("saturated:")
    assert "not recommended" in incident
    assert "not recommended" not in saturated
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert not re.search(r"(src|href)=\"https?:", html)
    for question in ("Where the time goes", "How long it holds", "What to fix first"):
        assert html.count(question) >= 2


def test_engine_logs_alone_are_thin_evidence_and_no_error() -> None:
    log = ROOT / "examples" / "incident" / "logs" / "saturated-before.log.gz"
    result = CliRunner().invoke(app, ["attribute", "--json", str(log)])
    assert result.exit_code == 4
    document = json.loads(result.stdout)
    assert document["data"]["diagnosis"]["verdicts"][0]["bottleneck"] == "insufficient_evidence"
    assert document["data"]["breakdown"]["engine"]["running_max"] == 12
    assert "OpenTelemetry" in document["verdict"]
