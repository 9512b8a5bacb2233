"""The compiled kernel is kept whole, or not at all. (What is kept here are plain files.)"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sojourn.sim.kernel import kept
from sojourn.sim.kernel.kept import Kept


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A cache folder and one for temporary files, both of this test alone."""
    monkeypatch.setenv("SOJOURN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "cache" / "sojourn", tmp_path / "temporary"


def compile_into(folder: Path, text: str = "code") -> None:
    (folder / "kernel_1").mkdir()
    (folder / "kernel_1" / "go.nbc").write_text(text)


def finished(name: str = "k") -> Kept:
    made = Kept(name)
    assert not made.ready
    compile_into(made.folder)
    made.finish()
    return made


def test_what_was_compiled_is_found_by_the_next_run(places):
    first = finished()
    assert first.ready
    assert first.folder == places[0] / "k"
    second = Kept("k")
    assert second.ready
    assert (second.folder / "kernel_1" / "go.nbc").read_text() == "code"
    assert [path.name for path in places[0].iterdir()] == ["k"]
    assert not Kept("another text").ready


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "added", "unsealed", "no text"])
def test_what_was_damaged_is_compiled_anew(places, damage):
    folder = finished().folder
    code, seal = folder / "kernel_1" / "go.nbc", folder / "seal"
    match damage:
        case "changed":
            code.write_text("cOde")
        case "cut":
            code.write_text("")
        case "gone":
            code.unlink()
        case "added":
            (folder / "other").write_text("code")
        case "unsealed":
            seal.unlink()
        case "no text":
            seal.write_bytes(b"\xff\xfe")
    finished()
    assert Kept("k").ready


def test_a_run_that_is_interrupted_leaves_nothing_that_another_would_use(places):
    compile_into(Kept("k").folder, "half")
    assert not Kept("k").ready


def test_of_two_that_compile_at_once_the_first_is_kept_and_both_run(places):
    one, other = Kept("k"), Kept("k")
    assert one.folder != other.folder
    compile_into(one.folder, "of one")
    compile_into(other.folder, "of the other")
    one.finish()
    other.finish()
    assert one.ready
    assert other.ready
    assert (Kept("k").folder / "kernel_1" / "go.nbc").read_text() == "of one"


def test_a_folder_that_cannot_be_used_gives_way_to_one_for_temporary_files(places, monkeypatch):
    places[0].parent.write_text("a file")
    made = finished()
    assert made.folder.parent.parent == places[1]
    assert stat.S_IMODE(made.folder.parent.stat().st_mode) == 0o700
    assert Kept("k").ready


def test_a_shared_folder_of_somebody_else_is_not_trusted(places, monkeypatch):
    places[0].parent.write_text("a file")
    finished()
    monkeypatch.setattr(kept.os, "getuid", lambda: os.geteuid() + 1)
    (places[1] / f"sojourn-{os.geteuid() + 1}").mkdir()
    assert Kept("k").folder is None


def test_where_nothing_can_be_written_nothing_is_kept(places, monkeypatch):
    places[0].parent.write_text("a file")
    places[1].rmdir()
    places[1].write_text("a file")
    made = Kept("k")
    assert made.folder is None
    made.finish()
    assert made.ready
    assert made.place() == "for this run alone"


def test_a_whole_kernel_that_is_read_only_is_used_from_a_copy(places, monkeypatch):
    folder = finished().folder
    monkeypatch.setattr(kept.os, "access", lambda *_: False)
    copied = Kept("k")
    assert copied.ready
    assert copied.folder != folder
    assert (copied.folder / "kernel_1" / "go.nbc").read_text() == "code"


def test_systems_without_users_or_without_a_home_have_a_place_too(places, monkeypatch):
    monkeypatch.delattr(kept.os, "getuid")
    monkeypatch.delenv("SOJOURN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("USERNAME", "me")
    monkeypatch.setattr(kept.Path, "home", _no_home)
    assert finished().folder == places[1] / "sojourn-me" / "k"


def _no_home():
    raise RuntimeError("Could not determine home directory.")
