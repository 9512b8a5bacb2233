"""Layers and weight formats of architectures beside the plain ones: by hand, and in clear words."""

from __future__ import annotations

import json

import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.model_config import parse_config, read_config
from sojourn.capacity.model_records import AttentionKind
from sojourn.errors import InputError

H, V = 64, 100
PLAIN = {
    "model_type": "llama", "hidden_size": H, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": V,
    "tie_word_embeddings": False,
}  # fmt: skip
ROUTED = {**PLAIN, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
          "moe_intermediate_size": 32}  # fmt: skip
LATENT = {
    **ROUTED, "model_type": "deepseek_v32", "q_lora_rank": 16, "kv_lora_rank": 24,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "index_n_heads": 2,
    "index_head_dim": 6, "index_topk": 10,
}  # fmt: skip


def parse(base, **changes):
    return parse_config({**base, **changes}, name="t", source="test")


@pytest.mark.parametrize("said", ["brand_new", "", None])
def test_an_unknown_architecture_is_named_and_answered(said):
    with pytest.raises(InputError, match="copy of the file") as caught:
        parse(PLAIN, model_type=said)
    assert caught.value.field == "model_type"
    with pytest.raises(InputError, match="near ones: qwen3"):
        parse(PLAIN, model_type="qwen33")


def test_searched_blocks_have_their_own_heads_and_widths():
    """Nemotron-NAS: no attention in one layer, half the query groups, 2/3 x multiple x hidden."""
    blocks = [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 6.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 6.0}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"intermediate_size": 128}},
    ]
    spec = parse(PLAIN, model_type="nemotron-nas", block_configs=blocks)
    assert [(a.kv_heads, a.kv_values_per_token) for a in spec.attention] == [
        (2, 64), (1, 0), (1, 32),
    ]  # fmt: skip
    assert spec.attention[1].parameters == H * H
    assert {m.dense_parameters: m.layers for m in spec.mlp} == {3 * H * 256: 2, 3 * H * 128: 1}
    with pytest.raises(InputError, match="block_configs"):
        parse(PLAIN, model_type="nemotron-nas", block_configs=[{"attention": {}, "ffn": {}}])


def test_an_indexer_is_counted_where_a_layer_has_its_own():
    spec = parse(LATENT)
    (layer,) = spec.attention
    assert (layer.kind, layer.top_k) == (AttentionKind.LATENT, 10)
    assert (layer.index_bytes_per_token, layer.index_score) == (6 + 4, 2 * 6)
    shared = parse(LATENT, indexer_types=["full", "shared", "shared", "full"])
    own, lent = shared.attention
    assert (own.layers, lent.layers, lent.index_bytes_per_token, lent.top_k) == (2, 2, 0, 10)
    assert own.parameters - lent.parameters == 16 * 2 * 6 + H * 6 + H * 2


def test_compressed_attention_caches_one_entry_for_many_tokens():
    """DeepSeek-V4: 512 numbers per 4 or 128 tokens, 128 tokens of window, an indexer at 4."""
    spec = catalogue.model("DeepSeek-V4-Flash")
    by_values = {a.kv_values_per_token: a for a in spec.attention}
    assert {v: a.layers for v, a in by_values.items()} == {512: 2, 128: 21, 4: 20}
    assert by_values[512].window == 128
    assert by_values[128].top_k == 512 * 4
    assert by_values[128].index_bytes_per_token == 132 // 4
    assert by_values[4].top_k is None
    assert by_values[4].state_bytes_per_request == 128 * 512 * 2


def test_experts_of_their_own_width_are_reached_by_two_projections():
    spec = parse(ROUTED, moe_latent_size=16)
    (layer,) = spec.mlp
    assert layer.expert_parameters == 3 * 16 * 32
    assert layer.dense_parameters == H * 8 + 2 * H * 16


@pytest.mark.parametrize(
    ("fields", "routed"),
    [({"first_k_dense_replace": 3}, 1), ({"moe_layer_freq": [0, 1, 0, 1]}, 2),
     ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, 3),
     ({"moe_layers_enum": "1,2"}, 2), ({"interleave_moe_layer_step": 2}, 2),
     ({"moe_layer_start_index": 1}, 3), ({"mlp_only_layers": [0]}, 3)],
)  # fmt: skip
def test_which_layers_are_routed(fields, routed):
    spec = parse(ROUTED, **fields)
    assert sum(m.layers for m in spec.mlp if m.experts) == routed
    assert sum(m.layers for m in spec.mlp) == 4


def test_layers_for_prediction_are_counted_apart():
    spec = parse(LATENT, num_nextn_predict_layers=1)
    block = spec.attention[0].parameters + spec.mlp[0].dense_parameters + 8 * 3 * H * 32
    assert spec.mtp_parameters == block + 2 * H * H + 2 * V * H
    assert spec.parameters == parse(LATENT).parameters


def test_delta_attention_of_two_makes():
    kimi = catalogue.model("Kimi-Linear-48B-A3B")
    kinds = {a.kind: a for a in kimi.attention}
    assert kinds[AttentionKind.LINEAR].layers == 20
    assert kinds[AttentionKind.LINEAR].state_bytes_per_request == 32 * 128 * 128 * 4 + 3 * 4096 * 6
    assert kinds[AttentionKind.LATENT].layers == 7
    lightning = catalogue.model("MiniMax-M1")
    assert {a.kind: a.layers for a in lightning.attention} == {
        AttentionKind.LINEAR: 70, AttentionKind.FULL: 10,
    }  # fmt: skip


def test_sliding_layers_with_their_own_heads():
    spec = parse(
        PLAIN, model_type="mimo_v2_flash", head_dim=24, v_head_dim=16, sliding_window=8,
        hybrid_layer_pattern=[0, 1, 1, 1], swa_num_key_value_heads=4, swa_head_dim=24,
        swa_v_head_dim=16,
    )  # fmt: skip
    full, sliding = spec.attention
    assert (full.kv_values_per_token, sliding.kv_values_per_token) == (2 * 40, 4 * 40)
    assert (full.layers, sliding.layers, sliding.window) == (1, 3, 8)


@pytest.mark.parametrize(
    ("changes", "attention", "mlp", "total"),
    [({}, 495_470_080, 1_911_029_760, 5_077_177_856),
     ({"num_kv_shared_layers": 10, "use_double_wide_mlp": True}, 438_843_904, 2_548_039_680,
      5_657_561_600),
     ({"num_kv_shared_layers": 12}, 429_406_208, 1_911_029_760, 5_011_113_984)],
)  # fmt: skip
def test_small_gemma_4_borrows_caches_and_embeds_in_each_layer(changes, attention, mlp, total):
    """Counts of transformers 5.19 for its default text config, and with layers that keep none."""
    spec = parse_config(
        {"model_type": "gemma4_text", "vocab_size": 262_144, "hidden_size": 2304,
         "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
         "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
         "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256, **changes},
        name="t", source="test",
    )  # fmt: skip
    gates = 30 * 3 * 2304 * 256
    assert spec.attention_parameters == pytest.approx(attention, rel=1e-3)
    assert spec.dense_mlp_parameters - gates == mlp
    assert spec.parameters == pytest.approx(total, rel=1e-3)
    kept = sum(a.layers for a in spec.attention if a.kv_values_per_token)
    assert kept == 30 - changes.get("num_kv_shared_layers", 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"model_type": "nemotron_h", "hybrid_override_pattern": "MXM*"}, "'X'"),
     ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "2 blocks, not 4"),
     ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
     ({"num_key_value_heads": [2, 4]}, "num_key_value_heads")],
)  # fmt: skip
def test_layers_that_cannot_be_read_are_explained(changes, says):
    with pytest.raises(InputError, match=says):
        parse(PLAIN, **changes)


def group(**weights):
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


ATTENTION_OUT = [f"model.layers.{i}.self_attn.o_proj" for i in range(4)]


@pytest.mark.parametrize(
    ("quant", "dtype", "parts"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", {}),
        ({"quant_method": "fp8", "modules_to_not_convert":
          ["model.layers.0.post_attention_layernorm", "model.layers.0.mlp.gate"]}, "fp8", {}),
        ({"quant_method": "compressed-tensors", **group(type="float", num_bits=8),
          "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*"]}, "fp8",
         {"attention": "bf16", "dense": "bf16"}),
        ({"quant_method": "compressed-tensors", **group(type="int", num_bits=4, group_size=32)},
         "int4", {}),
        ({"quant_method": "compressed-tensors", **group(type="float", num_bits=4, group_size=16)},
         "nvfp4", {}),
        ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
          **group(type="float", num_bits=4, group_size=32)}, "mxfp4", {}),
        ({"quant_method": "compressed-tensors", "config_groups": {
            "a": {"targets": ["re:.*experts.*"], "weights": {"type": "int", "num_bits": 4}},
            "b": {"targets": ["re:.*self_attn.*"], "weights": {"type": "float", "num_bits": 8}}}},
         "int4", {"attention": "fp8"}),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ATTENTION_OUT},
         "nvfp4", {"attention": "bf16"}),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ATTENTION_OUT[:2]},
         "nvfp4", {}),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", {}),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "nvfp4", {}),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
            "model.layers.0.self_attn.o_proj": {"quant_algo": "MXFP8"}}},
         "nvfp4", {"attention": "fp8", "dense": "bf16"}),
        ({"quant_method": "mxfp4"}, "mxfp4", {"attention": "bf16", "dense": "bf16"}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", {}),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", {}),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["visual"]}, "int4", {}),
        ({"quant_method": "gptq", "bits": 8}, "int8", {}),
        ({"quant_method": "auto-round", "bits": 4}, "int4", {}),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}},
         "fp8", {}),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}},
          "exclude": ["lm_head"]}, "mxfp4", {}),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "int4", {}),
    ],
)  # fmt: skip
def test_how_a_checkpoint_stores_its_weights(quant, dtype, parts):
    spec = parse(ROUTED, quantization_config=quant)
    assert (spec.checkpoint_dtype, spec.part_dtypes) == (dtype, parts)
    for part in ("attention", "dense", "experts"):
        assert spec.part_dtype(part, dtype) == parts.get(part, dtype)
        assert spec.part_dtype(part, "int8") == ("int8" if dtype != "int8" else
                                                 parts.get(part, "int8"))  # fmt: skip


def test_quantisation_in_the_text_part_or_in_a_file_beside(tmp_path):
    nested = {"model_type": "kimi_k25", "text_config": {**ROUTED, "quantization_config":
              {"quant_method": "gptq", "bits": 4}}}  # fmt: skip
    assert parse_config(nested, name="t", source="test").checkpoint_dtype == "int4"
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    beside = {"producer": {}, "quantization": {"quant_algo": "FP8", "exclude_modules": []}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_config(tmp_path).checkpoint_dtype == "fp8"


def test_an_unknown_quantisation_says_what_is_known():
    with pytest.raises(InputError, match=r"Known: fp8, compressed-tensors.*weight_dtype"):
        parse(PLAIN, quantization_config={"quant_method": "x9"})


def test_published_formats_of_a_family_are_kept_with_its_suffix():
    spec = catalogue.model("nvidia/GLM-5-NVFP4")
    assert spec.part_dtype("attention", "nvfp4") == "bf16"
    assert spec.part_dtype("experts", "nvfp4") == "nvfp4"
    assert catalogue.model("nvidia/Qwen3-235B-A22B-NVFP4").part_dtypes == {}
