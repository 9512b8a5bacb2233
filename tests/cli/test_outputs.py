"""Where output goes: an input is never replaced, a device stays one, a full disk is said."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.errors import InputError
from sojourn.records import write_atomic
from sojourn.trace import store
from sojourn.trace.tables import Tables, from_rows

ROOT = Path(__file__).resolve().parents[2]
LOG = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.5000000,374,44\n" for second in range(40)
)


def sojourn(*arguments: str, cwd: Path, out: int = subprocess.PIPE) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sojourn", *arguments],
        cwd=cwd,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "", "COLUMNS": "100"},
    )
    return done.returncode, done.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG, encoding="utf-8")
    return path


@pytest.mark.parametrize("verb", ["profile", "ingest"])
def test_the_input_is_not_replaced_by_the_output(verb: str, log: Path) -> None:
    code, said = sojourn(verb, log.name, "-o", log.name, cwd=log.parent)
    assert code == 2
    assert log.name in said
    assert "Traceback" not in said
    assert log.read_text(encoding="utf-8") == LOG


def test_a_file_of_the_recording_is_not_replaced(log: Path) -> None:
    code, said = sojourn("profile", ".", "-o", log.name, cwd=log.parent)
    assert code == 2
    assert "part of the input" in said
    assert log.read_text(encoding="utf-8") == LOG


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("schema",), ("profile", "log.csv")])
def test_a_full_disk_is_said(arguments: tuple[str, ...], log: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, said = sojourn(*arguments, cwd=log.parent, out=full.fileno())
    assert code == 1
    assert "standard output cannot be written" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "words")
    assert os.read(reader, 100) == b"words"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_atomic(tmp_path / "link", "words")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "words"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(InputError, match="kept"):
        write_atomic(path, "new")
    assert path.read_text() == "old"


def test_a_store_is_not_put_in_the_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(InputError, match="is a file"):
        store.save(Tables(), path)
    assert path.read_text() == "old"


def test_a_linked_folder_takes_a_store_and_nothing_is_left_beside(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    store.save(Tables(), tmp_path / "link")
    assert (tmp_path / "there" / store.MANIFEST).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_a_store_that_lost_a_table_is_not_read_as_an_empty_one(tmp_path: Path) -> None:
    rows = [{"request_id": "a", "arrival_s": 0.0}]
    store.save(Tables(requests=from_rows("requests", rows)), tmp_path / "store")
    (tmp_path / "store" / "requests.parquet").unlink()
    with pytest.raises(InputError, match=r"requests\.parquet: is missing.* 1 rows"):
        store.load(tmp_path / "store")
