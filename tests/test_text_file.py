"""Files that are read whole: anything but an ordinary, bounded text is refused, and at once."""

from __future__ import annotations

import os

import pytest

from sojourn import text_file
from sojourn.capacity.records import Fleet
from sojourn.errors import InputError
from sojourn.text_file import read_object, read_text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b'{"a": ', "is not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "is not JSON"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_what_is_no_json_object_is_said_with_its_file(tmp_path, content, says):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_object(path, what="a config.json")
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_taken(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_object(path, what="a config.json") == {"a": 1}


def test_devices_pipes_and_folders_are_no_files(tmp_path):
    """A pipe without a writer waits for ever, /dev/zero fills the memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "endless", tmp_path):
        with pytest.raises(InputError, match="is no file"):
            read_text(path)
        with pytest.raises(InputError, match="is no file"):
            Fleet.load(path)


def test_a_file_past_the_bound_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "MAX_BYTES", 10)
    (tmp_path / "x").write_text("12345678901", encoding="utf-8")
    with pytest.raises(InputError, match="11 bytes"):
        read_text(tmp_path / "x")
