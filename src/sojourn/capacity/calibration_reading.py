"""One reading of an engine's calls: where each ran, and the step costs that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.capacity.engine_calls import EngineCalls
from sojourn.capacity.equations import Equations, Replica, Setting, rebuild, write
from sojourn.capacity.regression import SIGMA_OF_MAD, robust_nnls
from sojourn.capacity.sweep import Cost
from sojourn.trace.arrays import Bools, Floats

FEWEST_CALLS = 30
"""Below this a robust fit of six coefficients and five held-out blocks means nothing."""
ROUNDS = 4
"""Sweep, fit, sweep with the fit: the figures settle to 0.1% in three rounds."""
BLOCKS = 5
MOST_EQUATIONS = 60_000
"""More add no precision that drift of the machine would not drown; a seeded choice is taken."""
FORM_PAYS = 0.95
"""A form with more coefficients must lower the held-out error by a twentieth."""
CURVED_FROM_BATCH = 4.0
"""A border of the batch below this would leave the base of an empty step to noise."""
CALLS_OF_SEGMENT = 15
"""Calls whose mean batch lies in a segment, at least: half of what a whole fit needs."""
PART_OF_STEPS = 0.1
"""A call counts as having seen a side of a border if it spent this part of its steps there."""
AHEAD_PAYS = 0.9
"""Reading steps as scheduled ahead must lower the held-out error by a tenth to be believed."""
TWICE = 2.0
MEDIANS = 1.2533
"""Standard error of a median over that of a mean, for normal values (Kendall and Stuart)."""
REAR = 0.95
"""Errors beyond this quantile count as much as it when forms are compared."""


@dataclass(frozen=True)
class Form:
    """Which coefficients a step's price list has: borders of the batch's segments, and whether
    a step that carries prompt tokens costs more than those tokens do."""

    knots: tuple[float, ...] = (0.0,)
    mixed: bool = False


@dataclass(frozen=True)
class Reading:
    """One reading of the engine: how, with which costs, and what it leaves unexplained."""

    setting: Setting
    form: Form
    cost: Cost
    front: float
    replicas: dict[int, Replica]
    equations: Equations

    def batches(self) -> tuple[Floats, Floats]:
        """Batches met, and the steps taken with each."""
        states = [replica.state for replica in self.replicas.values()]
        batch = np.concatenate([state.batch for state in states])
        steps = np.concatenate([state.steps for state in states])
        return batch[batch > 0], np.maximum(steps[batch > 0], 1e-12)


@dataclass(frozen=True)
class HeldOut:
    """Errors on blocks of time left out in turn: median absolute relative error of a call's
    whole time in the engine; `typical`, by which forms are chosen: mean absolute relative errors
    (at most their `REAR`) of prefill and of decode, their geometric mean, so that the noisier of
    them does not drown the other; the costs fitted; and the variance between blocks of log(real /
    told) totals of decode and of prefill, beyond what the scatter of their calls explains."""

    call: float
    typical: float
    costs: list[Cost]
    drift: tuple[float, float] = (0.0, 0.0)


def best(calls: EngineCalls, setting: Setting) -> Reading | None:
    """The reading that explains the calls best, with as many coefficients as held-out calls pay
    for; None where the calls' times do not overlap in any usable way.

    Steps are scheduled synchronously, or one ahead where that tells held-out calls clearly better.
    Each way is given its own form first: a step before the prompt's own and a price on steps that
    carry prompts look alike until both are fitted.
    """
    plain = _formed(calls, setting)
    if plain is None or not setting.scheduled_known:
        return plain
    ahead = _formed(calls, replace(setting, ahead=1))
    if ahead is None:
        return plain
    return ahead if held_out(ahead).typical < AHEAD_PAYS * held_out(plain).typical else plain


def _formed(calls: EngineCalls, setting: Setting) -> Reading | None:
    """One way of scheduling in the form that pays."""
    found = iterate(calls, setting, Form())
    if found is None:
        return None
    found = _better(found, calls, replace(found.form, mixed=True))
    return _better(found, calls, replace(found.form, knots=_knots(found)))


def _better(fit: Reading, calls: EngineCalls, form: Form) -> Reading:
    """The same reading in a richer form, where held-out calls are told better."""
    if form == fit.form:
        return fit
    rich = iterate(calls, fit.setting, form, fit)
    if rich is None or rich.cost == fit.cost:
        return fit
    return rich if held_out(rich).typical < FORM_PAYS * held_out(fit).typical else fit


def iterate(
    calls: EngineCalls, setting: Setting, form: Form, start: Reading | None = None
) -> Reading | None:
    """Sweep and fit in turn until the figures settle."""
    cost = start.cost if start else None
    replicas = start.replicas if start else {}
    found = None
    for _ in range(ROUNDS if start is None else 2):
        replicas = rebuild(calls, setting, cost, replicas)
        if not replicas:
            return None
        equations = _thinned(write(replicas, setting, cost, form.knots))
        if len(equations.duration) < FEWEST_CALLS:
            return None
        cost, front = _solve(equations, form)
        found = Reading(setting, form, cost, front, replicas, equations)
    return found


def _thinned(equations: Equations) -> Equations:
    rows = len(equations.duration)
    if rows <= MOST_EQUATIONS:
        return equations
    chosen = np.zeros(rows, dtype=bool)
    chosen[np.random.default_rng(0).choice(rows, MOST_EQUATIONS, replace=False)] = True
    return equations.take(chosen)


def _solve(equations: Equations, form: Form) -> tuple[Cost, float]:
    last = 1 + len(form.knots)
    rows = equations.rows
    if not form.mixed:
        rows = rows.copy()
        rows[:, last + 1] = 0.0
    found = robust_nnls(rows, equations.duration, equations.scale, envelope=equations.envelope)
    found[:-1] *= _stalls(equations, found)
    cost = Cost(
        base=float(found[0]),
        knots=form.knots,
        rises=tuple(found[1:last].tolist()),
        slope=float(found[last]),
        mixed=float(found[last + 1]),
        token=float(found[last + 2]),
        attended=float(found[last + 3]),
    )
    return cost, float(found[last + 4])


def _stalls(equations: Equations, found: Floats) -> float:
    """Factor that makes the costs' sum over calls what it was: a robust fit leaves out the
    stalls (garbage collection, a busy host), yet throughput and queues feel their mean.
    A call counts with at most `TWICE` its told time, so that one broken clock moves nothing."""
    use = ~equations.envelope
    told = equations.rows[use] @ found
    real = np.clip(equations.duration[use], told / TWICE, told * TWICE)
    return float(real.sum() / told.sum()) if told.sum() > 0 else 1.0


def _errors(equations: Equations, cost: Cost, front: float) -> Floats:
    predicted: Floats = equations.rows @ np.append(cost.vector, front)
    return (predicted - equations.duration) / equations.duration


def _knots(fit: Reading) -> tuple[float, ...]:
    """Segment borders at doublings of the batch, where enough calls spent a part of their steps
    on each side of them (the batch is that of each step, not a call's mean: in a run that ramps
    up and down every call meets many)."""
    top = max(float(replica.state.batch.max(initial=0.0)) for replica in fit.replicas.values())
    doublings = int(np.log2(max(top, CURVED_FROM_BATCH) / CURVED_FROM_BATCH)) + 1
    candidates = (0.0, *(CURVED_FROM_BATCH * 2.0**power for power in range(doublings)))
    parts = []
    for replica in fit.replicas.values():
        calls = replica.calls
        rows = calls.clean & (calls.output >= 2) & (calls.end > calls.first)
        parts.append(replica.state.columns(calls.first[rows], calls.end[rows], candidates))
    columns = np.concatenate(parts)
    widths = np.diff([*candidates, 2 * candidates[-1]])
    filled = columns[:, 1 : 1 + len(candidates)] / np.maximum(columns[:, :1], 1.0) / widths
    below = (filled < 1 - PART_OF_STEPS).sum(axis=0)
    within = (filled > PART_OF_STEPS).sum(axis=0)
    seen = (below[:-1] >= CALLS_OF_SEGMENT) & (within[1:] >= CALLS_OF_SEGMENT)
    return (0.0, *(border for border, kept in zip(candidates[1:], seen, strict=True) if kept))


def held_out(fit: Reading) -> HeldOut:
    """Errors over blocks of time left out in turn."""
    equations = fit.equations
    blocks = (equations.call * BLOCKS) // (int(equations.call.max()) + 1)
    whole, parts, costs = [], [], []
    totals: tuple[list[tuple[float, float]], ...] = ([], [])
    for block in range(BLOCKS):
        out = blocks == block
        rest = equations.take(~out)
        if not out.any() or len(rest.duration) < FEWEST_CALLS // 2:
            continue
        cost, front = _solve(rest, fit.form)
        costs.append(cost)
        kept = equations.take(out)
        whole.append(_call_errors(kept, cost, front))
        parts.append(np.stack([_errors(kept, cost, front), kept.prefill]))
        for side, found in zip((~kept.prefill, kept.prefill), totals, strict=True):
            if side.sum() > 1:
                found.append(_total(kept.take(side), cost, front, len(fit.form.knots)))
    error, prefill = np.concatenate(parts, axis=1)
    sides = [np.abs(error[side]) for side in (prefill > 0, prefill == 0) if side.any()]
    cut = [np.minimum(side, np.quantile(side, REAR)) for side in sides]
    typical = float(np.exp(np.mean([np.log(max(side.mean(), 1e-9)) for side in cut])))
    drift = (_between(totals[0]), _between(totals[1]))
    return HeldOut(float(np.median(np.concatenate(whole))), typical, costs, drift)


def _total(equations: Equations, cost: Cost, front: float, segments: int) -> tuple[float, float]:
    """log(real / told) of the rows' total, and its variance by the scatter of the rows: calls that
    decode together share their steps, so as many as a batch count as one."""
    told = equations.rows @ np.append(cost.vector, front)
    real = np.clip(equations.duration, told / TWICE, told * TWICE)
    if equations.envelope.all():  # rows that waited say nothing of the cost
        ratio = np.log(np.maximum(real / np.maximum(told, 1e-12), 1e-6))
        middle = float(np.median(ratio))
        spread = float(np.median(np.abs(ratio - middle))) * SIGMA_OF_MAD
        return middle, MEDIANS**2 * spread**2 / len(ratio)
    share = told / told.sum()
    total = float(real.sum() / told.sum())
    off = real / np.maximum(told, 1e-12) - total
    batch = equations.rows[:, 1 : 1 + segments].sum() / max(equations.rows[:, 0].sum(), 1.0)
    noise = float((share**2 * off**2).sum()) / total**2
    return float(np.log(total)), noise * max(1.0, float(batch))


def _between(totals: list[tuple[float, float]]) -> float:
    """Variance between blocks, beyond that of each block's own total."""
    if len(totals) < 2:
        return 0.0
    logs, noise = np.array(totals).T
    count = len(totals)  # each block was told by the others: their noise is in the ratio too
    return max(0.0, float(np.var(logs, ddof=1) * (count - 1) / count - noise.mean()))


def _call_errors(equations: Equations, cost: Cost, front: float) -> Floats:
    """Absolute relative error of each call's whole time in the engine."""
    predicted = equations.rows @ np.append(cost.vector, front)
    use = ~equations.envelope
    calls = equations.call[use]
    told = np.bincount(calls, predicted[use])
    real = np.bincount(calls, equations.duration[use])
    seen: Bools = real > 0
    return np.asarray(np.abs(told[seen] - real[seen]) / real[seen], dtype=np.float64)
