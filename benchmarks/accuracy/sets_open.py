"""Loaders of runs under open-loop load: per-request records (exp-4, RTX PRO 6000) and tables of
IOG, KubeCon and an Azure A100 curve. BLIS, MLPerf and gpustack have files of their own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
from measured import llmservingsim, lmbench
from measured.runs import Run

from sojourn.config import Deployment

from .figures import figures_of
from .reading import (
    MS,
    SHAREGPT_NOTE,
    Cells,
    card,
    dtype_of_name,
    ended_early,
    measured,
    number,
    opened,
    same,
    sharegpt,
    whole,
)
from .rows import NOT_PREFILL, Arrivals, Load, Loaded, Row

VLLM_LARGE: Final = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
"""vLLM's API server by default on cards of 70 GiB and more but the A100 (0.9 and later)."""
VLLM_SMALL: Final = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
"""On all others."""


def vllm_defaults(gpu: str, version: tuple[int, int] = (0, 11)) -> dict[str, int]:
    """Slots and budget of vLLM's API server where the command does not set them.

    Before 0.9 256 slots on every card: the KV pool that IOG's 32B and 70B rows on vLLM 0.8.5 ran
    in is that of a sampler of 256 sequences, not of 1,024.
    """
    large = ("H100", "H200", "B200", "B300", "GB", "GH200", "MI3", "RTX-PRO-6000")
    found = dict(VLLM_LARGE if gpu.startswith(large) else VLLM_SMALL)
    if version < (0, 9):
        found["max_num_seqs"] = VLLM_SMALL["max_num_seqs"]
    return found


def load_of(run: Run, rate_per_s: float | None = None) -> Load:
    """A recorded run's load, and the rate that was meant."""
    return Load(
        Arrivals.RECORDED,
        run.input.astype(np.int64),
        run.output.astype(np.int64),
        cached=run.cached.astype(np.int64),
        rate_per_s=rate_per_s,
        times_s=run.arrival,
    )


def exp_4(root: Path) -> Loaded:
    """LMBench runs of llm-d-benchmark, one row for each run (a rate of one sweep)."""
    loaded = Loaded()
    files = sorted((root / "llmd_lmbench").glob("*_requests.csv"))
    if not files:
        loaded.skip("no file llmd_lmbench/*_requests.csv", 0)
    for path in files:
        _lmbench_file(path, loaded)
    return loaded


def _lmbench_file(path: Path, loaded: Loaded) -> None:
    sweeps = lmbench.load_file(path)
    said = "".join(x for x in path.read_text(encoding="utf-8")[:4000].splitlines(True) if "#" in x)
    setting = re.search(r"replicas?\s+(\S+)\s+(.*?)\bTP ?(\d+) on (?:\d+) ?x ?([\w-]+)", said)
    if setting is None or not sweeps:
        loaded.skip(f"{path.name}: model, layout or card not told", len(sweeps) or 1)
        return
    name, words, tensor, hardware = setting.groups()
    gpu = card(hardware)
    if gpu is None:
        loaded.skip(f"{path.name}: card not known: {hardware}", len(sweeps))
        return
    model = name.removesuffix("-17B-16E") if "Scout" in name else name
    share = re.search(r"gpu-mem-util (\d?\.\d+)", said)
    length = re.search(r"max-model-len (\d+)", said)
    deployment = Deployment(
        engine="vllm 0.8.5",
        tensor_parallel=int(tensor),
        weight_dtype="fp8" if "fp8" in words.casefold() else "bf16",
        gpu_memory_utilization=float(share[1]) if share else 0.9,
        max_model_len=int(length[1]) if length else None,
        **vllm_defaults(gpu, (0, 8)),
    )
    notes = ("prompts sent again and again: all but their last token taken as cached",)
    for index, part in enumerate(sweeps):
        loaded.rows.append(
            Row(
                set="LMBench",
                id=f"{path.stem.removesuffix('_requests')} sweep {part.sweep} {part.rate:g}/s"
                f" #{index}",
                model=model,
                gpu=gpu,
                deployment=deployment,
                load=load_of(part.run, part.rate),
                recorded=part.run,
                measured=figures_of(part.run),
                notes=notes,
                transient=bool(len(part.run) / np.ptp(part.run.end) < 0.9 * part.rate),
                server=f"{path.stem} sweep {part.sweep}",
            )
        )


def rtx_pro_6000(root: Path) -> Loaded:
    """LLMServingSim's recorded vLLM runs, one row for each."""
    loaded = Loaded()
    files = sorted((root / "llmservingsim").glob("*_requests.csv"))
    if not files:
        loaded.skip("no file llmservingsim/*_requests.csv", 0)
    for path in files:
        name = path.stem.removesuffix("_requests")
        told = llmservingsim.load_file(path.parent, name)
        gpu = card(name.split("_")[0])
        if told is None or gpu is None:
            loaded.skip(f"{name}: no settings beside it, or card not known")
            continue
        flags = told.engine
        quantised = str(flags.get("quantization") or "")
        deployment = Deployment(
            engine=f"vllm {told.version}",
            tensor_parallel=int(flags.get("tensor_parallel_size") or 1),
            data_parallel=int(flags.get("data_parallel_size") or 1),
            expert_parallel=bool(flags.get("enable_expert_parallel")),
            weight_dtype=quantised or "bf16",
            max_num_seqs=told.max_num_seqs,
            max_num_batched_tokens=told.max_num_batched_tokens,
        )
        loaded.rows.append(
            Row(
                set="RTX PRO 6000",
                id=name,
                model=str(flags["model"]),
                gpu=gpu,
                deployment=deployment,
                load=load_of(told.run),
                recorded=told.run,
                measured=figures_of(told.run),
                transient=True,
                server=name,
            )
        )
    return loaded


IOG_FIGURES: Final = {
    **{f"{w}_mean_s": (f"mean_{w}_ms", MS) for w in ("ttft", "tpot", "itl")},
    **{f"{w}_{q}_s": (f"{q}_{w}_ms", MS) for w in ("ttft", "tpot", "itl") for q in ("p50", "p99")},
    "ttft_p90_s": ("p90_ttft_ms", MS),
    "output_tokens_per_s": ("output_throughput", 1.0),
    "requests_per_s": ("request_throughput", 1.0),
}


def iog(root: Path) -> Loaded:
    """IOG: vLLM 0.8.5, 200 ShareGPT prompts, Poisson; the same prompts at every rate, so the
    engine's prefix cache is taken as warm but in the first run of a server (the highest rate)."""
    rows, _, loaded = opened(root / "iog_vllm085_poisson_sharegpt200.csv")
    first = {}
    for row in rows:
        server = (row["model_id"], row["gpu_name"], row["gpu_count"], row["rep"])
        date = row.get("date", "")
        first[server] = min(first.get(server, date), date)
    for row in rows:
        gpu, count = card(row["gpu_name"]), whole(row, "completed")
        rate, cards = number(row, "request_rate"), whole(row, "gpu_count")
        given = [number(row, f"total_{w}_tokens") for w in ("input", "output")]
        if gpu is None:
            loaded.skip(f"card not known: {row['gpu_name']}")
            continue
        if not count or not rate or not cards or not all(given):
            loaded.skip("a figure is missing")
            continue
        server = (row["model_id"], row["gpu_name"], row["gpu_count"], row["rep"])
        warm = row.get("date", "") != first[server]
        inputs, outputs = sharegpt(count, given[0] / count, given[1] / count)
        loaded.rows.append(
            Row(
                set="IOG",
                id=f"{row['model_id']} x{cards} {rate:g}/s rep {row['rep']}",
                model=row["model_id"],
                gpu=gpu,
                deployment=Deployment(
                    engine="vllm 0.8.5",
                    tensor_parallel=cards,
                    weight_dtype=dtype_of_name(row["model_id"], "fp16"),
                    **vllm_defaults(gpu, (0, 8)),
                ),
                load=Load(
                    Arrivals.POISSON,
                    inputs,
                    outputs,
                    cached=inputs // 16 * 16 if warm else None,
                    rate_per_s=rate,
                    concurrency=whole(row, "max_concurrency"),
                ),
                measured=measured(row, IOG_FIGURES),
                notes=(SHAREGPT_NOTE, "prompts repeat from run to run: prefix cache warm"),
                scored=() if not warm else NOT_PREFILL,
                server="|".join(server),
            )
        )
    return loaded


KUBECON_FIGURES: Final = {
    **{f"e2e_{n}_s": (f"e2e_{c}_ms", MS) for n, c in (("mean", "mean"), ("p50", "median"))},
    **{f"ttft_{n}_s": (f"ttft_{c}_ms", MS) for n, c in (("mean", "mean"), ("p50", "median"))},
    **{f"{w}_{q}_s": (f"{w}_{q}_ms", MS) for w in ("e2e", "ttft") for q in ("p90", "p99")},
    "tpot_mean_s": ("tpot_true_mean_ms", MS),
    "output_tokens_per_s": ("out_tok_per_s", 1.0),
    "requests_per_s": ("req_per_s", 1.0),
}
KUBECON: Final = {
    "vllm": ("vllm 0.11.0", 128, False),
    "vllm+batch_size": ("vllm 0.11.0", 192, False),
    "vllm+v0_engine": ("vllm 0.7 (the V0 engine of 0.9.0)", 128, False),
    "vllm+prefix_caching": ("vllm 0.11.0", 128, True),
}
"""Variant: engine, slots, prefix cache (as the file's head says)."""
KUBECON_OUTPUT: Final = 64
KUBECON_CLIENT: Final = 440
"""Requests that its client holds in flight."""


def kubecon(root: Path) -> Loaded:
    """inference-perf, Llama-3.1-8B on one H100: seven constant rates of 60 s for each variant."""
    rows, head, loaded = opened(root / "inference_perf_kubecon2025_llama31_8b_h100.csv")
    told = re.search(r"(\d+)\+(\d+) in / (\d+) out", head)
    limit = int(told[3]) if told else KUBECON_OUTPUT
    for row in rows:
        variant = KUBECON.get(row["variant"])
        count, rate = whole(row, "ok"), number(row, "achieved_rate")
        if variant is None:
            loaded.skip(f"variant not known: {row['variant']}")
            continue
        if not count or not rate:
            loaded.skip("a figure is missing")
            continue
        engine, slots, cache = variant
        inputs = same(count, number(row, "in_mean") or 192)
        offered = number(row, "requested_rate") or rate
        loaded.rows.append(
            Row(
                set="KubeCon",
                id=f"{row['variant']} {offered:g}/s",
                model="meta-llama/Llama-3.1-8B-Instruct",
                gpu="H100-SXM",
                deployment=Deployment(
                    engine=engine,
                    max_num_seqs=slots,
                    max_num_batched_tokens=8192 if "V0" not in engine else 2048,
                    max_model_len=512,
                    prefix_caching=cache,
                ),
                load=Load(
                    Arrivals.CONSTANT,
                    inputs,
                    ended_early(count, number(row, "out_mean") or limit, limit),
                    cached=np.full(count, 128) if cache else None,
                    rate_per_s=offered,
                    concurrency=KUBECON_CLIENT,
                ),
                measured=measured(row, KUBECON_FIGURES),
                notes=(f"the client holds {KUBECON_CLIENT} requests in flight",),
                transient=rate < 0.95 * offered,
                scored=NOT_PREFILL if cache else (),
                server=row["variant"],
            )
        )
    return loaded


AZURE_FIGURES: Final = {
    **{f"{w}_mean_s": (f"{w}_mean_ms", MS) for w in ("ttft", "tpot")},
    **{f"{w}_{q}_s": (f"{w}_{q}_ms", MS) for w in ("ttft", "tpot") for q in ("p50", "p99")},
    "output_tokens_per_s": ("out_tok_s", 1.0),
    "requests_per_s": ("req_s", 1.0),
}
SHAREGPT_PROMPT_MEAN: Final = 215.0
"""Mean prompt of that benchmark where the row does not tell its own (same source as its shape)."""


def azure(root: Path) -> Loaded:
    """Llama-3.3-70B on A100s of Azure: vLLM's benchmark suite, 200 ShareGPT prompts, Poisson."""
    loaded = Loaded()
    files = sorted(root.glob("azure_*.csv"))
    if not files:
        loaded.skip("no file azure_*.csv", 0)
    for path in files:
        for row in opened(path)[0]:
            _azure_row(row, loaded)
    return loaded


def _azure_row(row: Cells, loaded: Loaded) -> None:
    layout = re.fullmatch(r"tp(\d+)_pp(\d+)", row.get("parallel", ""))
    gpu = card(row.get("machine", ""))
    done, tokens = number(row, "req_s"), number(row, "out_tok_s")
    if layout is None or gpu is None or not done or not tokens:
        loaded.skip("layout, card or rate not told")
        return
    burst = row["qps"] == "inf"
    inputs, outputs = sharegpt(200, SHAREGPT_PROMPT_MEAN, tokens / done)
    tensor, depth = (int(n) for n in layout.groups())
    loaded.rows.append(
        Row(
            set="Azure A100",
            id=f"{row['parallel']} {row['qps']}/s",
            model=row["model"],
            gpu=gpu,
            deployment=Deployment(
                engine="vllm",
                tensor_parallel=tensor,
                pipeline_parallel=depth,
                **vllm_defaults(gpu),
            ),
            load=Load(
                Arrivals.BURST if burst else Arrivals.POISSON,
                inputs,
                outputs,
                rate_per_s=None if burst else number(row, "qps"),
            ),
            measured=measured(row, AZURE_FIGURES),
            notes=(SHAREGPT_NOTE, "vLLM's version is not told", "mean prompt assumed"),
            transient=True,
            server=row["parallel"],
        )
    )
