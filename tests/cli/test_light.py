"""Light to start: heavy libraries are loaded by the verbs that need them, not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numba", "duckdb", "ibis", "altair", "pyarrow", "scipy", "vl_convert", "numpy")


@pytest.mark.parametrize("what", ["import sojourn", "import sojourn.cli.verbs"])
def test_nothing_heavy_is_imported(what: str) -> None:
    code = f"import sys; {what}; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert result.stdout.strip() == "[]"


def test_public_names_resolve() -> None:
    import sojourn

    assert len(sojourn.__all__) <= 20
    for name in sojourn.__all__:
        assert getattr(sojourn, name) is not None
