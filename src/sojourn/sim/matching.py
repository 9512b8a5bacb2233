"""Simulate and match: the last few per cent of a fitted step model.

A regression reads each call's own times; what the whole system makes of them (queues that feed on
every per cent of step time, ends that fall on step borders) only a simulation shows. So a fitted
fleet is replayed on what it was fitted on, and three factors on its costs are turned until times
to first token, decode times and whole times come out as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import Fleet, StepModel
from sojourn.errors import UsageError
from sojourn.records import Status
from sojourn.sim.replicate import run_each
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import DEFAULT
from sojourn.trace.arrays import Bools, Floats, floats
from sojourn.workload.stream import Stream

FACTORS: Final = ("decode", "prefill", "front")
QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Points at which simulated and recorded distributions are compared."""
FARTHEST: Final = 1.5
"""A factor beyond this (or below its inverse) would mean that the regression was wrong, not that
it needed a last touch."""
STEP: Final = 0.04
"""Step of the numerical derivative: large beside the jumps by which calls change their batch."""
STIFFNESS: Final = 0.05
"""Weight of a factor's own size among the residuals: one that changes nothing stays at 1."""
PAYS: Final = 0.95
"""Factors turned on one half of the calls must lower the error on the other by a twentieth."""
FEWEST_CALLS: Final = 30
MOST_SIMULATIONS: Final = 100


@dataclass(frozen=True)
class Case:
    """One recorded stretch: all that was sent, and the calls (rows of the table `calls`) whose
    times count. They are found in the simulated run by request_id and turn."""

    stream: Stream
    calls: pa.Table


@dataclass(frozen=True)
class Match:
    """A fleet whose step model was turned until its simulation matches; the factors (1 where
    turning did not pay), and the root mean square of the residuals before and after on the half
    of the calls that the factors were not turned on."""

    fleet: Fleet
    factors: dict[str, float]
    before: float
    after: float
    simulations: int


def match(
    cases: Sequence[Case],
    fleet: Fleet,
    *,
    seed: int = 0,
    engine: str = DEFAULT,
    n_jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Match:
    """Turn `FACTORS` of the fleet's step model so that replays of the cases give their times.

    Residuals: log(simulated / recorded) at `QUANTILES` of time to first token, of decode time
    (first token to end) and of the whole time, and of their means; per case. Solved by least
    squares (trust region, Levenberg's damping by `STIFFNESS`) on every second call, judged on the
    others, and, where it pays there, solved once more on all.
    Wrong when: the recorded system does what the simulator does not (a saturated client, cached
    prompts that are not in the stream): the factors then hide it, so look at `factors`.

    Raises:
        UsageError: fewer than `FEWEST_CALLS` calls count.
    """
    aims = [_Aim.of(case) for case in cases]
    count = sum(len(aim.ttft) for aim in aims)
    if count < FEWEST_CALLS:
        raise UsageError(f"{count} calls with known times to match; {FEWEST_CALLS} are needed")

    def simulated(turned_fleet: Fleet) -> list[pa.Table]:
        scenarios = [Scenario(case.stream, turned_fleet, seed) for case in cases]
        return run_each(scenarios, _calls_of, engine=engine, n_jobs=n_jobs)

    search = _Search(aims, fleet, simulated, progress)
    one = search.solve(half=0)
    before, after = (search.error(at, half=1) for at in (np.zeros(len(FACTORS)), one))
    turned = search.solve(half=None) if after < PAYS * before else np.zeros(len(FACTORS))
    factors = dict(zip(FACTORS, np.exp(turned).tolist(), strict=True))
    pays = after < PAYS * before
    return Match(
        fleet=_turned(fleet, turned) if pays else fleet,
        factors=factors,
        before=before,
        after=after if pays else before,
        simulations=search.simulations,
    )


@dataclass(frozen=True)
class _Aim:
    """Recorded times of the calls that count, sorted by key, and the half each belongs to."""

    key: pa.Array
    ttft: Floats
    decode: Floats

    @classmethod
    def of(cls, case: Case) -> _Aim:
        return cls(*_times(case.calls))

    @property
    def half(self) -> Bools:
        """Every second call."""
        return np.asarray(np.arange(len(self.ttft)) % 2 == 1, dtype=np.bool_)


def _times(calls: pa.Table) -> tuple[pa.Array, Floats, Floats]:
    """Key, time to first token and decode time of first attempts that ended well, by key."""
    import pyarrow.compute as pc  # noqa: PLC0415  (beside its only use)

    good = pc.and_(
        pc.equal(pc.fill_null(calls["status"], Status.OK), Status.OK),
        pc.equal(pc.fill_null(calls["attempt"], 0), 0),
    )
    good = pc.and_(good, pc.and_(pc.is_valid(calls["first_token_s"]), pc.is_valid(calls["end_s"])))
    calls = calls.filter(good)
    turn = pc.cast(pc.fill_null(calls["turn"], 0), pa.string())
    key = pc.binary_join_element_wise(calls["request_id"], turn, "\x1f").combine_chunks()
    order = pc.sort_indices(key)
    arrival, first, end = (
        floats(calls[name])[order.to_numpy()] for name in ("arrival_s", "first_token_s", "end_s")
    )
    return key.take(order), first - arrival, end - first


class _Search:
    """Residuals of the cases at given factors (logarithms), each set of them simulated once."""

    def __init__(
        self,
        aims: list[_Aim],
        fleet: Fleet,
        simulate: Callable[[Fleet], list[pa.Table]],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._aims, self._fleet, self._simulate, self._progress = aims, fleet, simulate, progress
        self._known: dict[tuple[float, ...], list[tuple[Floats, Floats]]] = {}

    @property
    def simulations(self) -> int:
        """Sets of factors simulated so far."""
        return len(self._known)

    def solve(self, half: int | None) -> Floats:
        """Factors that fit one half of the calls (None: all) best. On all, from two starts: calls
        change their batch by jumps, so a descent may end beside the lowest point, with decodes too
        dear and the front end too cheap or the reverse. The second starts on the other side."""
        from scipy.optimize import least_squares  # noqa: PLC0415  (half a second to load)

        limit = np.log(FARTHEST)

        # 1 + log(factor) is solved for: the numerical derivative's step is relative to its size
        def from_start(start: Floats) -> tuple[float, Floats]:
            found = least_squares(
                lambda x: np.concatenate([self.residuals(x - 1, half), STIFFNESS * (x - 1)]),
                start,
                bounds=(1 - limit, 1 + limit),
                diff_step=STEP,
                x_scale=0.1,
                xtol=1e-4,
                ftol=1e-4,
                max_nfev=MOST_SIMULATIONS // (len(FACTORS) + 1) // 2,
            )
            return float(found.cost), np.asarray(found.x - 1, dtype=np.float64)

        cost, best = from_start(np.ones(len(FACTORS)))
        if half is not None:
            return best
        again, other = from_start(1 + np.where(np.arange(len(FACTORS)) == 0, -best, best))
        return other if again < cost else best

    def error(self, at: Floats, half: int) -> float:
        """Root mean square residual on a half."""
        return float(np.sqrt(np.mean(self.residuals(at, half) ** 2)))

    def residuals(self, at: Floats, half: int | None) -> Floats:
        """Log ratios of quantiles and means, all cases one after the other, weighted by calls."""
        parts = []
        for aim, (ttft, decode) in zip(self._aims, self._simulated(at), strict=True):
            chosen = np.isfinite(ttft) if half is None else np.isfinite(ttft) & (aim.half == half)
            weight = np.sqrt(chosen.sum() / max(1, sum(len(a.ttft) for a in self._aims)))
            for told, real in (
                (ttft, aim.ttft), (decode, aim.decode), (ttft + decode, aim.ttft + aim.decode),
            ):  # fmt: skip
                parts.append(weight * _log_ratios(told[chosen], real[chosen]))
        return np.concatenate(parts)

    def _simulated(self, at: Floats) -> list[tuple[Floats, Floats]]:
        key = tuple(np.round(at, 9).tolist())
        if key not in self._known:
            told = self._simulate(_turned(self._fleet, at))
            self._known[key] = [
                _looked_up(aim, calls) for aim, calls in zip(self._aims, told, strict=True)
            ]
            if self._progress is not None:
                self._progress(len(self._known), MOST_SIMULATIONS)
        return self._known[key]


def _calls_of(run: SimRun) -> pa.Table:
    return run.tables.calls


def _looked_up(aim: _Aim, calls: pa.Table) -> tuple[Floats, Floats]:
    """Simulated times of an aim's calls, NaN where the simulated call did not end well."""
    import pyarrow.compute as pc  # noqa: PLC0415  (beside its only use)

    key, ttft, decode = _times(calls)
    place = pc.index_in(aim.key, value_set=key)
    rows = floats(pc.cast(place, pa.float64()))
    found = np.isfinite(rows)
    index = np.where(found, rows, 0).astype(np.int64)
    if not len(ttft):
        return np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    return np.where(found, ttft[index], np.nan), np.where(found, decode[index], np.nan)


def _log_ratios(told: Floats, real: Floats) -> Floats:
    """log(simulated / recorded) of the mean and at the quantiles; zeros where nothing counts."""
    positive = (told > 0) & (real > 0)
    if not positive.any():
        return np.zeros(1 + len(QUANTILES))
    told, real = told[positive], real[positive]
    pairs = [np.concatenate([[v.mean()], np.quantile(v, QUANTILES)]) for v in (told, real)]
    return np.asarray(np.log(pairs[0] / pairs[1]), dtype=np.float64)


def _turned(fleet: Fleet, at: Floats) -> Fleet:
    """The fleet with the factors exp(at) on its step model."""
    decode, prefill, front = np.exp(at).tolist()
    step = turned(fleet.engine.step, decode=decode, prefill=prefill, front=front)
    return fleet.model_copy(update={"engine": fleet.engine.model_copy(update={"step": step})})


def turned(step: StepModel, *, decode: float, prefill: float, front: float) -> StepModel:
    """Costs times factors: of decodes (and the host's time per step), prompts, and the front."""
    return step.model_copy(
        update={
            "base_s": tuple(v * decode for v in step.base_s),
            "slope_s_per_token": tuple(v * decode for v in step.slope_s_per_token),
            "host_s": step.host_s * decode,
            "prefill_s_per_token": step.prefill_s_per_token * prefill,
            "prefill_s_per_token_context": step.prefill_s_per_token_context * prefill,
            "prefill_base_s": tuple(v * prefill for v in step.prefill_base_s),
            "front_s": step.front_s * front,
            "front_samples_s": tuple(v * front for v in step.front_samples_s),
        }
    )
