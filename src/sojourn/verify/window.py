"""One recorded window, made ready to be compared: requests judged, traffic, attribution, use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.attribution.breakdown import break_down
from sojourn.attribution.diagnosis import diagnose
from sojourn.attribution.records import Breakdown, Diagnosis
from sojourn.capacity import stations
from sojourn.config import Config
from sojourn.plan.slo import Judged, judge
from sojourn.plan.usage import Usage, usage
from sojourn.trace.tables import Tables
from sojourn.units import S_PER_HOUR
from sojourn.workload.buckets import assign
from sojourn.workload.profile import profile
from sojourn.workload.profile_records import Profile

MIN_REQUESTS = 30
"""Fewer requests than this give no verdict on anything."""


@dataclass(frozen=True)
class Window:
    """What one side of the comparison shows."""

    tables: Tables
    config: Config
    judged: Judged
    used: Usage
    profile: Profile
    breakdown: Breakdown
    diagnosis: Diagnosis

    @property
    def in_peak(self) -> npt.NDArray[np.bool_]:
        """Which judged requests arrived in the peak window."""
        peak = self.profile.arrivals.peak
        arrival = self.judged.arrival_s
        inside: npt.NDArray[np.bool_] = (arrival >= peak.start_s) & (
            arrival < peak.start_s + peak.length_s
        )
        return inside

    @property
    def peak_rate(self) -> float:
        """Requests per second in the peak window."""
        peak = self.profile.arrivals.peak
        return peak.requests / peak.length_s

    def status_share(self, *names: str) -> npt.NDArray[np.float64]:
        """1 for requests that ended so, else 0, in arrival order."""
        requests = self.tables.requests.sort_by("arrival_s")
        status = requests.column("status").to_numpy(zero_copy_only=False)
        return np.isin(status.astype(str), names).astype(float)

    @property
    def usd_per_success(self) -> float | None:
        """Cost per successful request, dollars; None without a price."""
        if self.used.usd_per_hour is None or not self.judged.succeeded.any():
            return None
        hours = self.judged.duration_s / S_PER_HOUR
        return self.used.usd_per_hour * hours / float(self.judged.succeeded.sum())


def open_window(tables: Tables, config: Config) -> Window:
    """Judge, profile and attribute one window."""
    ready, _found = stations.infer(assign(tables, config), config)
    traffic = profile(ready, config)
    where = break_down(ready, config)
    return Window(
        tables=ready,
        config=config,
        judged=judge(ready, config),
        used=usage(ready, config, None),
        profile=traffic,
        breakdown=where,
        diagnosis=diagnose(where, traffic, config),
    )
