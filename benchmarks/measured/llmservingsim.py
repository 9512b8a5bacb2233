"""LLMServingSim's recorded run: vLLM 0.19, Llama-3.1-8B bf16 on one RTX PRO 6000, 300 requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from .runs import Floats, Run, columns

FOLDER: Final = Path("data/ground_truth/llmservingsim")
NAME: Final = "RTXPRO6000_Llama-3.1-8B"
NAMES: Final = (
    "input_toks",
    "output_toks",
    "arrival_time",
    "queued_ts",
    "scheduled_ts",
    "first_token_ts",
    "last_token_ts",
)


@dataclass(frozen=True)
class Recorded:
    """The run, its gauges (t, running, waiting, once a second) and the engine's flags."""

    run: Run
    t_s: Floats
    running: Floats
    waiting: Floats
    max_num_seqs: int
    max_num_batched_tokens: int


def load(shared: Path) -> Recorded | None:
    """The run under `shared`; None where it is not there.

    Arrivals are on the wall clock, the rest on a monotonic one: the clocks are laid together where
    a call went from client to queue the fastest, so that time (about 2 ms) counts as none.
    """
    folder = shared / FOLDER
    if not (folder / f"{NAME}_requests.csv").is_file():
        return None
    data = columns(folder / f"{NAME}_requests.csv", list(NAMES))
    order = np.argsort(data["arrival_time"], kind="stable")
    data = {name: values[order] for name, values in data.items()}
    zero = data["arrival_time"][0]
    shift = float((data["queued_ts"] - data["arrival_time"]).min()) + zero
    run = Run(
        arrival=data["arrival_time"] - zero,
        scheduled=data["scheduled_ts"] - shift,
        first=data["first_token_ts"] - shift,
        end=data["last_token_ts"] - shift,
        input=data["input_toks"],
        cached=np.zeros(len(order)),
        output=data["output_toks"],
    )
    gauges = columns(folder / f"{NAME}_timeseries_1s.csv", ["t", "running", "waiting"])
    flags = json.loads((folder / f"{NAME}_meta.json").read_text(encoding="utf-8"))["engine_kwargs"]
    return Recorded(
        run=run,
        t_s=gauges["t"],
        running=gauges["running"],
        waiting=gauges["waiting"],
        max_num_seqs=int(flags["max_num_seqs"]),
        max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
    )
