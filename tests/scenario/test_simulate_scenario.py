"""`sojourn simulate` on scenario files: outcome, verdict, exit code, the examples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.scenario.making import small
from typer.testing import CliRunner

from sojourn.cli.verbs import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))
QUICK = {
    "workload.arrivals": {"process": "constant", "rate_per_s": 10},
    "workload.duration_s": 60,
    "workload.classes": [{"name": "chat", "input_tokens": 100, "output_tokens": 20}],
    "chain": ["gateway", "call"],
    "stations": {"gateway": {"servers": 1, "service_s": 0.01}},
}


def simulate(folder: Path, raw: dict, *options: str):
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return CliRunner().invoke(app, ["simulate", str(path), *options])


def told(result) -> dict:
    return json.loads(result.stdout)


def test_the_json_output_is_as_it_was(snapshot, tmp_path: Path) -> None:
    """A deterministic scenario: every figure can be reckoned by hand. A call takes its prompt's
    step of 0.01 + 100 x 2e-5 - the decode's share - and 19 decodes."""
    result = simulate(tmp_path, small(**QUICK), "--json", "--engine", "reference")
    assert result.exit_code == 0, result.output
    assert told(result) == snapshot


def test_a_seed_gives_the_same_bytes_and_another_other_ones(tmp_path: Path) -> None:
    first = simulate(tmp_path, small(), "--json", "--seed", "4")
    again = simulate(tmp_path, small(), "--json", "--seed", "4")
    other = simulate(tmp_path, small(), "--json", "--seed", "5")
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout


def test_both_engines_say_the_same(tmp_path: Path) -> None:
    runs = [
        told(simulate(tmp_path, small(), "--json", "--engine", e)) for e in ("kernel", "reference")
    ]
    for run in runs:
        assert run["data"]["simulated"].pop("engine") in ("kernel", "reference")
    assert runs[0]["data"] == runs[1]["data"]


def test_an_unstable_system_is_told_with_its_growth_and_without_latencies(tmp_path: Path) -> None:
    raw = small(
        **QUICK | {
            "stations": {"gateway": {"servers": 1, "service_s": 0.2}}, "workload.duration_s": 120,
        }
    )  # fmt: skip
    result = simulate(tmp_path, raw, "--json")
    assert result.exit_code == 3
    document = told(result)
    assert document["verdict"].startswith("UNSTABLE")
    assert "Saturated: gateway" in document["verdict"]
    record = document["data"]["simulated"]
    assert record["unstable"]
    # ten arrive a second, five are served
    growth = [item["growth_per_s"]["mid"] for item in record["stability"]]
    assert growth == pytest.approx([5.0] * 2, rel=0.03)
    assert all(not bucket["e2e_s"] for bucket in record["buckets"])
    assert not record["tails"]
    assert "E2E" not in simulate(tmp_path, raw).stdout


def test_an_slo_decides_the_exit_code(tmp_path: Path) -> None:
    met, missed = ({"slo": {"default": {"e2e_s": limit}}} for limit in (5.0, 0.1))
    assert simulate(tmp_path, small(**QUICK, **met)).exit_code == 0
    assert simulate(tmp_path, small(**QUICK, **missed)).exit_code == 3


def test_a_station_that_is_given_up_stays_at_work(tmp_path: Path) -> None:
    """Attempts end after 0.1 s of 0.5 s of work: the server is held for the whole of it."""
    change = {
        "stations": {"gateway": {"servers": 8, "service_s": 0.5}}, "retry.attempt_timeout_s": 0.1,
    }  # fmt: skip
    record = told(simulate(tmp_path, small(**QUICK | change), "--json"))["data"]["simulated"]
    gateway = next(item for item in record["resources"] if item["name"] == "gateway")
    assert gateway["busy"] == pytest.approx(10 * 0.5 / 8, rel=0.03)
    assert record["buckets"][0]["failed_share"]["mid"] == 1


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    record = told(simulate(tmp_path, small(**QUICK, warm_up_s=30), "--json"))["data"]["simulated"]
    assert record["buckets"][0]["requests"] == pytest.approx(300, abs=2)
    assert record["counts"]["arrived"] == record["counts"]["ok"] == 2 * 599


def test_a_store_or_a_report_is_kept(tmp_path: Path) -> None:
    assert simulate(tmp_path, small(**QUICK), "-o", str(tmp_path / "store")).exit_code == 0
    profile = CliRunner().invoke(app, ["profile", str(tmp_path / "store"), "--json"])
    assert profile.exit_code == 0
    assert json.loads(profile.stdout)["data"]["profile"]["arrivals"]["requests"] == 599
    page = tmp_path / "report.html"
    assert simulate(tmp_path, small(**QUICK), "-o", str(page)).exit_code == 0
    assert "Outcome" in page.read_text(encoding="utf-8")


def test_a_trace_is_replayed_through_a_chain(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:{s:02d}.5000000,374,44\n" for s in range(40))
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (tmp_path / "trace.csv").write_text(header + rows, encoding="utf-8")
    raw = small(**QUICK | {"workload": {"replay": "trace.csv", "load": 3.0}, "replications": 1})
    result = simulate(tmp_path, raw, "--json")
    assert result.exit_code == 0, result.output
    record = told(result)["data"]["simulated"]
    assert record["counts"]["ok"] == 120
    assert [item["visits"] for item in record["resources"]] == [120, 120]


def test_a_recording_is_replayed_with_the_fleet_fitted_to_it(tmp_path: Path) -> None:
    before = ROOT / "src" / "sojourn" / "recordings" / "incident" / "before"
    (tmp_path / "scenario.yaml").write_text(
        yaml.safe_dump({"workload": {"replay": str(before)}, "replications": 1}), encoding="utf-8"
    )
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "scenario.yaml"), "--json"])
    assert result.exit_code in (0, 3), result.output
    assert told(result)["data"]["simulated"]["counts"]["arrived"] > 100


def test_a_replay_has_the_settings_beside_its_recording(tmp_path: Path) -> None:
    """Its time limit of 60 s: without it this overload would pile up and nothing would fail."""
    before = ROOT / "src" / "sojourn" / "recordings" / "saturated" / "before"
    file = tmp_path / "scenario.yaml"
    raw = {"workload": {"replay": str(before), "load": 4}, "replications": 1}
    file.write_text(yaml.safe_dump(raw), encoding="utf-8")
    scenario, telemetry = (
        told(CliRunner().invoke(app, ["simulate", *arguments, "--json"]))["data"]
        for arguments in ([str(file)], [str(before), "--load", "4"])
    )
    assert scenario["simulated"]["counts"] == telemetry["counts"]
    assert telemetry["counts"]["timeout"] > 1000


def test_recorded_requests_that_pile_up_are_called_unstable(tmp_path: Path) -> None:
    """A trace without a time limit, at a hundred times its load on a small GPU."""
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "".join(
        f"2023-11-16 18:{15 + s // 60}:{s % 60:02d}.5000000,3740,440\n" for s in range(600)
    )
    (tmp_path / "trace.csv").write_text(header + rows, encoding="utf-8")
    settings = {"deployment": {"model": "Llama-3.1-8B", "accelerator": "L4", "replicas": 1}}
    (tmp_path / "sojourn.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    one, hundred = (
        CliRunner().invoke(app, ["simulate", str(tmp_path / "trace.csv"), "--load", load, "--json"])
        for load in ("0.05", "100")
    )
    assert one.exit_code == 0, one.output
    assert hundred.exit_code == 3, hundred.output
    assert "UNSTABLE" in told(hundred)["verdict"]
    assert told(hundred)["data"]["stability"]["growth_per_s"]["low"] > 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run_and_tell_their_story(path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(path), "--replications", "1", "--json"])
    document = told(result)
    record = document["data"]["simulated"]
    assert record["counts"]["in_flight"] == 0
    match path.stem:
        case "chain":
            assert result.exit_code == 3
            tail = next(
                t for t in record["tails"] if t["bucket"] == "all" and t["percentile"] == 0.99
            )
            engine = sum(tail["stages"].get(s, 0) for s in ("queue", "prefill", "decode"))
            assert engine < 0.5 * tail["e2e_s"]["mid"]
        case "disaggregated":
            assert {r["name"] for r in record["resources"]} == {"default", "prompts"}
            assert all(r["visits"] for r in record["resources"])
        case "autoscaled":
            assert record["change_counts"]["starting"] >= 1
            assert record["change_counts"]["level"] >= 1
        case "metastable":
            assert "does not recover" in document["verdict"]
        case other:
            pytest.fail(f"examples/scenarios/{other}.yaml: say here what it shows")


def test_the_how_to_page_shows_a_scenario_that_can_be_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "simulate.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    raw = yaml.safe_load(shown) | {"replications": 1}
    assert simulate(tmp_path, raw).exit_code in (0, 3, 4)


def test_the_schema_is_published() -> None:
    result = CliRunner().invoke(app, ["schema", "scenario"])
    assert result.exit_code == 0
    assert {"workload", "engine", "chain"} <= set(json.loads(result.stdout)["properties"])
