"""Step times from the summaries of benchmark runs: each run is replayed, and the step model turned
until the replays' figures are those measured.

A summary has no step and no request in it, yet a handful of them over loads and lengths pins the
few factors by which an engine differs from what its hardware says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.extrapolation import extended
from sojourn.capacity.records import StepModel
from sojourn.capacity.step_turning import Turns, refined, turned
from sojourn.capacity.sweep_runs import SweepRun
from sojourn.errors import UsageError
from sojourn.interval import Excuse
from sojourn.sim.finite_runs import FiniteRun
from sojourn.sim.simulate import DEFAULT
from sojourn.sim.sweep_start import guess, knots_of, told_by_themselves, with_front
from sojourn.sim.sweep_telling import Posterior, told_model
from sojourn.trace.arrays import Floats

NOISE: Final = {"mean": 0.02, "p50": 0.02, "p90": 0.08, "p99": 0.2}
"""How far a figure of an equal run lies from the model that is right, by statistic, for gaps and
whole times; `FIRST_TOKEN` times as far for times to first token."""
FIRST_TOKEN: Final = 3.0
RATE_NOISE: Final = 0.02
PRIOR: Final = {
    "fixed": 0.3,
    "rise": 0.5,
    "context": 0.4,
    "prefill": 0.4,
    "front": 1.0,
    "jitter": 1.0,
}
"""Standard deviation of the logarithm of a factor on a hardware model's costs."""
OTHERS: Final = ("context", "prefill", "front", "jitter")
"""What is turned beside the base, in the order of `Turns`; the last only where tails are told."""
LOOSE: Final = 3.0
"""Times as far where no hardware is named and the start is a guess from the runs themselves."""
SMOOTH: Final = 0.5
"""Standard deviation of the difference between a segment's log factor and the one before."""
HUBER: Final = 2.0
"""Residuals beyond so many standard deviations count linearly: a run that went wrong."""
STEP: Final = 0.08
"""Width of the numerical derivatives: figures jump where a prompt just fits into a step, and over
such a width the jumps are a slope."""
ROUNDS: Final = 20
SETTLED: Final = 0.2
NEARLY: Final = 0.005
"""A cost (squares of residuals over their noise) lowered by less than this, or than this part of
itself, is as low as it gets."""
DAMPING: Final = (1e-3, 10.0, 1.0)
"""Levenberg's damping: at first, times what after a move that failed, at most."""
GOOD: Final = 0.5
"""A move that lowers the cost by less than this part of what was promised asks for new
derivatives."""
NOT_TOLD: Final = float(np.log(10.0))
"""Residual of a figure that a replay does not give: no request of it ended."""
MOST_RUNS: Final = 24
LONGEST_MOVE: Final = 1.0
FARTHEST: Final = 2.5
"""A logarithm of a factor beyond this is not searched."""


@dataclass(frozen=True)
class _Aim:
    """One figure of one run that counts: logarithm measured, and its noise."""

    run: int
    name: str
    log: float
    noise: float


def fit_sweep(
    runs: Sequence[SweepRun],
    start: StepModel | None = None,
    *,
    engine: str = DEFAULT,
    seed: int = 0,
) -> StepModel | Excuse:
    """The step model whose replays give the runs' figures, or why none can be had.

    `start`: the hardware's step times, None where it is not known. Turned are `Turns`: a step
    without decodes, what sequences add by segments of the batch, contexts, prompts, front end.
    Least squares on log(replayed / measured) over `NOISE`, robust after Huber, with normal priors
    `PRIOR` on the factors and `SMOOTH` between segments: the mode of the posterior, by Gauss-Newton
    with Broyden's updates. `held_out_error` is the median absolute relative error of decode
    figures (E2E where there are none) of runs left out in turn, by the linearised solution.
    Runs enough to tell the shape (`told_by_themselves`) start at their own guess, and the
    hardware's shape holds beyond the batches seen; fewer start at the hardware.
    Source: Broyden 1965; leave-one-out by the hat matrix, Allen 1974 (PRESS).
    Wrong when: the runs are of different deployments, or the engine does what the simulator does
    not (speculation, a saturated client).
    """
    usable = [run for run in runs if len(run) and _aims_of(0, run)]
    if not usable:
        return Excuse(
            reason="No run tells a figure that a replay has (time to first token, between tokens,"
            " whole times or rates)",
            collect=("mean TTFT and TPOT of each benchmark run",),
        )
    usable = _thinned(usable)
    try:
        replays = [FiniteRun(run, seed=seed, engine=engine) for run in usable]
    except UsageError as error:
        return Excuse(reason=f"A run cannot be replayed: {error}", collect=("the runs' settings",))
    free = start is None or told_by_themselves(usable)
    first = guess(usable) if free else start
    if isinstance(first, Excuse) or first is None:
        first, free = start, False
    if first is None:
        return guess(usable)
    found = told_model(_search(replays, first, named=not free).solve(), usable, replays)
    if start is None or not free:
        return found
    context = float(np.mean([np.mean(run.inputs) + np.mean(run.outputs) / 2 for run in usable]))
    most = max(run.max_num_seqs for run in usable)
    return extended(found, start, context=context, upto=most)


def _search(replays: list[FiniteRun], start: StepModel, *, named: bool) -> _Search:
    runs = [replay.run for replay in replays]
    top = max(run.max_num_seqs for run in runs)
    first = with_front(refined(start, knots_of(runs), top), runs)
    return _Search(replays, runs, first, named=named)


def _thinned(runs: list[SweepRun]) -> list[SweepRun]:
    """At most `MOST_RUNS`, spread over loads."""
    if len(runs) <= MOST_RUNS:
        return runs
    order = sorted(
        range(len(runs)), key=lambda i: (runs[i].concurrency or 0, runs[i].rate_per_s or 0)
    )
    chosen = sorted(order[int(k)] for k in np.linspace(0, len(runs) - 1, MOST_RUNS))
    return [runs[i] for i in chosen]


def _aims_of(place: int, run: SweepRun) -> list[_Aim]:
    """The figures of a run that say something: the gap between tokens once, not as ITL and TPOT."""
    names = set(run.measured)
    found = []
    for name, value in run.measured.items():
        noise = _noise(name)
        twice = name.startswith("tpot_mean") and "itl_mean_s" in names
        if noise is not None and not twice and np.isfinite(value) and value > 0:
            found.append(_Aim(place, name, float(np.log(value)), noise))
    return found


def _noise(name: str) -> float | None:
    """Standard deviation of a figure's logarithm; None where a replay does not tell it."""
    if name in ("output_tokens_per_s", "requests_per_s"):
        return RATE_NOISE
    what, _, statistic = name.removesuffix("_s").rpartition("_")
    if what == "itl":
        return NOISE["mean"] if statistic == "mean" else None
    if what not in ("ttft", "tpot", "e2e") or statistic not in NOISE:
        return None
    return NOISE[statistic] * (FIRST_TOKEN if what == "ttft" else 1.0)


class _Search:
    """Residuals and their derivatives at factors (logarithms)."""

    def __init__(
        self, replays: list[FiniteRun], runs: list[SweepRun], start: StepModel, *, named: bool
    ) -> None:
        self._replays, self._start = replays, start
        self.aims = [aim for place, run in enumerate(runs) for aim in _aims_of(place, run)]
        self.knots = knots_of(runs)
        tails = any(aim.name in ("ttft_p90_s", "ttft_p99_s") for aim in self.aims)
        self._others = OTHERS if tails else OTHERS[:-1]
        self._prior = _prior_rows(self.knots, self._others, 1.0 if named else LOOSE)
        self._noise = np.array([aim.noise for aim in self.aims])

    def model(self, at: Floats) -> StepModel:
        return turned(self._start, Turns.of(self.knots, at))

    def residuals(self, at: Floats) -> Floats:
        """log(replayed / measured) of every aim."""
        step = self.model(at)
        told = [replay.figures(step) for replay in self._replays]
        logs = [
            np.log(told[a.run][a.name]) - a.log if a.name in told[a.run] else NOT_TOLD
            for a in self.aims
        ]
        return np.asarray(logs, dtype=np.float64)

    def solve(self) -> Posterior:
        """Gauss-Newton with Levenberg's damping; derivatives by Broyden while they serve."""
        at = np.zeros(1 + len(self.knots) + len(self._others))
        error = self.residuals(at)
        slopes, fresh, damping = self._slopes(at, error), True, DAMPING[0]
        cost = self.cost(at, error)
        for _ in range(ROUNDS):
            move, promised = self._move(at, error, slopes, damping)
            there = self.residuals(at + move)
            gain = cost - self.cost(at + move, there)
            little = gain < max(SETTLED, NEARLY * cost)
            if gain > 0:
                rise = (there - error - slopes @ move) / (move @ move)
                slopes = slopes + np.outer(rise, move)
                at, error, cost, damping = at + move, there, cost - gain, damping / DAMPING[1]
            if little and fresh and (gain > 0 or damping > DAMPING[2]):
                break
            if gain <= 0 and fresh:
                damping *= DAMPING[1]
            elif gain > 0:
                fresh = False
            if not fresh and (little or gain < GOOD * promised):
                slopes, fresh = self._slopes(at, error), True
        return self._posterior(at, error, slopes if fresh else self._slopes(at, error))

    def _slopes(self, at: Floats, error: Floats) -> Floats:
        columns = []
        for place in range(len(at)):
            moved = at.copy()
            moved[place] += STEP
            columns.append((self.residuals(moved) - error) / STEP)
        return np.stack(columns, axis=1)

    def _weights(self, error: Floats) -> Floats:
        size = np.abs(error) / self._noise
        less = np.sqrt(np.minimum(1.0, HUBER / np.maximum(size, HUBER)))
        return np.asarray(less / self._noise, dtype=np.float64)

    def cost(self, at: Floats, error: Floats) -> float:
        """Huber's loss of the residuals and the prior's."""
        size = np.abs(error) / self._noise
        loss = np.where(size <= HUBER, size**2, HUBER * (2 * size - HUBER))
        return float(loss.sum() + ((self._prior @ at) ** 2).sum())

    def _move(
        self, at: Floats, error: Floats, slopes: Floats, damping: float
    ) -> tuple[Floats, float]:
        """The damped move, and by how much it should lower the cost."""
        weight = self._weights(error)
        rows = np.vstack([slopes * weight[:, None], self._prior])
        left = np.concatenate([error * weight, self._prior @ at])
        normal = rows.T @ rows
        damped = normal + damping * np.diag(np.diag(normal))
        found = np.linalg.solve(damped, -rows.T @ left)
        move = np.clip(at + found, -FARTHEST, FARTHEST) - at
        move *= min(1.0, LONGEST_MOVE / max(float(np.abs(move).max()), 1e-12))
        return move, float((left**2).sum() - ((left + rows @ move) ** 2).sum())

    def _posterior(self, at: Floats, error: Floats, slopes: Floats) -> Posterior:
        weight = self._weights(error)
        rows = slopes * weight[:, None]
        normal = rows.T @ rows + self._prior.T @ self._prior
        return Posterior(
            model=self.model(at),
            start=self._start,
            turns=Turns.of(self.knots, at),
            covariance=np.asarray(np.linalg.inv(normal), dtype=np.float64),
            run=np.array([aim.run for aim in self.aims]),
            names=tuple(aim.name for aim in self.aims),
            error=error,
            weighted=rows,
            weight=weight,
        )


def _prior_rows(knots: tuple[int, ...], others: tuple[str, ...], loose: float) -> Floats:
    """Rows whose product with the factors is standard normal beforehand."""
    names = ["fixed", *["rise"] * len(knots), *others]
    rows = [np.diag([1 / (loose * PRIOR[name]) for name in names])]
    for place in range(1, len(knots)):
        row = np.zeros((1, len(names)))
        row[0, place], row[0, place + 1] = -1.0, 1.0
        rows.append(row / (loose * SMOOTH))
    return np.concatenate(rows)
