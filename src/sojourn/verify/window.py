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
from sojourn.trace.arrays import Floats, floats, texts
from sojourn.trace.tables import Tables
from sojourn.units import S_PER_HOUR
from sojourn.workload.arrivals import inside
from sojourn.workload.buckets import assign
from sojourn.workload.profile import profile
from sojourn.workload.profile_records import Profile

MIN_REQUESTS = 30
"""Fewer requests than this give no verdict on anything."""


@dataclass(frozen=True)
class Window:
    """What one side of the comparison shows. Per-request arrays are in arrival order."""

    tables: Tables
    config: Config
    judged: Judged
    used: Usage
    profile: Profile
    breakdown: Breakdown
    diagnosis: Diagnosis
    status: npt.NDArray[np.object_]
    quality: Floats

    @property
    def in_peak(self) -> npt.NDArray[np.bool_]:
        """Which judged requests arrived in the peak window (all of a recording that is shorter)."""
        return inside(self.judged.arrival_s, self.profile.arrivals.peak)

    @property
    def peak_rate(self) -> float:
        """Requests per second in the peak window."""
        peak = self.profile.arrivals.peak
        return peak.requests / peak.length_s

    @property
    def rate(self) -> float | None:
        """Requests per second; None where all arrived at once."""
        duration = self.judged.duration_s
        return len(self.judged) / duration if duration > 0 else None

    def status_share(self, *names: str) -> Floats:
        """1 for requests that ended so, else 0."""
        return np.isin(self.status, names).astype(float)

    def usd_per_success(self, rate: float | None) -> float | None:
        """Dollars per successful request at `rate` requests/s; None without a price or a success.

        Replicas are paid by the hour, whatever their load; visits and booked costs by request.
        """
        hourly, own = self.used.usd_per_hour, self.rate
        share = float(self.judged.succeeded.mean()) if len(self.judged) else 0.0
        if hourly is None or own is None or rate is None or share <= 0:
            return None
        deployment = self.config.deployment
        fixed = (deployment.usd_per_replica_hour or 0.0) * deployment.replicas
        by_request = max(0.0, hourly - fixed) / own
        return (fixed / rate + by_request) / (share * S_PER_HOUR)


def open_window(tables: Tables, config: Config) -> Window:
    """Judge, profile and attribute one window.

    Raises:
        InputError: the tables hold no request.
    """
    ready, _found = stations.infer(assign(tables, config), config)
    traffic = profile(ready, config)
    where = break_down(ready, config)
    order = np.argsort(floats(ready.requests["arrival_s"]), kind="stable")
    return Window(
        tables=ready,
        config=config,
        judged=judge(ready, config),
        used=usage(ready, config, None),
        profile=traffic,
        breakdown=where,
        diagnosis=diagnose(where, traffic, config),
        status=texts(ready.requests["status"], "")[order],
        quality=floats(ready.requests["quality"])[order],
    )
