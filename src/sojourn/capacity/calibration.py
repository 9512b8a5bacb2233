"""Step times fitted from what a team already records: no benchmark run is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.capacity.calibration_front import front
from sojourn.capacity.calibration_reading import FEWEST_CALLS, Reading, best, held_out
from sojourn.capacity.calibration_telling import Claims, step_model, typical_context
from sojourn.capacity.engine_calls import EngineCalls, extract, left_out, windows
from sojourn.capacity.equations import Setting
from sojourn.capacity.extrapolation import extended
from sojourn.capacity.flags import flag
from sojourn.capacity.gauges import share_by_gauges
from sojourn.capacity.records import StepModel
from sojourn.capacity.sweep_doubts import believed
from sojourn.capacity.sweep_runs import SweepRun, runs_of
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.trace.tables import Tables

WORSE_THAN_ROOFLINE = 0.4
"""Held-out error at which a roofline is no worse (37.6% E2E in a published comparison)."""
LEAST_SPREAD = 1.1
"""Batch or prompt length must vary by this much (95th over 5th percentile of calls), or the
coefficients cannot be told apart: only the one state that was seen would be known."""
RECORD_TIMES = "first-token and end time of each model call (engine spans, or a client's TTFT)"
RECORD_MORE = "calls over at least a few minutes at two different loads"

RERUN = "the benchmark's own result files, with times and rates in the units it writes"
FitSweep = Callable[[Sequence[SweepRun], StepModel | None], StepModel | Excuse]
"""Step times from benchmark summaries, as `sojourn.sim.sweep_matching.fit_sweep`: it simulates, so
it is handed in by who may (this room comes before the simulator)."""


def fit(
    tables: Tables,
    config: Config,
    *,
    hardware: StepModel | None = None,
    fit_sweep: FitSweep | None = None,
) -> StepModel | Excuse:
    """Step model of the engine behind most calls, by the best evidence there is, or why none can
    be had; `source` says which it was.

    Best first: calls with engine spans (scheduled times), calls with times to first token (with
    engine gauges, the load that the calls do not show is seen too), summaries of benchmark runs
    (`fit_sweep`; `hardware` is where that fit starts). Beyond the batches seen the table goes on
    in the shape of `hardware`, where given (`extrapolation.extended`).
    """
    found = fit_calls(tables, config)
    if isinstance(found, StepModel):
        calls = extract(tables.calls)
        context = 0.0 if calls is None else typical_context(calls)
        slots = flag("max_num_seqs", tables, config)[0]
        return extended(found, hardware, context=context, upto=slots)
    if fit_sweep is None:
        return found
    runs, doubts = believed(runs_of(tables, config))
    said = (
        f"{len(doubts)} benchmark runs contradict themselves and are left out ({doubts[0]})"
        if (doubts)
        else ""
    )
    if not runs:
        return found if not doubts else Excuse(reason=f"{found.reason}; {said}", collect=(RERUN,))
    by_runs = fit_sweep(runs, hardware)
    if isinstance(by_runs, StepModel):
        told = f"{by_runs.source}; {said}" if said else by_runs.source
        return by_runs.model_copy(update={"source": told})
    return Excuse(
        reason=f"{found.reason}; of the benchmark summaries: {by_runs.reason}",
        collect=(*found.collect, *by_runs.collect),
    )


def fit_calls(tables: Tables, config: Config) -> StepModel | Excuse:
    """Step model from calls.

    Equations: decode seconds of a call = sum over its output - 1 steps of the step's cost, with
    the batch, contexts and prompt tokens the other calls put into those steps; prefill seconds =
    the same over the steps its prompt took. Solved by robust non-negative least squares on
    relative residuals; where calls do not say when they were scheduled, times to first token
    serve as a lower envelope instead.
    Source: token conservation (`sojourn.capacity.sweep`), linear step cost (ITL = intercept +
    slope x context, vLLM blog 2026-04-22; ITL = alpha + beta B, workload-variant-autoscaler).
    Wrong when: speculative decoding, an engine shared with calls that are not in the tables (and
    no gauges to show them), or the machine's speed drifted during the recording (then the spread
    says so).
    """
    calls = extract(tables.calls)
    if calls is not None:
        calls = windows(calls)
    refusal = _too_thin(calls)
    if calls is None or refusal is not None:
        return refusal or Excuse(reason="No model call has an end", collect=(RECORD_TIMES,))
    setting, shared = setting_of(calls, tables, config)
    found = best(calls, setting)
    if found is None:
        return Excuse(
            reason="The calls' times do not overlap in any usable way", collect=(RECORD_TIMES,)
        )
    refusal = _says_nothing(found, calls)
    if refusal is not None:
        return refusal
    errors = held_out(found)
    if errors.call > WORSE_THAN_ROOFLINE:
        return Excuse(
            reason=(
                f"The calls' times do not follow from the load on the engine: a fit misses calls"
                f" it has not seen by {errors.call:.0%}"
            ),
            collect=(
                "scheduled time of each call (engine spans)",
                "every call the engine serves, from every client",
                "the replica of each call",
            ),
        )
    slots = flag("max_num_seqs", tables, config)[0]
    counted = left_out(tables.calls)
    return step_model(
        Claims(found, calls, errors, front(found, slots=slots), slots, counted, shared)
    )


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


def _says_nothing(found: Reading, calls: EngineCalls) -> Excuse | None:
    """Why a reading tells no costs apart, if it does not."""
    if not _varied(found, calls):
        return Excuse(
            reason="All calls met the same batch with prompts of one length",
            collect=(RECORD_MORE, "prompts of different lengths"),
        )
    if found.cost.token == 0 and found.cost.attended == 0 and found.cost.mixed == 0:
        return Excuse(
            reason="Prompt tokens leave no trace in the calls' times (all cached, or too short)",
            collect=("calls with prompts of different lengths", "cached_tokens of each call"),
        )
    return None


def setting_of(calls: EngineCalls, tables: Tables, config: Config) -> tuple[Setting, str]:
    """How the engine is read at first: what calls, gauges and flags say of it; and how the share
    of the calls that a replica holds was found."""
    known = float(np.isfinite(calls.scheduled[calls.clean]).mean()) >= 0.5
    replicas = config.deployment.replicas
    share, how = 1.0, ""
    if not calls.replicas_named and replicas != 1:
        share, how = 1.0 / replicas, "load assumed even over unnamed replicas"
    seen = share_by_gauges(calls, tables)
    if seen is not None:
        share, how = seen
    budget = flag("max_num_batched_tokens", tables, config)[0]
    return Setting(budget, 0, known, share), how


def _varied(fit: Reading, calls: EngineCalls) -> bool:
    """Whether batch or prompt length differ between calls."""
    decode = fit.equations.rows[~fit.equations.prefill]
    batch = decode[:, 1 : 1 + len(fit.cost.knots)].sum(axis=1) / np.maximum(decode[:, 0], 1.0)
    for values in (batch, calls.computed[calls.clean]):
        low, high = np.quantile(values, [0.05, 0.95])
        if high > LEAST_SPREAD * low:
            return True
    return False
