"""Closed forms that stand for the simulator while constants are fitted: a mean step for a row.

A closed loop's own queueing is a factor on top (`factors`), found by running the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from roofline_loop import Steps, closed_loop
from roofline_rows import Measured

from sojourn.capacity import catalogue
from sojourn.capacity import roofline_attention as attention
from sojourn.capacity.roofline import base_s, front_s, prompt_s
from sojourn.capacity.roofline_constants import Constants
from sojourn.capacity.roofline_setting import Setting, setting_of

Floats = npt.NDArray[np.float64]
CHUNK = 8192
"""Prompt tokens of a step, at most."""


_model, _gpu = cache(catalogue.model), cache(catalogue.gpu)


def _setting(row: Measured, constants: Constants, context: float) -> Setting:
    return setting_of(
        _model(row.model), _gpu(row.gpu), row.deployment,
        mean_context=max(context, 1.0), constants=constants,
    )  # fmt: skip


def _prompt(s: Setting, length: float) -> float:
    """What one prompt adds, cut in chunks."""
    whole, rest = divmod(int(length), CHUNK)
    looks = attention.prefill_context_s(s) * length * length / 2
    return whole * prompt_s(s, CHUNK) + (prompt_s(s, rest) if rest else 0.0) + looks


def predict(row: Measured, constants: Constants) -> float:
    """The row's time, seconds."""
    if row.kind in ("itl", "tpot"):
        s = _setting(row, constants, row.context)
        step = base_s(s, row.batch) + row.batch * row.context * attention.slope_s(s)
        if row.kind == "tpot" and row.output:
            step += max(row.batch - 1, 0.0) / row.output * _prompt(s, row.prompt)
        return step
    s = _setting(row, constants, row.prompt)
    if row.kind == "ttft":
        around = base_s(s, row.batch - 1) - base_s(s, 0) if row.batch > 1 else 0.0
        looks = (row.batch - 1) * row.context * attention.slope_s(s) if row.batch > 1 else 0.0
        own = base_s(s, 0) + _prompt(s, row.prompt) + front_s(s, row.prompt)
        return own + max(around + looks, 0.0)
    tokens = row.prompt * row.batch
    looks = attention.prefill_context_s(s) * row.batch * row.prompt * row.prompt / 2
    steps = max(round(tokens / CHUNK), 1)
    prefill = steps * (base_s(s, 0) + prompt_s(s, int(tokens / steps))) + looks
    if row.kind == "prefill":
        return prefill
    middle = row.prompt + row.output / 2
    s = _setting(row, constants, middle)
    step = base_s(s, row.batch) + row.batch * middle * attention.slope_s(s)
    return prefill + (row.output - 1) * step


def factors(rows: Sequence[Measured], constants: Constants) -> Floats:
    """log(mean of the closed loop / surrogate) of each row; 0 where no loop was run."""
    return np.array([_factor(r, constants) for r in rows])


def _factor(row: Measured, constants: Constants) -> float:
    if not row.loop:
        return 0.0
    s = _setting(row, constants, row.context)
    known: dict[int, float] = {}
    prompts: dict[int, float] = {}

    def base(batch: int) -> float:
        if batch not in known:
            known[batch] = base_s(s, batch)
        return known[batch]

    def prompt(tokens: int) -> float:
        at = max(round(tokens / 64) * 64, 16)
        if at not in prompts:
            prompts[at] = prompt_s(s, at)
        return prompts[at]

    steps = Steps(base, attention.slope_s(s), prompt, attention.prefill_context_s(s),
                  mixed="sglang" not in row.deployment.engine)  # fmt: skip
    ttft, tpot = closed_loop(
        steps, clients=int(row.batch), prompt=row.prompt, output=row.output, even=row.even
    )
    told = tpot if row.kind == "tpot" else ttft + front_s(s, row.prompt)
    return float(np.log(told / predict(row, constants)))


def ratios(rows: Sequence[Measured], constants: Constants, more: Floats) -> Floats:
    """log(told / measured), `more` the rows' `factors`."""
    return more + np.log(np.array([predict(r, constants) / r.seconds for r in rows]))


def without_front(rows: Sequence[Measured], told: Floats, constants: Constants) -> list[float]:
    """log(real / told) of what the engine does: TTFT without its front end."""
    out = []
    for r, ratio in zip(rows, told.tolist(), strict=True):
        front = front_s(_setting(r, constants, r.prompt), r.prompt) if r.kind == "ttft" else 0.0
        engine = r.seconds * float(np.exp(ratio)) - front
        out.append(float(np.log(max(r.seconds - front, 0.1 * engine) / engine)))
    return out
