"""A recorded engine run is read whole, or it is said what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sojourn
from sojourn.errors import InputError
from sojourn.trace.engine_recording import read

BASE = Path(sojourn.__file__).parent / "recordings" / "engine" / "base"


@pytest.fixture
def folder(tmp_path):
    for name in ("recording.yaml", "steps.parquet", "requests.parquet", "events.parquet"):
        shutil.copy(BASE / name, tmp_path / name)
    return tmp_path


def test_a_run_is_read(folder):
    run = read(folder)
    assert run.facts["run"] == "base"
    assert run.requests.num_rows == run.facts["counts"]["requests"]
    assert run.steps.num_rows == run.facts["counts"]["steps"]


@pytest.mark.parametrize("name", ["recording.yaml", "events.parquet"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=name):
        read(folder)


def test_a_missing_column_is_named(folder):
    table = pq.read_table(folder / "steps.parquet").drop_columns(["context_pairs"])
    pq.write_table(table, folder / "steps.parquet")
    with pytest.raises(InputError, match="context_pairs"):
        read(folder)


def test_what_is_no_parquet_and_no_mapping_is_said(folder):
    (folder / "steps.parquet").write_text("no", encoding="utf-8")
    with pytest.raises(InputError, match="Parquet"):
        read(folder)
    (folder / "recording.yaml").write_text("- 1", encoding="utf-8")
    with pytest.raises(InputError, match="mapping"):
        read(folder)
