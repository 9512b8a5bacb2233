"""`Effect`: what an action changed, as paired differences over the same requests and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.attribution.records import ALL
from sojourn.config import Config
from sojourn.interval import Interval
from sojourn.plan.estimates import (
    interval_of,
    mean_change,
    mean_interval,
    quantile,
    quantile_change,
)
from sojourn.plan.records import Outcome
from sojourn.plan.slo import Judged, summarise
from sojourn.plan.trial import Trial
from sojourn.trace.arrays import Floats, rows_of
from sojourn.units import format_seconds, format_share

TAIL: Final = 0.99
MATERIAL: Final = 0.02
"""Relative change of P99 below which nobody would notice, whatever its interval says."""
FEWER_DEGRADED: Final = 0.02
"""Two points fewer degraded answers are a gain of their own."""
WORSE_ATTAINMENT: Final = 0.005
"""Half a point less attainment in a bucket is said aloud."""
WORSE_P99: Final = 0.05
"""Without an SLO: a bucket's P99 longer by a twentieth is said aloud."""


@dataclass(frozen=True)
class Effect:
    """After minus before. `p99_reduction` is relative, positive when shorter."""

    outcome: Outcome
    p99_change_s: Interval
    p99_reduction: float
    attainment_change: Interval | None
    misses_removed: float | None
    error_change: float
    degraded_change: float
    usd_per_success_change: float | None
    cost_ratio: float | None
    worse: tuple[str, ...]

    @property
    def shortens(self) -> bool:
        """Whether P99 is shorter beyond noise, and noticeably."""
        return self.p99_change_s.high < 0 and self.p99_reduction >= MATERIAL

    @property
    def attains(self) -> bool:
        """Whether more requests meet the SLO, beyond noise."""
        return self.attainment_change is not None and self.attainment_change.low > 0

    @property
    def loses(self) -> bool:
        """Whether fewer requests meet the SLO beyond noise, or as many with a longer P99."""
        if self.attainment_change is not None and self.attainment_change.high < 0:
            return True
        longer = self.p99_change_s.low > 0 and self.p99_reduction <= -MATERIAL
        return longer and not self.attains

    @property
    def helps(self) -> bool:
        """Whether it is worth adding to others: it gains, or spares users degraded answers."""
        spares = self.degraded_change <= -FEWER_DEGRADED and self.error_change <= 0
        return not self.loses and (self.attains or self.shortens or spares)


def effect(before: Sequence[Trial], after: Sequence[Trial], config: Config) -> Effect | None:
    """The effect over replications of equal seeds; None where no request of either ended."""
    pairs = [
        (b.judged, a.judged, _order(b.judged.request_id, a.judged.request_id))
        for b, a in zip(before, after, strict=True)
    ]
    confidence = config.analysis.confidence
    tails = [
        quantile_change(b.e2e_s, a.e2e_s[at], TAIL, seed=seed)
        for seed, (b, a, at) in enumerate(pairs)
    ]
    change = interval_of([p for p, _ in tails], [s for _, s in tails], confidence)
    if change is None:
        return None
    goods = [mean_change(b.good, a.good[at], seed=seed) for seed, (b, a, at) in enumerate(pairs)]
    attained = interval_of([p for p, _ in goods], [s for _, s in goods], confidence)
    period = before[0].judged.duration_s
    old, new = outcome_of(before, config), outcome_of(after, config, period_s=period)
    p99 = float(np.mean([quantile(b.e2e_s, TAIL) for b, _, _ in pairs]))
    missed = 1 - old.attainment[ALL].mid if ALL in old.attainment else 0.0
    cost = _difference(old.usd_per_success, new.usd_per_success)
    return Effect(
        outcome=new,
        p99_change_s=change,
        p99_reduction=-change.mid / p99 if p99 > 0 else 0.0,
        attainment_change=attained,
        misses_removed=attained.mid / missed if attained is not None and missed > 0 else None,
        error_change=new.error_share.mid - old.error_share.mid,
        degraded_change=new.degraded_share - old.degraded_share,
        usd_per_success_change=cost,
        cost_ratio=_ratio(old.usd_per_success, new.usd_per_success),
        worse=(*_worse(pairs), *_more_errors(old, new)),
    )


def _more_errors(old: Outcome, new: Outcome) -> tuple[str, ...]:
    """Said aloud where the share of failed requests rose beyond its interval."""
    if new.error_share.low <= old.error_share.high:
        return ()
    before, after = format_share(old.error_share.mid), format_share(new.error_share.mid)
    return (f"requests that fail: {before} to {after}",)


Pair = tuple[Judged, Judged, npt.NDArray[np.int64]]


def _order(wanted: pa.Array, found: pa.Array) -> npt.NDArray[np.int64]:
    """Rows of `found` in the order of `wanted`: both hold the same requests."""
    return np.arange(len(wanted)) if wanted.equals(found) else rows_of(wanted, found)


def _difference(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else new - old


def _ratio(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None or old <= 0 else new / old


def _worse(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Buckets for which the action is a loss, in words; checked in every replication together."""
    said = []
    for name in pairs[0][0].buckets:
        rows = [(b, a, at, b.bucket == name) for b, a, at in pairs]
        good = [(_mean(b.good[m]), _mean(a.good[at][m])) for b, a, at, m in rows]
        old, new = (float(np.mean([pair[side] for pair in good])) for side in (0, 1))
        if new - old < -WORSE_ATTAINMENT:
            said.append(f"{name}: attainment {format_share(old)} to {format_share(new)}")
        elif np.isnan(old):
            tails = [
                (quantile(b.e2e_s[m], TAIL), quantile(a.e2e_s[at][m], TAIL)) for b, a, at, m in rows
            ]
            old, new = (float(np.mean([pair[side] for pair in tails])) for side in (0, 1))
            if new > old * (1 + WORSE_P99):
                said.append(f"{name}: P99 {format_seconds(old)} to {format_seconds(new)}")
    return tuple(said)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def outcome_of(
    trials: Sequence[Trial], config: Config, *, period_s: float | None = None
) -> Outcome:
    """The outcome of replications: figures and bounds averaged. `period_s` as in `summarise`."""
    each = [summarise(trial.judged, trial.used, config, period_s=period_s) for trial in trials]
    first = each[0]
    if len(each) == 1:
        return first

    def mean(name: str) -> float | None:
        values = [getattr(item, name) for item in each if getattr(item, name) is not None]
        return float(np.mean(values)) if values else None

    def tails(name: str) -> dict[str, dict[str, Interval]]:
        rows: dict[str, dict[str, Interval]] = getattr(first, name)
        return {
            bucket: {
                key: mean_interval(
                    [getattr(o, name)[bucket][key] for o in each if bucket in getattr(o, name)]
                )
                for key in row
            }
            for bucket, row in rows.items()
        }

    return first.model_copy(
        update={
            "e2e_s": tails("e2e_s"),
            "ttft_s": tails("ttft_s"),
            "attainment": {
                name: mean_interval([o.attainment[name] for o in each if name in o.attainment])
                for name in first.attainment
            },
            "error_share": mean_interval([o.error_share for o in each]),
            "degraded_share": mean("degraded_share"),
            "attempts_per_request": mean("attempts_per_request"),
            "usd_per_hour": mean("usd_per_hour"),
            "usd_per_success": mean("usd_per_success"),
            "engine_busy": mean("engine_busy"),
        }
    )
