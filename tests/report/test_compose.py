"""Records to documents: full findings, and findings in which a part could not be had."""

from __future__ import annotations

import pytest
from tests.plan.conftest import make_engine
from tests.report.documents import (
    HOSTILE,
    breakdown,
    findings,
    outcome,
    plan,
    unknown,
)
from tests.verify.pairs import config, window

from sojourn.capacity.records import CapacityModel
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.loop import look
from sojourn.plan.slo import judge
from sojourn.report import answers, charts, compose, console, decisions, html, machine, pages
from sojourn.report.document import Chart, Document, Heading, TableBlock
from sojourn.trace.tables import Quality
from sojourn.verify.acceptance import accept
from sojourn.verify.records import Figure, Finding
from sojourn.workload.buckets import assign

EXCUSE = Excuse(reason="No step times are known", collect=("deployment.model",))


@pytest.fixture(scope="module")
def tables():
    return assign(window(120, seed=1), config())


@pytest.fixture(scope="module")
def acceptance():
    return accept(window(200, seed=1), window(200, seed=2, scale=0.5), config())


def capacity_model(resources=()):
    fleet = {"engine": make_engine()}
    return CapacityModel(fleet=fleet, resources=resources, engine_wait_s=EXCUSE)


def faces(document):
    """All faces; what the terminal shows."""
    assert "<script" not in html.to_html(document)
    assert Document.model_validate_json(machine.to_json(document)).verdict == document.verdict
    machine.to_csv(document)
    return console.to_text(document, 80)


def test_a_full_report_answers_three_questions_and_the_fourth(tables, acceptance):
    item = findings(tables, config(), acceptance=acceptance, capacity=capacity_model())
    document = compose.report([item], "sojourn report")
    text = faces(document)
    for part in ("Where does the time go?", "How long does it hold?", "What to fix first?"):
        assert part in text
    assert "Did the change work?" in text
    assert document.exit_code == 3  # holds to 0.8 of today's load
    assert "More retrieval workers" in document.verdict
    assert "not recommended" in document.verdict
    assert set(document.data["kb"]) >= {"profile", "breakdown", "diagnosis", "plan", "acceptance"}
    assert "templates" not in str(document.data["kb"]["profile"])


def test_two_recordings_are_told_apart(tables):
    pair = [findings(tables, config(), name) for name in ("incident", "saturated")]
    document = compose.report(pair, "both")
    headings = [block.text for block in document.blocks if isinstance(block, Heading)]
    assert "incident: Where the time goes" in headings
    assert "saturated: Where the time goes" in headings
    assert document.verdict.startswith("incident: ")


def test_a_hostile_name_reaches_no_face_as_markup(tables):
    faces(compose.report([findings(tables, config(), HOSTILE)], HOSTILE))


def test_findings_of_nothing_are_a_document_all_the_same(tables):
    where, diagnosis = unknown()
    item = findings(
        tables,
        Config(),
        breakdown=where,
        diagnosis=diagnosis,
        capacity=EXCUSE,
        plan=EXCUSE,
        quality=Quality(),
    )
    document = compose.report([item], "thin")
    text = faces(document)
    assert document.exit_code == 4
    assert "No spans were recorded" in document.verdict
    assert "No step times are known" in text


def test_a_plan_without_actions_or_holding_is_written(tables):
    bare = plan().model_copy(update={"ranked": (), "refused": (), "holding": EXCUSE})
    text = faces(compose.report([findings(tables, config(), plan=bare)], "bare"))
    assert "No action is called for" in text
    unmeasured = outcome(e2e_s={}, attainment={}, usd_per_success=None)
    empty = bare.model_copy(update={"baseline": unmeasured, "measured": unmeasured})
    faces(compose.single("plan", decisions.plan(empty), verdict=("v", 0)))


def test_what_one_request_shows_is_written():
    one = look(window(1, seed=1), config())
    blocks = [*pages.profile(one.profile), *pages.attribution(one.breakdown, one.diagnosis)]
    faces(compose.single("one", blocks, verdict=answers.attributed(one.breakdown, one.diagnosis)))


def test_every_chart_can_be_drawn(tables, acceptance):
    item = findings(tables, config(), acceptance=acceptance)
    record = plan()
    resource = {
        "name": "retrieval kb",
        "bottleneck": "retrieval",
        "capacity_per_s": Interval.exact(2.0),
        "mean_load": 0.7,
        "peak_load": 1.2,
        "headroom": -0.2,
        "scale_by": "workers",
        "provenance": "fitted",
    }
    specs = {
        "stages": charts.stage_bars(breakdown()),
        "arrivals": charts.arrivals(item.profile),
        "concentration": charts.concentration(item.profile.concentration),
        "knee": charts.knee(record.holding, 9.0),
        "knee without target": charts.knee(record.holding, None),
        "headroom": charts.headroom(capacity_model((resource,))),
        "actions": charts.actions(record),
        "before and after": charts.before_after(acceptance),
    }
    assert item.profile.concentration
    for name, spec in specs.items():
        svg = html.draw(Chart(caption=name, spec=spec))
        assert svg.count("<path") > 2, name
        assert charts.INK not in svg
        assert charts.FAINT not in svg


def test_a_stage_has_one_colour_each():
    assert len(set(charts.PALETTE.values())) == len(charts.PALETTE)
    from sojourn.records import Stage

    assert set(charts.PALETTE) == {stage.value for stage in Stage}


def test_the_eight_answers_are_written_with_points_and_findings(acceptance):
    blocks = decisions.acceptance(acceptance)
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    assert [text.split(".")[0] for text in headings[:8]] == [str(n) for n in range(1, 9)]
    rows = [row for block in blocks if isinstance(block, TableBlock) for row in block.rows]
    by_name = {row[0]: row for row in rows}
    assert by_name["task success"][3] == "+0.0 points"
    assert by_name["peak load"][4] == "–"  # shown, not judged
    assert by_name["end to end P95"][4] == "better"


def test_a_figure_without_sides_is_a_dash():
    nothing = Figure(name="x", unit="s", before=None, after=None, finding=Finding.UNKNOWN)
    table = decisions._figures((nothing,))
    assert table.rows == (("x", "–", "–", "–", "unknown"),)


@pytest.mark.parametrize(
    ("made", "slo", "code"),
    [
        ({"n": 900, "scale": 0.3}, {"e2e_s": 9.0, "percentile": 0.95}, 0),
        ({"n": 900, "scale": 2.0}, {"e2e_s": 9.0, "percentile": 0.95}, 3),
        ({"n": 12, "scale": 0.3}, {"e2e_s": 9.0, "percentile": 0.95}, 4),
        ({"n": 900, "scale": 0.3}, None, 4),
        # errors within the share that may miss, yet over the share that may fail
        ({"n": 900, "errors": 0.06}, {"percentile": 0.8, "max_error_share": 0.01}, 3),
        # nothing but ends is recorded, and the target is of first tokens
        ({"n": 900, "calls": False}, {"ttft_s": 3.0, "percentile": 0.95}, 4),
    ],
    ids=["met", "missed", "few", "no slo", "errors", "not measured"],
)
def test_check_has_one_sentence_and_one_code(made, slo, code):
    settings = config(slo={} if slo is None else {"default": slo})
    judged = judge(assign(window(seed=3, **made), settings), settings)
    sentence, found = answers.checked(judged, settings)
    assert found == code, sentence
    assert sentence.endswith(".")


def test_exit_codes_of_a_change(acceptance):
    for accepted, code in ((True, 0), (False, 3), (None, 4)):
        record = acceptance.model_copy(update={"accepted": accepted})
        assert answers.acceptance_verdict(record) == (acceptance.reason, code)


def test_holding_below_today_is_a_miss():
    held = plan().holding
    assert answers.held(held)[1] == 3
    enough = held.model_copy(update={"load_factor": Interval.exact(1.4)})
    assert answers.held(enough)[1] == 0
    assert answers.held(EXCUSE) == (str(EXCUSE), 4)
