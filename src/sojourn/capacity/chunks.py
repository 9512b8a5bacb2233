"""Which prompt tokens were computed when: the scheduler's chunks, rebuilt from what it left.

A call's scheduling and its first token fall on borders of steps. Between two such borders the
prompts in progress share the step budget first come first served, after the decodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.trace.arrays import Floats

Rows = npt.NDArray[np.intp]

OVERFULL = 0.02
"""Share of a step by which prompt tokens may seem to overfill it before another step is seen."""


@dataclass(frozen=True)
class Chunks:
    """Running totals at step borders `times` of prompt work: steps that had some, tokens, and
    context attended. `steps_of` is the number of such steps per call, NaN without a prefill."""

    times: Floats
    steps: Floats
    tokens: Floats
    attended: Floats
    steps_of: Floats


@dataclass(frozen=True)
class Prompts:
    """Prompts to place: when scheduled, when done, tokens computed and tokens before them."""

    start: Floats
    first: Floats
    computed: Floats
    before: Floats


def allocate(
    prompts: Prompts,
    batch_at: Callable[[Floats], Floats],
    step_s: Callable[[Floats, Floats], Floats] | None,
    *,
    budget: int,
    tolerance_s: float,
) -> Chunks:
    """Chunks of every prompt with a finite start; `step_s(batch, tokens)` tells long gaps in
    which no prompt finished apart from single steps, where a fit is known already.

    Wrong when: the scheduler is not first come first served, or caps long prompts.
    """
    rows = np.flatnonzero(np.isfinite(prompts.start))
    rows = rows[np.argsort(prompts.start[rows], kind="stable")]
    borders, begin, finish = _borders(prompts, rows, tolerance_s)
    batch = batch_at((borders[1:] + borders[:-1]) / 2)
    room = np.maximum(budget - batch, 1.0)
    expected = np.diff(borders) if step_s is None else step_s(batch, room)
    steps, tokens, attended = _fill(
        prompts, rows, (begin, finish), room, np.diff(borders) / np.maximum(expected, 1e-9)
    )
    running = [np.concatenate([[0.0], np.cumsum(part)]) for part in (steps, tokens, attended)]
    steps_of = np.full(len(prompts.start), np.nan)
    steps_of[rows] = running[0][finish] - running[0][begin]
    return Chunks(borders, running[0], running[1], running[2], steps_of)


def _borders(prompts: Prompts, rows: Rows, tolerance_s: float) -> tuple[Floats, Rows, Rows]:
    """Distinct step borders (moments closer than the tolerance are one), and each prompt's."""
    moments = np.concatenate([prompts.start[rows], prompts.first[rows]])
    order = np.argsort(moments, kind="stable")
    ordered = moments[order]
    new = np.diff(ordered, prepend=-np.inf) > tolerance_s
    label = np.empty(len(moments), dtype=np.intp)
    label[order] = np.cumsum(new) - 1
    borders = ordered[new]
    begin, finish = label[: len(rows)], label[len(rows) :]
    finish = np.minimum(np.maximum(finish, begin + 1), max(len(borders) - 1, 0))
    return borders, np.minimum(begin, finish), finish


def _fill(
    prompts: Prompts, rows: Rows, placed: tuple[Rows, Rows], room: Floats, long: Floats
) -> tuple[Floats, Floats, Floats]:
    """Per gap: steps with prompt work, tokens, context attended. One pass over the gaps."""
    begin, finish = placed
    gaps = len(room)
    steps, tokens, attended = (np.zeros(gaps) for _ in range(3))
    arriving = np.searchsorted(begin, np.arange(gaps + 1))
    left = prompts.computed[rows].tolist()
    done = prompts.before[rows].tolist()
    ends = finish.tolist()
    rooms, lengths = room.tolist(), long.tolist()
    active: list[int] = []
    for gap in range(gaps):
        active += range(arriving[gap], arriving[gap + 1])
        if not active:
            continue
        due = sum(left[i] for i in active if ends[i] <= gap + 1)
        count = max(1, math.ceil(due / rooms[gap] - OVERFULL) if due else round(lengths[gap]))
        supply = max(count * rooms[gap] - due, 0.0)
        seen = work = 0.0
        for i in active:
            take = left[i]
            if ends[i] > gap + 1:
                take = min(max(left[i] - 1.0, 0.0), supply)
                supply -= take
            seen += take
            work += take * (done[i] + take / 2)
            left[i] -= take
            done[i] += take
        steps[gap], tokens[gap], attended[gap] = count, seen, work
        active = [i for i in active if ends[i] > gap + 1]
    return steps, tokens, attended
