"""Step times fitted from an engine's own log of its steps: what each computed and how long it took.

`sojourn.capacity.calibration` needs no such log, only the calls' times; where an engine tells its
steps, they say more, and at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

import numpy as np

from sojourn.capacity.records import StepModel
from sojourn.capacity.regression import relative_nnls
from sojourn.interval import Excuse, Provenance
from sojourn.trace.arrays import Bools, Floats

FEWEST_STEPS: Final = 200
BLOCKS: Final = 5
"""Blocks of time left out in turn."""
FORM_PAYS: Final = 0.98
"""A table with one more border must lower the error on steps left out by a fiftieth."""
STEPS_OF_SEGMENT: Final = 100
"""Steps on each side of a border, at least."""
BORDERS: Final = tuple(2.0**k for k in range(1, 15))
FARTHEST: Final = 1.0
"""Relative errors beyond this count as it when forms are compared: a stall is no form's fault."""


@dataclass(frozen=True)
class StepLog:
    """Steps that computed something, in the order of time; arrays of one length.

    `period_s`: from the step's begin to when the next one could begin (host work between them
    included). `decodes`: sequences that computed one token; `context`: the sum of their lengths,
    the new token included. `prompt`: prompt tokens computed; `attended`: the sum over them of the
    tokens each attends to.
    """

    period_s: Floats
    decodes: Floats
    context: Floats
    prompt: Floats
    attended: Floats

    def __len__(self) -> int:
        return len(self.period_s)

    def take(self, chosen: Bools) -> StepLog:
        """The steps chosen."""
        return StepLog(*(getattr(self, f.name)[chosen] for f in fields(self)))


@dataclass(frozen=True)
class _Form:
    """Inner borders of the two tables."""

    batches: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()

    def rows(self, log: StepLog) -> Floats:
        """One equation per step; the coefficients are all >= 0."""
        return np.column_stack(
            [
                np.ones(len(log)),
                *_ramps(log.decodes, self.batches),
                log.context,
                log.prompt > 0,
                *_ramps(log.prompt, self.tokens),
                log.attended,
            ]
        )


def fit(log: StepLog) -> StepModel | Excuse:
    """The step model of a log, or why none can be had.

    Equation of a step: base(B) + slope x context + prompt(n) + c x attended, base and prompt
    rising and linear between borders, with a jump of prompt at the first token (a step that
    carries a prompt does more than one that does not). Solved by `relative_nnls`, which keeps the
    mean, not the median: queues feel the mean. Borders (doublings) are added one by one where
    steps of a block of time left out are told better by `FORM_PAYS`.
    `held_out_error` is the median absolute relative error over steps left out.
    Source: linear step cost as in `StepModel`.
    Wrong when: the log's periods hold idle time, or the machine's speed drifted (`source` tells
    the spread of the fits' totals on the blocks they had not seen).
    """
    if len(log) < FEWEST_STEPS:
        return Excuse(
            reason=f"Only {len(log)} steps; a fit needs {FEWEST_STEPS}",
            collect=("a step log over at least a minute of load",),
        )
    if not (log.prompt > 0).any() or not (log.decodes > 0).any():
        return Excuse(
            reason="The steps hold no prompts, or nothing but prompts",
            collect=("a step log of requests that write more than one token",),
        )
    form = _chosen(log)
    found = relative_nnls(form.rows(log), log.period_s)
    return _model(log, form, found)


def _chosen(log: StepLog) -> _Form:
    form = _Form()
    error = _held_out(log, form)[0]
    for name, values in (("batches", log.decodes), ("tokens", log.prompt)):
        for border in _borders(values):
            borders = (*getattr(form, name), border)
            richer = _Form(**{**form.__dict__, name: borders})
            other = _held_out(log, richer)[0]
            if other < FORM_PAYS * error:
                form, error = richer, other
    return form


def _borders(values: Floats) -> list[float]:
    some = values[values > 0]
    return [
        border
        for border in BORDERS
        if min((some <= border).sum(), (some > border).sum()) >= STEPS_OF_SEGMENT
    ]


def _ramps(values: Floats, borders: tuple[float, ...]) -> list[Floats]:
    """How far each value reaches into each segment: with coefficients >= 0 a rising curve."""
    edges = (0.0, *borders, np.inf)
    return [np.clip(values - low, 0.0, high - low) for low, high in pairwise(edges)]


def _held_out(log: StepLog, form: _Form) -> tuple[float, float, list[float]]:
    """Root mean square and median of the relative error on steps left out; told over real total
    of each block."""
    rows, block = form.rows(log), np.arange(len(log)) * BLOCKS // len(log)
    told = np.empty(len(log))
    totals = []
    for number in range(BLOCKS):
        out = block == number
        told[out] = rows[out] @ relative_nnls(rows[~out], log.period_s[~out])
        totals.append(float(told[out].sum() / log.period_s[out].sum()))
    off = np.abs(log.period_s - told) / told
    return float(np.sqrt((np.minimum(off, FARTHEST) ** 2).mean())), float(np.median(off)), totals


def _model(log: StepLog, form: _Form, found: Floats) -> StepModel:
    rises, slope = found[1 : 2 + len(form.batches)], float(found[2 + len(form.batches)])
    mixed, *tokens, attended = found[3 + len(form.batches) :]
    batches = (
        0.0,
        *form.batches,
        max(form.batches[-1] + 1 if form.batches else 1.0, log.decodes.max()),
    )
    places = (1.0, *form.tokens, max(form.tokens[-1] + 1 if form.tokens else 2.0, log.prompt.max()))
    base = float(found[0]) + _curve(batches, rises)
    prompt = float(mixed) + _curve((0.0, *places[1:]), np.array(tokens))
    prompt[0] += tokens[0]
    _, error, totals = _held_out(log, form)
    seen = log.decodes[log.decodes > 0]
    lengths = (log.context / np.maximum(log.decodes, 1))[log.decodes > 0]
    return StepModel(
        batches=tuple(int(b) for b in batches),
        base_s=tuple(base.tolist()),
        slope_s_per_token=(slope,) * len(batches),
        prefill_s_per_token=0.0,
        prefill_s_per_token_context=float(attended),
        prefill_tokens=(0, *(int(p) for p in places)),
        prefill_base_s=(0.0, *prompt.tolist()),
        provenance=Provenance.FITTED,
        source=(
            f"fitted to {len(log)} steps of the engine's log; told over real on blocks of time"
            f" left out: {min(totals):.3f} to {max(totals):.3f}"
        ),
        held_out_error=error,
        valid_batch=(int(seen.min()), int(seen.max())),
        valid_context=(int(lengths.min()), int(lengths.max())),
    )


def _curve(places: tuple[float, ...], rises: Floats) -> Floats:
    """The rising curve at its borders, from 0."""
    return np.concatenate([[0.0], np.cumsum(np.diff(places) * rises)])
