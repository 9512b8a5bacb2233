"""Fits the shapes of kernels on measured operator tables; prints them as `roofline_families` has.

    python benchmarks/fit_kernels.py FOLDER [gemm] [experts] [shortest] [attention] [links]

FOLDER: `aiconfigurator_core/systems/data` of the unpacked wheel aiconfigurator-core 0.12.0
(Apache-2.0). Needs pandas with pyarrow. One line per generation and format: the numbers of a
`Kernel`, the median absolute error, and where errors lean by engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

Floats = npt.NDArray[np.float64]
SYSTEMS = {
    "Ampere": ("a100_sxm",),
    "Ada": ("l40s",),
    "Hopper": ("h100_sxm", "h200_sxm"),
    "Blackwell": ("b200_sxm", "gb200", "b300_sxm"),
    "Blackwell workstation": ("rtx_pro_6000_server",),
}
PEAKS = {  # bandwidth, 16-bit, 8-bit, 4-bit: datasheets, dense
    "a100_sxm": (2.039e12, 312e12, 312e12, 312e12),
    "l40s": (0.864e12, 362e12, 733e12, 733e12),
    "h100_sxm": (3.35e12, 989e12, 1979e12, 1979e12),
    "h200_sxm": (4.8e12, 989e12, 1979e12, 1979e12),
    "b200_sxm": (8.0e12, 2250e12, 4500e12, 9000e12),
    "gb200": (8.0e12, 2450e12, 4900e12, 9800e12),
    "b300_sxm": (8.0e12, 2250e12, 4500e12, 13500e12),
    "rtx_pro_6000_server": (1.597e12, 500e12, 1000e12, 2000e12),
}
FORMATS = {
    "bfloat16": "16", "fp8": "8", "fp8_block": "8", "nvfp4": "4", "w4a8_mxfp4_mxfp8": "4",
    "int4_wo": "wo", "w4a16_mxfp4": "wo",
}  # fmt: skip
BYTES = {"16": 2.0, "8": 1.0, "4": 0.5625, "wo": 0.53}
PEAK_OF = {"16": 1, "8": 2, "4": 3, "wo": 1}
MOST = 12_000
US, MS = 1e-6, 1e-3


def load(root: Path, systems: Sequence[str], pattern: str) -> pd.DataFrame:
    """All tables of a kind, with their system and engine."""
    parts = []
    for system in systems:
        for path in sorted((root / system).glob(pattern)):
            part = pd.read_parquet(path)
            parts.append(part.assign(system=system, engine=path.parts[-3]))
    rows = pd.concat(parts, ignore_index=True)
    return rows[rows.latency > 0]


def rates(rows: pd.DataFrame, kind: str) -> tuple[Floats, Floats]:
    """Bandwidth and peak of each row's card."""
    bandwidth = rows.system.map(lambda s: PEAKS[s][0]).to_numpy()
    return bandwidth, rows.system.map(lambda s: PEAKS[s][PEAK_OF[kind]]).to_numpy()


def solve(
    model: Callable[[Floats], Floats], seconds: Floats, start: Floats, span: float = 30.0
) -> tuple[Floats, Floats]:
    """Robust fit of positive numbers on logarithms; shares are held at 1 at most."""
    low, high = np.log(start / span), np.log(start * span)
    high[1:3] = 0.0
    low[3], high[3] = 0.0, np.log(6.0)
    found = least_squares(
        lambda x: np.log(model(np.exp(x)) / seconds), np.log(start), bounds=(low, high),
        loss="soft_l1", f_scale=0.15,
    )  # fmt: skip
    values = np.exp(found.x)
    return values, model(values) / seconds - 1


def blend(read: Floats, computed: Floats, v: Floats) -> Floats:
    """The core of a kernel: v = launch in us, shares of memory and compute, blend."""
    p = v[3]
    return v[0] * US + ((read / v[1]) ** p + (computed / v[2]) ** p) ** (1 / p)


def show(what: str, family: str, kind: str, values: Floats, error: pd.Series) -> None:
    """One line."""
    lean = error.groupby(level=0).median().round(2).to_dict()
    numbers = ", ".join(f"{v:.3g}" for v in values)
    print(f"{what:10}{family:22}{kind:3} ({numbers})  n={len(error)}"
          f" median |e| {error.abs().median():.1%}  {lean}", flush=True)  # fmt: skip


def gemm(root: Path, family: str, systems: Sequence[str]) -> None:
    """Matrix products of 1 to 16,384 tokens; the fastest kernel of an engine for a shape counts.

    vLLM's block-scaled FP8 rows are left out: a compile is timed in many (60 us floor).
    """
    rows = load(root, systems, "gemm/*/*/gemm_perf.parquet")
    rows = rows[(rows.k >= 512) & (rows.n >= 512) & (rows.m <= 16384) & (rows.n * rows.k < 5.5e8)]
    rows = rows[~((rows.engine == "vllm") & (rows.gemm_dtype == "fp8_block"))]
    rows = rows.assign(kind=rows.gemm_dtype.map(FORMATS)).dropna(subset=["kind"])
    for kind, part in rows.groupby("kind"):
        _gemm(family, str(kind), part)


def _gemm(family: str, kind: str, rows: pd.DataFrame) -> None:
    best = rows.groupby(["system", "engine", "m", "n", "k"], as_index=False).latency.min()
    best = best.sample(min(len(best), MOST), random_state=1)
    bandwidth, peak = rates(best, kind)
    m, n, k = (best[c].to_numpy().astype(float) for c in "mnk")
    read = (n * k * BYTES[kind] + m * n * 2) / bandwidth

    def model(v: Floats) -> Floats:
        return blend(read, 2 * m * n * k / peak, v) + m * k / bandwidth * v[4]

    values, error = solve(model, best.latency.to_numpy() * MS, np.array([5, 0.8, 0.7, 2, 3.0]))
    show("gemm", family, kind, values, pd.Series(error, index=best.engine))


def experts(root: Path, family: str, systems: Sequence[str]) -> None:
    """Grouped products, balanced routing: distinct experts read, padded pairs computed, rows moved.

    Two more numbers: exponent on tokens in the count of distinct experts, share of bandwidth of
    gathering rows.
    """
    rows = load(root, systems, "moe/*/*/moe_perf.parquet")
    rows = rows[(rows.distribution == "balanced") & (rows.num_tokens <= 16384)]
    rows = rows[~rows.kernel_source.astype(str).str.contains("nongated")]
    rows = rows.assign(kind=rows.moe_dtype.map(FORMATS)).dropna(subset=["kind"])
    for kind, part in rows.groupby("kind"):
        _experts(family, str(kind), part)


def _experts(family: str, kind: str, rows: pd.DataFrame) -> None:
    keys = ["system", "engine", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
            "moe_tp_size", "moe_ep_size"]  # fmt: skip
    best = rows.groupby(keys, as_index=False).latency.min()
    best = best.sample(min(len(best), MOST), random_state=1)
    bandwidth, peak = rates(best, kind)
    tokens, top, count, hidden = (
        best[c].to_numpy().astype(float)
        for c in ("num_tokens", "topk", "num_experts", "hidden_size")
    )
    local = count / best.moe_ep_size.to_numpy()
    width = (best.inter_size / best.moe_tp_size).to_numpy()
    size, pairs = 3 * hidden * width, tokens * top / count * local
    moved = pairs * (2 * hidden + 3 * width) * 2 / bandwidth

    def model(v: Floats) -> Floats:
        seen = local * (1 - (1 - top / count) ** (tokens ** v[4]))
        read = seen * size * BYTES[kind] / bandwidth
        return blend(read, 2 * pairs * size / peak, v) + moved / v[5]

    start = np.array([30, 0.8, 0.4, 1.5, 0.9, 0.3])
    values, error = solve(model, best.latency.to_numpy() * MS, start)
    show("experts", family, kind, values, pd.Series(error, index=best.engine))


def shortest(root: Path, family: str, systems: Sequence[str]) -> None:
    """Grouped products at one token over the most shards: the launch of each engine, us."""
    rows = load(root, systems, "moe/*/*/moe_perf.parquet")
    rows = rows[(rows.num_tokens == 1) & (rows.moe_tp_size >= 8) & (rows.moe_ep_size == 1)]
    rows = rows.assign(kind=rows.moe_dtype.map(FORMATS)).dropna(subset=["kind"])
    told = rows.groupby(["kind", "engine"]).latency.min() * MS / US
    print(f"shortest  {family:22}{ {k: round(v) for k, v in told.to_dict().items()} }")


def attention(root: Path, family: str, systems: Sequence[str]) -> None:
    """Decode (`dec`): bytes of the cache and FLOPs; prefill (`pre`): FLOPs, and rows in and out.
    By engine, contexts of 64 tokens and more, batches to 512."""
    for phase in ("generation", "context"):
        rows = load(root, systems, f"attention/*/*/{phase}_attention_perf.parquet")
        window = rows.window_size if "window_size" in rows else pd.Series(0, index=rows.index)
        rows = rows[(window.fillna(0) == 0) & rows.head_dim.isin([64, 128, 256])]
        rows = rows[(rows.num_heads % rows.num_key_value_heads == 0) & (rows.batch_size <= 512)]
        rows = rows[(rows.step + rows.isl >= 64) & (rows.batch_size * rows.isl <= 65536)]
        for (cache, _), part in rows.groupby(["kv_cache_dtype", "engine"]):
            _attention(family, str(cache), part, decode=phase == "generation")


def _attention(family: str, cache: str, rows: pd.DataFrame, *, decode: bool) -> None:
    own = rows.sample(min(len(rows), MOST), random_state=1)
    bandwidth, peak = rates(own, "16")
    heads = (own.num_heads * own.head_dim).to_numpy().astype(float)
    kept = (own.num_key_value_heads * own.head_dim).to_numpy().astype(float)
    batch, each = own.batch_size.to_numpy().astype(float), 1 if cache == "fp8" else 2
    if decode:
        context = own.step.to_numpy() + 1.0
        read = batch * context * kept * 2 * each / bandwidth
        computed = 4 * batch * context * heads / peak
    else:
        length = own.isl.to_numpy().astype(float)
        read = batch * length * 2 * (heads + kept) * 2 / bandwidth
        computed = 2 * batch * length**2 * heads / peak

    def model(v: Floats) -> Floats:
        return blend(read, computed, v)

    values, error = solve(model, own.latency.to_numpy() * MS, np.array([10, 0.8, 0.4, 1.5]))
    show("dec" if decode else "pre", family, "8" if each == 1 else "16", values,
         pd.Series(error, index=own.engine))  # fmt: skip


def links(root: Path, family: str, systems: Sequence[str]) -> None:
    """All-reduces by direct reads (engines' own) and by NCCL: microseconds by ranks and bytes."""
    for pattern in ("comm/*/*/custom_allreduce_perf.parquet", "comm/nccl/*/nccl_perf.parquet"):
        rows = load(root, systems, pattern)
        if "op_name" in rows and "nccl" in pattern:
            rows = rows[rows.op_name.astype(str).str.contains("all_reduce")]
        told = rows.pivot_table(
            index="num_gpus", columns="message_size", values="latency", aggfunc="min"
        ) / US * MS  # fmt: skip
        print(f"links     {family:22}{pattern.split('/')[-1]}\n{told.iloc[:, ::4].round(1)}")


PARTS = {
    "gemm": gemm,
    "experts": experts,
    "shortest": shortest,
    "attention": attention,
    "links": links,
}


def main() -> None:
    """Fit and print the parts asked for."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        print("no operator tables: give their folder")
        return
    for part in sys.argv[2:] or PARTS:
        for family, systems in SYSTEMS.items():
            PARTS[part](Path(sys.argv[1]), family, systems)


if __name__ == "__main__":
    main()
