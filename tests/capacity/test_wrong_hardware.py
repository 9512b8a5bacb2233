"""Models, cards and images that cannot be: every field of a config with every kind of value."""

from __future__ import annotations

import copy
import json
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity import catalogue, flags
from sojourn.capacity.model_config import parse_config, read_config
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.vision import image_tokens, video_tokens
from sojourn.config import Config, Deployment
from sojourn.errors import InputError, UsageError
from sojourn.interval import Excuse
from sojourn.trace.tables import Tables

MODELS = (
    "Llama-3.1-8B", "Qwen2.5-VL-7B", "Qwen3-30B-A3B", "DeepSeek-V3", "Gemma-3-27B",
    "Llama-4-Scout", "Qwen3-Next-80B-A3B", "InternVL3-8B", "Jamba-v0.1", "Pixtral-12B",
)  # fmt: skip
VALUES = (
    None, 0, -1, -3.5, 1.5, 1e18, 10**30, math.nan, math.inf, "abc", "", True, [], {}, [1, 2],
    {"a": 1}, [None],
)  # fmt: skip
ROW = {
    "memory_gib": 79.2, "bandwidth_bytes_per_s": 3.35e12, "bf16_flops": 989e12,
    "fp16_flops": 989e12, "link_bytes_per_s": 450e9, "tdp_w": 700,
}  # fmt: skip


def places(node, above=()):
    for name, value in node.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from places(value, (*above, name))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_field_of_a_config_may_hold_anything(data):
    """A model, or an error that says what to do; never another exception, never for long."""
    name = data.draw(st.sampled_from(MODELS))
    raw = copy.deepcopy(catalogue._model_config(name))
    path = data.draw(st.sampled_from(list(places(raw))))
    node = raw
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = data.draw(st.sampled_from(VALUES))
    try:
        spec = parse_config(raw, name=name, source="test")
    except InputError as error:
        assert error.todo or error.field  # noqa: PT017  either outcome is right
    else:
        assert isinstance(spec, ModelSpec)
        assert isinstance(image_tokens(spec, 640, 480), int | Excuse)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_hidden_layers", 10**9, "more than any model has"),
        ("hidden_size", math.nan, "expected a number >= 0"),
        ("hidden_size", math.inf, "whole number up to"),
        ("num_attention_heads", 10**9, "leave no width"),
        ("num_attention_heads", 32.5, "whole number"),
        ("vocab_size", [], "expected a number"),
    ],
)
def test_sizes_no_model_has_are_named(tmp_path, field, value, says):
    raw = {**catalogue._model_config("Llama-3.1-8B"), field: value}
    raw.pop("head_dim", None)
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        read_config(tmp_path)
    assert caught.value.field == field or says == "leave no width"


def test_more_experts_per_token_than_experts_is_refused():
    raw = {**catalogue._model_config("Qwen3-30B-A3B"), "num_experts": 2}
    with pytest.raises(InputError, match="experts per token, of 2"):
        parse_config(raw, name="x", source="test")


def test_a_card_with_a_number_beyond_floats_is_an_error_of_its_field(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_text(yaml.safe_dump({**ROW, "memory_gib": 10**400}), encoding="utf-8")
    with pytest.raises(InputError, match="memory_gib"):
        catalogue.gpu(str(path))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("bandwidth_bytes_per_s", 3350.0, "GB/s"),
        ("memory_gib", 81920.0, "MiB"),
        ("bf16_flops", 989.0, "TFLOP/s"),
    ],
)
def test_a_card_in_another_unit_is_refused_by_every_verb(tmp_path, field, value, says):
    path = tmp_path / "card.yaml"
    path.write_text(yaml.safe_dump({**ROW, field: value}), encoding="utf-8")
    config = Config(deployment=Deployment(accelerator=str(path)))
    with pytest.raises(UsageError, match=says):
        flags.with_launch(config)


def test_a_model_that_cannot_be_had_is_told_where_a_fit_needs_none(tmp_path):
    named = Config(deployment=Deployment(model="nonsense-9B"))
    warned = flags.findings(named, Tables())
    assert any("no model 'nonsense-9B'" in str(f) and not f.error for f in warned)
    path = tmp_path / "config.json"
    filed = Config(deployment=Deployment(model=str(path)))
    with pytest.raises(UsageError, match=r"config\.json.*does not exist"):
        flags.resolve(filed, Tables())


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf])
def test_images_without_pixels_are_refused_by_every_family(size):
    for spec in (catalogue.model(name) for name in MODELS):
        assert isinstance(image_tokens(spec, size, 480), Excuse)
        assert isinstance(video_tokens(spec, 640, 480, size), Excuse)


def test_the_largest_image_takes_no_time_and_a_bounded_number_of_tokens():
    for spec in (catalogue.model(name) for name in MODELS):
        found = image_tokens(spec, 10**9, 10**9)
        assert isinstance(found, Excuse) or found <= 2**17, spec.name
