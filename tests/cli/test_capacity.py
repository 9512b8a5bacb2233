"""`sojourn capacity` from telemetry to exit code, and what it says of wrong calls."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from tests.plan.test_settling import tutorial
from typer.testing import CliRunner

from sojourn.cli.verbs import app
from sojourn.errors import UsageError
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.trace import store

ENGINE = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "kv_blocks": 100_000}
SLO = {"default": {"percentile": 0.99, "ttft_s": 1.0}}


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    """What more seeds and longer runs tell is told elsewhere; here they would take minutes."""
    monkeypatch.setattr("sojourn.plan.sustained.RATE_SEEDS", 2)
    monkeypatch.setattr("sojourn.plan.settling.LENGTHS", (8_000, 32_000))


@pytest.fixture(scope="module")
def place(tmp_path_factory, build):
    """Recordings of one simulated engine: calm, over its capacity, and without an SLO."""
    folder = tmp_path_factory.mktemp("capacity")
    for name, load, slo in (("calm", 0.5, SLO), ("over", 1.04, SLO), ("free", 0.5, {})):
        stream, fleet = varied(build, load)
        store.save(simulate(Scenario(stream, fleet, 0)).tables, folder / name)
        told = {"slo": slo, "deployment": ENGINE, "analysis": {"replications": 2}}
        (folder / name / "sojourn.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def build():
    from tests.plan import conftest

    class Builders:
        call = staticmethod(conftest.call)
        stream = staticmethod(conftest.make_stream)
        engine = staticmethod(conftest.make_engine)

    return Builders


def varied(build, load):
    """The tutorial's engine; prompts differ, so that a fit can tell their cost."""
    stream, fleet = tutorial(build, load, 1_000)
    rng = np.random.default_rng(1)
    arrivals = stream.requests.column("arrival_s").to_pylist()
    rows = [
        (t, "short_chat", [build.call(int(p), 200)])
        for t, p in zip(arrivals, rng.integers(60, 141, len(arrivals)), strict=True)
    ]
    return build.stream(rows), fleet


def capacity(*arguments):
    result = CliRunner().invoke(app, ["capacity", *(str(a) for a in arguments)])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def test_a_recording_that_ends_before_its_queue_shows_is_no_capacity(place):
    """1,000 requests within their target, on a fleet 4% over its capacity: 3, not 0."""
    result = capacity(place / "over")
    assert result.exit_code == 3
    assert "GROWS" in result.stdout
    assert "only because it ends" in " ".join(result.stdout.split())
    assert result.stderr.startswith("Closed form: ")


def test_a_calm_fleet_holds_and_its_json_is_complete(place):
    result = capacity(place / "calm", "--json", "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["exit_code"] == 0
    data = found["data"]
    assert set(data) == {
        "capacity", "holding", "sustained", "flags", "replicas", "traps", "warnings",
    }  # fmt: skip
    held = data["holding"]
    assert held["load_factor"]["low"] > 1.2
    assert held["settled"]["trend"] == "stable"
    assert held["replications"] == 2
    assert len(held["points"]) >= 10
    offered = [p["offered_per_s"] for p in held["points"]]
    assert offered == sorted(offered)
    assert data["sustained"]["settled"]["requests"] >= 8_000
    assert data["flags"] == []
    assert data["replicas"] is None


def test_flags_are_moved_where_they_are_asked_for(place):
    result = capacity(place / "calm", "--json", "--quiet", "--flags")
    moves = json.loads(result.stdout)["data"]["flags"]
    assert {m["flag"] for m in moves} >= {
        "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_dtype",
        "tensor_parallel x replicas", "prefix cache", "chunk size cap",
    }  # fmt: skip
    excused = [m for m in moves if "reason" in m["change"]]
    assert any("deployment.model" in str(m["change"]["collect"]) for m in excused)


def test_without_an_slo_it_says_what_to_set(place):
    result = capacity(place / "free", "--quiet")
    assert result.exit_code == 4
    assert "set `slo` in sojourn.yaml" in " ".join(result.stdout.split())
    assert "batch slots" in result.stdout


def test_a_target_without_hardware_says_what_to_set(place):
    result = capacity(place / "calm", "--quiet", "--target-rate", "60/min")
    said = " ".join(result.stdout.split())
    assert "deployment.model and deployment.accelerator" in said


def test_a_target_sixty_times_todays_is_doubted(place):
    data = json.loads(capacity(place / "calm", "--json", "--quiet").stdout)["data"]
    offered = next(p for p in data["holding"]["points"] if p["load_factor"] == 1.0)
    rate = 60 * offered["offered_per_s"]
    result = capacity(place / "calm", "--quiet", "--target-rate", f"{rate:.4g}")
    said = " ".join(result.stdout.split())
    assert "If it is per minute" in said
    assert "without a unit" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target-rate", "0/s"), "above 0"),
        (("--target-rate", "-2/s"), "above 0"),
        (("--target-rate", "soon"), "no rate"),
        (("--target-rate", "1e30/s"), "more than any fleet"),
        (("--target-rate", "2/s", "--gpu", "H1000"), "no accelerator 'H1000'"),
        (("--gpu", "H100-SXM"), "with --target-rate"),
    ],
)
def test_wrong_calls_are_told_before_any_work(place, arguments, words):
    with pytest.raises(UsageError, match=words):
        capacity(place / "calm", *arguments)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"model": "nonsense-9B", "accelerator": "H100-SXM"}, "no model 'nonsense-9B'"),
        ({"model": "Llama-3.1-8B", "accelerator": "H1000"}, "no accelerator 'H1000'"),
    ],
)
def test_hardware_nobody_knows_is_told_with_what_is_near(place, tmp_path, named, words):
    settings = tmp_path / "sojourn.yaml"
    settings.write_text(yaml.safe_dump({"slo": SLO, "deployment": ENGINE | named}), "utf-8")
    with pytest.raises(UsageError, match=words):
        capacity(place / "calm", "--quiet", "-c", settings)


def test_the_page_draws_the_knee(place, tmp_path):
    page = tmp_path / "capacity.html"
    assert capacity(place / "calm", "--quiet", "-o", page).exit_code == 0
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") >= 3
    assert "holds to here" in html


def test_tables_without_model_calls_have_no_engine_to_speak_of(place, tmp_path, build):
    from tests.verify.pairs import window

    store.save(window(300, calls=False, spans=False), tmp_path / "bare")
    told = yaml.safe_dump({"slo": {"default": {"e2e_s": 9.0}}})
    (tmp_path / "bare" / "sojourn.yaml").write_text(told, encoding="utf-8")
    result = capacity(tmp_path / "bare", "--quiet")
    assert result.exit_code == 4
    assert "To decide" in result.stdout
