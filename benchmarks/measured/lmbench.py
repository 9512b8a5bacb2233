"""LMBench exp-4: Llama-4-Scout FP8, TP4 on 4 H100, vLLM of May 2025; sweeps over 28 rates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .runs import Floats, Run, columns

FILE: Final = Path("data/ground_truth/llmd_lmbench/exp-4_requests.csv")
NAMES: Final = (
    "qps",
    "prompt_tokens",
    "generation_tokens",
    "ttft",
    "launch_time",
    "finish_time",
    "request_seq",
)
Rows = npt.NDArray[np.int_]
PAUSE_S: Final = 600.0
"""A sweep that was idle for longer is over."""


@dataclass(frozen=True)
class Sweep:
    """One run: a rate of one sweep over ascending rates. Sweeps may overlap in time: they ran
    against engines of their own."""

    sweep: int
    rate: float
    run: Run


def load(shared: Path) -> list[Sweep] | None:
    """Every run of exp-4 under `shared`, by time; None where the file is not there."""
    path = shared / FILE
    return load_file(path) if path.is_file() else None


def load_file(path: Path) -> list[Sweep]:
    """Every run of a file of requests, by time.

    All runs send the same 252 prompts, so all but the last token of each is taken to be in the
    prefix cache: the data bear that out (at the lowest rates the time to first token grows by 3
    to 5 us a prompt token, less than 4 H100 can compute one in).
    """
    data = columns(path, list(NAMES))
    order = np.argsort(data["launch_time"], kind="stable")
    data = {name: values[order] for name, values in data.items()}
    found: list[Sweep] = []
    runs = _runs(data)
    for rows, sweep in zip(runs, _sweeps(data, runs), strict=True):
        began = data["launch_time"][rows[0]]
        arrival = data["launch_time"][rows] - began
        prompt = data["prompt_tokens"][rows]
        run = Run(
            arrival=arrival,
            scheduled=np.full(len(rows), np.nan),
            first=arrival + data["ttft"][rows],
            end=data["finish_time"][rows] - began,
            input=prompt,
            cached=prompt - 1,
            output=data["generation_tokens"][rows],
        )
        found.append(Sweep(sweep, float(data["qps"][rows[0]]), run))
    return found


def _runs(data: dict[str, Floats]) -> list[Rows]:
    """Rows of each run, by its first launch: the n-th time a rate sends the same request."""
    count: dict[tuple[float, float], int] = {}
    rows: dict[tuple[float, int], list[int]] = {}
    for row, key in enumerate(zip(data["qps"], data["request_seq"], strict=True)):
        count[key] = count.get(key, -1) + 1
        rows.setdefault((key[0], count[key]), []).append(row)
    return sorted((np.array(part) for part in rows.values()), key=lambda part: int(part[0]))


def _sweeps(data: dict[str, Floats], runs: list[Rows]) -> list[int]:
    """The sweep of each run: of those at a lower rate that are idle since at most `PAUSE_S`, the
    one at the highest rate goes on with it; else a new sweep begins."""
    last: list[tuple[float, float]] = []  # per sweep: rate, end
    found = []
    for rows in runs:
        rate, began = float(data["qps"][rows[0]]), float(data["launch_time"][rows[0]])
        open_ones = [
            (sweep_rate, sweep)
            for sweep, (sweep_rate, ended) in enumerate(last)
            if sweep_rate < rate and ended <= began <= ended + PAUSE_S
        ]
        if not open_ones:
            last.append((0.0, 0.0))
        sweep = max(open_ones)[1] if open_ones else len(last) - 1
        last[sweep] = (rate, float(data["finish_time"][rows].max()))
        found.append(sweep)
    return found
