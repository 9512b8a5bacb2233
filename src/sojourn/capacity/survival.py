"""Distributions of which some values are only known to be longer than what was seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.trace.arrays import Floats
from sojourn.workload.hotdeck import survival
from sojourn.workload.profile_records import Summary


@dataclass(frozen=True)
class Weighted:
    """Ascending values with weights that sum to 1."""

    values: Floats
    weights: Floats

    def quantile(self, share: float) -> float:
        """Smallest value with at least `share` of the weight at or below it."""
        running = np.cumsum(self.weights)
        index = np.searchsorted(running, share - 1e-12)
        return float(self.values[min(int(index), len(self.values) - 1)])

    def summary(self, count: int) -> Summary:
        """The figures of `count` observations."""
        mean = float(self.values @ self.weights)
        variance = float((self.values - mean) ** 2 @ self.weights)
        p50, p90, p95, p99 = (self.quantile(q) for q in (0.5, 0.9, 0.95, 0.99))
        return Summary(
            count=count, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99,
            max=float(self.values[-1]), cv2=variance / mean**2 if mean > 0 else 0.0,
        )  # fmt: skip

    def strata(self, count: int) -> Floats:
        """`count` values of equal weight: means of equal slices of the distribution, so that
        the mean is kept exactly and every quantile is represented, the tail too."""
        running = np.concatenate([[0.0], np.cumsum(self.weights)])
        total = np.concatenate([[0.0], np.cumsum(self.weights * self.values)])
        edges = np.linspace(0.0, running[-1], count + 1)
        slices: Floats = np.diff(np.interp(edges, running, total)) * count / running[-1]
        return slices


def kaplan_meier(values: Floats, censored: npt.NDArray[np.bool_]) -> Weighted | None:
    """Distribution of durations of which the censored are cut at `values`.

    As `workload.hotdeck.survival` (Kaplan and Meier 1958). Weight that is never seen to end is put
    on the longest duration that ended (or was cut, if longer). None where nothing ended.
    Wrong when: what is cut is cut because it would be long, beyond its length so far (a worker
    known to hang).
    """
    if not (~censored).any():
        return None
    order, alive = survival(values, censored)
    ordered, cut = values[order], censored[order]
    weights = -np.diff(np.concatenate([[1.0], alive]))
    seen, mass = ordered[~cut], weights[~cut]
    rest = 1.0 - float(mass.sum())
    if rest > 1e-12:
        seen, mass = np.append(seen, ordered[-1]), np.append(mass, rest)
    return Weighted(seen, mass)
