"""Measured rows that the roofline's end-to-end constants are fitted on, in one small shape.

Each row is a mean or median of one kind: `itl` (a decode step without prompts), `tpot` (mean step,
prompts of others mixed in), `ttft` (front end and prompt, few others), `prefill` (seconds for a
number of prompt tokens), `static` (whole batch: prompts, then all decodes). Assumptions where a
file does not tell: chat prompts of 200 tokens (ML.ENERGY); KV cache in 8 bits where TensorRT-LLM or
vLLM on Blackwell serves 8- or 4-bit weights in InferenceX, else 16 bits.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sojourn.capacity import catalogue
from sojourn.capacity.memory_kv import kv_bytes, kv_value_bytes
from sojourn.capacity.memory_weights import weight_bytes, weight_dtype
from sojourn.config import Deployment
from sojourn.errors import SojournError

CHAT_INPUT = 200
IX_SHARE = 0.9
"""InferenceX draws lengths between 0.8 and 1 of the nominal ones."""
SYSTEMS = {
    "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "gb200": "GB200",
    "b300_sxm": "B300", "a100_sxm": "A100", "l40s": "L40S",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One measured time, seconds. `batch` sequences with `context` tokens; prompts of `prompt`."""

    set: str
    model: str
    gpu: str
    deployment: Deployment
    kind: str
    seconds: float
    batch: float = 1.0
    context: float = 0.0
    prompt: float = 0.0
    output: float = 1.0
    loop: bool = False
    """Whether `batch` clients kept a closed loop going, so that prompts queue and join steps."""
    even: bool = True
    """Whether all lengths of the loop are equal."""

    @property
    def group(self) -> str:
        """Model, format and card: what is left out together."""
        return f"{self.model}|{self.deployment.weight_dtype}|{self.gpu}"

    @property
    def shape(self) -> str:
        """The group with its layout and engine."""
        d = self.deployment
        layout = f"tp{d.tensor_parallel}" + (f"dp{d.data_parallel}" if d.data_parallel > 1 else "")
        return f"{self.group}|{layout}{'ep' if d.expert_parallel else ''}|{d.engine}"


def read(path: Path) -> list[dict[str, str]]:
    """A CSV whose `#` lines are comments; empty where it is not there."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def number(text: str | None, default: float = 0.0) -> float:
    """A cell, or the default where it is empty."""
    return float(text) if text and text != "nan" else default


def mlenergy(root: Path) -> Iterator[Measured]:
    """Median ITL of a saturated load, vLLM 0.11.1; expert parallelism is over all its GPUs."""
    for r in read(root / "mlenergy_v3_vllm0111_itl_vs_batch.csv"):
        batch, out = number(r["avg_batch_size"]), number(r["avg_output_len"])
        if r["task"] not in ("lm-arena-chat", "gpqa") or batch / out >= 0.5:
            continue
        dtype = {"bfloat16": "bf16"}.get(r["weight_precision"], r["weight_precision"])
        deployment = Deployment(
            tensor_parallel=int(r["num_gpus"]),
            expert_parallel=number(r["expert_parallel"]) > 1,
            weight_dtype=dtype,
            engine="vllm 0.11.1",
        )
        yield Measured(
            "ML.ENERGY", r["model_id"].removesuffix("-FP8"), r["gpu_model"], deployment, "itl",
            number(r["median_itl_ms"]) / 1e3, batch, CHAT_INPUT + out / 2,
        )  # fmt: skip


def _silicon_deployment(r: dict[str, str], dtype: str, version: str) -> Deployment:
    tp, ep = int(number(r["tp_size"], 1)), int(number(r["moe_ep_size"], 1))
    lean = dtype in ("fp8", "nvfp4", "mxfp4") and (
        r["backend"] == "trtllm" or (r["backend"] == "vllm" and r["system"][0] in "bg")
    )
    return Deployment(
        tensor_parallel=tp,
        expert_parallel=ep > 1,
        weight_dtype=dtype,
        kv_dtype="fp8" if lean else "bf16",
        engine=f"{r['backend']} {version}".strip(),
    )


def silicon(root: Path) -> Iterator[Measured]:
    """Closed loops at fixed lengths; rows with DP attention, more than 8 GPUs or no precision for
    an MoE model are left out, as are duplicates and rows whose TPOT falls with load. So is vLLM
    0.12.0 on H200: its TTFT falls as clients grow, and a model is said to be on fewer GPUs than
    hold its weights, so clients and layout are not those of the columns."""
    for r in read(root / "inferencex" / "aiconfigurator_silicon_sample_flagged.csv"):
        ranks = number(r["attention_dp_size"], 1)
        tp = number(r["tp_size"], 1)
        odd = number(r["moe_ep_size"], 1) > tp or tp > 8 or ranks > 1
        if (
            r["mode"] != "agg"
            or r["exact_duplicate"] == "True"
            or r["nonmonotone_tpot"] == "True"
            or number(r["pp_size"], 1) > 1
            or odd
            or (r["system"] == "h200_sxm" and r["backend_version"] == "0.12.0")  # see below
            or not r["silicon_tpot_ms"]
            or number(r["concurrency"]) > 1.5 * number(r["batch_size"], 1e9)  # many workers
            or number(r["concurrency"]) >= 512  # told times are those of a few clients
        ):
            continue
        dtype = {"fp4": "nvfp4", "": "bf16", "nan": "bf16"}.get(r["precision"], r["precision"])
        if "gpt-oss" in r["model_path"]:
            dtype = "mxfp4"
        version = r["backend_version"]
        version = version if version[:1].isdigit() else ""
        deployment = _silicon_deployment(r, dtype, version)
        share = IX_SHARE if r["is_inferencex"] == "True" else 1.0
        conc, isl, osl = (number(r[k]) for k in ("concurrency", "isl", "osl"))
        isl, osl = isl * share, osl * share
        model = r["model_path"].split("/")[-1]
        for tail in ("-FP8", "-NVFP4"):
            model = model.removesuffix(tail)
        gpu = SYSTEMS[r["system"]]
        tpot = number(r["silicon_tpot_ms"]) / 1e3
        yield Measured(
            f"silicon {r['backend']}", model, gpu, deployment, "tpot", tpot,
            conc, isl + osl / 2, isl, osl, loop=True, even=share == 1,
        )  # fmt: skip
        ttft = number(r["silicon_ttft_ms"]) / 1e3
        if ttft and conc <= 8 and share < 1:  # equal lengths keep in step: chaotic
            yield Measured(
                f"silicon {r['backend']}", model, gpu, deployment, "ttft", ttft,
                conc, isl + osl / 2, isl, osl, loop=True, even=share == 1,
            )  # fmt: skip


def splitwise(root: Path) -> Iterator[Measured]:
    """Prompt phase and token phase, vLLM of 2023; power-capped rows and one batch that measured
    another thing (64 prompts faster than one) are left out."""
    names = {"llama2-70b": "Llama-2-70B", "bloom-176b": "Bloom-176B"}
    cards = {"a100-80gb": "A100", "h100-80gb": "H100"}
    seen: set[tuple[str, ...]] = set()
    for r in read(root / "splitwise_perf_model.csv"):
        batch, tp = int(r["batch_size"]), int(r["tensor_parallel"])
        key = (r["model"], r["hardware"], r["prompt_size"], r["batch_size"], r["tensor_parallel"])
        if r["hardware"] not in cards or key in seen or (tp == 2 and batch == 64):
            continue
        seen.add(key)
        deployment = Deployment(tensor_parallel=tp, weight_dtype="fp16", engine="vllm 0.2")
        model, gpu = names[r["model"]], cards[r["hardware"]]
        size = number(r["prompt_size"])
        context = size + number(r["token_size"]) / 2
        yield Measured("Splitwise", model, gpu, deployment, "itl",
                       number(r["token_time"]) / 1e3, batch, context)  # fmt: skip
        yield Measured("Splitwise", model, gpu, deployment, "prefill",
                       number(r["prompt_time"]) / 1e3, batch, 0.0, size)  # fmt: skip


ARGONNE = {
    "Nvidia A100 GPU": "A100-40GB", "Nvidia H100 GPU": "H100", "Nvidia GH200 GPU": "GH200",
    "AMD MI300X GPU": "MI300X",
}  # fmt: skip


def argonne(root: Path) -> Iterator[Measured]:
    """Static batches, input = output length, 16 bits, 2024. Mixtral under TensorRT-LLM is left out:
    its steps are shorter than reading all experts takes (12.5 ms at batch 32 on four A100, 14.9 at
    full bandwidth), so its prompts were one text many times."""
    for r in read(root / "argonne_all_results_flagged.csv"):
        gpu = ARGONNE.get(r["hardware"])
        if r["usable"] != "True" or gpu is None or r["framework"] not in ("vLLM", "TensorRT-LLM"):
            continue
        if r["framework"] == "TensorRT-LLM" and "Mixtral" in r["model"]:
            continue
        engine = "vllm 0.5" if r["framework"] == "vLLM" else "trtllm 0.10"
        deployment = Deployment(
            tensor_parallel=int(r["num_hw"]), weight_dtype="fp16", engine=engine
        )
        size = number(r["input_eq_output_len"])
        yield Measured(
            f"Argonne {r['framework']}", r["model"], gpu, deployment, "static",
            number(r["latency_s"]), number(r["batch"]), 0.0, size, size,
        )  # fmt: skip


def dstack(root: Path) -> Iterator[Measured]:
    """Static batches of Llama-3.1-405B, FP8, vLLM 0.6."""
    for r in read(root / "dstack" / "dstack_llama31_405b_static_batch.csv"):
        count, _, card = r["gpu"].split(" ")[0].lower().partition("x")
        name = {"h100": "H100", "mi300x": "MI300X"}[card]
        deployment = Deployment(tensor_parallel=int(count), weight_dtype="fp8", engine="vllm 0.6.3")
        yield Measured(
            "dstack", "Llama-3.1-405B", name, deployment, "static",
            number(r["end_to_end_latency"]), number(r["batch_size"]), 0.0,
            number(r["input_len"]), number(r["output_len"]),
        )  # fmt: skip


def sglang(root: Path) -> Iterator[Measured]:
    """Cookbook printouts: median ITL, and TTFT of a lone client."""
    cards = {"B200": "B200", "A100": "A100", "MI300X": "MI300X", "H200": "H200", "H100": "H100"}
    for r in read(root / "sglang" / "sgl_cookbook_bench_serving.csv"):
        gpu = next((c for c in cards if c in r["hardware"]), None)
        if gpu is None or r["vision"] == "True" or number(r["Accept length"]) > 0:
            continue
        model = r["model_line"].split("/")[-1]
        dtype = "mxfp4" if "gpt-oss" in model else "fp8" if "DeepSeek" in model else "bf16"
        tp = int(number(r["tp_line"], 1))
        deployment = Deployment(
            tensor_parallel=tp, weight_dtype=dtype, engine=f"sglang {r['version']}"
        )
        done = number(r["Successful requests"])
        isl, osl = (number(r[f"Total {k} tokens"]) / done for k in ("input", "generated"))
        conc = number(r["Concurrency"])
        # a random length uniform in 1..L: the sequence met in a step is longer than the mean
        context = isl + osl * 2 / 3
        yield Measured("SGLang", model, gpu, deployment, "itl",
                       number(r["Median ITL (ms)"]) / 1e3, conc, context)  # fmt: skip
        if conc <= 1.01:
            yield Measured("SGLang", model, gpu, deployment, "ttft",
                           number(r["Median TTFT (ms)"]) / 1e3, 1, context, isl, osl)  # fmt: skip


def iog(root: Path) -> Iterator[Measured]:
    """TPOT and TTFT at one request a second, vLLM 0.8.5 on H100 PCIe; batch by Little's law."""
    for r in read(root / "iog_vllm085_poisson_sharegpt200.csv"):
        rate = number(r["request_rate"])
        if rate > 4:
            continue
        dtype = "fp8" if "FP8" in r["model_id"] else "fp16"
        deployment = Deployment(
            tensor_parallel=int(r["gpu_count"]), weight_dtype=dtype, engine="vllm 0.8.5"
        )
        isl = number(r["total_input_tokens"]) / number(r["completed"])
        osl = number(r["total_output_tokens"]) / number(r["completed"])
        tpot = number(r["median_tpot_ms"]) / 1e3
        batch = number(r["request_throughput"]) * osl * tpot
        if batch > 40 or number(r["median_ttft_ms"]) > 300:
            continue
        model = r["model_id"]
        yield Measured("IOG", model, "H100-PCIe", deployment, "tpot", tpot,
                       max(batch, 1), isl + osl / 2, isl, osl)  # fmt: skip
        if rate <= 1:
            yield Measured("IOG", model, "H100-PCIe", deployment, "ttft",
                           number(r["median_ttft_ms"]) / 1e3, max(batch, 1), isl + osl / 2,
                           isl, osl)  # fmt: skip


def blis(root: Path) -> Iterator[Measured]:
    """Mean ITL by stage, vLLM 0.15.1 on H100, batch by Little's law; prompts are cached."""
    for r in read(root / "blis" / "blis_measured_latency_by_stage.csv"):
        itl = number(r["itl_mean"]) / 1e3
        rate, out, size = (
            number(r[k]) for k in ("rate_rps", "out_tokens_nominal", "in_tokens_nominal")
        )
        batch = rate * out * itl
        if not itl or r["stage_index"] == "-1" or not rate or batch > 128 or number(r["dp"]) > 1:
            continue
        dtype = r["precision"].lower().replace("fp16", "bf16")
        deployment = Deployment(
            tensor_parallel=int(number(r["tp"], 1)), weight_dtype=dtype, engine="vllm 0.15.1"
        )
        yield Measured("BLIS", r["model"], r["hardware"], deployment, "tpot", itl,
                       max(batch, 1), size + out / 2, size - 100, out)  # fmt: skip


def anchors(root: Path) -> Iterator[Measured]:
    """Published fits and prefill times: single rows, each weighs little."""
    for r in read(root / "step_time_anchors.csv"):
        kind, model, value = r["kind"], r["model"], number(r["value"])
        if "TPU" in r["gpu"] or "H800" in r["gpu"] or r["gpu"] in ("see doc", "not named"):
            continue
        engine = r["engine"].lower().split(" (")[0]
        tp = int(number(r["tp"], 1))
        if kind == "prefill_tok_s":
            dtype = {"bf16?": "bf16", "": "bf16"}.get(r["dtype"], r["dtype"])
            yield Measured("anchors", model, r["gpu"], Deployment(tensor_parallel=tp,
                           weight_dtype=dtype, engine=engine), "prefill", 8192 / value,
                           1, 0.0, 8192)  # fmt: skip
        elif kind == "prefill_ms_at_prefix_tokens":
            yield Measured("anchors", model, r["gpu"], Deployment(weight_dtype="mxfp4",
                           engine=engine), "ttft", value / 1e3, 1, 0.0,
                           number(r["note"].split(" ")[0]))  # fmt: skip
        elif kind == "decode_itl_bs1_intercept_ms":
            yield Measured("anchors", model, r["gpu"], Deployment(engine=engine,
                           kv_dtype=r["dtype"].split(" ")[0]), "itl", value / 1e3,
                           1, 1.0)  # fmt: skip
        elif kind == "static_batch_latency_s":
            batch = number(r["note"].split("batch ")[1].split(";")[0])
            yield Measured("Oracle", model, "MI300X", Deployment(tensor_parallel=8,
                           weight_dtype="fp8", engine="vllm 0.6.3"), "static", value,
                           batch, 0.0, 128, 128)  # fmt: skip


def fits(row: Measured) -> bool:
    """Whether all sequences of the row find room for their KV cache, so that none waits."""
    model, gpu, d = catalogue.model(row.model), catalogue.gpu(row.gpu), row.deployment
    if row.kind not in ("static", "tpot", "ttft"):
        return True
    context = row.prompt + row.output
    each = kv_bytes(model, context, kv_value_bytes(d), tensor_parallel=d.tensor_parallel)
    weights = weight_bytes(model, weight_dtype(model, d))
    room = 0.88 * gpu.memory_gib * 2**30 * d.tensor_parallel - weights
    return each * row.batch <= room


LOADERS = (mlenergy, silicon, splitwise, argonne, dstack, sglang, iog, blis, anchors)


@cache
def _known(model: str, gpu: str) -> bool:
    try:
        catalogue.model(model)
        catalogue.gpu(gpu)
    except SojournError:
        return False
    return True


def load(root: Path) -> tuple[list[Measured], Counter[str]]:
    """All usable rows, and how many were left out by model and card that the catalogue lacks."""
    rows: list[Measured] = []
    missing: Counter[str] = Counter()
    for row in _all(root):
        if _known(row.model, row.gpu):
            if fits(row):
                rows.append(row)
            else:
                missing["more sequences than the KV cache holds"] += 1
        else:
            missing[f"{row.model} on {row.gpu}"] += 1
    return rows, missing


def _all(root: Path) -> Iterable[Measured]:
    for loader in LOADERS:
        yield from loader(root)
