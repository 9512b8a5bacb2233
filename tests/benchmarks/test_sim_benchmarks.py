"""The simulator's benchmarks run on small sizes, and measure what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sim_measure
import sim_peers
import sim_speed
import sim_workloads

from sojourn.sim.lowering import lower
from sojourn.sim.reference.run import reference
from sojourn.sim.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
COUNT = 200


@pytest.fixture
def trace(tmp_path):
    """A trace of three requests: one of its gaps is long."""
    path = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for second, prompt, output in ((0, 10, 1), (1, 20, 2), (5, 30, 3)):
        rows.append(f"2023-11-16 18:15:{second:02}.500000,{prompt},{output}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def options(tmp_path):
    """Small, with the readable engine and without the trace."""
    return sim_speed.Options("reference", COUNT, COUNT, 1, tmp_path / "absent.csv")


def test_tiles_join_without_a_seam(trace):
    made = sim_workloads.azure(9, trace)
    gaps = np.diff(made.arrival_s)
    mean = 2.5
    assert made.arrival_s[0] == 0
    assert sorted(made.prompt[:3]) == sorted(made.prompt[3:6]) == [10, 20, 30]
    assert set(np.round(gaps, 6)) == {1.0, mean, 4.0}
    assert not np.array_equal(made.prompt[:3], made.prompt[3:6])
    pairs = dict(zip(made.prompt.tolist(), made.output.tolist(), strict=True))
    assert pairs == {10: 1, 20: 2, 30: 3}


def test_traffic_at_a_rate_has_that_rate(trace):
    made = sim_workloads.azure(900, trace).at_rate(30.0)
    assert len(made.arrival_s) / made.arrival_s[-1] == pytest.approx(30.0, rel=0.01)


def test_the_stand_in_has_the_moments_of_the_trace_and_says_so(tmp_path):
    made = sim_workloads.azure(200_000, tmp_path / "absent.csv")
    assert "synthetic" in made.source
    gaps = np.diff(made.arrival_s)
    for values, (mean, cv) in (
        (gaps, sim_workloads.GAP_S),
        (made.prompt, sim_workloads.PROMPT),
        (made.output, sim_workloads.OUTPUT),
    ):
        assert values.mean() == pytest.approx(mean, rel=0.02)
        assert values.std() / values.mean() == pytest.approx(cv, rel=0.02)


def test_the_moments_are_those_of_the_trace():
    if not sim_workloads.TRACE.exists():
        pytest.skip("the Azure trace is not beside the checkout")
    made = sim_workloads.azure(19_366)
    assert made.prompt.mean() == pytest.approx(sim_workloads.PROMPT[0], rel=1e-4)
    assert made.output.std() / made.output.mean() == pytest.approx(
        sim_workloads.OUTPUT[1], rel=1e-4
    )
    assert np.diff(made.arrival_s).mean() == pytest.approx(sim_workloads.GAP_S[0], rel=1e-4)


def test_block_hashes_are_those_of_system_prompt_and_session():
    traffic = sim_workloads.poisson(2000, prompt=1000, output=100)
    steps = sim_workloads.chain(traffic, tokens_per_hash=64).stream.steps
    session = sim_workloads.chain(traffic, tokens_per_hash=64).stream.requests["session_id"]
    calls = steps.filter(steps["kind"].to_numpy(zero_copy_only=False) == "call").to_pylist()
    first, second = calls[0]["block_hashes"], calls[1]["block_hashes"]
    assert len(first) == 1100 // 64
    assert second[: len(first)] == first, "the second call begins with all that the first knew"
    shared = sim_workloads.SYSTEM_TOKENS // 64
    of = [int(s) for s in session.to_pylist()]
    for row in range(1, 200):
        other = calls[2 * row]["block_hashes"]
        same_system = (of[row] - of[0]) % sim_workloads.SYSTEM_PROMPTS == 0
        assert (other[:shared] == first[:shared]) == same_system
        assert (other[shared:] == first[shared:]) == (of[row] == of[0])


def test_saturation_is_that_of_one_slot_at_a_time():
    """One slot: 30 ms for the prompt's step, 10 ms for each further token."""
    traffic = sim_workloads.poisson(400, prompt=50, output=21)
    engine = sim_workloads.h100(traffic, step=sim_peers.fixed_steps(), max_num_seqs=1)
    found = sim_measure.saturation_per_s(sim_workloads.plain(traffic, engine=engine), reference)
    assert found == pytest.approx(1 / (0.03 + 20 * 0.01), rel=1e-6)


def test_bytes_of_arrays_are_counted_through_records():
    lowered = lower(sim_workloads.plain(sim_workloads.poisson(100, prompt=10, output=5)))
    own = sum(getattr(lowered.requests, n).nbytes for n in lowered.requests.__dataclass_fields__)
    assert sim_measure.nbytes(lowered.requests) == own
    tables = sum(lowered.pools[0].__dict__[n].nbytes for n in ("base", "slope", "prompt"))
    assert sim_measure.nbytes(lowered) > own + tables


@pytest.mark.parametrize("section", ["plain", "chain", "load"])
def test_a_section_gives_figures(section, options):
    found = list(sim_speed.SECTIONS[section](options))
    assert all(np.isfinite(f.value) and f.value >= 0 for f in found)
    bars = [f for f in found if f.bar is not None]
    assert bars
    for figure in bars:
        expected = figure.value / figure.bar
        assert figure.ratio == pytest.approx(expected) or figure.ratio == pytest.approx(
            1 / expected
        )
        assert ("MISSED" in figure.line) == (figure.ratio < 1)


def test_the_chain_has_retries_hits_and_priorities(options):
    scenario = sim_speed.chain_scenario(options, COUNT, 64)
    log = reference(lower(scenario))
    assert log.ends["attempts"].max() > 1
    assert log.calls["cached"].sum() > 0
    assert set(scenario.stream.requests["priority"].to_pylist()) == {0, 1, 2}
    assert set(np.unique(log.calls["replica"])) == set(range(8))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_fresh_processes_measure_memory_and_first_use(options):
    memory = {f.what: f.value for f in sim_speed.memory(options)}
    assert memory["plain: output arrays"] > 0
    first = {f.what: f.value for f in sim_speed.compile_time(options)}
    assert first["empty cache, first plain run"] > 0


@pytest.mark.slow
def test_twins_agree(tmp_path):
    options = sim_speed.Options("kernel", COUNT, COUNT, 1, tmp_path / "absent.csv")
    found = list(sim_speed.twins(options))
    assert sum("logs equal" in f.what for f in found) == 2


def test_waits_of_a_single_server_are_lindleys():
    """W(n+1) = max(0, W(n) + S(n) - A(n)). Source: Lindley 1952."""
    rng = np.random.default_rng(3)
    arrival, service = np.cumsum(rng.exponential(1.0, 300)), rng.exponential(0.8, (300, 1))
    waits = [0.0]
    for n in range(299):
        waits.append(max(0.0, waits[-1] + service[n, 0] - (arrival[n + 1] - arrival[n])))
    log = reference(lower(sim_workloads.queue(arrival, service, [1])))
    assert sim_peers._waits_s(log, 1)[0] == pytest.approx(np.mean(waits), abs=1e-9)


def test_a_trace_for_the_peer_shares_no_blocks(tmp_path):
    traffic = sim_workloads.poisson(5, prompt=1000, output=7)
    sim_peers.write_trace(tmp_path / "t.jsonl", traffic)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["timestamp"] for row in rows] == pytest.approx(traffic.arrival_s * 1000)
    ids = [i for row in rows for i in row["hash_ids"]]
    assert len(ids) == len(set(ids)) == 5 * 2


def test_a_peer_that_fails_is_a_figure_that_says_so(tmp_path):
    options = sim_peers.Options(
        "reference", 20, 20, 1, tmp_path / "absent.csv", tmp_path / "python"
    )
    found = list(sim_peers.figures(["simpy"], options))
    assert [f.value for f in found] == [None]
    assert "could not be run" in found[0].line


def test_missing_peers_are_named_with_the_way_to_get_them(tmp_path):
    script = str(ROOT / "benchmarks" / "sim_peers.py")
    done = subprocess.run(
        [sys.executable, script, "--folder", str(tmp_path / "none")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--install --folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_prints_json(tmp_path):
    script = str(ROOT / "benchmarks" / "sim_speed.py")
    done = subprocess.run(
        [
            sys.executable, script, "--engine", "reference", "--section", "plain", "--json",
            "--requests", "50", "--repeat", "1", "--trace", str(tmp_path / "absent.csv"),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures[0]["what"] == "engine, best"
    assert "synthetic" in done.stderr


def test_a_queue_scenario_is_one_visit_a_station():
    scenario = sim_workloads.queue(np.arange(3.0), np.ones((3, 2)), [1, None])
    assert isinstance(scenario, Scenario)
    assert scenario.stream.steps.num_rows == 6
