"""Which source tells the step times of hardware that was not recorded."""

import pytest

from sojourn.capacity import catalogue, roofline, silicon, step_sources
from sojourn.config import Deployment
from sojourn.interval import Excuse

MODEL, GPU = catalogue.model("Llama-3.1-8B"), catalogue.gpu("H100")


def test_tables_win_where_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = roofline.step_model(MODEL, GPU, Deployment()).model_copy(update={"source": "tables"})
    monkeypatch.setattr(silicon, "step_model", lambda *_, **__: tables)
    assert step_sources.step_model(MODEL, GPU, Deployment()) is tables


def test_else_the_roofline_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon, "step_model", lambda *_, **__: Excuse(reason="no tables of it"))
    told = step_sources.step_model(MODEL, GPU, Deployment(), mean_context=500.0)
    plain = roofline.step_model(MODEL, GPU, Deployment(), mean_context=500.0)
    assert told.base_s == plain.base_s
    assert told.source == f"{plain.source} (no tables of it)"


def test_a_long_reason_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon, "step_model", lambda *_, **__: Excuse(reason="x" * 500))
    told = step_sources.step_model(MODEL, GPU, Deployment())
    assert told.source.endswith("...)")
    assert len(told.source) < 450


def test_a_card_without_tables_is_told_by_the_roofline() -> None:
    told = step_sources.step_model(MODEL, catalogue.gpu("MI300X"), Deployment())
    assert told.source.startswith("roofline")
