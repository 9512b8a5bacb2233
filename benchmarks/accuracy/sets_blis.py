"""Loader of BLIS: constant arrivals on H100, and KV pools as the engines printed them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sojourn.config import Deployment

from .reading import (
    MS,
    Cells,
    card,
    dtype_of_name,
    ended_early,
    measured,
    number,
    opened,
    same,
    whole,
)
from .rows import NOT_PREFILL, Arrivals, Ints, Load, Loaded, Row

BLIS_FIGURES: Final = {
    **{f"e2e_{n}_s": (f"e2e_{n}", MS) for n in ("mean", "p90", "p99")},
    "itl_mean_s": ("itl_mean", MS),
}


def blis(root: Path) -> Loaded:
    """BLIS: constant arrivals, H100, vLLM 0.15.1; prompts repeat under a prefix cache, so the
    time to first token is not scored. A row is one load stage of one experiment."""
    rows, _, loaded = opened(root / "blis" / "blis_measured_latency_by_stage.csv")
    blocks = _blis_blocks(root)
    for row in rows:
        stage = int(number(row, "stage_index") or 0)
        rate, gpu = number(row, "rate_rps"), card(row["hardware"])
        prompt, output = whole(row, "in_tokens_nominal"), whole(row, "out_tokens_nominal")
        if stage < 0:
            loaded.skip("whole run: the same calls as its stages")
        elif gpu is None:
            loaded.skip(f"card not known: {row['hardware']}")
        elif not rate or not prompt or not output:
            loaded.skip("rate or lengths not told")
        else:
            loaded.rows.append(_blis_row(row, gpu, rate, blocks))
    _blis_kv(root, loaded)
    return loaded


def _blis_row(row: Cells, gpu: str, rate: float, blocks: Mapping[tuple[str, int], int]) -> Row:
    prompt, output = whole(row, "in_tokens_nominal") or 1, whole(row, "out_tokens_nominal") or 1
    count = int(max(600, min(rate * 600, 6000)))
    dtype = {"FP8": "fp8", "FP16": "fp16", "BF16": "bf16"}.get(row["precision"].upper(), "bf16")
    tensor = whole(row, "tp") or 1
    inputs = same(count, prompt)
    written, note = _outputs(row, count, output)
    return Row(
        set="BLIS",
        id=f"{row['exp']} stage {row['stage_index']}",
        model=row["model"],
        gpu=gpu,
        deployment=Deployment(
            engine="vllm 0.15.1",
            tensor_parallel=tensor,
            data_parallel=whole(row, "dp") or 1,
            weight_dtype=dtype_of_name(row["model"], dtype),
            max_num_seqs=128,
            max_num_batched_tokens=whole(row, "max_num_batched_tokens") or 2048,
            kv_blocks=blocks.get((row["model"], tensor)),
            gpu_memory_utilization=number(row, "gpu_mem_util") or 0.9,
        ),
        load=Load(
            Arrivals.CONSTANT,
            inputs,
            written,
            cached=inputs // 16 * 16,
            rate_per_s=rate,
            skip=count // 5,
        ),
        measured=measured(row, BLIS_FIGURES),
        notes=("prompts repeat under a prefix cache: taken as cached, TTFT not scored", note),
        scored=NOT_PREFILL,
        server=row["exp"],
    )


def _outputs(row: Cells, count: int, nominal: int) -> tuple[Ints, str]:
    """Tokens written by each request: their mean is what whole time, first token and gap tell."""
    names = ("e2e_mean", "ttft_mean", "itl_mean")
    whole_time, first, gap = (number(row, name) or 0.0 for name in names)
    mean = (whole_time - first) / gap + 1 if gap > 0 else float(nominal)
    return (
        ended_early(count, mean, nominal),
        "mean output from (E2E - TTFT) / ITL: some answers end before their limit",
    )


def _blis_blocks(root: Path) -> dict[tuple[str, int], int]:
    """KV blocks by model and tensor parallelism, as their engine printed them."""
    rows, _, _ = opened(root / "blis" / "blis_kv_blocks_and_workloads.csv")
    found = {}
    for row in rows:
        blocks = whole(row, "gpu_kv_blocks")
        if blocks:
            found[row["model"], whole(row, "tp") or 1] = blocks
    return found


def _blis_kv(root: Path, loaded: Loaded) -> None:
    """A row for each KV pool that an engine printed."""
    rows, _, _ = opened(root / "blis" / "blis_kv_blocks_and_workloads.csv")
    seen = set()
    for row in rows:
        gpu, tokens = card(row["hardware"]), number(row, "gpu_kv_tokens")
        tensor = whole(row, "tp") or 1
        key = (row["model"], tensor, row["max_num_seqs"], row["max_num_batched_tokens"], tokens)
        if gpu is None or not tokens or key in seen:
            loaded.skip("KV pool: seen before, or card or size not told")
            continue
        seen.add(key)
        loaded.rows.append(
            Row(
                set="BLIS KV",
                id=f"{row['model']} tp {tensor} ({row['id']})",
                model=row["model"],
                gpu=gpu,
                deployment=Deployment(
                    engine="vllm 0.15.1",
                    tensor_parallel=tensor,
                    weight_dtype=dtype_of_name(row["model"], "fp16"),
                    max_num_seqs=whole(row, "max_num_seqs") or 256,
                    max_num_batched_tokens=whole(row, "max_num_batched_tokens") or 2048,
                ),
                load=Load(Arrivals.STATIC, same(1, 1), same(1, 1)),
                measured={"kv_tokens": tokens},
                notes=("gpu_memory_utilization not told: 0.9",),
            )
        )
