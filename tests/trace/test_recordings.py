"""The packaged recordings: what is read is what the recorder counted while it recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import sojourn
from sojourn.trace.reading import read

PACKAGED = Path(sojourn.__file__).parent / "recordings"
RECORDINGS = sorted(PACKAGED.glob("**/recording.yaml"))


@pytest.mark.skipif(not RECORDINGS, reason="no recording is packaged yet")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: "/".join(p.parts[-3:-1]))
def test_counts_are_the_recorders_own(path):
    said = yaml.safe_load(path.read_text())["counts"]
    tables = read(path.parent)
    requests, spans = tables.requests.to_pandas(), tables.spans.to_pandas()
    failed = requests[requests.status != "ok"].status.value_counts().to_dict()
    assert len(requests) == said["requests"]
    assert failed == said["failed"]
    assert requests.attempts.sum() == said["attempts"]
    assert tables.counts()["calls"] == said["model_calls"]
    assert (spans.name == "llm_request").sum() == said["engine_spans"]
    recorded = ~spans.span_id.str.contains(".", regex=False)
    assert recorded.sum() == said["spans"]
    assert tables.quality.read == tables.quality.kept + tables.quality.dropped
    assert set(tables.calls.column("replica").to_pylist()) == set(
        tables.engine_samples.column("replica").to_pylist()
    )
    engines = spans[spans.name == "llm_request"].set_index("span_id")
    parts = spans[spans.parent.isin(engines.index)]
    covered = (parts.end_s - parts.start_s).groupby(parts.parent).sum()
    gap = (engines.end_s - engines.start_s) - covered.reindex(engines.index).fillna(0.0)
    assert np.abs(gap).max() < 1e-6
