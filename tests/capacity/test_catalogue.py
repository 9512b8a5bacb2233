"""The catalogue's rows agree with the published totals, and say where they are from."""

from __future__ import annotations

import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.catalogue_page import catalogue_page
from sojourn.capacity.model_names import key
from sojourn.errors import InputError, UsageError
from sojourn.interval import Provenance


def kind_of_source(spec):
    said = spec.facts["parameters"].source
    return next(kind for kind, text in catalogue._model_sources().items() if text == said)


@pytest.mark.parametrize("name", sorted(catalogue.models()))
def test_counted_parameters_are_the_published_ones(name):
    """To 0.1% where the published total is that of the checkpoint's tensors (biases and some norms
    are left out; Llama-3.2-Vision's tile embeddings too: 0.5%); to 2% where a card rounds."""
    spec = catalogue.models()[name]
    published, kind = spec.facts["parameters"].value, kind_of_source(spec)
    counted = spec.parameters + (spec.mtp_parameters if kind == "mtp-index" else 0)
    near = 2e-2 if kind == "card" else 6e-3 if spec.architecture == "mllama_text_model" else 1e-3
    assert counted == pytest.approx(published, rel=near)


@pytest.mark.parametrize(
    "name", sorted(n for n, m in catalogue.models().items() if "active_parameters" in m.facts)
)
def test_active_parameters_are_the_published_ones(name):
    """Cards count the embedding, or leave it out, or leave the output head out too, and some count
    the vision encoder; and they round: one of these ways agrees to 6% or 0.3e9."""
    spec = catalogue.models()[name]
    active, embedding = spec.active_parameters, spec.embedding_parameters
    text = (active, active - embedding, active - embedding - spec.head_parameters)
    ways = (*text, *(way + spec.vision_parameters for way in text))
    published = spec.facts["active_parameters"].value
    assert min(abs(way - published) for way in ways) < max(0.06 * published, 0.3e9)


@pytest.mark.parametrize("name", sorted(catalogue.gpus()))
def test_every_number_of_a_card_has_a_source(name):
    card = catalogue.gpus()[name]
    for field in card.facts:
        assert card.facts[field].source
        assert card.facts[field].value == getattr(card, field)
    unsourced = {
        field
        for field, value in card.model_dump().items()
        if isinstance(value, float) and field not in card.facts
    }
    assert not unsourced
    assert card.facts["usd_per_hour"].provenance is Provenance.ASSUMED
    assert card.facts["bf16_flops"].provenance is Provenance.CATALOGUE


def test_a_recalled_figure_is_shown_as_assumed():
    link = catalogue.gpu("MI210").facts["link_bytes_per_s"]
    assert link.provenance is Provenance.ASSUMED
    assert "not read again" in link.source
    assert catalogue.gpu("MI210").facts["tdp_w"].provenance is Provenance.CATALOGUE
    assert catalogue.gpu("TPU v6e").facts["tdp_w"].provenance is Provenance.ASSUMED


def test_every_source_of_the_cards_is_used_and_every_checked_model_is_a_row():
    rows = catalogue._gpu_rows()
    used = {row["source"] for row in rows["gpus"].values()} | {
        figure[1]
        for row in rows["gpus"].values()
        for figure in row["figures"].values()
        if isinstance(figure, list)
    }
    assert used == set(rows["sources"])
    assert set(rows["assumed"]) <= used
    assert set(catalogue._checks()) == set(catalogue.models())
    assert "not compared" in catalogue.model("DBRX").source
    assert "aiconfigurator" in catalogue.model("Qwen3-32B").source


def test_names_are_forgiving_and_unknown_ones_are_answered():
    assert catalogue.gpu("nvidia-h100-pcie").name == "H100-PCIe"
    assert catalogue.model("QWEN/qwen3-32b").name == "Qwen3-32B"
    with pytest.raises(UsageError, match="Did you mean H100-SXM"):
        catalogue.gpu("H100-SMX")
    with pytest.raises(UsageError, match="Did you mean Qwen3-32B"):
        catalogue.model("Qwen/Qwen3-33B")
    with pytest.raises(UsageError, match=r"config\.json"):
        catalogue.model("no-such-model")


@pytest.mark.parametrize("name", ["H100-CNX", "H100 MIG 1g.10gb", "A100-64GB", "not named", ""])
def test_a_card_that_is_not_there_is_not_taken_for_another(name):
    with pytest.raises(UsageError):
        catalogue.gpu(name)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("H100-SXM", "H100|h100_sxm|NVIDIA H100-SXM-80GB|NVIDIA H100 80GB HBM3|8xH100|h100-80gb"
         "|ESC4000A_E12_4XH100_TRT|XE9680_H100_SXM_80GBx8_TRT|DGX-H100_H100-SXM-80GBx8_TRT"
         "|4 × NVIDIA H100 SXM GPUs on a single node.|8xH100 1FP8-meta|SMC_H100_SXM_80GBX8_TRT"),
        ("H100-PCIe", "NVIDIA-H100-PCIe|NVIDIA H100-PCIe-80GB|h100_pcie|NVIDIA H100 PCIe"),
        ("H100-NVL", "NVIDIA H100-NVL-94GB|SR675_V3_8xH100_NVL_TRT|NVIDIA H100 NVL|H100-94GB"),
        ("H800-SXM", "H800|H800 (8 prefill + 8 decode)"),
        ("H200", "h200_sxm|H200 x 8|NVIDIA H200-SXM-141GB-CTS|NVIDIA H200x8"
         "|H200-SXM-141GBx8_TRT_MaxQ"),
        ("H200-NVL", "NVIDIA H200 NVL|H200-NVL-141GBx8_TRT"),
        ("H20", "H20|NVIDIA H20-96GB"),
        ("GH200-96GB", "Nvidia GH200 GPU|NVIDIA GH200 480GB"
         "|GH200-GraceHopper-Superchip_GH200-96GB_aarch64x1_TRT"),
        ("GH200-144GB", "NVIDIA GH200 Grace Hopper Superchip 144GB"
         "|GH200-GraceHopper-Superchip_GH200-144GB_aarch64x1_TRT"),
        ("B200", "b200_sxm|NVIDIA B200-SXM-180GB|B200 GPU (8x)|NVIDIA B200|DGX B200"),
        ("B300", "b300_sxm|NVIDIA B300-SXM-270GB"),
        ("GB200", "gb200|NVIDIA GB200 NVL72|GB200-NVL72_GB200-186GB_aarch64x72_TRT"),
        ("GB300", "gb300|GB300-NVL72"),
        ("A100-80GB-SXM", "A100|a100_sxm|NVIDIA A100-SXM4-80GB|a100-80gb|Nvidia A100 GPU|A100-80"
         "|2 × NVIDIA A100 SXM 80GB GPUs on a single node.|A single NVIDIA A100 SXM GPU."),
        ("A100-80GB-PCIe", "a100_pcie|NVIDIA A100 80GB PCIe"),
        ("A100-40GB-SXM", "A100-40GB|NVIDIA A100-SXM4-40GB"),
        ("A100-40GB-PCIe", "NVIDIA A100-PCIE-40GB"),
        ("L40S", "NVIDIA L40S|CDI_L40Sx8_TRT|L40S-RedHat-OpenShift|l40s"),
        ("L4", "NVIDIA L4"), ("L20", "L20"), ("A10G", "NVIDIA A10G"), ("T4", "Tesla T4"),
        ("V100-32GB-SXM", "V100|Tesla V100-SXM2-32GB"), ("V100-16GB-PCIe", "V100-PCIE-16GB"),
        ("RTX-4090", "NVIDIA GeForce RTX 4090"), ("RTX-5090", "RTX 5090"),
        ("RTX-PRO-6000", "RTXPRO6000|rtx_pro_6000_server|NVIDIA RTX PRO 6000 Blackwell"),
        ("MI300X", "AMD Instinct MI300X-NPS1-SPX-192GB-750W|8x MI300X|8xMI300X_2xEPYC-9374F"
         "|XE9680_MI300X_192GBx8|MI300X GPU (8x)|4xMi300x 1FP8-amd|AMD MI300X GPU"),
        ("MI325X", "AMD Instinct MI325X-256GB"), ("MI350X", "MI350X"),
        ("MI355X", "mi355x|8xMI355X_2xEPYC-9575F"),
        ("MI250", "AMD MI250 GPU"), ("Max-1550", "Intel Max 1550|Intel PVC GPU"),
        ("Jetson-AGX-Orin", "NVIDIA Jetson AGX Orin 64G|Orin_TRT_DepthPruned"),
        ("Gaudi-2", "Gaudi2|Habana Gaudi2"), ("Gaudi-3", "Intel Gaudi 3"), ("TPU-v6e", "TPU v6e"),
        ("Ascend-910B", "A single Ascend 910B NPU."),
    ],
)  # fmt: skip
def test_the_names_publishers_use_for_cards(row, names):
    assert {catalogue.gpu(name).name for name in names.split("|")} == {row}


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct|Llama 3.1 8B|llama3.1-8b"),
        ("Llama-3-8B", "meta-llama/Meta-Llama-3-8B|meta-llama/Meta-Llama-3-8B-Instruct"),
        ("Llama-3.3-70B", "meta-llama/Llama-3.3-70B-Instruct|Llama 3.3 70B"),
        ("Llama-3.1-70B", "Meta-Llama/Llama-3.1-70B"),
        ("Llama-2-70B", "llama2-70b-99.9|llama2-70b|meta-llama/Llama-2-70b-chat-hf"),
        ("Llama-2-7B", "huggyllama/llama-7b|meta-llama/Llama-2-7b-hf"),
        ("Llama-4-Scout", "Llama 4 Scout|meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        ("Qwen2.5-Math-7B", "nvidia/AceMath-7B-Instruct"),
        ("Qwen2.5-32B", "Qwen/QwQ-32B-Preview|Qwen/Qwen2.5-32B-Instruct"),
        ("Qwen3-235B-A22B-2507", "Qwen/Qwen3-235B-A22B-Thinking-2507"
         "|Qwen3-235B-A22B-Instruct-2507"),
        ("Mixtral-8x7B", "mixtral-8x7b|mistralai/Mixtral-8x7B-v0.1"),
        ("Ministral-3-14B", "mistralai/Ministral-3-14B-Instruct-2512"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528|deepseek-r1"),
        ("GLM-5", "zhipuai/GLM-5|zai-org/GLM-5"),
        ("MiniMax-M2", "MiniMaxAI/MiniMax-M2.5"),
        ("Qwen3.5-397B-A17B", "Qwen/Qwen3.5-397B-A17B"),
        ("Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"),
        ("Phi-4", "microsoft/phi-4"), ("Gemma-2-9B", "google/gemma-2-9b-it"),
        ("OPT-6.7B", "facebook/opt-6.7b"), ("BLOOM-176B", "bloom-176b"),
        ("GPT-J-6B", "EleutherAI/gpt-j-6b|gptj-99"), ("DeciLM-7B", "Deci/DeciLM-7B"),
        ("Qwen1.5-7B", "Qwen/Qwen1.5-7B"), ("Aquila-7B", "BAAI/Aquila-7B"),
    ],
)  # fmt: skip
def test_the_names_publishers_use_for_models(row, names):
    assert {catalogue.model(name).name for name in names.split("|")} == {row}


@pytest.mark.parametrize(
    ("name", "row", "dtype"),
    [
        ("nvidia/Qwen3-32B-NVFP4", "Qwen3-32B", "nvfp4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "DeepSeek-R1", "nvfp4"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B", "fp8"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "Llama-4-Scout", "fp8"),
        ("neuralmagic/Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic", "Llama-3.1-70B", "fp8"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "Qwen3-32B", "fp8"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "Llama-3.1-405B", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen2.5-72B", "int4"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen2.5-72B", "int8"),
        ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "Qwen2.5-VL-7B", "int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "Llama-3.3-70B", "int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "Llama-3.3-70B", "int8"),
        ("amd/DeepSeek-R1-MXFP4-Preview", "DeepSeek-R1", "mxfp4"),
        ("unsloth/DeepSeek-R1-BF16", "DeepSeek-R1", "bf16"),
    ],
)
def test_a_suffix_quantises_any_known_model(name, row, dtype):
    spec, base = catalogue.model(name), catalogue.model(row)
    assert spec.checkpoint_dtype == dtype
    assert spec.name == f"{row}-{dtype.upper()}"
    assert spec.parameters == base.parameters
    assert dtype in spec.source


def test_no_name_means_two_rows():
    gpus = [key(n) for g in catalogue.gpus().values() for n in {g.name, *g.aliases}]
    assert len(gpus) == len(set(gpus))
    owner: dict[str, str] = {}
    for row in catalogue.models():
        for name in catalogue.names_of(row):
            assert owner.setdefault(key(name), row) == row
            assert catalogue.model(name).name == row


def test_a_card_of_ones_own(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_text(
        "memory_gib: 64\nbandwidth_bytes_per_s: 1.2e+12\nbf16_flops: 2.0e+14\n"
        "fp16_flops: 2.0e+14\nlink_bytes_per_s: 5.0e+10\ntdp_w: 300\n"
    )
    card = catalogue.gpu(str(path))
    assert card.name == "card"
    assert card.facts["memory_gib"].provenance is Provenance.ASSUMED
    path.write_text("memory_gib: -1\n")
    with pytest.raises(InputError, match="memory_gib"):
        catalogue.gpu(str(path))
    with pytest.raises(InputError):
        catalogue.gpu(str(tmp_path / "absent.yaml"))


def test_peak_rate_by_dtype():
    a100, b200 = catalogue.gpu("A100"), catalogue.gpu("B200")
    assert a100.flops("fp8") == a100.bf16_flops
    assert a100.flops("int4") == a100.bf16_flops
    assert b200.flops("nvfp4") == b200.fp4_flops


def test_page_lists_every_row_and_source():
    page = catalogue_page()
    for name in (*catalogue.gpus(), *catalogue.models()):
        assert f"| {name} |" in page
        assert f"**{name}**" in page
    assert page == catalogue_page()
