"""The SLO, judged jointly: a request is good when it meets every target of its bucket.

What is measured, for a request with one or several model calls:

- E2E: arrival of the request to its end, whatever its status. Shed requests got no service, so
  they are in no latency percentile; they are misses of the SLO all the same.
- TTFT: arrival of the *request* to the first token of the *last* model call of its last attempt:
  the first token a user can read of the answer. Earlier calls (plans, tool choices), retrieval
  and retries before it are inside. A request answered without a model call in its last attempt
  (a partial answer) gives its first byte when it ends, so its TTFT is its E2E.
- TPOT: (end - first token) / (output tokens - 1) of that call; met by definition below 2 tokens.
- The TTFT target is `ttft_s + ttft_per_input_token_s x input tokens` of that call.

Failed requests (error, timeout, shed) miss. A cancelled request misses where it was over its
TTFT or E2E target when its user left, and is left out otherwise. Requests still in flight are
left out. Where a target cannot be measured on more than `UNKNOWN_SHARE` of a bucket's requests,
the bucket has no attainment, and a note says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.attribution.records import ALL
from sojourn.capacity.records import Fleet
from sojourn.config import Config, Slo
from sojourn.interval import Interval
from sojourn.plan.estimates import quantile_interval, share_interval
from sojourn.plan.measured import CANCELLED, FAILURES, OK, SHED, Measured, measured
from sojourn.plan.records import Outcome
from sojourn.plan.usage import Usage, usage
from sojourn.records import words
from sojourn.sim.scenario import SimRun
from sojourn.trace.arrays import Bools, Floats
from sojourn.trace.tables import Tables
from sojourn.units import S_PER_HOUR

PERCENTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
UNKNOWN_SHARE: Final = 0.05
"""Unmeasured requests that may be left out of a bucket's attainment: with more, those that could
be judged (failures always can) would stand for the rest."""
TARGET_IN_WORDS: Final = {
    "ttft_s": "have their first token",
    "tpot_s": "have each further token",
    "e2e_s": "end",
}
TARGETS: Final = ("errors", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True)
class Judged:
    """One row per request, in arrival order. Durations in seconds, NaN where not measured.

    `misses[target]` says who missed it; `good` is 1.0, 0.0, or NaN where not judged.
    """

    request_id: pa.Array
    bucket: npt.NDArray[np.object_]
    arrival_s: Floats
    e2e_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    failed: Bools
    succeeded: Bools
    degraded: Bools
    attempts: Floats
    good: Floats
    misses: dict[str, Bools]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.request_id)

    def rows(self, kept: Bools) -> Judged:
        """The requests of these rows."""
        arrays = {
            item.name: getattr(self, item.name)[kept]
            for item in fields(self)
            if item.name not in ("request_id", "misses", "notes")
        }
        return replace(
            self,
            request_id=self.request_id.filter(pa.array(kept)),
            misses={target: who[kept] for target, who in self.misses.items()},
            **arrays,
        )

    @property
    def buckets(self) -> list[str]:
        """Names of the buckets that have requests, sorted."""
        return sorted(set(self.bucket.tolist()))

    @property
    def duration_s(self) -> float:
        """Last arrival minus first."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) > 1 else 0.0


@dataclass(frozen=True)
class Standing:
    """How one bucket stands to its SLO."""

    bucket: str
    slo: Slo
    requests: int
    missed: int
    failed: int
    by_target: dict[str, int]

    def plus(self, other: Standing) -> Standing:
        """With the requests of another run of the same bucket."""
        return replace(
            self,
            requests=self.requests + other.requests,
            missed=self.missed + other.missed,
            failed=self.failed + other.failed,
            by_target={t: n + other.by_target[t] for t, n in self.by_target.items()},
        )

    @property
    def attainment(self) -> float:
        """Share of the judged requests that met every target."""
        return 1 - self.missed / self.requests if self.requests else math.nan

    @property
    def held(self) -> bool:
        """Whether the bucket's SLO is held: misses, and failures, no more than it allows.

        One miss is always allowed: a single request cannot refute a 99% target of a bucket with
        fewer than 100 requests.
        """
        allowed = max(1, math.floor(self.requests * (1 - self.slo.percentile) + 1e-9))
        errors = max(1, math.floor(self.requests * self.slo.max_error_share + 1e-9))
        return self.missed <= allowed and self.failed <= errors

    def surely_missed(self, confidence: float) -> bool:
        """Whether misses, or failures, are more than chance explains if the SLO were just held.

        One-sided binomial test at level 1 - confidence. Wrong when: misses come in bursts (then
        it is surer than it may be).
        """
        from scipy.special import bdtrc  # noqa: PLC0415  scipy loads 0.1 s: only where asked

        n = self.requests
        late = bdtrc(self.missed - 1.0, n, 1 - self.slo.percentile) if self.missed else 1.0
        broken = bdtrc(self.failed - 1.0, n, self.slo.max_error_share) if self.failed else 1.0
        return bool(min(late, broken) < 1 - confidence)

    def surely_held(self, confidence: float) -> bool:
        """Whether misses, and failures, are so few that chance does not explain them if the SLO
        were just missed: the other side of `surely_missed`."""
        from scipy.special import bdtr  # noqa: PLC0415  scipy loads 0.1 s: only where asked

        n, slo = self.requests, self.slo
        late = bdtr(float(self.missed), n, 1 - slo.percentile)
        broken = bdtr(float(self.failed), n, slo.max_error_share)
        return bool(max(late, broken) < 1 - confidence)

    @property
    def worst(self) -> str:
        """The target with most misses."""
        return max(self.by_target, key=lambda target: self.by_target[target])

    def describe(self) -> str:
        """The target that breaks, in words."""
        target = self.worst
        value = getattr(self.slo, target, None)
        met = 1 - self.by_target[target] / max(self.requests, 1)
        what = (
            f"{met:.1%} of its requests end without an error"
            if value is None
            else f"{met:.1%} of its requests {TARGET_IN_WORDS[target]} within {value:g} s"
        )
        return (
            f"{words(self.bucket)}: {what}, {self.attainment:.1%} meet every target"
            f" ({self.slo.percentile:.1%} needed)"
        )


def judge(run: Tables | SimRun, config: Config) -> Judged:
    """Every request measured and held against the SLO of its bucket."""
    seen = measured(run)
    ok = seen.status == OK
    written = seen.output_tokens
    e2e = np.where(seen.status == SHED, np.nan, seen.end_s - seen.arrival_s)
    ttft = seen.first_token_s - seen.arrival_s
    without_call = ok & ~(seen.call_attempt >= seen.attempts - 1)
    if seen.calls:
        ttft = np.where(without_call, e2e, ttft)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (seen.call_end_s - seen.first_token_s) / (written - 1)
    tpot = np.where((written < 2) | without_call, 0.0, tpot)
    failed = np.isin(seen.status, FAILURES)
    verdicts = _against_slo(seen, failed, {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}, config)
    return Judged(
        request_id=seen.request_id,
        bucket=seen.bucket,
        arrival_s=seen.arrival_s,
        e2e_s=e2e,
        ttft_s=ttft,
        tpot_s=np.where(written < 2, np.nan, tpot),
        failed=failed,
        succeeded=ok & seen.success,
        degraded=seen.degraded,
        attempts=seen.attempts,
        **verdicts,
    )


def _against_slo(
    seen: Measured, failed: Bools, durations: dict[str, Floats], config: Config
) -> dict[str, Any]:
    """`good`, `misses` and `notes` of `Judged`."""
    n = len(seen.bucket)
    ok, cancelled = seen.status == OK, seen.status == CANCELLED
    misses = {target: np.zeros(n, dtype=bool) for target in TARGETS}
    good = np.full(n, np.nan)
    notes: list[str] = []
    for name in sorted(set(seen.bucket.tolist())):
        slo = config.slo_of(name)
        if slo is None:
            notes.append(f"{name}: no SLO is set, so there is no attainment")
            continue
        mine = seen.bucket == name
        limits = _limits(slo, seen.input_tokens)
        over = {t: mine & (durations[t] > limit) for t, limit in limits.items()}
        unknown = mine & ok & _any_nan([durations[t] for t in limits], n)
        misses["errors"] |= mine & failed
        missed = mine & failed
        for target, beyond in over.items():
            late = beyond & (ok | (cancelled & (target != "tpot_s")))
            misses[target] |= late
            missed |= late
        judged = mine & (ok | failed | (cancelled & missed)) & ~(unknown & ~missed)
        share = unknown.sum() / max(1, mine.sum())
        if share > UNKNOWN_SHARE:
            absent = [t for t in limits if np.isnan(durations[t][mine & ok]).any()]
            notes.append(
                f"{name}: {', '.join(absent)} not measured on {share:.0%} of its requests, so"
                " there is no attainment"
            )
            continue
        good[judged] = np.where(missed, 0.0, 1.0)[judged]
    return {"good": good, "misses": misses, "notes": tuple(notes)}


def _limits(slo: Slo, input_tokens: Floats) -> dict[str, Floats | float]:
    limits: dict[str, Floats | float] = {}
    if slo.ttft_s is not None:
        limits["ttft_s"] = slo.ttft_s + slo.ttft_per_input_token_s * np.nan_to_num(input_tokens)
    if slo.tpot_s is not None:
        limits["tpot_s"] = slo.tpot_s
    if slo.e2e_s is not None:
        limits["e2e_s"] = slo.e2e_s
    return limits


def _any_nan(columns: list[Floats], n: int) -> Bools:
    found = np.zeros(n, dtype=bool)
    for column in columns:
        found |= np.isnan(column)
    return found


def standings(judged: Judged, config: Config) -> dict[str, Standing]:
    """How each bucket that has an SLO and could be judged stands."""
    found = {}
    for name in judged.buckets:
        slo = config.slo_of(name)
        mine = (judged.bucket == name) & ~np.isnan(judged.good)
        if slo is None or not mine.any():
            continue
        found[name] = Standing(
            bucket=name,
            slo=slo,
            requests=int(mine.sum()),
            missed=int((judged.good[mine] == 0).sum()),
            failed=int(judged.failed[mine].sum()),
            by_target={t: int(judged.misses[t][mine].sum()) for t in TARGETS},
        )
    return found


def slo_held(tables: Tables, config: Config) -> bool | None:
    """Whether every bucket holds its SLO; None where none could be judged."""
    found = standings(judge(tables, config), config)
    return all(standing.held for standing in found.values()) if found else None


def outcome(tables: Tables, config: Config, fleet: Fleet | None = None) -> Outcome:
    """What a measured or simulated run came to: latency, joint attainment, errors, cost."""
    return summarise(judge(tables, config), usage(tables, config, fleet), config)


def summarise(
    judged: Judged, used: Usage, config: Config, *, period_s: float | None = None
) -> Outcome:
    """`Outcome` of judged requests.

    `period_s`: over which the fleet is paid, where that is not from the first to the last
    arrival (an action that puts requests off does not lengthen the day).
    """
    confidence = config.analysis.confidence
    n = len(judged)
    period = judged.duration_s if period_s is None else period_s
    rate = n / period if period > 0 else 0.0
    good_rate = rate * float(judged.succeeded.mean()) if n else 0.0
    per_success = None
    if used.usd_per_hour is not None and good_rate > 0:
        per_success = used.usd_per_hour / (good_rate * S_PER_HOUR)
    attempts = judged.attempts[~np.isnan(judged.attempts)]
    return Outcome(
        requests=n,
        rate_per_s=rate,
        e2e_s=_by_bucket(judged, judged.e2e_s, confidence),
        ttft_s=_by_bucket(judged, judged.ttft_s, confidence),
        attainment=_attainment(judged, confidence),
        error_share=share_interval(int(judged.failed.sum()), n, confidence),
        degraded_share=float(judged.degraded.mean()) if n else 0.0,
        attempts_per_request=float(attempts.mean()) if attempts.size else 1.0,
        usd_per_hour=used.usd_per_hour,
        usd_per_success=per_success,
        engine_busy=used.engine_busy,
        notes=judged.notes,
    )


def _by_bucket(judged: Judged, values: Floats, confidence: float) -> dict[str, dict[str, Interval]]:
    found: dict[str, dict[str, Interval]] = {}
    for name in [ALL, *judged.buckets]:
        mine = values if name == ALL else values[judged.bucket == name]
        row = {key: quantile_interval(mine, q, confidence) for key, q in PERCENTILES.items()}
        known = {key: interval for key, interval in row.items() if interval is not None}
        if known:
            found[name] = known
    return found


def _attainment(judged: Judged, confidence: float) -> dict[str, Interval]:
    found = {}
    for name in [ALL, *judged.buckets]:
        mine = judged.good if name == ALL else judged.good[judged.bucket == name]
        known = mine[~np.isnan(mine)]
        if known.size:
            found[name] = share_interval(int(known.sum()), known.size, confidence)
    return found
