"""Loader of MLPerf inference (closed division): Server and Interactive are Poisson at a target
rate, Offline is all at once and scored on throughput alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from sojourn.capacity import catalogue
from sojourn.config import Deployment
from sojourn.errors import SojournError

from .reading import (
    MS,
    Cells,
    card,
    measured,
    number,
    opened,
    power_of_two_for,
    read,
    scaled,
    whole,
)
from .rows import Arrivals, Ints, Load, Loaded, Row

FIGURES: Final = {
    **{f"{w}_mean_s": (f"{w}_mean_ms", MS) for w in ("ttft", "tpot")},
    **{f"{w}_{q}_s": (f"{w}_{q}_ms", MS) for w in ("ttft", "tpot") for q in ("p50", "p99")},
    "ttft_p90_s": ("ttft_p90_ms", MS),
    "e2e_mean_s": ("lat_mean_ms", MS),
    **{f"e2e_{q}_s": (f"lat_{q}_ms", MS) for q in ("p50", "p90", "p99")},
}
MODELS: Final = {
    "llama2-70b": ("Llama-2-70B", "llama2-70b-99.csv"),
    "mixtral-8x7b": ("Mixtral-8x7B", "mixtral-8x7b.csv"),
    "llama3.1-405b": ("Llama-3.1-405B", "llama3-1-405b.csv"),
    "llama3.1-8b": ("Llama-3.1-8B", "llama3-1-8b-datacenter.csv"),
    "deepseek-r1": ("DeepSeek-R1", "deepseek-r1.csv"),
}
"""Model of the benchmark: catalogue name, file of token lengths (reference answers: only their
shape is used, the mean output is tokens_per_s / samples_per_s)."""
FULL: Final = 0.65
"""Weights may take this share of the cards where the layout is not told. With it the layouts of
NVIDIA's published v4.1 configurations come out (llama2-70b in FP8: TP 2 on 80 and 94 GB, TP 1 from
141 GB on; mixtral-8x7b: TP 1; mlcommons/inference_results_v4.1, closed/NVIDIA/configs)."""
BYTES: Final = {"fp8": 1.0, "nvfp4": 9 / 16, "mxfp4": 17 / 32, "bf16": 2.0, "fp16": 2.0}
SLOTS, BUDGET = 1024, 8192
"""gpu_batch_size is 806 to 1,024 for llama2-70b and max_num_tokens 8,192 for mixtral there."""
MOST_REQUESTS: Final = 6000
FEWEST_REQUESTS: Final = 1500


def mlperf(root: Path) -> Loaded:
    """One row for each run. A deployment's replicas are equal and share the load, so one of them
    is simulated under its share (`Row.deployment.replicas` is 1, throughput is divided)."""
    rows, _, loaded = opened(root / "mlperf" / "mlperf_llm_logs_v4.1_v5.1.csv")
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        reason = _left_out(row, seen)
        if reason is None:
            reason = _add(root, row, loaded)
        if reason is not None:
            loaded.skip(reason)
    return loaded


def _left_out(row: Cells, seen: set[tuple[str, ...]]) -> str | None:
    if row["division"] != "closed":
        return "open division: models changed"
    if row["valid"] != "VALID":
        return "run not valid"
    if "maxq" in (row["system"] + row["path"]).casefold():
        return "power-limited (MaxQ)"
    figures = tuple(row[name] for name in ("tokens_per_s", "samples_per_s", "lat_p50_ms"))
    key = (row["submitter"], row["accelerator"], row["scenario"], *figures)
    if key in seen:
        return "the same run submitted for two accuracy targets"
    seen.add(key)
    return None


def benchmark(name: str) -> str:
    """The benchmark's model without accuracy target and scenario (llama2-70b-99.9)."""
    plain = re.sub(r"-(99(\.9)?|interactive|datacenter|edge|server|offline)\b", "", name.casefold())
    return plain.replace("llama3-1-", "llama3.1-").replace("llama3_1-", "llama3.1-")


def precision(row: Cells, gpu: str) -> tuple[str, str | None]:
    """Weight dtype as submitted, and the assumption where it is not told."""
    told = (row.get("cfg_precision", "") + " " + row.get("weight_dtype", "")).casefold()
    for word, dtype in (("mxfp4", "mxfp4"), ("fp4", "nvfp4"), ("fp8", "fp8"), ("fp16", "fp16")):
        if word in told:
            return ("mxfp4" if dtype == "nvfp4" and gpu.startswith("MI") else dtype), None
    if gpu.startswith(("B", "GB")):
        return "nvfp4", "precision not told: FP4 as on other Blackwell submissions"
    if gpu.startswith("MI355"):
        return "mxfp4", "precision not told: MXFP4"
    return "fp8", "precision not told: FP8 as on other submissions"


def _add(root: Path, row: Cells, loaded: Loaded) -> str | None:
    """Add the row, or say why not."""
    gpu, known = card(row["accelerator"]), MODELS.get(benchmark(row["model"]))
    cards = whole(row, "n_acc")
    tokens, samples = number(row, "tokens_per_s"), number(row, "samples_per_s")
    if gpu is None:
        return f"card not known: {row['accelerator'] or 'none told'}"
    if known is None:
        return f"no token lengths for {row['model']}"
    if not cards or not tokens or not samples:
        return "accelerators or throughput not told"
    lengths = _lengths(root / "mlperf" / "token_lengths" / known[1])
    if lengths is None:
        return f"no file {known[1]}"
    deployment, notes = _deployment(row, known[0], gpu, cards)
    share = deployment.tensor_parallel * deployment.pipeline_parallel / cards
    load = _load(row, lengths, tokens / samples, share)
    if load is None:
        return f"scenario or rate not known: {row['scenario']}"
    figures = {"output_tokens_per_s": tokens * share, "requests_per_s": samples * share}
    if load.arrivals is Arrivals.POISSON:
        figures |= measured(row, FIGURES)
    loaded.rows.append(
        Row(
            set="MLPerf",
            id=f"{row['version']} {row['submitter']} {row['system']} {row['model']}"
            f" {row['scenario']} {row['tokens_per_s']}",
            model=known[0],
            gpu=gpu,
            deployment=deployment,
            load=load,
            measured=figures,
            notes=notes,
            server=f"{row['submitter']}|{row['system']}|{row['model']}",
        )
    )
    return None


def _deployment(row: Cells, model: str, gpu: str, cards: int) -> tuple[Deployment, tuple[str, ...]]:
    dtype, said = precision(row, gpu)
    notes = [said] if said else []
    tensor, depth = whole(row, "cfg_tp"), whole(row, "cfg_pp") or 1
    if tensor is None:
        tensor = min(_fewest(model, gpu, dtype), cards)
        notes.append(f"layout not told: tensor parallel {tensor}, the fewest with room for KV")
    framework = row["framework"].casefold()
    version = re.search(r"vllm (\d[\d.]*\d)", framework)
    vllm = "vllm" in framework or "redhat" in row["submitter"].casefold()
    engine = f"vllm {version[1]}" if version else "vllm" if vllm else "trtllm"
    kv = row.get("cfg_kv", "").casefold()
    return (
        Deployment(
            engine=engine,
            tensor_parallel=tensor,
            pipeline_parallel=depth,
            weight_dtype=dtype,
            kv_dtype="fp8" if "16" not in kv else "bf16",
            max_num_seqs=whole(row, "cfg_max_batch") or SLOTS,
            max_num_batched_tokens=whole(row, "cfg_max_num_tokens") or BUDGET,
            expert_parallel=False,
        ),
        (*notes, "one replica simulated under its share of the load"),
    )


def _fewest(model: str, gpu: str, dtype: str) -> int:
    """Fewest cards that hold the weights with room for a KV cache; 1 where nothing is known."""
    try:
        found, memory_gib = catalogue.model(model), catalogue.gpu(gpu).memory_gib
    except SojournError:
        return 1
    return power_of_two_for(found.parameters * BYTES.get(dtype, 2.0) / 2**30, memory_gib * FULL)


def _lengths(path: Path) -> tuple[Ints, Ints] | None:
    if not path.is_file():
        return None
    rows, _ = read(path)
    pairs = [(number(r, "input_length"), number(r, "output_length")) for r in rows]
    good = np.array([p for p in pairs if p[0] and p[1]], dtype=np.int64).reshape(-1, 2)
    return (good[:, 0], good[:, 1]) if len(good) else None


def _load(row: Cells, lengths: tuple[Ints, Ints], output_mean: float, share: float) -> Load | None:
    """What one replica is sent: its share of the rate, or of the samples issued at once."""
    offline = row["scenario"] == "Offline"
    rate = number(row, "sched_qps") or number(row, "target_qps") or 0.0
    if not offline and (row["scenario"] not in ("Server", "Interactive") or not rate):
        return None
    stay = (number(row, "lat_mean_ms") or 0.0) * MS
    in_flight = int(rate * share * stay)
    count, skip = max(FEWEST_REQUESTS, 6 * in_flight), 2 * in_flight
    if offline:
        issued = (number(row, "lat_p99_ms") or 0.0) * MS * (number(row, "samples_per_s") or 0.0)
        count, skip = int(min(max(issued * share, FEWEST_REQUESTS), MOST_REQUESTS)), 0
    at = np.random.default_rng(0).integers(len(lengths[0]), size=count)
    return Load(
        Arrivals.BURST if offline else Arrivals.POISSON,
        lengths[0][at],
        scaled(lengths[1][at], output_mean),
        rate_per_s=None if offline else rate * share,
        skip=skip,
    )
