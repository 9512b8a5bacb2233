"""The facts that rules read: one bucket's shares of its tail, and the state of the engine.

Thresholds, and why they stand where they stand. None is fitted to a recording.

| constant | value | reason |
|---|---|---|
| MIN_REQUESTS | 30 | below it the P99 is the maximum of a few: no upper confidence bound |
| SURE_REQUESTS | 100 | from here on the P99 is not simply the largest request |
| SHARE_LOW | 0.10 | a stage that vanished would shorten the P99 by less than its usual interval |
| SHARE_HIGH | 0.25 | a quarter of the P99 is a gain seen through run-to-run noise (10 to 20%) |
| PERSISTENT | 0.50 | a state that holds for half of the peak is the rule, below 0.25 an event |
| OCCASIONAL | 0.25 | see PERSISTENT |
| DEVICE_BUSY | 0.85 | one server at 0.85 waits 5.7 service times (M/M/1: rho/(1-rho)) |
| DEVICE_SLACK | 0.70 | at 0.7 it waits 2.3, with several slots less: room for 40% more |
| NOT_BOUND | 0.20 | twice the engine for less than 20% off the P99 cannot be told from noise |
| BOUND | 0.30 | 30% can; between the two the occupancy decides |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.attribution.records import ALL, Breakdown, EngineUse, RetryReport, Tail
from sojourn.config import Config
from sojourn.records import ENGINE_STAGES, Stage
from sojourn.workload.profile_records import Profile

MIN_REQUESTS: Final = 30
SURE_REQUESTS: Final = 100
SHARE_LOW: Final = 0.10
SHARE_HIGH: Final = 0.25
PERSISTENT: Final = 0.50
OCCASIONAL: Final = 0.25
DEVICE_BUSY: Final = 0.85
DEVICE_SLACK: Final = 0.70
BOUND: Final = 0.30
NOT_BOUND: Final = 0.20

ENGINE_NAMES: Final = frozenset(stage.value for stage in ENGINE_STAGES)
NEITHER: Final = frozenset({Stage.UNEXPLAINED.value, Stage.BACKOFF.value})


@dataclass(frozen=True)
class Facts:
    """What the rules know of one bucket. Shares are of its largest percentile (the P99)."""

    tail: Tail
    median: Tail | None
    peak: Tail | None
    extra: dict[str, float]
    engine: EngineUse
    retries: RetryReport | None
    stations: dict[str, dict[str, float]]
    station_stages: dict[str, str]
    hit_share: float | None
    ideal_hit_share: float | None
    slo_e2e_s: float | None

    def share(self, *stages: str) -> float:
        """Share of the tail that these stages carry."""
        return _share(self.tail, stages)

    def peak_share(self, *stages: str) -> float | None:
        """As `share`, of the requests of the peak window; None where those are too few."""
        if self.peak is None or self.peak.requests < MIN_REQUESTS:
            return None
        return _share(self.peak, stages)

    @property
    def engine_share(self) -> float:
        """Share of the tail in stages of the engine."""
        return self.share(*ENGINE_NAMES)

    @property
    def outside_share(self) -> float:
        """Share of the tail in named stages outside the engine, and in waits between attempts."""
        named = set(self.tail.stages) - ENGINE_NAMES - {Stage.UNEXPLAINED.value}
        return self.share(*named)

    @property
    def largest(self) -> str:
        """The stage with the largest share."""
        return max(self.tail.stages, key=lambda name: (self.tail.stages[name], name))

    @property
    def device_busy(self) -> float | None:
        """Busy share of the device, where it was measured on the device."""
        return self.engine.busy_share if self.engine.busy_from == "device" else None

    @property
    def occupied(self) -> bool | None:
        """Whether the engine was full at the peak: True when waiting or full slots persist or the
        device is busy and nothing says slack; False when all that is known says slack."""
        full, slack = [], []
        for value, high, low in (
            (self.engine.waiting_share, PERSISTENT, OCCASIONAL),
            (self.engine.slots_full_share, PERSISTENT, OCCASIONAL),
            (self.device_busy, DEVICE_BUSY, DEVICE_SLACK),
        ):
            if value is not None:
                full.append(value >= high)
                slack.append(value < low)
        device_idle = self.device_busy is not None and self.device_busy < DEVICE_SLACK
        if any(full) and not device_idle:
            return True
        return False if slack and all(slack) else None

    def names_of(self, stage: str) -> list[str]:
        """Stations of a stage, most total time first."""
        mine = [name for name, at in self.station_stages.items() if at == stage]
        return sorted(mine, key=lambda n: -self.stations[n]["mean"] * self.stations[n]["visits"])


def _share(tail: Tail, stages: tuple[str, ...]) -> float:
    whole = sum(tail.stages.values())
    part = sum(tail.stages.get(name, 0.0) for name in stages)
    return part / whole if whole > 0 else 0.0


def gather(breakdown: Breakdown, profile: Profile, config: Config, bucket: str) -> Facts | None:
    """The facts of a bucket; None where it has no tail."""
    if not breakdown.percentiles:
        return None
    top, middle = breakdown.percentiles[-1], breakdown.percentiles[0]
    tail = breakdown.tail(bucket, top)
    if tail is None:
        return None
    peak = next(
        (t for t in breakdown.peak_tails if t.bucket == bucket and t.percentile == top), None
    )
    slo = config.slo_of("default" if bucket == ALL else bucket)
    prefix = profile.prefix
    hit = breakdown.engine.prefix_hit_share
    if hit is None and prefix is not None:
        hit = prefix.hit_share
    return Facts(
        tail=tail,
        median=breakdown.tail(bucket, middle) if middle < top else None,
        peak=peak,
        extra=breakdown.tail_facts.get(bucket, {}),
        engine=breakdown.engine,
        retries=breakdown.retries,
        stations=breakdown.stations,
        station_stages=breakdown.station_stages,
        hit_share=hit,
        ideal_hit_share=prefix.ideal if prefix is not None else None,
        slo_e2e_s=slo.e2e_s if slo is not None else None,
    )
