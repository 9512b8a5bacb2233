"""What `sojourn capacity` looks like, kept word for word: change it on purpose only
(`pytest tests/golden --snapshot-update`)."""

from __future__ import annotations

import json

from tests.report.capacity_documents import answer

from sojourn.config import Slo
from sojourn.report import capacity_blocks, console, machine
from sojourn.report.compose import single


def document():
    found = answer()
    return single(
        "sojourn capacity",
        capacity_blocks.answer(found, Slo(e2e_s=2.0)),
        verdict=capacity_blocks.verdict(found),
        data=found.model_dump(mode="json", exclude={"model": {"fleet"}}),
    )


def test_console(snapshot):
    assert console.to_text(document(), 100) == snapshot


def test_csv(snapshot):
    assert machine.to_csv(document()) == snapshot


def test_data_in_json(snapshot):
    """The records a program reads: their names and shapes."""
    assert json.loads(machine.to_json(document()))["data"] == snapshot
