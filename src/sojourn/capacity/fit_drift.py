"""Drift of an engine: whether steps still take what a saved fit says they do."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
from pydantic import Field

from sojourn.capacity.calibration import fit_calls, setting_of
from sojourn.capacity.calibration_reading import Reading, best
from sojourn.capacity.engine_calls import extract, windows
from sojourn.capacity.equations import Replica
from sojourn.capacity.records import Fleet, StepModel
from sojourn.capacity.step_turning import table
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.records import Record
from sojourn.trace.arrays import Floats
from sojourn.trace.tables import Tables

BLOCKS: Final = 8
"""Blocks of time whose ratios are compared: calls of one time share their luck."""
SIGNIFICANCE: Final = 0.01
PRACTICAL: Final = 0.03
"""A change of steps by less than this changes no decision, however sure it is."""
CONFIDENCE: Final = 0.9
TWICE: Final = 2.0


class Drift(Record):
    """How today's steps compare with a saved fit.

    `ratio`: real over told seconds of decoding, with its 90% interval; `p_value`: of a t-test over
    blocks of time that it is 1, the blocks' own differences and the saved fit's spread allowed
    for. `beyond`: share of today's steps with batches the saved fit had not seen. `drifted`: the
    test says so, and the size is over `PRACTICAL`.
    """

    ratio: Interval
    p_value: float = Field(ge=0, le=1)
    drifted: bool
    beyond: float = Field(ge=0, le=1)
    calls: int
    blocks: int
    saved: str
    today: str

    @property
    def text(self) -> str:
        """What was found, in words."""
        by = abs(self.ratio.mid - 1)
        low, high = self.ratio.low - 1, self.ratio.high - 1
        size = (
            f"decode steps take {by:.1%} {'longer' if self.ratio.mid > 1 else 'less time'} than"
            f" the saved fit says ({low:+.1%} to {high:+.1%}; p = {self.p_value:.2g}, t-test over"
            f" {self.blocks} blocks of {self.calls} calls)"
        )
        if self.drifted:
            verdict = f"The engine has drifted: {size}. Calibrate again"
        elif self.p_value < SIGNIFICANCE:
            verdict = f"No drift that matters: {size}"
        else:
            verdict = f"No drift is seen: {size}"
        outside = (
            f". {self.beyond:.0%} of today's steps have batches that the saved fit had not seen"
            if self.beyond > 0.05
            else ""
        )
        return f"{verdict}{outside}."


def drift(tables: Tables, saved: Fleet, config: Config) -> Drift | Excuse:
    """Compare the calls of these tables with the step times of a saved fleet.

    Today's calls are placed as a fit of today places them (which steps each ran in, with which
    batch, contexts and prompts); the saved model prices those steps; real over told seconds of
    decoding is compared block by block of time.
    Wrong when: today's calls are not all the engine served (and no gauges show the rest).
    """
    today = fit_calls(tables, config)
    calls = extract(tables.calls)
    if isinstance(today, Excuse) or calls is None:
        reason = today.reason if isinstance(today, Excuse) else "no model call has an end"
        collect = today.collect if isinstance(today, Excuse) else ()
        return Excuse(reason=f"Today's calls tell no step times: {reason}", collect=collect)
    calls = windows(calls)
    reading = best(calls, setting_of(calls, tables, config)[0])
    if reading is None:
        return Excuse(reason="Today's calls do not overlap in any usable way", collect=())
    step = saved.engine.step
    real, told, arrival = _decodes(reading, step)
    if len(real) < BLOCKS * 4:
        return Excuse(
            reason=f"Only {len(real)} calls with known decode times; {BLOCKS * 4} are needed",
            collect=("a few minutes of load",),
        )
    batch, steps = reading.batches()
    low, high = step.valid_batch
    outside = (batch < low - 1) | (batch > high + 1) if high else np.zeros(len(batch), dtype=bool)
    return _tested(
        (real, told, arrival),
        spread=_spread_at(step, float(np.average(batch, weights=steps))),
        beyond=float(steps[outside].sum() / steps.sum()),
        sources=(step.source, today.source),
    )


def _tested(
    calls: tuple[Floats, Floats, Floats],
    *,
    spread: float,
    beyond: float,
    sources: tuple[str, str],
) -> Drift:
    """t-test of log(real / told) over blocks of time; `spread`: standard deviation of the saved
    model's own error at these batches."""
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415  (scipy.stats takes half a second)

    real, told, arrival = calls
    real = np.clip(real, told / TWICE, told * TWICE)
    order = np.argsort(arrival, kind="stable")
    blocks = np.array_split(order, BLOCKS)
    logs = np.log([real[b].sum() / told[b].sum() for b in blocks])
    mean = float(np.log(real.sum() / told.sum()))
    error = float(np.hypot(logs.std(ddof=1) / np.sqrt(len(blocks)), spread))
    free = len(blocks) - 1
    p_value = float(2 * stdtr(free, -abs(mean) / max(error, 1e-9)))
    reach = float(stdtrit(free, 0.5 + CONFIDENCE / 2)) * error
    size = float(np.exp(mean))
    return Drift(
        ratio=Interval(
            low=float(np.exp(mean - reach)),
            mid=size,
            high=float(np.exp(mean + reach)),
            confidence=CONFIDENCE,
        ),
        p_value=min(p_value, 1.0),
        drifted=p_value < SIGNIFICANCE and abs(size - 1) > PRACTICAL,
        beyond=beyond,
        calls=len(real),
        blocks=len(blocks),
        saved=sources[0],
        today=sources[1],
    )


def _decodes(reading: Reading, step: StepModel) -> tuple[Floats, Floats, Floats]:
    """Real and told decode seconds, and arrival, of every undisturbed call."""
    parts = [_of_replica(replica, step) for replica in reading.replicas.values()]
    real, told, arrival = (np.concatenate([part[k] for part in parts]) for k in range(3))
    known = (told > 0) & (real > 0)
    return real[known], told[known], arrival[known]


def _of_replica(replica: Replica, step: StepModel) -> tuple[Floats, Floats, Floats]:
    calls, state = replica.calls, replica.state
    rows = calls.clean & (calls.output >= 2) & (calls.end > calls.first)
    first, end, wanted = calls.first[rows], calls.end[rows], calls.output[rows] - 1
    base = step.host_s + table(step.batches, step.base_s, state.batch)
    slope = table(step.batches, step.slope_s_per_token, state.batch)
    each = state.tokens / np.maximum(state.filling, 1e-12)
    prompts = np.where(state.filling > 0, state.filling * step.prefill_steps_s(each), 0.0)
    seconds = (
        base * state.steps
        + slope * state.context_steps
        + prompts
        + step.prefill_s_per_token_context * state.attended
    )
    running = np.concatenate([[0.0], np.cumsum(seconds)])
    told = np.interp(end, state.times, running) - np.interp(first, state.times, running)
    counted = state.step_clock(end) - state.step_clock(first)
    return end - first, told * wanted / np.maximum(counted, 1e-9), calls.arrival[rows]


def _spread_at(step: StepModel, batch: float) -> float:
    """Standard deviation of the logarithm of the saved model's error at a batch; 0 if unknown."""
    if step.spread is None:
        return 0.0
    logs = np.log(np.array(step.spread.decode))
    width = float(np.interp(batch, step.batches, (logs[:, 1] - logs[:, 0]) / 2))
    return width / NormalDist().inv_cdf(0.5 + step.spread.confidence / 2)
