"""Static batches, which start together and end together: Splitwise, Argonne, dstack."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Final

from sojourn.config import Deployment

from .rows import Arrivals, Load, Loaded, Row
from .sets_closed_reading import (
    LeftOut,
    Record,
    collect,
    gpu_name,
    model_name,
    records,
    same,
    weight_dtype,
)

Key = tuple[str, str, int, int, int, int]
WAVES: Final = 1.3
"""Whole time over prompt + tokens x time a token: beyond, the batch did not fit at once."""


def splitwise(folder: Path) -> Loaded:
    """Splitwise's profile: the median of 5 to 15 repeats of each setting.

    fp16, no dtype in the file (the paper's models); the software of 2023. Answers end before
    `token_size` where the model stops: the tokens written follow from the whole time.
    """
    loaded = Loaded()
    repeats: dict[Key, list[Record]] = {}
    for record in records(folder / "splitwise_perf_model.csv", loaded):
        try:
            repeats.setdefault(_splitwise_key(record), []).append(record)
        except LeftOut as reason:
            loaded.skip(str(reason))
    return collect(repeats.items(), lambda item: [_splitwise_row(*item)], loaded)


def _splitwise_key(record: Record) -> Key:
    hardware = record.text("hardware")
    if "pcap" in hardware:
        raise LeftOut("a card with its power capped")
    return (
        record.text("model"), hardware, record.count("tensor_parallel"),
        record.count("prompt_size"), record.count("batch_size"), record.count("token_size"),
    )  # fmt: skip


def _splitwise_row(key: Key, repeats: list[Record]) -> Row:
    named, hardware, tp, prompt, batch, tokens = key
    first, each, whole = (
        median(record.positive(name) for record in repeats) / 1e3
        for name in ("prompt_time", "token_time", "e2e_time")
    )
    written = min(tokens, round((whole - first) / each) + 1)
    if written < 2 or whole > WAVES * (first + each * tokens):
        raise LeftOut("the batch did not fit at once")
    model, gpu = model_name(named), gpu_name(_splitwise_card(hardware))
    deployment = Deployment(
        tensor_parallel=tp,
        engine="vllm 0.2.0",
        weight_dtype="fp16",
        kv_dtype="fp16",
        max_num_seqs=max(256, batch),
        max_num_batched_tokens=max(8192, prompt * batch),
        prefix_caching=False,
    )
    return Row(
        set="Splitwise",
        id=f"{named} {hardware} TP{tp} {prompt} x {batch}, {tokens}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.STATIC, same(prompt, batch), same(written, batch)),
        measured={"ttft_p50_s": first, "tpot_mean_s": each, "e2e_mean_s": whole},
        notes=("fp16 assumed", "software of 2023, one step for all prompts assumed"),
        server=f"{model}|{gpu}|{tp}",
    )


def _splitwise_card(hardware: str) -> str:
    return re.sub(r"-(\d+)gb$", r"-\1GB", hardware).upper()


ARGONNE_ENGINES: Final = {"vLLM": "vllm 0.5.4", "TensorRT-LLM": "trtllm 0.10.0"}
"""Versions of the summer of 2024; the file records none."""
ARGONNE_CARDS: Final = {
    "Nvidia A100 GPU": "A100-40GB", "Nvidia GH200 GPU": "GH200", "Nvidia H100 GPU": "H100",
    "AMD MI250 GPU": "MI250", "AMD MI300X GPU": "MI300X", "Intel Max 1550": "Max 1550",
}  # fmt: skip
"""The A100 of Argonne's nodes has 40 GB (paper: LLM-Inference-Bench, table of platforms)."""


def argonne(folder: Path) -> Loaded:
    """LLM-Inference-Bench: batches of 1 to 64, prompt and output of one length, fp16."""
    loaded = Loaded()
    path = folder / "argonne_all_results_flagged.csv"
    return collect(records(path, loaded), lambda record: [_argonne_row(record)], loaded)


def _argonne_row(record: Record) -> Row:
    if record.text("usable") and not record.flag("usable"):
        raise LeftOut("flagged: not usable")
    framework = record.text("framework")
    if framework not in ARGONNE_ENGINES:
        raise LeftOut(f"engine {framework!r} is not modelled")
    named, hardware = record.text("model"), record.text("hardware")
    length, batch, ranks = (
        record.count("input_eq_output_len"), record.count("batch"), record.count("num_hw")
    )  # fmt: skip
    model, gpu = model_name(named), gpu_name(ARGONNE_CARDS.get(hardware, hardware))
    deployment = Deployment(
        tensor_parallel=ranks,
        engine=ARGONNE_ENGINES[framework],
        weight_dtype="fp16",
        kv_dtype="fp16",
        max_num_seqs=max(256, batch),
        max_num_batched_tokens=max(8192, length),
        prefix_caching=False,
    )
    return Row(
        set="Argonne",
        id=f"{named} {ranks}x{hardware} {framework} {length} x {batch}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.STATIC, same(length, batch), same(length, batch)),
        measured={"e2e_mean_s": record.positive("latency_s")},
        notes=("engine version not recorded (2024)",),
        server=f"{model}|{gpu}|{ranks}|{framework}",
    )


DSTACK: Final = "dstack/dstack_llama31_405b_static_batch.csv"
DSTACK_CARD: Final = re.compile(r"^(\d{1,2})x(\w+) (\d{1,2})FP8-(\w+)$", re.IGNORECASE)


def dstack(folder: Path) -> Loaded:
    """dstack's comparison of H100 and MI300X: Llama 3.1 405B in FP8, vLLM's latency bench."""
    loaded = Loaded()
    return collect(records(folder / DSTACK, loaded), lambda record: [_dstack_row(record)], loaded)


def _dstack_row(record: Record) -> Row:
    label = record.text("gpu")
    found = DSTACK_CARD.match(label)
    if found is None:
        raise LeftOut("layout not known")
    ranks, copies, maker = int(found[1]), int(found[3]), found[4]
    if copies != 1:
        raise LeftOut("figures of half the GPUs, doubled")
    inputs, outputs, batch = (
        record.count("input_len"), record.count("output_len"), record.count("batch_size")
    )  # fmt: skip
    gpu, model = gpu_name(found[2]), model_name("meta-llama/Llama-3.1-405B-Instruct")
    deployment = Deployment(
        tensor_parallel=ranks,
        engine="vllm 0.6.2",
        weight_dtype=weight_dtype("", "fp8"),
        max_num_seqs=max(256, batch),
        max_num_batched_tokens=max(8192, inputs),
        prefix_caching=False,
    )
    return Row(
        set="dstack",
        id=f"{label} {inputs}/{outputs} x {batch}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=Load(Arrivals.STATIC, same(inputs, batch), same(outputs, batch)),
        measured={"e2e_mean_s": record.positive("end_to_end_latency")},
        notes=(f"checkpoint of {maker}", "engine version not recorded (2024)",
               "some rows ran without CUDA graphs, the file does not say which"),
        server=f"{model}|{gpu}|{label}",
    )  # fmt: skip
