"""Fits the roofline's efficiencies on the measured rows beside the checkout, and prints errors.

    python benchmarks/fit_roofline.py [path of ground_truth] [--fit]

Without --fit it scores the shipped constants. With it, it fits on the groups (model x card x
engine) whose name hashes to an even number and scores the odd ones, then fits on all. Decode
rows: ITL medians of a saturated closed load (vLLM 0.11.1, H100) where fewer than half the steps
carry a prompt; TPOT of closed loops at fixed lengths, prompts included in the mean step.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from sojourn.capacity import catalogue
from sojourn.capacity.roofline import EFFICIENCY, Efficiency, step_model
from sojourn.config import Deployment
from sojourn.errors import SojournError

CHAT_INPUT = 200  # tokens; not in the file, chat prompts of this order: small against the weights
# Bounds keep the fit physical: a wider range fits no better (12.0% either way on groups left
# out) and trades one constant against another.
BOUNDS = {
    "weights": (0.4, 0.95),
    "experts": (0.3, 0.95),
    "kv": (0.4, 0.95),
    "decode_flops": (0.35, 0.9),
    "expert_flops": (0.2, 0.9),
    "prefill_flops": (0.3, 0.85),
    "routing_spread": (0.7, 1.0),
    "host_step_s": (1e-4, 4e-3),
    "host_sequence_s": (1e-6, 6e-5),
    "layer_s": (1e-6, 6e-5),
    "expert_layer_s": (1e-6, 1.5e-4),
    "all_reduce_s": (2e-6, 4e-5),
}
NAMES = tuple(BOUNDS)
LOW, HIGH = zip(*BOUNDS.values(), strict=True)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured mean time per output token, and what it was measured on."""

    group: str
    model: str
    gpu: str
    tp: int
    dtype: str
    kv_dtype: str
    batch: float
    context: float
    prompt_per_step: float
    prompt_length: float
    measured_s: float


def read(path: Path) -> list[dict[str, str]]:
    """A CSV whose `#` lines are comments."""
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def saturated(root: Path) -> list[Row]:
    """ITL against average batch, H100, vLLM 0.11.1."""
    rows = []
    for r in read(root / "mlenergy_v3_vllm0111_itl_vs_batch.csv"):
        name, batch, out = r["model_id"], float(r["avg_batch_size"]), float(r["avg_output_len"])
        if r["task"] not in ("lm-arena-chat", "gpqa") or batch / out >= 0.5:
            continue
        plain = name.removesuffix("-FP8")
        dtype = "fp8" if r["weight_precision"] == "fp8" else "bf16"
        group = f"{plain.split('/')[-1]}|{dtype}|{r['num_gpus']}xH100|vllm"
        rows.append(Row(group, plain, "H100", int(r["num_gpus"]), dtype, "bf16", batch,
                        CHAT_INPUT + out / 2, 0.0, 0.0,
                        float(r["median_itl_ms"]) / 1e3))  # fmt: skip
    return rows


def closed_loop(root: Path) -> list[Row]:
    """TPOT in a closed loop at fixed lengths; plain tensor parallelism only."""
    systems = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200"}
    rows = []
    for r in read(root / "inferencex" / "aiconfigurator_silicon_sample_flagged.csv"):
        plain = r["model_path"].removesuffix("-FP8").removesuffix("-Instruct-FP8")
        if (
            r["mode"] != "agg"
            or r["system"] not in systems
            or r["exact_duplicate"] == "True"
            or r["nonmonotone_tpot"] == "True"
            or any(float(r[k] or 1) > 1 for k in ("attention_dp_size", "pp_size"))
            or not r["silicon_tpot_ms"]
            or not r["precision"]
        ):
            continue
        if plain == "nvidia/Llama-3.1-8B":
            plain = "Llama-3.1-8B"
        dtype = "nvfp4" if r["precision"] == "fp4" else r["precision"]
        if "gpt-oss" in plain:
            dtype = "mxfp4"
        conc, isl, osl = float(r["concurrency"]), float(r["isl"]), float(r["osl"])
        tp = int(float(r["tp_size"]))
        group = f"{plain.split('/')[-1]}|{dtype}|{tp}x{systems[r['system']]}|{r['backend']}"
        kv = (
            "bf16" if r["backend"] == "sglang" else "fp8"
        )  # as these engines were launched; assumed
        rows.append(Row(group, plain, systems[r["system"]], tp, dtype, kv, conc,
                        isl + osl / 2, conc / osl * isl, isl,
                        float(r["silicon_tpot_ms"]) / 1e3))  # fmt: skip
    return rows


def usable(rows: list[Row]) -> list[Row]:
    """Rows whose model the catalogue knows."""
    known = {}
    for name in {r.model for r in rows}:
        try:
            known[name] = catalogue.model(name)
        except SojournError:
            continue
    return [r for r in rows if r.model in known]


def predict(rows: list[Row], efficiency: Efficiency) -> np.ndarray:
    """Mean step, seconds, row by row."""
    models: dict[tuple[object, ...], object] = {}
    out = np.empty(len(rows))
    for i, r in enumerate(rows):
        key = (r.model, r.gpu, r.tp, r.dtype, r.kv_dtype, r.context)
        if key not in models:
            deployment = Deployment(tensor_parallel=r.tp, weight_dtype=r.dtype, kv_dtype=r.kv_dtype)
            models[key] = step_model(
                catalogue.model(r.model), catalogue.gpu(r.gpu), deployment,
                mean_context=r.context, efficiency=efficiency,
            )  # fmt: skip
        step = models[key]
        whole = int(r.batch)
        low = step.decode_step_s(whole, whole * r.context)
        high = step.decode_step_s(whole + 1, (whole + 1) * r.context)
        decode = low + (high - low) * (r.batch - whole)
        prompt = r.prompt_per_step * (
            step.prefill_s_per_token + step.prefill_s_per_token_context * r.prompt_length / 2
        )
        out[i] = decode + prompt
    return out


def errors(rows: list[Row], efficiency: Efficiency) -> np.ndarray:
    """Relative errors, signed."""
    measured = np.array([r.measured_s for r in rows])
    return predict(rows, efficiency) / measured - 1


def fit(rows: list[Row]) -> Efficiency:
    """Robust least squares on the logarithm of the ratio; every group weighs the same."""
    count: dict[str, int] = defaultdict(int)
    for r in rows:
        count[r.group] += 1
    weight = np.sqrt(np.array([1 / count[r.group] for r in rows]))
    low, high = np.log(LOW), np.log(HIGH)
    start = np.clip([np.log(getattr(EFFICIENCY, n)) for n in NAMES], low + 1e-6, high - 1e-6)

    def residual(x: np.ndarray) -> np.ndarray:
        values = dict(zip(NAMES, np.exp(x).tolist(), strict=True))
        return weight * np.log1p(errors(rows, dataclasses.replace(EFFICIENCY, **values)))

    found = least_squares(
        residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60
    )
    return dataclasses.replace(
        EFFICIENCY, **dict(zip(NAMES, np.exp(found.x).tolist(), strict=True))
    )


def report(title: str, rows: list[Row], efficiency: Efficiency) -> None:
    """Median absolute error by group and over all."""
    error = errors(rows, efficiency)
    groups: dict[str, list[float]] = defaultdict(list)
    for r, e in zip(rows, error, strict=True):
        groups[r.group].append(float(e))
    print(f"\n{title}: {len(rows)} rows, median |error| {np.median(np.abs(error)):.1%},"
          f" bias {np.median(error):+.1%}")  # fmt: skip
    for name, values in sorted(groups.items()):
        print(f"  {name:52} n={len(values):3} median |e| {np.median(np.abs(values)):6.1%}"
              f"  bias {np.median(values):+6.1%}")  # fmt: skip


def main() -> None:
    """Score, and fit where asked."""
    given = [a for a in sys.argv[1:] if not a.startswith("--")]
    project = Path(__file__).resolve().parent.parent
    root = Path(given[0]) if given else project.parent / "shared" / "data" / "ground_truth"
    if not root.is_dir():
        print(f"no measured rows at {root}: nothing to score")
        return
    sets = {"saturated": usable(saturated(root)), "closed loop": usable(closed_loop(root))}
    for title, rows in sets.items():
        report(f"shipped constants, {title}", rows, EFFICIENCY)
    if "--fit" in sys.argv:
        rows = [r for part in sets.values() for r in part]
        even = [r for r in rows if zlib.crc32(r.group.encode()) % 2 == 0]
        odd = [r for r in rows if zlib.crc32(r.group.encode()) % 2 == 1]
        half = fit(even)
        report("fitted on even groups, scored on odd", odd, half)
        print(half)
        whole = fit(rows)
        for title, part in sets.items():
            report(f"fitted on all, {title}", part, whole)
        print(whole)


if __name__ == "__main__":
    main()
