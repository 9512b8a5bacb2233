"""Reading config.json: shapes by family, and clear words for what is missing."""

from __future__ import annotations

import json

import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.memory import kv_bytes, kv_bytes_per_token, state_bytes_per_request
from sojourn.capacity.model_config import parse_config, read_config
from sojourn.capacity.model_records import AttentionKind
from sojourn.errors import InputError

DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}


def parse(**changes):
    return parse_config({**DENSE, **changes}, name="t", source="test")


def test_dense_parameters_by_hand():
    """Per layer: q 64x64, k and v 64x32 each, o 64x64; three MLP matrices 64x128; two norms."""
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    assert parse().parameters == 2 * layer + 2 * 100 * 64 + 2 * 2 * 64 + 64
    assert parse(tie_word_embeddings=True).head_parameters == 0


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                   "intermediate_size", "vocab_size"])  # fmt: skip
def test_a_missing_field_is_named(field, tmp_path):
    raw = {k: v for k, v in DENSE.items() if k != field}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=field) as caught:
        read_config(path)
    assert caught.value.field == field
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[1]", "no JSON object"), ("", "not JSON"),
     (json.dumps({**DENSE, "hidden_size": "64"}), "hidden_size"),
     (json.dumps({**DENSE, "hidden_size": -64}), "hidden_size"),
     (json.dumps({**DENSE, "layer_types": ["odd"] * 2}), "odd"),
     (json.dumps({**DENSE, "quantization_config": {"quant_method": "x9"}}), "x9")],
)  # fmt: skip
def test_a_wrong_file_is_explained(text, says, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_config(path)


def test_catalogue_takes_a_path_of_file_or_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    assert catalogue.model(str(tmp_path / "config.json")).parameters == parse().parameters
    assert catalogue.model(str(tmp_path)).parameters == parse().parameters
    with pytest.raises(InputError, match="cannot be read"):
        catalogue.model(str(tmp_path / "absent.json"))


def test_kv_bytes_as_published():
    """Llama-3-70B bf16 320 KiB, Qwen2.5-7B 57,344 B, Llama-2-7B 512 KiB, Mistral-Small 163,840 B,
    DeepSeek-V3 latent (512 + 64) x 61 x 2 B (cases 04, 05; vLLM's own print)."""
    for name, expected in (
        ("Llama-3.1-70B", 320 * 1024),
        ("Qwen2.5-7B", 57_344),
        ("Llama-2-7B", 512 * 1024),
        ("Mistral-Small-3.2-24B", 163_840),
        ("DeepSeek-V3", 576 * 61 * 2),
    ):
        assert kv_bytes_per_token(catalogue.model(name), 2) == expected


def test_kv_of_more_ranks_than_heads_is_copied():
    model = catalogue.model("Qwen2.5-7B")
    assert kv_bytes_per_token(model, 2, 4) == kv_bytes_per_token(model, 2)
    assert kv_bytes_per_token(model, 2, 8) == 2 * kv_bytes_per_token(model, 2)
    latent = catalogue.model("DeepSeek-V3")
    assert kv_bytes_per_token(latent, 2, 8) == 8 * kv_bytes_per_token(latent, 2)


def test_sliding_windows_stop_growing():
    model = catalogue.model("Gemma-3-27B")
    kinds = {a.kind: a.layers for a in model.attention}
    assert kinds == {AttentionKind.SLIDING: 52, AttentionKind.FULL: 10}
    per_layer = 4096 * 2
    assert kv_bytes(model, 500, 2) == 62 * per_layer * 500
    assert kv_bytes(model, 5000, 2) == per_layer * (10 * 5000 + 52 * 1024)
    whole = catalogue.model("Mistral-7B-v0.1")
    assert kv_bytes(whole, 30_000, 2) == kv_bytes(whole, 4096, 2)


def test_qwen_with_an_unused_window_is_full():
    assert [a.kind for a in catalogue.model("Qwen2.5-7B").attention] == [AttentionKind.FULL]


def test_hybrid_holds_a_constant_per_request():
    """Qwen3-Next: 12 of 48 layers attend; 36 keep 32 x 128 x 128 numbers and a convolution."""
    model = catalogue.model("Qwen3-Next-80B-A3B")
    state = 36 * (32 * 128 * 128 * 2 + (2 * 2048 + 4096) * 3 * 2)
    assert state_bytes_per_request(model) == state
    assert kv_bytes_per_token(model, 2) == 12 * 2 * 2 * 256 * 2
    assert kv_bytes(model, 100, 2) == state + 100 * 12 * 2 * 2 * 256 * 2


def test_mamba_hybrids_of_both_kinds():
    second = parse(
        model_type="nemotron_h", hybrid_override_pattern="M-M*", num_hidden_layers=4,
        mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=32, n_groups=2, conv_kernel=4,
    )  # fmt: skip
    kinds = {a.kind: a.layers for a in second.attention}
    assert kinds == {AttentionKind.LINEAR: 2, AttentionKind.FULL: 1}
    assert second.mlp[0].layers == 1
    assert state_bytes_per_request(second) == 2 * (128 * 32 * 2 + (128 + 2 * 2 * 32) * 3 * 2)
    first = parse(
        model_type="jamba", num_hidden_layers=8, attn_layer_period=4, attn_layer_offset=2,
        mamba_expand=2, mamba_d_state=16, mamba_d_conv=4, num_experts=4, num_experts_per_tok=2,
        expert_layer_period=2, expert_layer_offset=1,
    )  # fmt: skip
    assert {a.kind: a.layers for a in first.attention}[AttentionKind.FULL] == 2
    assert {m.experts: m.layers for m in first.mlp} == {0: 4, 4: 4}


def test_a_hybrid_without_its_fields_is_refused():
    with pytest.raises(InputError, match="linear_num_key_heads"):
        parse(layer_types=["linear_attention", "full_attention"])


@pytest.mark.parametrize(
    ("quant", "dtype"),
    [({"quant_method": "fp8"}, "fp8"), ({"quant_method": "awq", "bits": 4}, "int4"),
     ({"quant_method": "gptq", "bits": 8}, "int8"), ({"quant_method": "mxfp4"}, "mxfp4"),
     ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
     ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
      {"num_bits": 8, "type": "float"}}}}, "fp8")],
)  # fmt: skip
def test_checkpoint_formats(quant, dtype):
    assert parse(quantization_config=quant).checkpoint_dtype == dtype


def test_a_nested_text_part_is_found():
    nested = parse_config(
        {"model_type": "llava", "torch_dtype": "bfloat16", "text_config": DENSE,
         "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}},
        name="t", source="test",
    )  # fmt: skip
    assert nested.architecture == "llama"
    assert nested.vision.block_parameters == 2 * (4 * 32 * 32 + 2 * 32 * 64)
    assert nested.parameters == parse().parameters + nested.vision_parameters


def test_older_names_of_fields():
    gpt2 = parse_config(
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
         "n_positions": 1024},
        name="gpt2", source="test",
    )  # fmt: skip
    assert gpt2.parameters == pytest.approx(124_439_808, rel=2e-3)  # biases are left out
