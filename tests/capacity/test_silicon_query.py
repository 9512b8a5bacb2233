"""What is looked up in the operator tables: cards, engines, layouts, formats, models by shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from sojourn.capacity import catalogue, silicon_query, silicon_tables
from sojourn.capacity.silicon_query import asked
from sojourn.capacity.silicon_tables import KnownModel, Refused
from sojourn.config import Deployment

SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch):
    """The package stands still: two configs of one shape, and no card differs from ours."""
    models = (
        KnownModel("maker/small", SMALL, None),
        KnownModel("maker/small-fp8", SMALL, "FP8"),
        KnownModel("maker/unreadable", {"model_type": "?"}, None),
    )
    monkeypatch.setattr(silicon_tables, "known_models", lambda: models)
    monkeypatch.setattr(silicon_tables, "system_bandwidth", bandwidth)
    silicon_query._shapes.cache_clear()
    yield models
    silicon_query._shapes.cache_clear()


def bandwidth(system: str) -> float:
    own = {v: k for k, v in silicon_query.SYSTEMS.items()}[system]
    names = {"rtxpro6000": "RTX-PRO-6000", "a10080gbsxm": "A100-80GB-SXM"}
    return catalogue.gpu(names.get(own, own)).bandwidth_bytes_per_s


def ask(model: str, gpu: str = "H100", **deployment: Any):
    return asked(catalogue.model(model), catalogue.gpu(gpu), Deployment(**deployment))


@pytest.mark.parametrize(
    ("gpu", "system"),
    [("H100", "h100_sxm"), ("H200", "h200_sxm"), ("B200", "b200_sxm"), ("A100", "a100_sxm"),
     ("L40S", "l40s"), ("RTX-PRO-6000", "rtx_pro_6000_server")],
)  # fmt: skip
def test_cards(gpu: str, system: str) -> None:
    assert ask("Llama-3.1-8B", gpu).system == system


@pytest.mark.parametrize("gpu", ["MI300X", "RTX-4090", "H100-PCIe", "L4"])
def test_cards_without_tables(gpu: str) -> None:
    with pytest.raises(Refused, match="no operator tables for"):
        ask("Llama-3.1-8B", gpu)


def test_another_card_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_tables, "system_bandwidth", lambda system: 2e12)
    with pytest.raises(Refused, match="another card"):
        ask("Llama-3.1-8B")


@pytest.mark.parametrize(
    ("engine", "backend"),
    [("vllm 0.18.0", "vllm"), ("SGLang 0.5.9", "sglang"), ("trtllm", "trtllm"),
     ("TensorRT-LLM 1.0", "trtllm"), ("tensorrt_llm", "trtllm")],
)  # fmt: skip
def test_engines(engine: str, backend: str) -> None:
    assert ask("Llama-3.1-8B", engine=engine).backend == backend


def test_an_engine_without_tables() -> None:
    with pytest.raises(Refused, match=r"no operator tables for engine 'llama\.cpp'"):
        ask("Llama-3.1-8B", engine="llama.cpp")


def test_the_config_with_the_same_weights_is_taken() -> None:
    assert ask("Llama-3.1-8B").queries[0].model == "maker/small"
    quantised = ask("Llama-3.1-8B", weight_dtype="fp8")
    assert quantised.queries[0].model == "maker/small-fp8"
    assert quantised.queries[0].gemm is None  # as the checkpoint says
    assert quantised.queries[1].gemm == "fp8"


def test_a_shape_it_does_not_carry_is_written() -> None:
    found = ask("Qwen3-14B", engine="vllm")
    assert "qwen3" in found.like
    config = json.loads((Path(found.queries[0].model) / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (40, 8)
    assert (config["head_dim"], config["intermediate_size"]) == (128, 17408)
    assert (config["num_hidden_layers"], config["hidden_size"]) == (40, 5120)


def test_experts_are_written_too() -> None:
    found = ask("Qwen3-30B-A3B", tensor_parallel=2, expert_parallel=True)
    config = json.loads((Path(found.queries[0].model) / "config.json").read_text())
    assert (config["num_experts"], config["num_experts_per_tok"]) == (128, 8)
    assert config["moe_intermediate_size"] == 768
    assert (found.queries[0].moe_tp, found.queries[0].moe_ep) == (1, 2)


@pytest.mark.parametrize("model", ["Gemma-3-27B", "Qwen3-Next-80B-A3B", "DeepSeek-V3"])
def test_shapes_that_cannot_be_written(model: str) -> None:
    with pytest.raises(Refused, match=f"no model of the shape of {model}"):
        ask(model, weight_dtype="bf16")


def test_layouts() -> None:
    query = ask("Qwen3-30B-A3B", tensor_parallel=2, data_parallel=4, pipeline_parallel=2).queries[0]
    assert (query.tp, query.dp, query.pp, query.moe_tp, query.moe_ep) == (2, 4, 2, 8, 1)
    dense = ask("Llama-3.1-8B", tensor_parallel=2, data_parallel=4).queries[0]
    assert (dense.tp, dense.dp, dense.moe_tp) == (2, 1, 1)


def test_the_cache_is_asked_for_as_deployed_then_otherwise() -> None:
    formats = [q.kv for q in ask("Llama-3.1-8B", kv_dtype="fp8").queries]
    assert formats[0] == "fp8"
    assert formats[-1] == "bfloat16"
    assert ask("Llama-3.1-8B").queries[0].kv == "bfloat16"


@pytest.mark.parametrize(
    ("gpu", "dtype", "formats"),
    [
        ("H100", "int4", ("int4_wo", "int4_wo")),
        ("H100", "nvfp4", ("nvfp4_wo", "nvfp4_wo")),
        ("B200", "nvfp4", ("nvfp4", "nvfp4")),
        ("H100", "int8", ("int8_wo", "bfloat16")),
    ],
)
def test_formats(gpu: str, dtype: str, formats: tuple[str, str]) -> None:
    query = ask("Llama-3.1-8B", gpu, weight_dtype=dtype).queries[0]
    assert (query.gemm, query.moe) == formats


def test_a_format_without_tables() -> None:
    with pytest.raises(Refused, match="weights in fp32"):
        ask("Llama-3.1-8B", weight_dtype="fp32")
