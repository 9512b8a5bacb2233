"""Step times fitted from the calls a team already records: no benchmark run is needed."""

from __future__ import annotations

import numpy as np

from sojourn.capacity.calibration_front import Front, front
from sojourn.capacity.calibration_reading import FEWEST_CALLS, HeldOut, Reading, best, held_out
from sojourn.capacity.engine_calls import EngineCalls, extract, windows
from sojourn.capacity.equations import Setting
from sojourn.capacity.flags import flag
from sojourn.capacity.records import StepModel
from sojourn.config import Config
from sojourn.interval import Excuse, Provenance
from sojourn.trace.tables import Tables

WORSE_THAN_ROOFLINE = 0.4
"""Held-out error at which a roofline is no worse (37.6% E2E in a published comparison)."""
LEAST_SPREAD = 1.1
"""Batch or prompt length must vary by this much (95th over 5th percentile of calls), or the
coefficients cannot be told apart: only the one state that was seen would be known."""
RECORD_TIMES = "first-token and end time of each model call (engine spans, or a client's TTFT)"
RECORD_MORE = "calls over at least a few minutes at two different loads"


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
    found = best(calls, _setting(calls, tables, config))
    if found is None:
        return Excuse(
            reason="The calls' times do not overlap in any usable way", collect=(RECORD_TIMES,)
        )
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
    return _step_model(found, calls, errors, front(found, slots=slots))


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


def _setting(calls: EngineCalls, tables: Tables, config: Config) -> Setting:
    """How the engine is read at first: what the calls and the flags say of it."""
    known = float(np.isfinite(calls.scheduled[calls.clean]).mean()) >= 0.5
    replicas = config.deployment.replicas
    share = 1.0 if calls.replicas_named or replicas == 1 else 1.0 / replicas
    budget = flag("max_num_batched_tokens", tables, config)[0]
    return Setting(budget, 0, known, share)


def _varied(fit: Reading, calls: EngineCalls) -> bool:
    """Whether batch or prompt length differ between calls."""
    decode = fit.equations.rows[~fit.equations.prefill]
    batch = decode[:, 1 : 1 + len(fit.cost.knots)].sum(axis=1) / np.maximum(decode[:, 0], 1.0)
    for values in (batch, calls.computed[calls.clean]):
        low, high = np.quantile(values, [0.05, 0.95])
        if high > LEAST_SPREAD * low:
            return True
    return False


def _step_model(fit: Reading, calls: EngineCalls, errors: HeldOut, host: Front) -> StepModel:
    cost = fit.cost
    batch, steps = fit.batches()
    order = np.argsort(batch)
    share = np.cumsum(steps[order]) / steps.sum()
    low, high = (float(batch[order][np.searchsorted(share, q)]) for q in (0.01, 0.99))
    top = max(1, round(float(batch.max())))
    batches = tuple(sorted({0, *(round(k) for k in cost.knots if k < top), top}))
    bases = cost.decode(np.asarray(batches, dtype=float), np.zeros(len(batches)))
    clean = calls.clean & (calls.output >= 2)
    contexts = calls.input[clean], (calls.input + calls.output)[clean]
    table = cost.mixed > 0
    return StepModel(
        batches=batches,
        base_s=tuple(bases.tolist()),
        slope_s_per_token=(cost.slope,) * len(batches),
        prefill_s_per_token=cost.token,
        prefill_s_per_token_context=cost.attended,
        prefill_tokens=(0, 1, 2) if table else (),  # the last slope goes on: level from 1
        prefill_base_s=(0.0, cost.mixed, cost.mixed) if table else (),
        front_s=host.mean_s,
        front_samples_s=host.samples_s,
        front_load=host.load,
        provenance=Provenance.FITTED,
        source=_source(fit, calls, errors),
        held_out_error=errors.call,
        valid_batch=(max(1, round(low)), max(1, round(high))),
        valid_context=(int(contexts[0].min()), int(contexts[1].max())),
    )


def _source(fit: Reading, calls: EngineCalls, errors: HeldOut) -> str:
    """One sentence a reader can judge the fit by."""
    usable = int((calls.clean & (calls.output >= 2)).sum())
    batch, steps = fit.batches()
    mean = np.array([float(np.average(batch, weights=steps))])
    decode = [float(c.decode(mean, mean * 0)[0]) * 1e3 for c in errors.costs]
    token = [c.token * 1e6 for c in errors.costs]
    how = "scheduled times" if fit.setting.scheduled_known else "times to first token alone"
    ahead = ", steps scheduled one ahead" if fit.setting.ahead else ""
    split = "" if fit.setting.share == 1.0 else ", load assumed even over unnamed replicas"
    return (
        f"fitted to {usable} calls of {calls.model or 'the engine'} by {how}{ahead}{split};"
        f" held out error {errors.call:.1%} given the load; base at batch {mean[0]:.0f}:"
        f" {min(decode):.2f} to {max(decode):.2f} ms, prompt token {min(token):.1f} to"
        f" {max(token):.1f} us over {len(errors.costs)} fits with a block of time left out"
    )
