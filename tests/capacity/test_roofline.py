"""Step time by physics: laws over random models, cards, layouts and loads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity import catalogue
from sojourn.capacity.model_config import parse_config
from sojourn.capacity.model_records import MlpLayers
from sojourn.capacity.roofline import (
    MEAN_CONTEXT,
    distinct_experts,
    physical_floor_s,
    step_model,
)
from sojourn.capacity.roofline_constants import ENGINES, engine_kind
from sojourn.capacity.roofline_families import (
    AMPERE,
    BLACKWELL,
    BLACKWELL_RTX,
    CDNA,
    HOPPER,
    Kernel,
    family_of,
    kernel_class,
)
from sojourn.capacity.roofline_matrices import busiest
from sojourn.config import Deployment
from sojourn.interval import Provenance

ENGINE_NAMES = ["vllm", "vllm 0.2", "vllm 0.6.3", "vllm 0.11.0", "sglang 0.5.6", "trtllm 1.0"]


@st.composite
def configs(draw):
    """A config.json of a made-up model: dense or routed, grouped, latent, sliding or hybrid."""
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    size = draw(st.sampled_from([64, 128]))
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": draw(st.sampled_from([1024, 2048, 4096, 8192])),
        "num_hidden_layers": draw(st.integers(2, 96)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, 4, 8])),
        "head_dim": size,
        "intermediate_size": draw(st.sampled_from([2048, 8192, 28672])),
        "vocab_size": draw(st.sampled_from([32_000, 128_256])),
        "max_position_embeddings": 131_072,
    }
    if draw(st.booleans()):
        raw |= {
            "num_experts": draw(st.sampled_from([8, 64, 256])),
            "num_experts_per_tok": draw(st.sampled_from([1, 2, 8])),
            "moe_intermediate_size": draw(st.sampled_from([768, 2048])),
        }
    shape = draw(st.sampled_from(["full", "latent", "sliding", "linear"]))
    if shape == "latent":
        raw |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
        raw |= {"v_head_dim": 128, "q_lora_rank": 1536}
    elif shape == "sliding":
        raw |= {"sliding_window": draw(st.sampled_from([128, 4096])), "use_sliding_window": True}
    elif shape == "linear":
        raw |= {"linear_num_value_heads": 32, "linear_num_key_heads": 16}
        raw |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    return parse_config(raw, name="made up", source="test", facts={}, path=None)


deployments = st.builds(
    Deployment,
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    data_parallel=st.sampled_from([1, 2, 8]),
    pipeline_parallel=st.sampled_from([1, 2]),
    expert_parallel=st.booleans(),
    enforce_eager=st.booleans(),
    weight_dtype=st.sampled_from(["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    engine=st.sampled_from(ENGINE_NAMES),
)
models = st.one_of(configs(), st.sampled_from(sorted(catalogue.models())).map(catalogue.model))
cards = st.sampled_from(sorted(catalogue.gpus())).map(catalogue.gpu)


@settings(max_examples=300, deadline=None)
@given(
    models, cards, deployments, st.integers(0, 1500), st.integers(1, 100_000),
    st.tuples(st.integers(0, 20_000), st.integers(0, 60_000)),
)  # fmt: skip
def test_no_step_beats_the_physical_limit(model, gpu, deployment, batch, context, prompt):
    """Decode, prefill and mixed steps: FLOPs at peak and bytes at full bandwidth."""
    tokens, cached = prompt
    step = step_model(model, gpu, deployment, mean_context=float(context))
    pairs = tokens * (cached + tokens / 2)
    told = step.step_s(batch, batch * context, tokens, pairs)
    floor = physical_floor_s(
        model, gpu, deployment, batch=batch, context_sum=batch * context, tokens=tokens,
        token_context=pairs,
    )  # fmt: skip
    assert told >= floor
    assert floor > 0 or batch + tokens == 0


@settings(max_examples=80, deadline=None)
@given(models, cards, deployments)
def test_tables_grow_with_batch_and_prompt(model, gpu, deployment):
    step = step_model(model, gpu, deployment)
    times = [step.decode_step_s(batch, batch * MEAN_CONTEXT) for batch in step.batches[1:]]
    assert times == sorted(times)
    assert list(step.prefill_base_s) == sorted(step.prefill_base_s)
    assert step.prefill_base_s[0] == 0
    assert min(step.slope_s_per_token) >= 0
    assert step.prefill_s_per_token_context >= 0
    assert step.provenance is Provenance.CATALOGUE


@settings(max_examples=60, deadline=None)
@given(models, cards, deployments, st.integers(1, 256))
def test_more_of_the_work_is_never_quicker(model, gpu, deployment, batch):
    """Eager is no quicker than graphs, a 16-bit cache no quicker than an 8-bit one on its bytes."""
    eager = step_model(model, gpu, deployment.model_copy(update={"enforce_eager": True}))
    graph = step_model(model, gpu, deployment.model_copy(update={"enforce_eager": False}))
    assert eager.decode_step_s(batch, batch * 500) >= graph.decode_step_s(batch, batch * 500)
    deeper = step_model(model, gpu, deployment.model_copy(update={"pipeline_parallel": 4}))
    one = step_model(model, gpu, deployment.model_copy(update={"pipeline_parallel": 1}))
    assert deeper.decode_step_s(batch, 0) >= one.decode_step_s(batch, 0)


def test_experts_read_grow_from_k_to_all():
    layer = MlpLayers(
        layers=1, dense_parameters=0, experts=128, experts_per_token=8, expert_parameters=1
    )
    assert distinct_experts(layer, 1) == pytest.approx(8)
    assert distinct_experts(layer, 10_000) == pytest.approx(128)
    assert distinct_experts(layer, 16, 0.7) < distinct_experts(layer, 16)
    assert distinct_experts(layer, 0) == 0


def test_busiest_of_equal_ranks():
    """Against counts drawn: 8 ranks, 64 pairs; the mean of the largest is 1.5 times the mean."""
    assert busiest(8, 1, 1.0) == 8
    assert busiest(8, 8, 1.0) == pytest.approx(8 + (2 * 8 * 2.0794) ** 0.5, rel=1e-3)
    assert busiest(800, 8, 1.0) / 800 < busiest(8, 8, 1.0) / 8


def test_a_kernel_blends_reading_and_computing():
    hard, soft = Kernel(0, 1.0, 1.0, 50.0), Kernel(0, 1.0, 1.0, 1.0)
    assert hard.work_s(2.0, 1.0) == pytest.approx(2.0)
    assert soft.work_s(2.0, 1.0) == pytest.approx(3.0)
    assert Kernel(1.0, 0.5, 1.0, 2.0).time_s(1.0, 0.0) == pytest.approx(3.0)
    assert hard.work_s(0.0, 0.0) == 0


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("vllm", "vllm async"),
        ("vllm 0.2.7", "vllm 2023"),
        ("vLLM 0.6.3.post1", "vllm v0"),
        ("vllm 0.8.5", "vllm v1"),
        ("vllm 0.13.0", "vllm v1"),
        ("vllm 0.18.0", "vllm async"),
        ("sglang", "sglang"),
        ("SGLang 0.3.6", "sglang old"),
        ("trtllm 1.3.0rc5", "trtllm"),
        ("TensorRT-LLM 0.10", "trtllm c++"),
        ("somethingelse", "vllm async"),
    ],
)
def test_engine_kinds(engine, kind):
    assert engine_kind(engine) == kind
    assert kind in ENGINES


@pytest.mark.parametrize(
    ("card", "family"),
    [("A100", AMPERE), ("H200", HOPPER), ("B200", BLACKWELL), ("GB200", BLACKWELL),
     ("RTX PRO 6000", BLACKWELL_RTX), ("MI300X", CDNA), ("MI355X", CDNA)],
)  # fmt: skip
def test_families_of_known_cards(card, family):
    assert family_of(catalogue.gpu(card)) is family


def test_a_card_of_unknown_name_is_told_by_its_formats():
    known = catalogue.gpu("B200")
    assert family_of(known.model_copy(update={"name": "Card X"})) is BLACKWELL
    slow = known.model_copy(update={"name": "Card X", "bandwidth_bytes_per_s": 1.6e12})
    assert family_of(slow) is BLACKWELL_RTX
    old = catalogue.gpu("A100").model_copy(update={"name": "Card X"})
    assert family_of(old) is AMPERE
    assert kernel_class(old, "fp8") == "wo"
    assert kernel_class(known, "nvfp4") == "4"


def test_closed_windows_are_constants_and_open_ones_grow():
    model, gpu = catalogue.model("Gemma-3-27B"), catalogue.gpu("H100")
    short = step_model(model, gpu, Deployment(), mean_context=300)
    long = step_model(model, gpu, Deployment(), mean_context=5000)
    assert short.slope_s_per_token[1] == pytest.approx(6.2 * long.slope_s_per_token[1])
    assert long.decode_step_s(1, 5000) < short.decode_step_s(1, 5000)
    assert long.decode_step_s(1, 1024) == pytest.approx(short.decode_step_s(1, 1024))


def test_a_slow_link_pays_for_tensor_parallelism():
    """Case 59: small models gain nothing from a second card without a fast link."""
    model = catalogue.model("Llama-3.1-8B")
    one = step_model(model, catalogue.gpu("A100-PCIe"), Deployment(tensor_parallel=1))
    two = step_model(model, catalogue.gpu("A100-PCIe"), Deployment(tensor_parallel=2))
    fast = step_model(model, catalogue.gpu("A100-SXM"), Deployment(tensor_parallel=2))
    assert two.prefill_step_s(4096) > 1.3 * fast.prefill_step_s(4096)
    assert one.base_s[1] / two.base_s[1] < one.base_s[1] / fast.base_s[1]


def test_ranks_with_attention_of_their_own_read_experts_together():
    """DP attention: no copies of the cache, experts read once for all ranks."""
    model, gpu = catalogue.model("DeepSeek-V3"), catalogue.gpu("H200")
    shared = step_model(model, gpu, Deployment(tensor_parallel=8))
    apart = step_model(model, gpu, Deployment(data_parallel=8, expert_parallel=True))
    context = 4000
    assert apart.slope_s_per_token[1] == pytest.approx(shared.slope_s_per_token[1], rel=2.5)
    eight = shared.decode_step_s(256, 256 * context)
    assert apart.decode_step_s(32, 32 * context) < eight


def test_anchor_of_a_published_fit():
    """vLLM 0.19.1, Llama-3.1-8B, H100, batch 1: 6.44 ms + 4.37e-5 ms per context token (bf16 KV),
    slope x 0.54 in fp8 (vLLM blog, 2026-04-22)."""
    model, gpu = catalogue.model("Llama-3.1-8B"), catalogue.gpu("H100")
    wide = step_model(model, gpu, Deployment(engine="vllm 0.19.1"))
    narrow = step_model(model, gpu, Deployment(engine="vllm 0.19.1", kv_dtype="fp8"))
    assert wide.decode_step_s(1, 0) == pytest.approx(6.44e-3, rel=0.08)
    assert wide.slope_s_per_token[1] == pytest.approx(4.37e-8, rel=0.15)
    assert narrow.slope_s_per_token[1] / wide.slope_s_per_token[1] == pytest.approx(0.54, rel=0.2)
