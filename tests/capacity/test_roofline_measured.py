"""The roofline on published measurements that lie beside the checkout: errors as printed by
`benchmarks/fit_roofline.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from sojourn.capacity.roofline_constants import CONSTANTS

ROOT = Path(__file__).resolve().parents[2]
GROUND_TRUTH = ROOT.parent / "shared" / "data" / "ground_truth"
pytestmark = pytest.mark.skipif(
    not GROUND_TRUTH.is_dir(), reason="measured rows lie beside the checkout only"
)


@pytest.fixture(scope="module")
def bench():
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(
            "fit_roofline", ROOT / "benchmarks" / "fit_roofline.py"
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


@pytest.fixture(scope="module")
def scored(bench):
    rows, _ = bench.load(GROUND_TRUTH)
    return rows, np.exp(bench.ratios(rows, CONSTANTS, bench.factors(rows, CONSTANTS))) - 1


@pytest.mark.parametrize(
    ("kinds", "rows_at_least", "bar"), [(("itl", "tpot"), 1500, 0.12), (("ttft",), 200, 0.30)]
)
def test_median_error_on_measured_rows(scored, kinds, rows_at_least, bar):
    rows, error = scored
    own = np.array([r.kind in kinds for r in rows])
    assert own.sum() >= rows_at_least
    assert np.median(np.abs(error[own])) <= bar
