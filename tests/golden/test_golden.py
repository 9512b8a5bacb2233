"""What a small document looks like, kept word for word: change it on purpose only
(`pytest tests/golden --snapshot-update`)."""

from __future__ import annotations

import json

import pytest
from tests.report.documents import plan, small

from sojourn.report import console, decisions, machine
from sojourn.report.compose import single


@pytest.mark.parametrize("width", [80, 120])
def test_console(snapshot, width):
    assert console.to_text(small(), width) == snapshot


def test_json(snapshot):
    assert json.loads(machine.to_json(small())) == snapshot


def test_csv(snapshot):
    assert machine.to_csv(small()) == snapshot


def test_a_plan_on_a_terminal(snapshot):
    document = single("sojourn plan", decisions.plan(plan()), verdict=("Fix retrieval.", 3))
    assert console.to_text(document, 100) == snapshot
