"""Wrong calls and wrong input: one clear message, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def sojourn(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sojourn", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "COLUMNS": "100"},
    )


WRONG = {
    "missing.csv": None,
    "empty.csv": b"",
    "cut.json": b'{"resourceSpans": [{"resource": {"attri',
    "words.txt": b"hello, this is no telemetry\n",
    "latin.csv": "TIMESTAMP,ContextTokens\nd\xe9j\xe0,3\n".encode("latin-1"),
    "binary.bin": bytes(range(256)) * 8,
    "null.json": b"null",
    "deep.json": b"[" * 5000,
}


@pytest.mark.parametrize("verb", ["profile", "attribute", "check"])
@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_file_that_cannot_be_used_is_named(verb: str, name: str, tmp_path: Path) -> None:
    content = WRONG[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = sojourn(verb, name, cwd=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert name in result.stderr
    assert "Traceback" not in result.stderr


def test_init_writes_once_and_schema_prints_json(tmp_path: Path) -> None:
    assert sojourn("init", cwd=tmp_path).returncode == 0
    assert (tmp_path / "sojourn.yaml").is_file()
    again = sojourn("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "--force" in again.stderr
    schema = sojourn("schema", cwd=tmp_path)
    assert "deployment" in json.loads(schema.stdout)["properties"]


def test_a_wrong_configuration_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "sojourn.yaml").write_text("deployment: {replicas: none}", encoding="utf-8")
    (tmp_path / "log.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    result = sojourn("profile", "log.csv", cwd=tmp_path)
    assert result.returncode == 2
    assert "deployment.replicas" in result.stderr


def test_an_unknown_verb_is_a_usage_error(tmp_path: Path) -> None:
    assert sojourn("nonsense", cwd=tmp_path).returncode == 2


def test_a_folder_without_telemetry_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    result = sojourn("profile", "logs", cwd=tmp_path)
    assert result.returncode == 2
    assert "logs" in result.stderr


def test_output_into_an_absent_folder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:{s:02d}.5000000,374,44\n" for s in range(40)),
        encoding="utf-8",
    )
    result = sojourn("profile", "log.csv", "-o", "absent/report.html", cwd=tmp_path)
    assert result.returncode == 2
    assert "absent" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize("load", ["0", "-1", "nan", "inf", "1e9", "1e308", "many"])
def test_a_load_that_cannot_be_is_refused_before_any_work(load: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    result = sojourn("simulate", "log.csv", "--load", load, cwd=tmp_path)
    assert result.returncode == 2
    assert "--load" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_pipe_as_input_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = sojourn("profile", "pipe", cwd=tmp_path)
    assert result.returncode == 2
    assert "pipe" in result.stderr
    (tmp_path / "log.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:{s:02d}.5000000,374,44\n" for s in range(40)),
        encoding="utf-8",
    )
    beside = sojourn("profile", ".", "--json", cwd=tmp_path)
    assert beside.returncode == 0, beside.stderr
    assert "is a pipe or a device" in beside.stdout


def test_so_little_load_that_no_request_is_left_is_a_usage_error(tmp_path: Path) -> None:
    before = ROOT / "src" / "sojourn" / "recordings" / "incident" / "before"
    result = sojourn("simulate", str(before), "--load", "0.0005", cwd=tmp_path)
    assert result.returncode == 2
    assert "no request is left" in result.stderr
