"""Guards between the operator tables and a step model: its data has faults, each is caught here.

Every guard returns what it made of the times and a note that says what it changed; a time that no
guard can mend is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import isotonic_regression

from sojourn.capacity.memory import (
    kv_bytes_per_token,
    kv_value_bytes,
    weight_bytes,
    weight_dtype,
)
from sojourn.capacity.roofline import physical_floor_s
from sojourn.capacity.roofline_links import all_reduce_s
from sojourn.capacity.roofline_setting import Setting
from sojourn.capacity.silicon_tables import Op, Refused, is_product, is_reduce
from sojourn.config import Deployment
from sojourn.trace.arrays import Floats

SLOWEST: Final = 10.0
"""Times as long as reading all weights and the cache once, at full bandwidth, a decode step may
take, beside `LAYER_S` for every layer; measured ones stay below 3."""
LAYER_S: Final = 0.25e-3
"""What the launches and all-reduces of one layer may take, s; measured ones take a tenth of it."""
REDUCE_LIMIT: Final = 1.5
"""Times our own link model an all-reduce of the tables may take before it is replaced: with NVLink
they take up to 1.2, L40S 1.8 at TP 4 and 4.9 at TP 8 (more than the same cards in two pairs)."""
SUSTAINED: Final = 1.12
COMPUTE_TOKENS: Final = 512
"""Tokens of a step from which products wait for FLOPs alone."""
MENDED_LIMIT: Final = 0.15
"""Median change by the isotonic clean-up above which the tables are refused."""


def sustained(tokens: int) -> float:
    """How much longer matrix products of a step with `tokens` tokens take under the power limit.

    Tables are measured in bursts; a card that computes all the time lowers its clocks. Small steps
    wait for memory, whose clock stays. Source: prompt rates on H100 and H200 against the tables
    (`benchmarks/silicon_check.py`). Wrong when: the card has no power limit in its way.
    """
    return 1 + (SUSTAINED - 1) * min(1.0, tokens / COMPUTE_TOKENS)


class Reduces:
    """Replaces all-reduces that no link of the card explains, and remembers that it did."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.replaced = 0
        self.worst = 0.0

    def total_s(self, ops: Sequence[Op], tokens: int) -> float:
        """The step with `tokens` tokens, s, implausible all-reduces by our link model."""
        one = all_reduce_s(self._setting, tokens)
        clocks = sustained(tokens)
        total = 0.0
        for op in ops:
            if not is_reduce(op.name) or self._setting.tp == 1:
                total += op.s * (clocks if is_product(op.name) else 1.0)
                continue
            ours = one * (1 if "embedding" in op.name else self._setting.model.layers)
            self.worst = max(self.worst, op.s / ours)
            if op.s > REDUCE_LIMIT * ours:
                self.replaced += 1
                total += ours
            else:
                total += op.s
        return total

    def note(self) -> str:
        """What was replaced, or nothing."""
        if not self.replaced:
            return ""
        return (
            f"all-reduce of {self._setting.tp} x {self._setting.gpu.name} by our link model where"
            f" the tables' take up to {self.worst:.1f} times as long"
        )


def monotone(times: Floats) -> tuple[Floats, float]:
    """Times that never fall along either axis (batch, context), nearest to those given in the mean
    square of their logarithms, and the median relative change.

    Each pass is a pool-adjacent-violators fit along one axis (`scipy.optimize`); a running maximum
    ends what a few passes leave.

    Raises:
        Refused: more than `MENDED_LIMIT` would change.
    """
    logs = np.log(times)
    for _ in range(4):
        logs = np.apply_along_axis(lambda row: isotonic_regression(row).x, 0, logs)
        logs = np.apply_along_axis(lambda row: isotonic_regression(row).x, 1, logs)
    logs = np.maximum.accumulate(np.maximum.accumulate(logs, axis=0), axis=1)
    mended = np.exp(logs)
    change = float(np.median(np.abs(mended / times - 1)))
    if change > MENDED_LIMIT:
        raise Refused(
            f"the tables' times fall with batch or context: mending them changes {change:.0%}"
        )
    return np.asarray(mended, dtype=np.float64), change


def bounds_s(
    setting: Setting, deployment: Deployment, *, batch: int, context: int
) -> tuple[float, float]:
    """Shortest and longest a decode step of one data-parallel rank can be believed to take, s.

    Shortest: `roofline.physical_floor_s`. Longest: `SLOWEST` x (that + all weights + the rank's
    cache, once) + `LAYER_S` a layer + `REDUCE_LIMIT` x all-reduces by our link model. Wrong when:
    as `physical_floor_s`.
    """
    model, gpu, tp = setting.model, setting.gpu, setting.tp
    floor = physical_floor_s(model, gpu, deployment, batch=batch, context_sum=batch * context)
    weights = weight_bytes(model, weight_dtype(model, deployment)) / tp
    cache = batch * context * kv_bytes_per_token(model, kv_value_bytes(deployment), tp) / tp
    once = (weights + cache) / gpu.bandwidth_bytes_per_s
    layer = LAYER_S + 2 * REDUCE_LIMIT * all_reduce_s(setting, batch)
    return floor, SLOWEST * (floor + once) + layer * model.layers


def bounded(times: Floats, floors: Floats, limits: Floats) -> tuple[Floats, str]:
    """Times lifted to the physical floor where they beat it, and what was lifted.

    Raises:
        Refused: a time is over its limit, or half of the times beat their floor.
    """
    slow = float((times / limits).max())
    if slow > 1:
        raise Refused(f"the tables' slowest step takes {slow:.1f} times the longest believed")
    low = times < floors
    if float(low.mean()) > 0.5:
        raise Refused(
            f"{low.mean():.0%} of the tables' steps are shorter than the card can read its memory"
        )
    lifted = np.maximum(times, floors)
    note = ""
    if low.any():
        note = f"{low.mean():.0%} of the grid lifted to the physical floor (by up to"
        note += f" {float((lifted / times).max()) - 1:.0%})"
    return lifted, note
