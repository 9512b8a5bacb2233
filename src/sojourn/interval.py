"""Uncertainty and refusal as values: `Interval`, `Sourced`, `Excuse`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator


class Provenance(StrEnum):
    """Where a number comes from, best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    INFERRED = "inferred"
    SIMULATED = "simulated"
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"


class Interval(BaseModel):
    """A figure with its uncertainty: `low <= mid <= high` at `confidence`.

    Raises:
        ValueError: when the order is broken or a bound is NaN.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float
    mid: float
    high: float
    confidence: float = 0.9

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.mid <= self.high:
            raise ValueError(f"an interval needs low <= mid <= high, got {self!r}")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence lies in (0, 1], got {self.confidence}")
        return self

    @classmethod
    def exact(cls, value: float) -> Self:
        """A figure without uncertainty."""
        return cls(low=value, mid=value, high=value, confidence=1.0)

    @classmethod
    def from_samples(cls, samples: Sequence[float], confidence: float = 0.9) -> Self:
        """Median and central `confidence` range of samples (bootstrap or replications)."""
        values = np.asarray(samples, dtype=float)
        if values.size == 0 or bool(np.isnan(values).any()):
            raise ValueError("an interval needs at least one sample and no NaN")
        tail = (1 - confidence) / 2
        low, mid, high = np.quantile(values, [tail, 0.5, 1 - tail])
        return cls(low=float(low), mid=float(mid), high=float(high), confidence=confidence)

    @property
    def width(self) -> float:
        """`high - low`, in the unit of the figure."""
        return self.high - self.low

    def contains(self, value: float) -> bool:
        """Whether `low <= value <= high`."""
        return self.low <= value <= self.high

    def overlaps(self, other: Interval) -> bool:
        """Whether the two ranges share a point."""
        return self.low <= other.high and other.low <= self.high

    def scale(self, factor: float) -> Interval:
        """Multiplied by `factor` (a negative one turns the bounds round)."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(low=low, mid=self.mid * factor, high=high, confidence=self.confidence)

    def map(self, function: Callable[[float], float]) -> Interval:
        """Through a monotone function, bound by bound."""
        low, high = sorted((function(self.low), function(self.high)))
        mid = min(max(function(self.mid), low), high)
        return Interval(low=low, mid=mid, high=high, confidence=self.confidence)

    def format(self, write: Callable[[float], str] = "{:.3g}".format) -> str:
        """`mid [low, high]`, or `mid` alone when exact."""
        if math.isclose(self.low, self.high):
            return write(self.mid)
        return f"{write(self.mid)} [{write(self.low)}, {write(self.high)}]"


class Sourced(BaseModel):
    """A number and where it comes from. `source` is a sentence, an address or a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    unit: str
    provenance: Provenance
    source: str
    interval: Interval | None = None


class Excuse(BaseModel):
    """A refusal that says why, and what to collect to be answered.

    `collect` names recordings or settings, cheapest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str
    collect: tuple[str, ...] = ()

    def __str__(self) -> str:
        tail = f" To decide: {'; '.join(self.collect).rstrip('.')}." if self.collect else ""
        return f"{self.reason.rstrip('.')}.{tail}"
