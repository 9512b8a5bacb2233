"""Verbs on small stores: what goes to stdout, to stderr, to a file, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.report.documents import small
from tests.verify.pairs import SLO, window

from sojourn.cli import options
from sojourn.errors import InputError
from sojourn.report.document import Document
from sojourn.trace import store

ROOT = Path(__file__).resolve().parents[2]
LIGHT = {"default": {"e2e_s": 9.0, "percentile": 0.9, "max_error_share": 0.05}}


def sojourn(*arguments, cwd, columns="100"):
    return subprocess.run(
        [sys.executable, "-m", "sojourn", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "COLUMNS": columns},
    )


def settings(slo, replicas=1):
    return yaml.safe_dump(
        {"slo": slo, "deployment": {"replicas": replicas, "usd_per_replica_hour": 2.0}}
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Stores: before, fast (a gain), slow (a regression), few (thin), doubled (no gain, twice
    the price), each with its sojourn.yaml beside."""
    folder = tmp_path_factory.mktemp("stores")
    made = {
        "before": (window(600, seed=1), SLO, 1),
        "fast": (window(600, seed=2, scale=0.5), SLO, 1),
        "slow": (window(600, seed=3, scale=1.8), LIGHT, 1),
        "few": (window(12, seed=4), SLO, 1),
        "doubled": (window(600, seed=5), SLO, 2),
        "free": (window(600, seed=6), {}, 1),
    }
    for name, (tables, slo, replicas) in made.items():
        store.save(tables, folder / name)
        (folder / name / "sojourn.yaml").write_text(settings(slo, replicas), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "code"), [("fast", 0), ("slow", 3), ("few", 4), ("free", 4)])
def test_check_ends_with_the_code_of_its_sentence(place, name, code):
    result = sojourn("check", name, "--json", cwd=place)
    assert result.returncode == code, result.stderr
    tree = json.loads(result.stdout)
    assert tree["exit_code"] == code
    assert tree["verdict"].endswith(".")
    assert tree["data"]["outcome"]["requests"] in (12, 600)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        ("fast", 0, "Worth it"),
        ("slow", 3, "A regression"),
        ("few", 4, "Only 12 requests"),
        ("doubled", 3, "costs 2.00 times"),
    ],
)
def test_verify_ends_with_the_code_of_its_verdict(place, after, code, said):
    result = sojourn("verify", "before", after, "--json", cwd=place)
    assert result.returncode == code, result.stderr
    document = Document.model_validate_json(result.stdout)
    assert document.exit_code == code
    assert said in document.verdict
    assert len(document.data["acceptance"]["answers"]) == 8


def test_the_way_back_and_the_price_can_be_named(place):
    result = sojourn(
        "verify", "before", "fast", "--rollback", "before", "--config-after",
        "doubled/sojourn.yaml", "--json", cwd=place,
    )  # fmt: skip
    tree = json.loads(result.stdout)["data"]["acceptance"]
    assert tree["answers"][6]["finding"] == "same"
    assert tree["answers"][7]["finding"] == "worse"


@pytest.mark.parametrize("verb", ["attribute", "profile"])
@pytest.mark.parametrize("suffix", ["html", "json", "csv", "txt"])
def test_output_has_the_form_of_its_suffix(place, tmp_path, verb, suffix):
    target = tmp_path / f"page.{suffix}"
    result = sojourn(verb, "before", "-o", str(target), cwd=place)
    assert result.returncode == 0, result.stderr
    text = target.read_text(encoding="utf-8")
    if suffix == "html":
        assert text.startswith("<!doctype html>")
        assert "Verdict" in result.stdout
    else:
        assert result.stdout == ""
    if suffix == "json":
        assert json.loads(text)["title"] == f"sojourn {verb}"
    if suffix == "csv":
        assert len(list(csv.reader(io.StringIO(text)))) > 3
    if suffix == "txt":
        assert "╭─ Verdict" in text
    assert f"written: {target}" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_quiet_says_nothing_on_the_side(place, tmp_path):
    target = tmp_path / "page.html"
    result = sojourn("attribute", "before", "-q", "-o", str(target), cwd=place)
    assert result.returncode == 0
    assert result.stderr == ""
    assert target.is_file()


def test_json_is_alone_on_standard_output(place, tmp_path):
    target = tmp_path / "page.html"
    result = sojourn("profile", "before", "--json", "-o", str(target), cwd=place)
    assert json.loads(result.stdout)["exit_code"] == 0
    assert target.is_file()
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["profile", "attribute", "check"])
def test_one_request_is_json_without_nan(tmp_path, verb):
    store.save(window(1, seed=1), tmp_path / "one")
    result = sojourn(verb, "one", "--json", cwd=tmp_path)

    def refuse(name):
        raise AssertionError(name)

    tree = json.loads(result.stdout, parse_constant=refuse)
    assert tree["exit_code"] == result.returncode


def test_eighty_columns_are_kept(place):
    result = sojourn("attribute", "before", cwd=place, columns="80")
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not [line for line in result.stdout.splitlines() if line.rstrip().endswith("…")]


def test_the_seed_is_repeated(place):
    runs = [
        sojourn("verify", "before", "fast", "--json", "--seed", seed, cwd=place).stdout
        for seed in ("3", "3", "4")
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_store_without_requests_is_named(place, tmp_path):
    from sojourn.trace.tables import Tables

    store.save(Tables(), tmp_path / "empty")
    for arguments in (["profile", "empty"], ["verify", "empty", str(place / "fast")]):
        result = sojourn(*arguments, cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        assert "request" in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""


def test_init_does_not_touch_a_file_without_force(tmp_path):
    target = tmp_path / "own.yaml"
    target.write_text("mine", encoding="utf-8")
    assert sojourn("init", "-o", "own.yaml", cwd=tmp_path).returncode == 2
    assert target.read_text(encoding="utf-8") == "mine"
    forced = sojourn("init", "-o", "own.yaml", "--force", cwd=tmp_path)
    assert forced.returncode == 0
    assert forced.stdout == ""
    assert "written: own.yaml" in forced.stderr
    assert "deployment" in target.read_text(encoding="utf-8")


def test_schema_is_json_alone(tmp_path):
    result = sojourn("schema", cwd=tmp_path)
    assert result.stderr == ""
    assert json.loads(result.stdout)["title"] == "Config"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_named(place, tmp_path):
    tmp_path.chmod(0o500)
    result = sojourn("profile", "before", "-o", str(tmp_path / "x.json"), cwd=place)
    assert result.returncode == 2


def test_a_write_that_fails_keeps_the_old_file_and_leaves_no_part(tmp_path, monkeypatch):
    target = tmp_path / "page.json"
    target.write_text("old", encoding="utf-8")

    def broken(self, other):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(InputError, match="No space left"):
        options.deliver(small(), output=target, json=False, quiet=True)
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.json"]


def test_a_reader_that_goes_away_is_no_traceback(place):
    command = f"{sys.executable} -m sojourn schema | head -c 10"
    result = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/bin:/usr/bin"},
    )
    assert "Traceback" not in result.stderr
