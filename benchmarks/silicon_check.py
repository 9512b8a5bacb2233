"""Scores step times from operator tables (or the roofline) on closed loops, by a closed form.

    python benchmarks/silicon_check.py [path of ground_truth] [--roofline] [--by FIELD ...]

A closed loop of C clients, prompts of I and outputs of O tokens: each gap between tokens is a
decode step, stretched by the prompts that others bring meanwhile. Quick to run and good for TPOT
and throughput; TTFT is scored where one client waits for nobody. The full harness is
`benchmarks/accuracy`, which simulates every request.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sojourn.capacity import catalogue, roofline, silicon
from sojourn.capacity.model_config import parse_config
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.config import Deployment
from sojourn.errors import SojournError
from sojourn.interval import Excuse

CHAT_INPUT = 200
"""Tokens of a chat prompt where the file names none."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured closed loop: what ran, what was sent, the time per token or the rate."""

    set: str
    model: str
    gpu: str
    deployment: Deployment
    clients: float
    inputs: float
    outputs: float
    tpot_s: float | None = None
    itl_s: float | None = None
    ttft_s: float | None = None
    rate: float | None = None

    @property
    def group(self) -> str:
        """Model, weights and card: the unit of the split."""
        return f"{self.model}|{self.deployment.weight_dtype}|{self.gpu}"


def read(path: Path) -> list[dict[str, str]]:
    """A CSV whose `#` lines are comments."""
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300",
           "gb200": "GB200"}  # fmt: skip


def _count(r: dict[str, str], key: str) -> int:
    value = float(r[key] or 1)
    return int(value) if value > 0 else 1


def _cache_in_fp8(r: dict[str, str], dtype: str) -> bool:
    """TensorRT-LLM and NVIDIA's own checkpoints keep the cache in 8 bits where weights are."""
    return dtype in ("fp8", "nvfp4") and (
        r["backend"] == "trtllm" or r["model_path"].startswith("nvidia/")
    )


def _release(r: dict[str, str]) -> str:
    """vLLM of the day it was measured, where the file names none."""
    return "0.11" if r["backend"] == "vllm" and r["measured"].startswith("2025") else ""


def silicon_sample(root: Path) -> Iterator[Row]:
    """TPOT and TTFT in closed loops, aggregated serving on one node.

    InferenceX draws lengths from 0.8 to 1.0 of those named (`--random-range-ratio 0.8`).
    """
    for r in read(root / "inferencex" / "aiconfigurator_silicon_sample_flagged.csv"):
        if r["mode"] != "agg" or not r["silicon_tpot_ms"] or not r["concurrency"]:
            continue
        tp, dp, pp = (_count(r, k) for k in ("tp_size", "attention_dp_size", "pp_size"))
        width = _count(r, "moe_tp_size") * _count(r, "moe_ep_size")
        if not r["attention_dp_size"] and width > tp and width % tp == 0:
            dp = width // tp  # named for the experts alone
        if tp * dp > 8:
            continue  # wide expert parallelism and racks: a set of their own
        fp8 = r["precision"] == "fp8" or "fp8" in r["gemm_quant_mode"]
        dtype = "nvfp4" if r["precision"] == "fp4" else "fp8" if fp8 else "bf16"
        if "gpt-oss" in r["model_path"]:
            dtype = "mxfp4"
        if r["precision"] == "int4":
            dtype = "int4"
        version = r["backend_version"] or _release(r)
        share = 0.9 if r["is_inferencex"] == "True" else 1.0
        yield Row(
            set="silicon sample", model=r["model_path"], gpu=SYSTEMS[r["system"]],
            deployment=Deployment(
                tensor_parallel=tp, data_parallel=dp, pipeline_parallel=pp, weight_dtype=dtype,
                expert_parallel=_count(r, "moe_ep_size") > 1, max_num_seqs=1024,
                kv_dtype="fp8" if _cache_in_fp8(r, dtype) else "bf16",
                engine=f"{r['backend']} {version}".strip(),
            ),
            clients=float(r["batch_size"]) * dp, inputs=float(r["isl"]) * share,
            outputs=float(r["osl"]) * share, tpot_s=float(r["silicon_tpot_ms"]) / 1e3,
            ttft_s=float(r["silicon_ttft_ms"]) / 1e3,
        )  # fmt: skip


def ml_energy(root: Path) -> Iterator[Row]:
    """Median ITL against the average batch, H100, vLLM 0.11.1."""
    for r in read(root / "mlenergy_v3_vllm0111_itl_vs_batch.csv"):
        if r["task"] not in ("lm-arena-chat", "gpqa"):
            continue
        if float(r["avg_batch_size"]) / float(r["avg_output_len"]) >= 0.5:
            continue  # half the steps carry a prompt: the median gap is no plain decode step
        tp, dp = _count(r, "tensor_parallel"), _count(r, "data_parallel")
        if tp * dp < _count(r, "num_gpus"):  # named for the experts alone
            tp = _count(r, "num_gpus") // dp
        dtype = "fp8" if r["weight_precision"] == "fp8" else "bf16"
        if "gpt-oss" in r["model_id"]:
            dtype = "mxfp4"
        batch, out = float(r["avg_batch_size"]), float(r["avg_output_len"])
        yield Row(
            set="ML.ENERGY", model=r["model_id"], gpu="H100",
            deployment=Deployment(
                tensor_parallel=tp, data_parallel=dp, weight_dtype=dtype, max_num_seqs=1024,
                expert_parallel=_count(r, "expert_parallel") > 1, engine="vllm 0.11.1",
            ),
            clients=batch, inputs=CHAT_INPUT, outputs=out,
            itl_s=float(r["median_itl_ms"]) / 1e3,
        )  # fmt: skip


LOADERS = {"sample": silicon_sample, "mlenergy": ml_energy}
ALIASES = {"zhipuai/GLM-5": "zai-org/GLM-5", "deepseek-ai/DeepSeek-R1": "DeepSeek-V3",
           "nvidia/Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
           "nvidia/Qwen3-32B-NVFP4": "Qwen3-32B"}  # fmt: skip


def spec(name: str) -> ModelSpec | None:
    """The model from the catalogue, or from the tables' own config of that name."""
    name = ALIASES.get(name, name)
    for plain in (name, name.removesuffix("-FP8"), name.split("/")[-1].removesuffix("-FP8")):
        try:
            return catalogue.model(plain)
        except SojournError:
            continue
    from sojourn.capacity import silicon_tables  # noqa: PLC0415  optional

    for known in silicon_tables.known_models():
        if known.name.casefold() == name.casefold():
            try:
                return parse_config(known.config, name=known.name, source="tables")
            except SojournError:
                return None
    return None


def tpot(step: StepModel, row: Row) -> tuple[float, float]:
    """Mean time per token of a closed loop, and a plain decode step, s.

    TPOT (1 - X W) = decode step, X = clients / (TTFT + (O - 1) TPOT) prompts per second, W what
    one prompt adds to a step. Wrong when: prompts queue behind each other (X W near 1).
    """
    ranks = row.deployment.data_parallel * row.deployment.pipeline_parallel
    clients = row.clients / ranks
    context = row.inputs + row.outputs / 2
    prompt = step.prefill_step_s(round(row.inputs))
    prompt += step.prefill_s_per_token_context * row.inputs**2 / 2
    alone = step.host_s + step.base_s[0] + prompt
    told = plain = 0.0
    batch = clients
    for _ in range(60):
        plain = decode(step, batch, context)
        told_before = told or plain
        cycle = alone + (row.outputs - 1) * told_before
        stretch = (clients - 1) / cycle * prompt if clients > 1 else 0.0
        told = plain / max(1 - stretch, 0.05) if stretch < 0.95 else plain * 20
        told = 0.5 * told + 0.5 * told_before
        batch = max(1.0, clients * (row.outputs - 1) * told / (alone + (row.outputs - 1) * told))
    return told, plain


def decode(step: StepModel, batch: float, context: float) -> float:
    """A decode step at a mean batch that need not be whole, host time included, s."""
    low = int(batch)
    first = step.decode_step_s(low, low * context)
    second = step.decode_step_s(low + 1, (low + 1) * context)
    return step.host_s + first + (second - first) * (batch - low)


@dataclasses.dataclass
class Score:
    """A row with what was told for it."""

    row: Row
    figure: str
    told: float
    real: float
    source: str

    @property
    def log_error(self) -> float:
        """ln(told / real)."""
        return float(np.log(self.told / self.real))


def score(rows: list[Row], use_roofline: bool) -> tuple[list[Score], Counter[str]]:
    """Every row, and why some were left out."""
    scores: list[Score] = []
    left: Counter[str] = Counter()
    cache: dict[object, StepModel | Excuse] = {}
    specs: dict[str, ModelSpec | None] = {}
    for row in rows:
        model = specs.setdefault(row.model, spec(row.model))
        if model is None:
            left[f"{row.set}: model {row.model} not read"] += 1
            continue
        context = row.inputs + row.outputs / 2
        key = (row.model, row.gpu, row.deployment, round(context))
        if key not in cache:
            try:
                source = roofline if use_roofline else silicon
                cache[key] = source.step_model(
                    model, catalogue.gpu(row.gpu), row.deployment, mean_context=context
                )
            except SojournError as error:
                cache[key] = Excuse(reason=str(error))
        step = cache[key]
        if isinstance(step, Excuse):
            left[f"{row.set}: {row.model} {row.gpu}: {step.reason[:110]}"] += 1
            continue
        scores += figures(row, step)
    return scores, left


def figures(row: Row, step: StepModel) -> Iterator[Score]:
    """What the row measured, told by the step model."""
    told, plain = tpot(step, row)
    if row.tpot_s:
        yield Score(row, "tpot", told, row.tpot_s, step.source)
    if row.itl_s:
        yield Score(row, "itl", plain, row.itl_s, step.source)
    if row.ttft_s and row.clients == 1:
        alone = step.front_s + step.host_s + step.base_s[0] + step.prefill_step_s(round(row.inputs))
        alone += step.prefill_s_per_token_context * row.inputs**2 / 2
        yield Score(row, "ttft at 1 client", alone, row.ttft_s, step.source)


FIELDS = {
    "set": lambda s: s.row.set,
    "model": lambda s: s.row.model.split("/")[-1],
    "gpu": lambda s: s.row.gpu,
    "engine": lambda s: s.row.deployment.engine.split()[0],
    "version": lambda s: s.row.deployment.engine,
    "dtype": lambda s: s.row.deployment.weight_dtype,
    "tp": lambda s: s.row.deployment.tensor_parallel,
    "dp": lambda s: s.row.deployment.data_parallel,
    "ep": lambda s: s.row.deployment.expert_parallel,
    "batch": lambda s: 2 ** round(np.log2(s.row.clients / s.row.deployment.data_parallel)),
    "inputs": lambda s: round(s.row.inputs, -2),
    "outputs": lambda s: round(s.row.outputs, -2),
    "group": lambda s: s.row.group,
}


def print_table(scores: list[Score], fields: list[str]) -> None:
    """Median signed and absolute errors by the fields."""
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for s in scores:
        groups[(s.figure, *(FIELDS[f](s) for f in fields))].append(s.log_error)
    for key in sorted(groups, key=str):
        e = np.array(groups[key])
        signed = np.median(np.exp(e) - 1)
        absolute = np.median(np.abs(np.exp(e) - 1))
        low, high = np.quantile(-e, [0.1, 0.9])
        print(f"{len(e):5d}  median {signed:+7.1%}  |{absolute:6.1%}|  real/told 10-90%"
              f" {np.exp(low):.2f}-{np.exp(high):.2f}  {' '.join(map(str, key))}")  # fmt: skip


def main(arguments: list[str]) -> None:
    """Reads, scores, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path("../shared/data/ground_truth"))
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(LOADERS))
    parser.add_argument("--by", nargs="*", default=["set"])
    parser.add_argument("--match", default="")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args(arguments)
    rows = [r for name in options.only for r in LOADERS[name](options.root)]
    scores, left = score(rows, options.roofline)
    if options.match:
        scores = [s for s in scores if options.match in f"{s.row} {s.source}"]
    print_table(scores, options.by)
    if options.rows:
        for s in scores:
            d = s.row.deployment
            name = s.row.model.split("/")[-1]
            print(f"{s.figure:5s} {name:28s} {s.row.gpu} {d.engine:16s}"
                  f" {d.weight_dtype} tp{d.tensor_parallel} dp{d.data_parallel}"
                  f" c{s.row.clients:.0f}"
                  f" {s.row.inputs:.0f}/{s.row.outputs:.0f} told {s.told * 1e3:.2f} real"
                  f" {s.real * 1e3:.2f} ms {s.told / s.real - 1:+.0%}")  # fmt: skip
    for reason, count in left.most_common(40):
        print(f"left out {count:4d}: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
