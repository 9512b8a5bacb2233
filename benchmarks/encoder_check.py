"""Scores the encoder roofline on sums of measured kernels.

    python benchmarks/encoder_check.py PATH_OF_aiconfigurator_core

The tables of aiconfigurator-core hold matrix products and encoder attention one by one; their sum
over the layers of an encoder is the time a whole one would take without launches and element-wise
work. Products of shapes that are not in the tables are scaled from the nearest one by their FLOPs.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from sojourn.capacity import catalogue, vision
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.vision_records import VisionSpec
from sojourn.capacity.vision_tokens import ImageLayout

SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "gb200": "GB200",
           "b300_sxm": "B300", "l40s": "L40S", "rtx_pro_6000_server": "RTX-PRO-6000"}  # fmt: skip
MODELS = ("InternVL3-8B", "InternVL3-38B", "Qwen2-VL-7B", "Qwen3-VL-8B", "Kimi-VL-A3B",
          "Gemma-3-27B", "LLaVA-1.5-7B")  # fmt: skip
MIN_ROWS = 9
Table = dict[tuple[int, ...], dict[int, float]]


def main() -> None:
    """One line per card and model; the median at the end."""
    data = Path(sys.argv[1]) / "systems" / "data"
    errors = []
    for system, name in SYSTEMS.items():
        gpu = catalogue.gpu(name)
        products = table(data / system / "gemm", ("n", "k"), "m", keep=("gemm_dtype", "bfloat16"))
        attention = table(
            data / system / "encoder_attention",
            ("num_heads", "head_dim", "batch_size"), "isl", keep=("attn_dtype", "bfloat16"),
        )  # fmt: skip
        for model in MODELS:
            spec = catalogue.model(model)
            assert spec.vision is not None
            image = vision.image_layout(spec, 1920, 1080)
            assert isinstance(image, ImageLayout)
            real = measured_s(spec.vision, image, products, attention)
            told = told_s(spec.vision, image, gpu)
            errors.append(told / real - 1)
            print(f"{name:14s} {model:14s} {image.patches:6d} patches: measured {real * 1e3:7.2f}"
                  f" ms, told {told * 1e3:7.2f} ms, {told / real - 1:+.0%}")  # fmt: skip
    print(f"median absolute error {statistics.median(map(abs, errors)):.1%} of {len(errors)}")


def table(folder: Path, by: tuple[str, ...], along: str, *, keep: tuple[str, str]) -> Table:
    """Seconds by key and size, of vLLM's newest table in the folder."""
    path = sorted((folder / "vllm").rglob("*.parquet"))[-1]
    columns = pq.read_table(path).to_pydict()
    found: Table = {}
    for i, dtype in enumerate(columns[keep[0]]):
        if dtype == keep[1]:
            key = tuple(int(columns[name][i]) for name in by)
            found.setdefault(key, {})[int(columns[along][i])] = columns["latency"][i] * 1e-3
    return {key: sizes for key, sizes in found.items() if len(sizes) >= MIN_ROWS}


def nearest(found: Table, wanted: tuple[int, ...], size: int) -> tuple[float, tuple[int, ...]]:
    """Seconds at `size` of the nearest key, by interpolation of the time per unit; and that key."""
    key = min(found, key=lambda k: sum(abs(np.log(a / b)) for a, b in zip(k, wanted, strict=True)))
    sizes = sorted(found[key])
    each = np.interp(np.log(size), np.log(sizes), np.log([found[key][s] / s for s in sizes]))
    return float(np.exp(each)) * size, key


def measured_s(spec: VisionSpec, image: ImageLayout, products: Table, attention: Table) -> float:
    """Sum over the layers of the kernels an encoder layer has."""
    total = 0.0
    shapes = [(3 * spec.width, spec.width), (spec.width, spec.width), (spec.width, spec.mlp_width)]
    shapes += [(spec.mlp_width, spec.width)] * (spec.mlp_matrices - 1)
    for n, k in shapes:
        seconds, found = nearest(products, (n, k), image.patches)
        total += seconds * n * k / (found[0] * found[1])
    batch = len(image.sequences)
    seconds, found = nearest(
        attention, (spec.heads, spec.width // spec.heads, batch), image.sequences[0]
    )
    scale = spec.heads * batch / (found[0] * found[2])
    return spec.layers * (total + seconds * scale)


def told_s(spec: VisionSpec, image: ImageLayout, gpu: Gpu) -> float:
    """The roofline's terms for the same kernels, in the middle of their ranges."""
    _, pairs = vision.encoder_flops(spec, image)
    blocks = 2.0 * spec.block_parameters * image.patches
    return vision.kernels_s(spec, gpu, (blocks, pairs), end=0)


if __name__ == "__main__":
    main()
