"""What several loaders need: rows of a CSV, numbers that may be missing, names of cards, and the
shape of ShareGPT lengths."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Final

import numpy as np

from .rows import Ints, Loaded

Cells = dict[str, str]

MS: Final = 1e-3
MOST: Final = 10**9
"""Of requests, tokens or anything that is counted in one run."""
MOST_REQUESTS: Final = 10**6
"""Of one run: each has lengths of its own here."""


def read(path: Path) -> tuple[list[Cells], str]:
    """Rows of a CSV that begins with `#` lines, and those lines."""
    text = path.read_text(encoding="utf-8").splitlines(keepends=True)
    head = [line for line in text if line.startswith("#")]
    body = [line for line in text if not line.startswith("#")]
    return [_whole(row) for row in csv.DictReader(body)], "".join(head)


def _whole(row: dict[str | None, str | list[str] | None]) -> Cells:
    """Cells as text: a short row has empty ones, those beyond the header are left out."""
    return {name: value if isinstance(value, str) else "" for name, value in row.items() if name}


def opened(path: Path) -> tuple[list[Cells], str, Loaded]:
    """Rows, comment lines and an empty `Loaded`; a missing file is a reason, no error."""
    loaded = Loaded()
    if not path.is_file():
        loaded.skip(f"no file {path.name}", 0)
        return [], "", loaded
    rows, head = read(path)
    return rows, head, loaded


def number(row: Cells, name: str) -> float | None:
    """A finite number of a cell, None where there is none."""
    try:
        value = float(row.get(name, "") or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(row: Cells, name: str) -> int | None:
    """A whole number from 1 to `MOST` of a cell, None where there is none."""
    value = number(row, name)
    return None if value is None or not 1 <= value <= MOST else round(value)


def measured(row: Cells, names: dict[str, tuple[str, float]]) -> dict[str, float]:
    """Figures of a row: name to (column, factor to seconds); only positive ones that are there."""
    found = {}
    for name, (column, factor) in names.items():
        value = number(row, column)
        if value is not None and value > 0:
            found[name] = value * factor
    return found


CARDS: Final = (
    (r"gb300", "GB300"),
    (r"gb200", "GB200"),
    (r"b300", "B300"),
    (r"b200", "B200"),
    (r"gh200.*144", "GH200-144GB"),
    (r"gh200", "GH200-96GB"),
    (r"h200", "H200"),
    (r"h100.*nvl", "H100-NVL"),
    (r"h100.*pcie", "H100-PCIe"),
    (r"h100", "H100-SXM"),
    (r"nd96asr_v4", "A100-40GB-SXM"),
    (r"a100.*40 ?gb", "A100-40GB-SXM"),
    (r"a100.*pcie|nc\d+ads_a100", "A100-80GB-PCIe"),
    (r"a100", "A100-80GB-SXM"),
    (r"l40s", "L40S"),
    (r"\bl4\b", "L4"),
    (r"rtx.?pro.?6000", "RTX-PRO-6000"),
    (r"4090", "RTX-4090"),
    (r"mi355x", "MI355X"),
    (r"mi325x", "MI325X"),
    (r"mi300x", "MI300X"),
)


def card(text: str) -> str | None:
    """The accelerator that a text is about, by the names of the catalogue; None: not known."""
    plain = text.casefold()
    return next((name for pattern, name in CARDS if re.search(pattern, plain)), None)


def dtype_of_name(model: str, otherwise: str) -> str:
    """The dtype that a checkpoint's name tells."""
    plain = model.casefold()
    for words, dtype in (
        (("nvfp4", "fp4"), "nvfp4"),
        (("fp8", "w8a8-fp"), "fp8"),
        (("w8a8", "int8"), "int8"),
        (("awq", "gptq", "int4", "w4a16"), "int4"),
    ):
        if any(word in plain for word in words):
            return dtype
    return otherwise


# fmt: off
SHAREGPT_PROMPT: Final = (
    0.023, 0.033, 0.037, 0.042, 0.051, 0.056, 0.060, 0.070, 0.074, 0.084, 0.093, 0.107, 0.116,
    0.130, 0.153, 0.172, 0.209, 0.242, 0.293, 0.358, 0.441, 0.581, 0.725, 0.883, 1.046, 1.143,
    1.255, 1.413, 1.520, 1.599, 1.701, 1.863, 2.124, 2.305, 2.481, 2.774, 3.030, 3.285, 3.569,
    3.601,
)
SHAREGPT_OUTPUT: Final = (
    0.020, 0.030, 0.045, 0.060, 0.075, 0.095, 0.110, 0.125, 0.155, 0.200, 0.225, 0.280, 0.340,
    0.440, 0.526, 0.571, 0.626, 0.711, 0.786, 0.846, 0.891, 0.981, 1.031, 1.076, 1.141, 1.241,
    1.301, 1.386, 1.442, 1.502, 1.567, 1.637, 1.682, 1.792, 1.937, 2.057, 2.232, 2.463, 2.868,
    3.409,
)
# fmt: on
"""Shapes of the prompts and answers of vLLM's ShareGPT benchmark: 40 quantiles over the mean, of
`input_lens` and of `output_lens` above one token, of 1,000 requests (dstackai/benchmarks,
h100sxm5_vs_mi300x, nvidia-vllm-16.0qps-Llama-3.1-405B-FP8-20241109-150547.json, Apache-2.0). The
published files of ShareGPT lengths are of whole conversations, not of these first turns."""
SHAREGPT_NOTE: Final = (
    "ShareGPT: shape of lengths from another run of that benchmark, scaled to the row's totals"
)


def sharegpt(count: int, prompt_mean: float, output_mean: float) -> tuple[Ints, Ints]:
    """Prompt and output tokens of `count` requests in a fixed shuffled order, with these means."""
    _held(count)
    rng = np.random.default_rng(0)
    shapes = []
    for shape, mean in ((SHAREGPT_PROMPT, prompt_mean), (SHAREGPT_OUTPUT, output_mean)):
        places = (np.arange(count) + 0.5) / count
        at = (np.arange(len(shape)) + 0.5) / len(shape)
        shapes.append(scaled(rng.permutation(np.interp(places, at, shape)), mean))
    return shapes[0], shapes[1]


def scaled(lengths: np.ndarray, mean: float) -> Ints:
    """Whole lengths >= 1 of this shape with this mean."""
    values = np.asarray(lengths, dtype=np.float64)
    return np.maximum(np.rint(values * (mean / values.mean())), 1).astype(np.int64)


def _held(count: int) -> None:
    """Raises ValueError where a run has more requests than any that was published."""
    if count > MOST_REQUESTS:
        raise ValueError(f"a run of {count:,} requests")


def same(count: int, tokens: float) -> Ints:
    """`count` equal lengths."""
    _held(count)
    return np.full(count, max(1, round(tokens)), dtype=np.int64)


def ended_early(count: int, mean: float, limit: int) -> Ints:
    """Lengths of `count` answers with a limit and this mean: most write their limit, the others
    end anywhere before it. (So has it the one such run whose lengths are told: its median is the
    limit, its mean a fifth below; BLIS, Llama-2-7B.) Answers of one length would end in step with
    each other, which real ones do not."""
    _held(count)
    full = min(1.0, max(0.0, 2 * mean / limit - 1))
    lengths = np.full(count, limit, dtype=np.int64)
    rng = np.random.default_rng(0)
    early = rng.permutation(count) >= round(full * count)
    lengths[early] = rng.integers(1, max(limit, 2), size=count)[early]
    return lengths


def power_of_two_for(need: float, each: float) -> int:
    """Fewest accelerators, a power of two, that hold `need` with `each`."""
    return 1 << max(0, math.ceil(math.log2(max(need / each, 1e-9))))
