"""`sojourn calibrate`: a saved fit against new telemetry, and its exit codes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.capacity.engine_loop import Loop, calls_table, poisson_load, truth
from typer.testing import CliRunner

from sojourn.capacity.records import Fleet
from sojourn.cli.verbs import app
from sojourn.trace import store
from sojourn.trace.tables import Tables, conform


def folder_of(path, factor=1.0, *, calls=150, seed=0):
    load = poisson_load(4.0, calls, seed=seed)
    table = calls_table(load, Loop(load, truth().scaled(factor), noise=0.03, seed=seed))
    requests = pa.table(
        {
            "request_id": table["request_id"],
            "arrival_s": table["arrival_s"],
            "end_s": table["end_s"],
            "status": pa.array(np.full(table.num_rows, "ok")),
        }
    )
    parts = {"calls": conform("calls", table), "requests": conform("requests", requests)}
    store.save(Tables.of(parts), path)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["calibrate", *arguments, "--quiet"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    base = tmp_path_factory.mktemp("fleet")
    out = base / "fleet.json"
    done = run(folder_of(base / "then"), "-o", str(out))
    assert done.exit_code == 0, done.output
    return out


def test_the_fleet_is_saved_with_its_ranges(saved):
    step = Fleet.load(saved).engine.step
    assert step.spread is not None
    assert step.valid_batch[1] > 1
    assert step.to_narrow


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 3)])
def test_drift_is_told_by_the_exit_code(saved, tmp_path, factor, code):
    done = run(folder_of(tmp_path / "now", factor, seed=3), "--against", str(saved))
    assert done.exit_code == code, done.output
    assert ("has drifted" in done.output) == (code == 3)


def test_too_little_telemetry_is_undecided(saved, tmp_path):
    done = run(folder_of(tmp_path / "now", calls=12), "--against", str(saved))
    assert done.exit_code == 4, done.output


def test_the_saved_fit_is_not_overwritten(saved, tmp_path):
    done = run(folder_of(tmp_path / "now"), "--against", str(saved), "-o", str(saved))
    assert done.exit_code != 0
    assert "lost" in str(done.exception or done.output)
