"""One measured row of any published set, in one shape: what ran, what it was sent, what was seen.

A loader (`sets_*.py`) turns a file into rows; `predicting` turns a row and a step model into the
same figures; `scoring` compares. Everything is in seconds, tokens and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from measured.runs import Run

from sojourn.capacity.sweep_runs import Arrivals
from sojourn.config import Deployment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """What was sent. `inputs`, `outputs`, `cached`: tokens of each request in order of sending."""

    arrivals: Arrivals
    inputs: Ints
    outputs: Ints
    cached: Ints | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None
    """Clients of a closed loop; in an open loop, the most in flight (the client's own cap)."""
    times_s: Floats | None = None
    skip: int = 0
    """First requests that do not count (a warm-up that the measurement left out)."""


FIGURES = (
    "itl_mean_s", "itl_p50_s", "itl_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p99_s",
    "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s",
    "e2e_mean_s", "e2e_p50_s", "e2e_p90_s", "e2e_p99_s",
    "output_tokens_per_s", "requests_per_s", "kv_tokens", "prefill_tokens_per_s",
)  # fmt: skip
"""Names a row's `measured` may use. itl: one gap between tokens; tpot: (end - first)/(tokens - 1)
of a request; per second: of the whole deployment."""

NOT_PREFILL: Final = (
    *("itl_mean_s", "itl_p50_s", "itl_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p99_s"),
    *("e2e_mean_s", "e2e_p50_s", "e2e_p90_s", "e2e_p99_s"),
    *("output_tokens_per_s", "requests_per_s"),
)
"""What a row with cached prompts can test: not the time to its first token."""


@dataclass(frozen=True)
class Row:
    """A measured row. `model` and `gpu` are as the file names them; `group` is the split's unit:
    model x hardware (x dtype), never engine or load, so that a deployment scored was not fitted.
    """

    set: str
    id: str
    model: str
    gpu: str
    deployment: Deployment
    load: Load
    measured: dict[str, float]
    notes: tuple[str, ...] = ()
    """Assumptions made for lack of data, said in the report."""
    transient: bool = False
    """Above capacity or too short to be steady: only the same finite run compares."""
    scored: tuple[str, ...] = ()
    """Figures that this row can test (a cached prompt does not test prefill); empty: all."""
    server: str = ""
    """Rows with one value ran on one server: the unit of a fit from other runs. Empty: none."""
    recorded: Run | None = None
    """The run request by request, where the set tells it."""

    @property
    def group(self) -> str:
        """Model and hardware."""
        return f"{self.model}|{self.deployment.weight_dtype}|{self.gpu}"


@dataclass
class Loaded:
    """Rows of a set, and how many were left out, by reason."""

    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str, count: int = 1) -> None:
        """Count rows that cannot be used."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count


Loader = Callable[[Path], Loaded]
"""Reads one set from the folder `ground_truth`; a missing file gives no rows and a reason."""
