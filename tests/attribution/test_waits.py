"""Retries that only repeat work have it held against them; unknown waits prove nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from sojourn.attribution.breakdown import break_down
from sojourn.attribution.diagnosis import diagnose
from sojourn.cli.options import CONFIG_NAME, load_config
from sojourn.records import Bottleneck
from sojourn.trace.reading import read
from sojourn.workload.buckets import assign
from sojourn.workload.profile import profile

BEFORE = Path(__file__).resolve().parents[2] / "src/sojourn/recordings/incident/before"
QUEUELESS = "lengthen hardly any queue"


def said_of_retries(*, waits_known: bool) -> list[str]:
    config = load_config(BEFORE / CONFIG_NAME, [], None)
    tables = assign(read(BEFORE, config=config), config)
    if not waits_known:
        index = tables.spans.column_names.index("wait_s")
        unknown = pa.nulls(tables.spans.num_rows, pa.float64())
        tables = replace(tables, spans=tables.spans.set_column(index, "wait_s", unknown))
    verdicts = diagnose(break_down(tables, config), profile(tables, config), config).verdicts
    found = next(v for v in verdicts if v.bottleneck is Bottleneck.RETRY_AMPLIFICATION)
    return [fact.statement for fact in found.evidence if not fact.supports]


def test_retries_without_a_queue_have_it_held_against_them() -> None:
    assert any(QUEUELESS in text for text in said_of_retries(waits_known=True))


def test_waits_that_nobody_recorded_prove_nothing() -> None:
    assert not any(QUEUELESS in text for text in said_of_retries(waits_known=False))
