"""What ends a simulation from outside: a message and an exit code, nothing half written."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tests.scenario.making import small

from sojourn import cli
from sojourn.config import MAX_SEED
from sojourn.plan import simulated


def out_of_memory(*_args, **_more):
    raise MemoryError


def test_memory_that_runs_out_is_said(monkeypatch, capsys, tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(small()))
    monkeypatch.setattr(simulated, "simulate", out_of_memory)
    monkeypatch.setattr(sys, "argv", ["sojourn", "simulate", str(path), "-q"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("sojourn: out of memory")


def test_the_last_seed_is_followed_by_the_first(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(small(seed=MAX_SEED, replications=3)))
    run = [sys.executable, "-m", "sojourn", "simulate", str(path), "-q", "--json"]
    made = subprocess.run(run, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a single process there")
def test_an_interrupt_ends_a_long_run_soon_and_leaves_nothing(tmp_path):
    """Controllers that look up 21,000 times a second for days: minutes of simulation."""
    path = tmp_path / "scenario.yaml"
    step = {"batches": [0], "base_s": [1e-6], "slope_s_per_token": [0], "prefill_s_per_token": 0}
    ladder = {"every_s": 0.001, "rungs": [{"above": 1e9, "below": 0}]}
    raw = small(
        **{"engine.step": step, "ladder": ladder, "replications": 1, "chain": ["call"]},
        **{"workload.duration_s": 500_000, "workload.arrivals.rate_per_s": 0.01},
    )
    raw["workload"]["classes"] = [{"name": "chat", "input_tokens": 9, "output_tokens": 9}]
    scaler = {"target": 1e9, "every_s": 0.001, "most": 1}
    raw["pools"] = {f"p{i}": {**raw["engine"], "autoscaler": scaler} for i in range(20)}
    path.write_text(yaml.safe_dump(raw))
    run = [sys.executable, "-m", "sojourn", "simulate", str(path), "-o", str(tmp_path / "store")]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        time.sleep(8)
        assert process.poll() is None
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert "interrupted" in said
    assert [found.name for found in tmp_path.iterdir()] == ["scenario.yaml"]
