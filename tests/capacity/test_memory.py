"""Memory by part: against what engines printed, and laws.

Measured errors of the KV pool (this account against the engine's print, H100): vLLM 0.11.0:
Llama-3.1-8B, Llama-3.3-70B-FP8 and gpt-oss-20b 0.0%, Qwen3-0.6B 0.0%; vLLM 0.15.1: Llama-2-7B,
Mistral-Nemo, Llama-3.1-70B 0.0 to 0.1%, Qwen2.5-7B 0.1%, Yi-34B 0.3%, Llama-4-Scout-FP8 1.3%.
Mistral-Small-3.2-24B is 0.0% if its sampler is a fused one (a figure fitted to that row alone) and
-9% if it sorts like the others of its version; its flags do not tell which.
"""

from __future__ import annotations

import csv
import re
from importlib import resources
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity import catalogue
from sojourn.capacity.memory import memory, weight_bytes
from sojourn.capacity.memory_engines import sglang_fraction
from sojourn.capacity.memory_knobs import Knobs
from sojourn.capacity.memory_kv import held_blocks, layout
from sojourn.capacity.model_config import parse_config
from sojourn.capacity.model_records import AttentionKind
from sojourn.config import Deployment
from sojourn.errors import UsageError
from sojourn.units import GIB

GROUND_TRUTH = Path(__file__).resolve().parents[3] / "shared" / "data" / "ground_truth"
needs_ground_truth = pytest.mark.skipif(
    not GROUND_TRUTH.is_dir(), reason="measured rows lie beside the checkout only"
)
H100 = catalogue.gpu("H100")


def read_rows(name):
    with (GROUND_TRUTH / name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def printed(row):
    """The five rows of vLLM 0.11.0; flags as its default on an 80 GB card (1,024 sequences)."""
    fp8 = "FP8" in row["model"]
    model = catalogue.model(row["model"].removesuffix("-FP8-dynamic"))
    fused = "VLLM_USE_FLASHINFER_SAMPLER=1 vllm serve x"
    deployment = Deployment(
        engine="vllm 0.11.0",
        launch=fused if "Mistral-Small" in row["model"] else None,
        tensor_parallel=int(row["tp"]),
        weight_dtype="fp8" if fp8 else "bf16",
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        block_size=128,
        max_model_len=16_000,
        gpu_memory_utilization=float(row["gpu_mem_util"]),
    )
    return model, deployment


@needs_ground_truth
def test_parts_against_what_the_engine_printed():
    """Weights and pools within 0.4%, peaks within 0.6%."""
    for row in read_rows("kv_capacity_h100_vllm0110.csv"):
        model, deployment = printed(row)
        found = memory(model, H100, deployment)
        tp = deployment.tensor_parallel
        for ours, theirs, within in (
            (found.weights_gib, "weights_gib", 0.004),
            (found.activations_gib, "activation_peak_gib", 0.006),
            (found.kv_gib, "kv_cache_gib_per_gpu", 0.004),
        ):
            assert ours / tp == pytest.approx(float(row[theirs]), rel=within), (model.name, theirs)


@needs_ground_truth
def test_kv_tokens_against_engine_logs():
    """vLLM 0.15.1, blocks read from its log: text models within 0.3%, Llama-4-Scout within 1.4%."""
    errors = {}
    for row in read_rows("blis/blis_kv_blocks_and_workloads.csv"):
        deployment = Deployment(
            engine="vllm 0.15.1",
            tensor_parallel=int(row["tp"]),
            max_num_seqs=int(row["max_num_seqs"]),
            max_num_batched_tokens=int(row["max_num_batched_tokens"]),
            weight_dtype="fp8" if "FP8" in row["model"] else "bf16",
        )
        found = memory(catalogue.model(row["model"]), H100, deployment)
        errors[row["model"], row["id"]] = found.kv_tokens / int(row["gpu_kv_tokens"]) - 1
    assert len(errors) == 15
    for (name, _), error in errors.items():
        assert abs(error) < (0.014 if "Scout" in name else 0.003), (name, error)
    assert median(abs(error) for error in errors.values()) < 0.001


def test_pools_that_public_logs_print():
    """(model, card, deployment, GiB of the pool per device, within). Two gave one constant each:
    gpt-oss-120b the padding of its experts, Qwen2.5-7B on 0.22.0 the memory of a graph."""
    for name, card, deployment, printed_gib, within in (
        ("Qwen3-32B", "H100", Deployment(engine="vllm 0.11.0", max_num_seqs=1024), 4.45, 0.005),
        ("Qwen3-32B", "H100",
         Deployment(engine="vllm 0.11.0", max_num_seqs=1024, tensor_parallel=2), 34.49, 0.002),
        ("gpt-oss-120b", "H100",
         Deployment(engine="vllm 0.11.0", max_num_seqs=1024, gpu_memory_utilization=0.95),
         3.33, 0.01),
        ("Llama-3.1-8B", "H100",
         Deployment(engine="vllm 0.6.3", max_num_seqs=256, max_num_batched_tokens=2048),
         54.93, 0.002),
        ("Llama-3.1-8B", "A100",
         Deployment(engine="vllm 0.33.0", max_num_seqs=256, max_num_batched_tokens=2048,
                    gpu_memory_utilization=0.92), 56.21, 0.005),
        ("Qwen2.5-7B", "L40S",
         Deployment(engine="vllm 0.22.0", max_num_seqs=128, max_num_batched_tokens=2048,
                    gpu_memory_utilization=0.95), 26.32, 0.006),
        ("Llama-3.1-8B", "H100", Deployment(engine="sglang 0.4.1", block_size=1), 54.26, 0.005),
        ("Llama-3.1-8B", "H100", Deployment(engine="sglang 0.4.4", block_size=1), 54.04, 0.005),
        ("Qwen3-235B-A22B", "H100",
         Deployment(engine="sglang 0.4.9", tensor_parallel=4, weight_dtype="fp8", block_size=1,
                    gpu_memory_utilization=0.93), 16.47, 0.035),
    ):  # fmt: skip
        found = memory(catalogue.model(name), catalogue.gpu(card), deployment)
        per_device = found.kv_gib / deployment.tensor_parallel
        assert per_device == pytest.approx(printed_gib, rel=within), name


def test_concurrency_as_the_engine_prints_it():
    """KV tokens over max_model_len (vllm#8031: "4.61x for 8192 tokens" = tokens / 8192)."""
    deployment = Deployment(max_model_len=8192, kv_blocks=2360)
    found = memory(catalogue.model("Llama-3.1-8B"), H100, deployment, mean_context=800)
    assert found.kv_tokens == 2360 * 16
    assert found.concurrency_at_max_len == pytest.approx(4.61, abs=0.01)
    assert found.concurrency_at_profile == pytest.approx(2360 * 16 / 808, rel=0.01)


def test_case_of_a_public_thread():
    """vllm#22291: 3,072 tokens of Qwen2.5-7B hold 0.164 GiB."""
    found = memory(catalogue.model("Qwen2.5-7B"), H100, Deployment())
    assert found.kv_bytes_per_token * 3072 / GIB == pytest.approx(0.164, abs=0.001)


@pytest.mark.parametrize(
    ("name", "card", "tp"), [("Llama-3.1-70B", "H100", 1), ("DeepSeek-V3", "H100", 8),
                             ("Llama-2-13B", "L4", 1)],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_explained(name, card, tp):
    """With the degree that would fit, which then does."""
    with pytest.raises(UsageError, match="does not fit") as caught:
        memory(catalogue.model(name), catalogue.gpu(card), Deployment(tensor_parallel=tp))
    degree = int(str(caught.value).split("tensor_parallel ")[1].split()[0])
    found = memory(catalogue.model(name), catalogue.gpu(card), Deployment(tensor_parallel=degree))
    assert found.kv_tokens > 0


def test_contradictions_are_explained():
    model = catalogue.model("Qwen3-32B")
    with pytest.raises(UsageError, match="max_model_len"):
        memory(model, H100, Deployment(max_model_len=131_072, gpu_memory_utilization=0.9))
    with pytest.raises(UsageError, match="kv_blocks"):
        memory(model, H100, Deployment(kv_blocks=10_000_000))
    with pytest.raises(UsageError, match="weight_dtype"):
        memory(model, H100, Deployment(weight_dtype="fp7"))
    with pytest.raises(UsageError, match="kv_dtype"):
        memory(model, H100, Deployment(kv_dtype="int3"))


def test_a_quantised_checkpoint_is_loaded_as_it_is():
    found = memory(catalogue.model("gpt-oss-120b"), H100, Deployment(weight_dtype="bf16"))
    assert found.weights_gib < 70
    assert "mxfp4" in found.source


def test_fp8_kv_doubles_the_tokens():
    model = catalogue.model("Llama-3.1-8B")
    wide = memory(model, H100, Deployment())
    narrow = memory(model, H100, Deployment(kv_dtype="fp8"))
    assert narrow.kv_tokens == pytest.approx(2 * wide.kv_tokens, rel=1e-3)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(catalogue.models())),
    card=st.sampled_from(sorted(catalogue.gpus())),
    layout=st.tuples(
        st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 8])
    ),
    dtype=st.sampled_from(["bf16", "fp8", "int4"]),
    engine=st.sampled_from(["vllm", "vllm 0.11.0", "sglang", "trtllm"]),
    share=st.floats(0.5, 0.98),
)
def test_laws_of_memory(name, card, layout, dtype, engine, share):
    """The parts sum to the whole, none is negative, and more memory never holds fewer tokens."""
    model, gpu = catalogue.models()[name], catalogue.gpus()[card]
    deployment = Deployment(
        tensor_parallel=layout[0],
        pipeline_parallel=layout[1],
        data_parallel=layout[2],
        weight_dtype=dtype,
        engine=engine,
        gpu_memory_utilization=share,
    )
    try:
        found = memory(model, gpu, deployment)
    except UsageError:
        return
    parts = (found.weights_gib, found.activations_gib, found.graphs_gib, found.overhead_gib,
             found.kv_gib)  # fmt: skip
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.total_gib)
    if {a.kind for a in model.attention} in ({AttentionKind.FULL}, {AttentionKind.LATENT}):
        assert found.kv_tokens % deployment.block_size == 0
    larger = memory(model, gpu.model_copy(update={"memory_gib": gpu.memory_gib * 1.2}), deployment)
    assert larger.kv_tokens >= found.kv_tokens


def test_weights_by_dtype():
    """Llama-3.3-70B in fp8: 68.45e9 bytes of blocks, embedding and head in 16 bits, 67.7 GiB."""
    model = catalogue.model("Llama-3.1-70B")
    assert weight_bytes(model, "bf16") == 2 * model.parameters
    assert weight_bytes(model, "fp8") / GIB == pytest.approx(67.66, abs=0.05)


HYBRID = {
    "model_type": "qwen3_5", "hidden_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32", "vocab_size": 248_320, "max_position_embeddings": 262_144,
}  # fmt: skip
"""Qwen3.5-4B, as vLLM 0.22.0 logged it: a block of 528 tokens, 689 blocks in 11.11 GiB."""


def hybrid():
    return parse_config(HYBRID, name="Qwen3.5-4B", source="test")


def test_states_share_the_pool_of_a_hybrid():
    """Printed: block size 528, 137.80 requests of 1,024 tokens, 141,107 tokens."""
    engine = Knobs(version=(0, 22, 0))
    pool = layout(hybrid(), Deployment(), engine)
    assert {group.tokens for group in pool.groups} == {528}
    assert sum(group.groups for group in pool.groups) == 4
    blocks = int(11.11 * GIB / pool.block_bytes)
    assert blocks / pool.admission_blocks(1024, 8192) == pytest.approx(137.80)
    deployment = Deployment(engine="vllm 0.22.0", kv_blocks=blocks, max_model_len=1024)
    found = memory(hybrid(), H100, deployment)
    assert found.concurrency_at_max_len == pytest.approx(137.80)
    assert found.kv_tokens == 141_107


def test_a_windowed_pool_as_versions_print_it():
    """gpt-oss: 12 window and 12 full layers are two groups; contexts of 2k close the windows."""
    model = catalogue.model("gpt-oss-20b")
    old = memory(model, H100, Deployment(engine="vllm 0.11.0", kv_blocks=10_000))
    assert old.kv_tokens == 10_000 // 2 * 16
    new = memory(model, H100, Deployment(engine="vllm 0.22.0", kv_blocks=10_000))
    assert new.kv_tokens == int(new.concurrency_at_max_len * 131_072)
    here = memory(model, H100, Deployment(kv_blocks=10_000), mean_context=2048.0)
    assert here.kv_tokens == pytest.approx(here.concurrency_at_profile * 2048, abs=1)
    assert old.kv_tokens < here.kv_tokens < 10_000 * 16
    whole = "vllm serve x --disable-hybrid-kv-cache-manager"
    without = memory(model, H100, Deployment(engine="vllm 0.11.0", launch=whole))
    assert without.kv_tokens == pytest.approx(
        memory(model, H100, Deployment(engine="vllm 0.11.0")).kv_tokens, rel=0.001
    )


def test_held_tokens_are_weighted_by_time():
    """Half of the requests write 10 tokens, half 1,000: a running one is nearly always long."""
    pool = layout(catalogue.model("Llama-3.1-8B"), Deployment(block_size=1), Knobs())
    inputs, outputs = np.array([100.0, 100.0]), np.array([10.0, 1000.0])
    held = held_blocks(pool, inputs, outputs)
    exact = sum(100 + k + 1 for o in (10, 1000) for k in range(o)) / 1010
    assert held == pytest.approx(exact, rel=0.01)
    lengths = memory(catalogue.model("Llama-3.1-8B"), H100, Deployment(), lengths=(inputs, outputs))
    assert lengths.concurrency_at_profile == pytest.approx(lengths.kv_tokens / (held + 8), rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["Llama-3.1-8B", "gpt-oss-20b", "Gemma-3-27B", "Qwen3-Next-80B-A3B"]),
    block=st.sampled_from([16, 32, 128]),
    context=st.floats(1, 100_000),
    more=st.floats(0, 1e4),
)
def test_laws_of_blocks(name, block, context, more):
    """A longer request never holds fewer blocks; start-up never reckons less than is held."""
    pool = layout(catalogue.model(name), Deployment(block_size=block), Knobs())
    here, there = pool.blocks(np.array([context, context + more]))
    assert 1 <= here <= there
    assert pool.admission_blocks(int(context) + 1, 8192) >= here - 1e-9


def test_parallel_layouts_of_one_model():
    """Ranks cut weights; data-parallel ranks repeat attention and share experts."""
    model = catalogue.model("DeepSeek-V3")
    h200 = catalogue.gpu("H200")
    tensor = memory(model, h200, Deployment(tensor_parallel=8, weight_dtype="fp8"))
    data = memory(
        model, h200, Deployment(data_parallel=8, expert_parallel=True, weight_dtype="fp8")
    )
    assert data.weights_gib > tensor.weights_gib
    assert data.weights_gib < 1.3 * tensor.weights_gib
    assert data.kv_tokens * 8 > 4 * tensor.kv_tokens  # the latent is not held eight times
    piped = memory(
        model, h200, Deployment(tensor_parallel=4, pipeline_parallel=2, weight_dtype="fp8")
    )
    assert piped.total_gib == tensor.total_gib
    assert piped.kv_tokens > 1.4 * tensor.kv_tokens  # half the layers on each, held four times


def test_flags_that_move_memory():
    model = catalogue.model("Llama-3.1-8B")

    def tokens(flags="", **more):
        launch = f"vllm serve x {flags}" if flags else None
        return memory(model, H100, Deployment(launch=launch, **more)).kv_tokens

    assert tokens("--kv-cache-memory-bytes 16G") == 2**34 // (2048 * 2 * 32 * 16) * 16
    assert tokens("--cpu-offload-gb 4") - tokens() == pytest.approx(4 * GIB / 131_072, abs=32)
    assert tokens("-dcp 2", tensor_parallel=16) == pytest.approx(
        2 * tokens("-dcp 1", tensor_parallel=16), rel=0.01
    )
    draft = '--speculative-config \'{"model": "Qwen3-0.6B", "num_speculative_tokens": 4}\''
    assert tokens(draft) < 0.6 * tokens()
    found = memory(model, H100, Deployment(launch=f"vllm serve x {draft}"))
    assert "Qwen3-0.6B counted" in found.source


def test_an_encoder_is_profiled_unless_told_otherwise():
    model = catalogue.model("Qwen2.5-VL-7B")

    def peak(flags=""):
        launch = f"vllm serve x {flags}" if flags else None
        return memory(model, H100, Deployment(launch=launch)).activations_gib

    assert peak() > 1.3 * peak("--language-model-only")
    assert peak('--limit-mm-per-prompt \'{"image": 0, "video": 0}\'') == peak("--skip-mm-profiling")
    assert peak("--limit-mm-per-prompt '{\"image\": 2}'") == peak()


def test_engines_divide_memory_by_their_own_rules():
    model = catalogue.model("gpt-oss-20b")
    h100 = memory(model, H100, Deployment(engine="sglang 0.5.6", block_size=1))
    assert "SGLang" in h100.source
    assert sglang_fraction(79.18, Deployment(), Knobs(engine="sglang")) == pytest.approx(
        1 - (512 + 1.5 * 8192 + 2 * 256 + 128) / (79.18 * 1024), abs=1e-3
    )
    trt = memory(model, H100, Deployment(engine="trtllm 1.0", block_size=32))
    assert trt.kv_tokens % 32 == 0
    half = Deployment(engine="trtllm 1.0", block_size=32, gpu_memory_utilization=0.45)
    assert memory(model, H100, half).kv_tokens == pytest.approx(trt.kv_tokens / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tp", "length", "groups", "block_bytes", "blocks"),
    [
        ("gpt-oss-20b", 1, 131_072, 2, 393_216, 8_713),
        ("Gemma-3-27B", 1, 131_072, 7, 1_310_720, 11_654),
        ("Gemma-3-27B", 2, 131_072, 7, 655_360, 11_654),
        ("Qwen3-Next-80B-A3B", 1, 262_144, 4, 13_369_344, 485),
    ],
)
def test_groups_as_the_engine_makes_them(name, tp, length, groups, block_bytes, blocks):
    """What `get_kv_cache_groups` of vLLM 0.32.0 returns for these layers, 8,192 tokens a step."""
    deployment = Deployment(tensor_parallel=tp)
    pool = layout(catalogue.model(name), deployment, Knobs(version=(0, 32, 0)))
    assert sum(group.groups for group in pool.groups) == groups
    assert pool.block_bytes == block_bytes
    assert pool.admission_blocks(length, 8192) == blocks


def test_the_recorded_engine_says_the_same():
    """vLLM 0.32 on a CPU: `KV cache size: 12,288 tokens, Maximum concurrency for 2,048 tokens per
    request: 6.00x` with 96 blocks of 128."""
    folder = resources.files("sojourn.recordings") / "engine" / "base"
    recording = yaml.safe_load((folder / "recording.yaml").read_text(encoding="utf-8"))
    said = next(line for line in recording["engine_said"] if "KV cache size" in line)
    form = r"size: ([\d,]+) .* for\s+([\d,]+) .*: ([\d.]+)x"
    tokens, length, times = re.search(form, said).groups()
    engine = recording["engine"]
    model = parse_config(recording["model"], name="tiny", source="recording")
    deployment = Deployment(
        engine=f"vllm {recording['versions']['vllm'].split('+')[0]}",
        kv_blocks=engine["num_gpu_blocks"],
        **{k: engine[k] for k in ("max_num_seqs", "max_num_batched_tokens", "max_model_len",
                                  "block_size")},
    )  # fmt: skip
    found = memory(model, catalogue.gpu("L4"), deployment)
    assert found.kv_tokens == int(tokens.replace(",", ""))
    assert found.concurrency_at_max_len == pytest.approx(float(times))
    assert engine["max_model_len"] == int(length.replace(",", ""))
