"""Errors of predicted figures, what they come to by set, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity import catalogue
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.errors import SojournError
from sojourn.interval import Excuse

from .predicting import Predicted
from .rows import Arrivals, Row

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ITL": ("itl_mean_s", "tpot_mean_s", "itl_p50_s", "tpot_p50_s"),
    "ITL P99": ("itl_p99_s", "tpot_p99_s"),
    "TTFT mean": ("ttft_mean_s",),
    "TTFT P50": ("ttft_p50_s",),
    "TTFT P99": ("ttft_p99_s",),
    "E2E mean": ("e2e_mean_s", "e2e_p50_s"),
    "E2E P99": ("e2e_p99_s",),
    "throughput": ("output_tokens_per_s", "requests_per_s"),
    "prefill rate": ("prefill_tokens_per_s",),
    "KV tokens": ("kv_tokens",),
}
"""What is scored, and which figure of a row stands for it: the first that it has."""
KNEE: Final = 0.95
"""Below the knee: at least this share of the offered load was done."""


@dataclass(frozen=True)
class Error:
    """One figure of one row, predicted by one source."""

    set: str
    source: str
    kind: str
    figure: str
    row: str
    group: str
    measured: float
    told: float
    low: float | None
    high: float | None
    below_knee: bool

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.told / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the 80% interval holds the measured value; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Summary:
    """Errors of one kind: shares of the measured value."""

    rows: int
    groups: int
    median: float
    """Median absolute error."""
    bias: float
    """Median signed error."""
    p90: float
    """Nine tenths of the absolute errors are below it."""
    coverage: float | None
    """Share of rows within their 80% interval."""

    @classmethod
    def of(cls, errors: Sequence[Error]) -> Summary:
        """Of at least one error."""
        values = np.array([e.error for e in errors])
        covered = [e.covered for e in errors if e.covered is not None]
        return cls(
            rows=len(errors),
            groups=len({e.group for e in errors}),
            median=float(np.median(np.abs(values))),
            bias=float(np.median(values)),
            p90=float(np.quantile(np.abs(values), 0.9)),
            coverage=float(np.mean(covered)) if covered else None,
        )


def errors(row: Row, source: str, told: Predicted) -> list[Error]:
    """Every kind that the row measured, may be scored on, and was told."""
    found = []
    below = below_knee(row)
    for kind, names in KINDS.items():
        name = next((n for n in names if counts(row, n, told)), None)
        if name is None or (kind == "throughput" and not saturated(row)):
            continue
        found.append(
            Error(
                row.set,
                source,
                kind,
                name,
                row.id,
                group_of(row),
                row.measured[name],
                told.mid[name],
                told.low.get(name),
                told.high.get(name),
                below,
            )
        )
    return found


def group_of(row: Row) -> str:
    """Model, dtype and card by the names of the catalogue: a model has many names."""
    return group_name(row.model, row.deployment.weight_dtype, row.gpu)


def group_name(model: str, dtype: str, gpu: str) -> str:
    """The name of a group."""
    return f"{_name(model, catalogue.model)}|{dtype}|{_name(gpu, catalogue.gpu)}"


def _name(name: str, known: Callable[[str], ModelSpec | Gpu]) -> str:
    try:
        return known(name).name
    except SojournError:
        return name


def counts(row: Row, name: str, told: Predicted) -> bool:
    """Whether a figure was measured, may be scored on this row, and was told."""
    measured = row.measured.get(name)
    if measured is None or not measured > 0 or (row.scored and name not in row.scored):
        return False
    return told.mid.get(name, 0.0) > 0


def done_share(row: Row) -> float | None:
    """Share of the offered load that was done; None where no rate was offered or none measured."""
    rate = row.load.rate_per_s
    if not rate or row.load.arrivals not in (Arrivals.POISSON, Arrivals.CONSTANT):
        return None
    done = row.measured.get("requests_per_s")
    if done is None and "output_tokens_per_s" in row.measured:
        done = row.measured["output_tokens_per_s"] / max(float(row.load.outputs.mean()), 1.0)
    return None if done is None else done / rate


def below_knee(row: Row) -> bool:
    """Whether an open loop's load was all done: there a tail of waits is no overload."""
    share = done_share(row)
    return (
        not row.transient
        and row.load.arrivals
        in (
            Arrivals.POISSON,
            Arrivals.CONSTANT,
            Arrivals.RECORDED,
        )
        and (share is None or share >= KNEE)
    )


def saturated(row: Row) -> bool:
    """Whether throughput says anything: below the knee it is the offered load, told for nothing."""
    share = done_share(row)
    if row.load.arrivals in (Arrivals.BURST, Arrivals.STATIC, Arrivals.CLOSED):
        return True
    return row.transient if share is None else share < KNEE


@dataclass(frozen=True)
class Bar:
    """What is asked of a source: median absolute error of a kind, at most `most`."""

    source: str
    kind: str
    most: float


BARS: Final = (
    Bar("fitted", "ITL", 0.04),
    Bar("fitted", "E2E mean", 0.05),
    Bar("fitted", "TTFT P50", 0.10),
    Bar("fitted", "TTFT P99", 0.20),
    Bar("fitted", "throughput", 0.05),
    Bar("silicon", "ITL", 0.08),
    Bar("silicon", "TTFT", 0.20),
    Bar("silicon", "E2E mean", 0.08),
    Bar("silicon", "throughput", 0.12),
    Bar("roofline", "ITL", 0.12),
    Bar("roofline", "TTFT", 0.25),
    Bar("roofline", "E2E mean", 0.12),
    Bar("roofline held out", "ITL", 0.12),
    Bar("roofline held out", "TTFT", 0.25),
    Bar("roofline held out", "E2E mean", 0.12),
    Bar("memory", "KV tokens", 0.03),
)
COVERAGE: Final = (0.75, 0.85)
"""Where the share of rows within an 80% interval is to lie (roofline)."""


def of_bar(bar: Bar, found: Iterable[Error]) -> list[Error]:
    """The errors that a bar is about. TTFT: each row once, by its mean, else its median; TTFT P99:
    below the knee only."""
    mine = [e for e in found if e.source == bar.source]
    if bar.kind == "TTFT":
        mean = [e for e in mine if e.kind == "TTFT mean"]
        has_mean = {(e.set, e.row) for e in mean}
        return mean + [e for e in mine if e.kind == "TTFT P50" and (e.set, e.row) not in has_mean]
    chosen = [e for e in mine if e.kind == bar.kind]
    return [e for e in chosen if e.below_knee] if bar.kind == "TTFT P99" else chosen


def hit(bar: Bar, found: Iterable[Error]) -> bool | None:
    """Whether the bar is reached; None where no row tests it."""
    chosen = of_bar(bar, found)
    return Summary.of(chosen).median <= bar.most if chosen else None


def scored(
    rows: Sequence[Row], source: str, told: Sequence[Predicted | Excuse]
) -> tuple[list[Error], dict[str, int]]:
    """Errors of a set's rows, and rows without a prediction by reason."""
    found: list[Error] = []
    left_out: dict[str, int] = {}
    for row, one in zip(rows, told, strict=True):
        if isinstance(one, Excuse):
            left_out[one.reason] = left_out.get(one.reason, 0) + 1
            continue
        found.extend(errors(row, source, one))
    return found, left_out
