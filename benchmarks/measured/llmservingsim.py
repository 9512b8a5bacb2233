"""LLMServingSim's recorded run: vLLM 0.19, Llama-3.1-8B bf16 on one RTX PRO 6000, 300 requests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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
    engine: dict[str, Any] = field(default_factory=dict)
    """The engine's arguments, as written beside the run."""
    version: str = ""


def load(shared: Path) -> Recorded | None:
    """Llama-3.1-8B's run under `shared`; None where it is not there."""
    return load_file(shared / FOLDER, NAME)


def load_file(folder: Path, name: str) -> Recorded | None:
    """The run of this name in a folder; None where it or its settings are not there.

    Arrivals are on the wall clock, the rest on a monotonic one: the clocks are laid together where
    a call went from client to queue the fastest, so that time (about 2 ms) counts as none.
    """
    needed = [folder / f"{name}_{part}" for part in ("requests.csv", "meta.json")]
    if not all(path.is_file() for path in needed):
        return None
    data = columns(folder / f"{name}_requests.csv", list(NAMES))
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
    gauges = _gauges(folder / f"{name}_timeseries_1s.csv")
    meta = json.loads((folder / f"{name}_meta.json").read_text(encoding="utf-8"))
    flags = meta["engine_kwargs"]
    return Recorded(
        run=run,
        t_s=gauges["t"],
        running=gauges["running"],
        waiting=gauges["waiting"],
        max_num_seqs=int(flags["max_num_seqs"]),
        max_num_batched_tokens=int(flags["max_num_batched_tokens"]),
        engine=flags,
        version=str(meta.get("vllm_version", "")),
    )


def _gauges(path: Path) -> dict[str, Floats]:
    names = ["t", "running", "waiting"]
    if not path.is_file():
        return {name: np.zeros(0) for name in names}
    return columns(path, names)
