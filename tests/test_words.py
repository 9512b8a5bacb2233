"""Units, intervals, errors, records, configuration: the words everyone shares."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sojourn.config import Config, commented_yaml, json_schema
from sojourn.errors import ConfigError, InputError, SojournError, UsageError
from sojourn.interval import Excuse, Interval
from sojourn.records import LAYER_OF, Bottleneck, write_atomic
from sojourn.units import format_seconds, format_share, format_usd
from sojourn.workload.profile_records import Window

FINITE = st.floats(-1e9, 1e9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.2e-4, "820 µs"),
        (0.041, "41 ms"),
        (3.2, "3.20 s"),
        (13.04, "13.0 s"),
        (744.0, "12.4 min"),
        (11160.0, "3.1 h"),
        (math.nan, "–"),
        (None, "–"),
        (math.inf, "∞"),
    ],
)
def test_seconds_are_written_as_people_read_them(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


def test_money_and_shares_keep_three_digits() -> None:
    assert format_usd(0.00123) == "$0.00123"
    assert format_usd(1230.0) == "$1,230"
    assert format_usd(0.0) == "$0"
    assert format_share(0.0042) == "0.4%"
    assert format_share(0.61) == "61%"


@given(st.lists(FINITE, min_size=1, max_size=60))
def test_an_interval_of_samples_holds_their_median(samples: list[float]) -> None:
    interval = Interval.from_samples(samples)
    assert interval.low <= interval.mid <= interval.high
    assert min(samples) <= interval.low
    assert interval.high <= max(samples)


@given(FINITE, FINITE, FINITE, st.floats(-100, 100))
def test_scaling_keeps_an_interval_ordered(a: float, b: float, c: float, factor: float) -> None:
    low, mid, high = sorted((a, b, c))
    scaled = Interval(low=low, mid=mid, high=high).scale(factor)
    assert scaled.mid == mid * factor
    assert scaled.low <= scaled.mid <= scaled.high


def test_a_broken_interval_is_refused() -> None:
    with pytest.raises(ValidationError, match="low <= mid <= high"):
        Interval(low=2, mid=1, high=3)
    with pytest.raises(ValueError, match="at least one sample"):
        Interval.from_samples([])


def test_an_excuse_says_what_to_collect() -> None:
    excuse = Excuse(reason="No price is known", collect=("a price",))
    assert str(excuse) == "No price is known. To decide: a price."


def test_an_input_error_says_file_row_field_and_what_to_do() -> None:
    error = InputError("is no number", path="a.csv", row=3, field="tokens", todo="Write digits")
    assert str(error) == "a.csv, row 3, field 'tokens': is no number. Write digits"
    assert error.exit_code == 2
    assert SojournError.exit_code == 1
    assert issubclass(ConfigError, UsageError)


def test_every_bottleneck_has_a_layer_or_needs_none() -> None:
    assert set(LAYER_OF) == set(Bottleneck)
    without = {name for name, layer in LAYER_OF.items() if layer is None}
    assert without == {Bottleneck.NONE, Bottleneck.INSUFFICIENT_EVIDENCE}


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    window = Window(start_s=1.5, length_s=60, requests=7)
    window.save(tmp_path / "window.json")
    assert Window.load(tmp_path / "window.json") == window


@pytest.mark.parametrize("content", [b"", b"{", b'{"start_s": "x"}', b"\xff\xfe\x00", b"[]"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "window.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"window\.json"):
        Window.load(path)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(target, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "absent" / "file", "text")


def test_the_commented_file_says_every_key_and_its_defaults_load(tmp_path: Path) -> None:
    text = commented_yaml()
    path = tmp_path / "sojourn.yaml"
    path.write_text(text, encoding="utf-8")
    assert Config.load(path) == Config()
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and ":" in line]
    told = "\n".join(lines[2:])
    for key in ("long_document_min_input_tokens", "attempt_timeout_s", "percentile", "servers"):
        assert f"{key}:" in told


def leaf_keys(schema: dict[str, object], node: dict[str, object]) -> int:
    """Keys of a JSON schema that hold a value, references followed, each section once."""
    total = 0
    defs = schema["$defs"]
    assert isinstance(defs, dict)
    sections = [node, *defs.values()]
    for section in sections:
        for value in section.get("properties", {}).values():
            text = json.dumps(value)
            total += 0 if "$ref" in text else 1
    return total


def test_the_configuration_stays_small() -> None:
    schema = json_schema()
    assert leaf_keys(schema, schema) <= 50


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("deployment: {replicas: 0}", "deployment.replicas"),
        ("deployment: {replica: 2}", "deployment.replica"),
        ("slo: {default: {percentile: 99}}", "slo.default.percentile"),
        ("just words", "expected keys"),
        ("a: [", "is not YAML"),
        ("buckets: {custom: [{name: a}, {name: a}]}", "share a name"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "sojourn.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_configuration_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Config.load(tmp_path / "none.yaml")


def test_the_default_slo_serves_buckets_without_one() -> None:
    config = Config.from_dict({"slo": {"default": {"e2e_s": 9}, "long_output": {"e2e_s": 30}}})
    slo = config.slo_of("short_chat")
    assert slo is not None
    assert slo.e2e_s == 9
    other = config.slo_of("long_output")
    assert other is not None
    assert other.e2e_s == 30
    assert Config().slo_of("short_chat") is None
