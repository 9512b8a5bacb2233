"""Step times fitted from the calls a team already records: no benchmark run is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.capacity.engine_calls import EngineCalls, extract, windows
from sojourn.capacity.equations import Equations, Replica, Setting, nobody_waiting, rebuild, write
from sojourn.capacity.flags import flag
from sojourn.capacity.records import StepModel
from sojourn.capacity.regression import robust_nnls
from sojourn.capacity.sweep import Cost
from sojourn.config import Config
from sojourn.interval import Excuse, Provenance
from sojourn.trace.arrays import Floats
from sojourn.trace.tables import Tables

FEWEST_CALLS = 30
"""Below this a robust fit of five coefficients and five held-out blocks means nothing."""
ROUNDS = 4
"""Sweep, fit, sweep with the fit: the figures settle to 0.1% in three rounds."""
BLOCKS = 5
MOST_EQUATIONS = 60_000
"""More add no precision that drift of the machine would not drown; a seeded choice is taken."""
CURVE_PAYS = 0.95
"""A curved base must lower the held-out error by a twentieth, else the straight line serves."""
CURVED_FROM_BATCH = 4.0
"""A border of the batch below this would leave the base of an empty step to noise."""
CALLS_OF_SEGMENT = 15
"""Calls whose mean batch lies in a segment, at least: half of what a whole fit needs."""
WORSE_THAN_ROOFLINE = 0.4
"""Held-out error at which a roofline is no worse (37.6% E2E in a published comparison)."""
LEAST_SPREAD = 1.1
"""Batch or prompt length must vary by this much (95th over 5th percentile of calls), or the
coefficients cannot be told apart: only the one state that was seen would be known."""
AHEAD_PAYS = 0.9
"""Reading steps as scheduled ahead must lower the typical error by a tenth to be believed."""
TWICE = 2.0
REAR = 0.99
"""Front-end delays beyond this quantile count as much as it: a stopped process is no habit."""
RECORD_TIMES = "first-token and end time of each model call (engine spans, or a client's TTFT)"
RECORD_MORE = "calls over at least a few minutes at two different loads"


@dataclass(frozen=True)
class _Fit:
    """One reading of the engine: how, with which costs, and what it leaves unexplained."""

    setting: Setting
    cost: Cost
    front: float
    replicas: dict[int, Replica]
    equations: Equations

    def errors(self) -> Floats:
        """Relative residual of each equation."""
        return _errors(self.equations, self.cost, self.front)


def fit(tables: Tables, config: Config) -> StepModel | Excuse:
    """Step model of the engine behind most calls, or why none can be had.

    Equations: decode seconds of a call = sum over its output - 1 steps of the step's cost, with
    the batch, contexts and prompt tokens the other calls put into those steps; prefill seconds =
    the same over the steps its prompt took. Solved by robust non-negative least squares on
    relative residuals; where calls do not say when they were scheduled, times to first token
    serve as a lower envelope instead.
    Source: token conservation (`sojourn.capacity.sweep`), linear step cost (ITL = intercept +
    slope x context, vLLM blog 2026-04-22; ITL = alpha + beta B, workload-variant-autoscaler).
    Wrong when: speculative decoding, an engine shared with calls that are not in the tables, or
    the machine's speed drifted during the recording (then the held-out error says so).
    """
    calls = extract(tables.calls)
    if calls is not None:
        calls = windows(calls)
    refusal = _too_thin(calls)
    if calls is None or refusal is not None:
        return refusal or Excuse(reason="No model call has an end", collect=(RECORD_TIMES,))
    best = _best_reading(calls, tables, config)
    if best is None:
        return Excuse(
            reason="The calls' times do not overlap in any usable way", collect=(RECORD_TIMES,)
        )
    if not _varied(best, calls):
        return Excuse(
            reason="All calls met the same batch with prompts of one length",
            collect=(RECORD_MORE, "prompts of different lengths"),
        )
    best = _curved(best, calls)
    if best.cost.token == 0 and best.cost.attended == 0:
        return Excuse(
            reason="Prompt tokens leave no trace in the calls' times (all cached, or too short)",
            collect=("calls with prompts of different lengths", "cached_tokens of each call"),
        )
    held_out, spread = _held_out(best)
    if held_out > WORSE_THAN_ROOFLINE:
        return Excuse(
            reason=(
                f"The calls' times do not follow from the load on the engine: a fit misses calls"
                f" it has not seen by {held_out:.0%}"
            ),
            collect=(
                "scheduled time of each call (engine spans)",
                "every call the engine serves, from every client",
                "the replica of each call",
            ),
        )
    front = _front(best)
    return _step_model(best, calls, front, held_out, spread)


def _too_thin(calls: EngineCalls | None) -> Excuse | None:
    usable = 0 if calls is None else int((calls.clean & (calls.output >= 2)).sum())
    if calls is None or usable == 0:
        return Excuse(
            reason="No call has prompt and output tokens with a first-token and an end time",
            collect=(RECORD_TIMES, "input_tokens and output_tokens of each call"),
        )
    if usable < FEWEST_CALLS:
        return Excuse(
            reason=f"Only {usable} complete calls; a fit needs {FEWEST_CALLS}",
            collect=(RECORD_MORE,),
        )
    return None


def _best_reading(calls: EngineCalls, tables: Tables, config: Config) -> _Fit | None:
    """Synchronous scheduling, or one step ahead where that explains the times clearly better."""
    known = float(np.isfinite(calls.scheduled[calls.clean]).mean()) >= 0.5
    replicas = config.deployment.replicas
    share = 1.0 if calls.replicas_named or replicas == 1 else 1.0 / replicas
    budget = flag("max_num_batched_tokens", tables, config)[0]
    setting = Setting(budget, 0, known, share)
    plain = _iterate(calls, setting, (0.0,))
    if plain is None or not known:
        return plain
    ahead = _iterate(calls, replace(setting, ahead=1), (0.0,))
    if ahead is None:
        return plain
    loss = [_typical(fit.errors(), fit.equations) for fit in (plain, ahead)]
    return ahead if loss[1] < AHEAD_PAYS * loss[0] else plain


def _varied(fit: _Fit, calls: EngineCalls) -> bool:
    """Whether batch or prompt length differ between calls."""
    decode = fit.equations.rows[~fit.equations.prefill]
    batch = decode[:, 1] / np.maximum(decode[:, 0], 1.0)
    for values in (batch, calls.computed[calls.clean]):
        low, high = np.quantile(values, [0.05, 0.95])
        if high > LEAST_SPREAD * low:
            return True
    return False


def _typical(errors: Floats, equations: Equations) -> float:
    """Median relative error of prefill and of decode equations, averaged."""
    parts = [errors[equations.prefill], errors[~equations.prefill]]
    return float(np.mean([np.median(np.abs(part)) for part in parts if part.size]))


def _iterate(
    calls: EngineCalls,
    setting: Setting,
    knots: tuple[float, ...],
    start: _Fit | None = None,
) -> _Fit | None:
    """Sweep and fit in turn until the figures settle."""
    cost = start.cost if start else None
    replicas = start.replicas if start else {}
    found = None
    for _ in range(ROUNDS if start is None else 2):
        replicas = rebuild(calls, setting, cost, replicas)
        if not replicas:
            return None
        equations = _thinned(write(replicas, setting, cost, knots))
        if len(equations.duration) < FEWEST_CALLS:
            return None
        cost, front = _solve(equations, knots)
        found = _Fit(setting, cost, front, replicas, equations)
    return found


def _thinned(equations: Equations) -> Equations:
    rows = len(equations.duration)
    if rows <= MOST_EQUATIONS:
        return equations
    chosen = np.zeros(rows, dtype=bool)
    chosen[np.random.default_rng(0).choice(rows, MOST_EQUATIONS, replace=False)] = True
    return equations.take(chosen)


def _solve(equations: Equations, knots: tuple[float, ...]) -> tuple[Cost, float]:
    found = robust_nnls(
        equations.rows, equations.duration, equations.scale, envelope=equations.envelope
    )
    found[:-1] *= _stalls(equations, found)
    last = 1 + len(knots)
    cost = Cost(
        base=float(found[0]),
        knots=knots,
        rises=tuple(found[1:last].tolist()),
        slope=float(found[last]),
        token=float(found[last + 1]),
        attended=float(found[last + 2]),
    )
    return cost, float(found[last + 3])


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


def _curved(fit: _Fit, calls: EngineCalls) -> _Fit:
    """The same reading with a piecewise linear base, where held-out calls are told better."""
    knots = _knots(fit)
    if len(knots) < 2:
        return fit
    curved = _iterate(calls, fit.setting, knots, fit)
    if curved is None:
        return fit
    return curved if _held_out(curved)[0] < CURVE_PAYS * _held_out(fit)[0] else fit


def _knots(fit: _Fit) -> tuple[float, ...]:
    """Segment borders at doublings of the batch, where enough calls saw each side of them."""
    decode = fit.equations.rows[~fit.equations.prefill]
    steps = np.maximum(decode[:, 0], 1.0)
    met = np.sort(decode[:, 1 : 1 + len(fit.cost.knots)].sum(axis=1) / steps)
    borders = [0.0]
    border = CURVED_FROM_BATCH
    while len(met) - np.searchsorted(met, border) >= CALLS_OF_SEGMENT:
        if np.searchsorted(met, border) - np.searchsorted(met, borders[-1]) >= CALLS_OF_SEGMENT:
            borders.append(border)
        border *= 2
    return tuple(borders)


def _batches(fit: _Fit) -> tuple[Floats, Floats]:
    states = [replica.state for replica in fit.replicas.values()]
    batch = np.concatenate([state.batch for state in states])
    steps = np.concatenate([state.steps for state in states])
    return batch[batch > 0], np.maximum(steps[batch > 0], 1e-12)


def _held_out(fit: _Fit) -> tuple[float, list[Cost]]:
    """Median absolute relative error over blocks of time left out in turn, and their fits."""
    equations = fit.equations
    blocks = (equations.call * BLOCKS) // (int(equations.call.max()) + 1)
    errors, costs = [], []
    for block in range(BLOCKS):
        out = blocks == block
        rest = equations.take(~out)
        if not out.any() or len(rest.duration) < FEWEST_CALLS // 2:
            continue
        cost, front = _solve(rest, fit.cost.knots)
        costs.append(cost)
        errors.append(_call_errors(equations.take(out), cost, front))
    return float(np.median(np.concatenate(errors))), costs


def _call_errors(equations: Equations, cost: Cost, front: float) -> Floats:
    """Absolute relative error of each call's whole time in the engine."""
    predicted = equations.rows @ np.append(cost.vector, front)
    use = ~equations.envelope
    calls = equations.call[use]
    told = np.bincount(calls, predicted[use])
    real = np.bincount(calls, equations.duration[use])
    seen = real > 0
    return np.asarray(np.abs(told[seen] - real[seen]) / real[seen], dtype=np.float64)


def _front(fit: _Fit) -> float:
    """Seconds of a call before the engine could take it, beyond the wait for a step's end.

    From arrival to scheduled of calls that found nobody waiting. The rest of the step that ran
    then (half of it on average) is taken off, because the simulator makes a call wait for it by
    itself; where the engine schedules a step ahead, that step is put on, because it does not.
    Wrong when: the front end slows down with load (one constant stands for all loads).
    """
    if not fit.setting.scheduled_known:
        return fit.front
    before, lead, calm = [], [], []
    for replica in fit.replicas.values():
        calls, state = replica.calls, replica.state
        usable = np.isfinite(calls.scheduled) & calls.clean
        waited = calls.scheduled - calls.arrival
        before.append((waited - np.minimum(state.step_at(calls.arrival) / 2, waited))[usable])
        after = state.when(state.step_clock(calls.scheduled) + 1) - calls.scheduled
        lead.append((after * replica.lead)[usable])
        calm.append(nobody_waiting(calls.arrival, calls.scheduled)[usable])
    alone = np.concatenate(calm)
    chosen = alone if alone.sum() >= FEWEST_CALLS // 3 else np.ones_like(alone)
    ahead = float(np.concatenate(lead)[chosen].mean()) if fit.setting.ahead else 0.0
    delays = np.concatenate(before)[chosen]
    return float(np.minimum(delays, np.quantile(delays, REAR)).mean()) + ahead


def _step_model(
    fit: _Fit, calls: EngineCalls, front: float, held_out: float, spread: list[Cost]
) -> StepModel:
    cost = fit.cost
    batch, steps = _batches(fit)
    order = np.argsort(batch)
    share = np.cumsum(steps[order]) / steps.sum()
    low, high = (float(batch[order][np.searchsorted(share, q)]) for q in (0.01, 0.99))
    top = max(1, round(float(batch.max())))
    batches = tuple(sorted({0, *(round(k) for k in cost.knots if k < top), top}))
    bases = cost.decode(np.asarray(batches, dtype=float), np.zeros(len(batches)))
    clean = calls.clean & (calls.output >= 2)
    contexts = calls.input[clean], (calls.input + calls.output)[clean]
    return StepModel(
        batches=batches,
        base_s=tuple(bases.tolist()),
        slope_s_per_token=(cost.slope,) * len(batches),
        prefill_s_per_token=cost.token,
        prefill_s_per_token_context=cost.attended,
        front_s=front,
        provenance=Provenance.FITTED,
        source=_source(fit, calls, held_out, spread),
        held_out_error=held_out,
        valid_batch=(max(1, round(low)), max(1, round(high))),
        valid_context=(int(contexts[0].min()), int(contexts[1].max())),
    )


def _source(fit: _Fit, calls: EngineCalls, held_out: float, spread: list[Cost]) -> str:
    """One sentence a reader can judge the fit by."""
    usable = int((calls.clean & (calls.output >= 2)).sum())
    batch, steps = _batches(fit)
    mean = np.array([float(np.average(batch, weights=steps))])
    decode = [float(c.decode(mean, mean * 0)[0]) * 1e3 for c in spread]
    token = [c.token * 1e6 for c in spread]
    how = "scheduled times" if fit.setting.scheduled_known else "times to first token alone"
    ahead = ", steps scheduled one ahead" if fit.setting.ahead else ""
    split = "" if fit.setting.share == 1.0 else ", load assumed even over unnamed replicas"
    return (
        f"fitted to {usable} calls of {calls.model or 'the engine'} by {how}{ahead}{split};"
        f" held out error {held_out:.1%} given the load; base at batch {mean[0]:.0f}:"
        f" {min(decode):.2f} to {max(decode):.2f} ms, prompt token {min(token):.1f} to"
        f" {max(token):.1f} us over {len(spread)} fits with a block of time left out"
    )
