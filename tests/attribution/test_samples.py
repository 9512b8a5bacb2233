"""A constructed OTLP recording of a RAG chain before vLLM: read, split, and judged too thin."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from attribution_scenes import profile

from sojourn.attribution.breakdown import break_down
from sojourn.attribution.decompose import decompose, stage_matrix
from sojourn.attribution.diagnosis import diagnose
from sojourn.config import Config
from sojourn.records import Bottleneck

SAMPLE = (
    Path(__file__).resolve().parents[2].parent
    / "shared/data/samples/_constructed/otlp_rag_vllm.jsonl"
)


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the shared samples are not beside the checkout")
@pytest.mark.skipif(
    find_spec("sojourn.trace.reading") is None, reason="the trace reader is not there yet"
)
def test_an_otlp_recording_is_split_over_its_stages():
    from sojourn.trace.reading import read

    tables = read(SAMPLE)
    table = decompose(tables)
    total = table["total_s"].to_numpy()
    assert stage_matrix(table).sum(axis=1) == pytest.approx(total, abs=1e-6)
    made = break_down(tables, Config())
    means = made.mean_stages["all"]
    for stage in ("retrieval", "rerank", "tool", "queue", "prefill", "decode"):
        assert means[stage] > 0
    assert means["unexplained"] < 0.1 * sum(means.values())
    found = diagnose(made, profile(), Config())
    assert found.top.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE
    assert found.excuse is not None
