"""Arrivals by rule: a renewal process in operational time, at a rate that may change."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final, Self

import numpy as np
from pydantic import Field, model_validator

from sojourn.trace.arrays import Floats
from sojourn.workload.variates import MOST_CV, Section, generator

LEAST_CV: Final = 0.05
"""Steadier than this is the constant process."""
MOST_RATE_PER_S: Final = 1e6
LONGEST_S: Final = float(1 << 20)
"""Twelve days: what a simulated run may span."""


class Process(StrEnum):
    """How the gaps between arrivals vary."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


class Piece(Section):
    """A time of one rate."""

    for_s: float = Field(gt=0, le=LONGEST_S, description="How long it lasts, seconds.")
    rate_per_s: float = Field(ge=0, le=MOST_RATE_PER_S, description="Arrivals per second.")


class ArrivalProcess(Section):
    """When requests arrive. Give `rate_per_s`, or a `profile` of rates."""

    process: Process = Field(
        Process.POISSON, description="poisson, constant (a clock), or gamma (gaps with `cv`)."
    )
    rate_per_s: float | None = Field(
        None, gt=0, le=MOST_RATE_PER_S, description="Arrivals per second."
    )
    cv: float | None = Field(
        None,
        ge=LEAST_CV,
        le=MOST_CV,
        description="gamma: standard deviation of the gaps over their mean; 1 is poisson, real"
        " traffic has 1.5 to 5.",
    )
    profile: tuple[Piece, ...] = Field(
        (), description="Rates one after the other, from the first again when the last is over."
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.rate_per_s is None) == (not self.profile):
            raise ValueError("give one of rate_per_s and profile")
        if self.profile and not any(piece.rate_per_s for piece in self.profile):
            raise ValueError("profile: every rate is 0, so nothing would ever arrive")
        if (self.process is Process.GAMMA) != (self.cv is not None):
            raise ValueError("cv belongs to the gamma process, and it needs one")
        return self

    @property
    def pieces(self) -> tuple[Floats, Floats]:
        """Lengths in seconds, and rates per second."""
        if self.rate_per_s is not None:
            return np.array([1.0]), np.array([self.rate_per_s])
        lengths = np.array([piece.for_s for piece in self.profile])
        return lengths, np.array([piece.rate_per_s for piece in self.profile])

    def expected(self, duration_s: float) -> float:
        """Mean number of arrivals in the first `duration_s`."""
        lengths, rates = self.pieces
        whole, rest = divmod(duration_s, float(lengths.sum()))
        begun = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
        part = np.clip(rest - begun, 0.0, lengths)
        return float(whole * (lengths * rates).sum() + (part * rates).sum())

    def span_s(self, count: int) -> float:
        """Seconds in which `count` arrivals are expected."""
        return float(self.times_at(np.array([float(count)]))[0])

    def times_at(self, points: Floats) -> Floats:
        """The time at which the rate has summed up to each point (operational to real time)."""
        lengths, rates = self.pieces
        volumes = np.cumsum(lengths * rates)
        starts = np.concatenate([[0.0], np.cumsum(lengths)])
        whole, rest = np.divmod(points, volumes[-1])
        # `right` skips pieces of rate zero: the first whose end lies beyond the point
        cell = np.minimum(np.searchsorted(volumes, rest, side="right"), lengths.size - 1)
        before = np.concatenate([[0.0], volumes])[cell]
        inside = (rest - before) / np.where(rates[cell] > 0, rates[cell], 1.0)
        return np.asarray(whole * starts[-1] + starts[cell] + inside, dtype=np.float64)


def arrival_times(
    process: ArrivalProcess, seed: int, *, duration_s: float | None, count: int | None
) -> Floats:
    """Arrival times from 0 on, ascending: `count` of them, or those before `duration_s`, or both
    bounds. At another rate the same luck gives the same gaps, stretched.

    Doubly deterministic time change: points of a renewal process of rate 1 are mapped through the
    inverse of the summed rate. Source: Cinlar 1975, Introduction to stochastic processes, 4.7.
    Wrong when: bursts have memory beyond one gap (gamma gaps are independent).
    """
    wanted = count
    if wanted is None:
        if duration_s is None:
            raise ValueError("give duration_s or count")
        mean = process.expected(duration_s)
        spread = max(process.cv or 1.0, 1.0)
        wanted = int(mean + 10 * spread * math.sqrt(mean) + 20 * spread**2)
    gaps = _gaps(process, wanted, seed)
    times = process.times_at(np.cumsum(gaps))
    return times if duration_s is None else times[times < duration_s]


def _gaps(process: ArrivalProcess, count: int, seed: int) -> Floats:
    luck = generator(seed, "arrivals", process.process.value)
    match process.process:
        case Process.CONSTANT:
            return np.ones(count)
        case Process.GAMMA:
            cv2 = (process.cv or 1.0) ** 2
            return np.asarray(luck.standard_gamma(1 / cv2, count) * cv2)
        case Process.POISSON:
            return np.asarray(luck.standard_exponential(count))
