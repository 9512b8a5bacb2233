"""YAML as sojourn takes it: what is no usable YAML is said with its place, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from sojourn.config import Config
from sojourn.errors import ConfigError

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
WRONG = {
    "key set twice": ("deployment:\n  replicas: 1\n  replicas: 9\n", "line 3: key 'replicas'"),
    "aliases that explode": (BOMB, "100,000 values"),
    "alias of itself": ("slo: &a\n  default: *a\n", "100,000 values"),
    "nested deeply": ("slo: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "no such day": ("slo: 2020-13-45\n", "month must be in 1..12"),
    "too many digits": ("deployment: {replicas: 1" + "0" * 5000 + "}\n", "5001 digits"),
    "not a number": ("slo: {default: {e2e_s: .nan}}\n", "slo.default.e2e_s"),
    "infinite": ("retry: {attempt_timeout_s: .inf}\n", "retry.attempt_timeout_s"),
    "absurd attempts": ("retry: {max_attempts: 1000}\n", "retry.max_attempts"),
    "past 64 bits": ("deployment: {kv_blocks: 10000000000000000000000}\n", "deployment.kv_blocks"),
    "absurd replicas": ("deployment: {replicas: 10000}\n", "deployment.replicas"),
    "absurd servers": ("stations: {kb: {servers: 9000000000}}\n", "stations.kb.servers"),
}


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_what_is_wrong_is_said_with_file_and_place(kind: str, tmp_path: Path) -> None:
    text, said = WRONG[kind]
    path = tmp_path / "sojourn.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_bytes_that_are_no_text_are_said(tmp_path: Path) -> None:
    path = tmp_path / "sojourn.yaml"
    path.write_bytes(b"slo: \xff\n")
    with pytest.raises(ConfigError, match="byte 5"):
        Config.load(path)


def test_anchors_and_a_byte_order_mark_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "sojourn.yaml"
    text = "slo:\n  default: &a {e2e_s: 8}\n  tool_agent: {<<: *a, ttft_s: 1}\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert Config.load(path).slo["tool_agent"].e2e_s == 8
