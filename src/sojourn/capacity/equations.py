"""From calls to equations: where each call ran, and what its durations say about step costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sojourn.capacity.engine_calls import EngineCalls, delay_at
from sojourn.capacity.sweep import Cost, Occupancy, State, sweep
from sojourn.trace.arrays import Bools, Floats

LOWER_ENVELOPE = 0.1
"""Quantile of a first guess at prefill seconds per token: calls that did not wait."""
TOGETHER = 0.2
"""First tokens closer than this share of a step left the same step."""


@dataclass(frozen=True)
class Setting:
    """How the engine is read: token budget, steps it schedules ahead (0 or 1), whether calls
    say when they were scheduled, and the share of the calls one replica holds."""

    budget: int
    ahead: int
    scheduled_known: bool
    share: float = 1.0


@dataclass(frozen=True)
class Equations:
    """`rows @ coefficients ~ duration`. The last column is the front end's constant.

    `call` is the row's call, `prefill` tells prefill rows from decode rows.
    """

    rows: Floats
    duration: Floats
    scale: Floats
    call: npt.NDArray[np.intp]
    prefill: Bools
    envelope: Bools

    def take(self, chosen: Bools) -> Equations:
        """The equations of these rows."""
        return Equations(
            self.rows[chosen],
            self.duration[chosen],
            self.scale[chosen],
            self.call[chosen],
            self.prefill[chosen],
            self.envelope[chosen],
        )


@dataclass(frozen=True)
class Replica:
    """One replica rebuilt: its calls, their row numbers, where they ran, and the state."""

    calls: EngineCalls
    index: npt.NDArray[np.intp]
    occupancy: Occupancy
    state: State
    chunks: Floats
    lead: Floats


def rebuild(
    calls: EngineCalls, setting: Setting, cost: Cost | None, before: dict[int, Replica]
) -> dict[int, Replica]:
    """Every replica, with the knowledge of the last round (`cost`, `before`)."""
    codes = calls.replica if setting.share == 1.0 else np.zeros_like(calls.replica)
    found = {}
    for code in np.unique(codes).tolist():
        index = np.flatnonzero(codes == code)
        mine = calls.take(index)
        last = before.get(code)
        occupancy, lead = _place(mine, setting, cost, last)
        state, chunks = sweep(occupancy, cost, budget=setting.budget)
        found[code] = Replica(mine, index, occupancy, state, chunks, lead)
    return found


def _place(
    calls: EngineCalls, setting: Setting, cost: Cost | None, last: Replica | None
) -> tuple[Occupancy, Floats]:
    """Where each call computed its prompt and decoded, and whether a step scheduled before its
    own ran first."""
    scheduled = calls.arrival
    if setting.scheduled_known:
        guess = calls.arrival + delay_at(calls, calls.arrival, calls.replica)
        scheduled = np.where(np.isfinite(calls.scheduled), calls.scheduled, guess)
    own = _own_prefill(calls, scheduled, setting, cost, last)
    first = np.where(np.isfinite(calls.first), calls.first, scheduled + own)
    cut = ~(first < calls.end)
    first = np.where(cut, calls.end, first)
    start, lead = scheduled, np.zeros(len(calls))
    if not setting.scheduled_known:
        start = np.maximum(scheduled, first - own)
    elif setting.ahead and last is not None:
        lead = last.state.busy_before(scheduled).astype(float)
        start = np.where(lead > 0, _after_lead(scheduled, first, last), start)
    lost = cut & ~np.isfinite(calls.first)
    done = np.where(lost, np.clip((first - start) / own, 0.0, 1.0), 1.0)
    occupancy = Occupancy(
        prefill_start=np.where(start < first, start, np.nan),
        first=first,
        end=calls.end,
        input=calls.input,
        computed=calls.computed * done,
        tokens=np.where(cut, 0.0, calls.output - 1),
        share=setting.share,
    )
    return occupancy, lead


def _after_lead(scheduled: Floats, first: Floats, last: Replica) -> Floats:
    """Start of a prefill that was scheduled while another step ran: its own steps before the
    first token, moved to a step border that is seen within half a step."""
    clock = last.state.step_clock(first)
    steps = np.where(np.isfinite(last.chunks), last.chunks, 1.0)
    start = last.state.when(clock - steps)
    one = (first - start) / np.maximum(steps, 1.0)
    seen = np.sort(np.concatenate([first, scheduled]))
    index = np.clip(np.searchsorted(seen, start), 1, len(seen) - 1)
    near = np.where(start - seen[index - 1] < seen[index] - start, seen[index - 1], seen[index])
    start = np.where(np.abs(near - start) < one / 2, near, start)
    return np.where(start < first, np.maximum(start, scheduled), scheduled)


def _own_prefill(
    calls: EngineCalls, scheduled: Floats, setting: Setting, cost: Cost | None, last: Replica | None
) -> Floats:
    """Seconds the steps take in which a prompt is computed, as known so far: prompts whose
    first tokens come together were computed together."""
    if cost is None or last is None:
        took = (calls.first - scheduled) / calls.computed
        known = took[np.isfinite(took) & (took > 0)]
        each = float(np.quantile(known, LOWER_ENVELOPE)) if known.size else 1e-4
        return np.maximum(each * calls.computed, 1e-6)
    first = last.occupancy.first
    batch, context = last.state.batch_at(first), last.state.context_at(first)
    step = cost.decode(batch, context)
    computed, attended = calls.computed, calls.attended
    if not setting.scheduled_known:
        order = np.argsort(first, kind="stable")
        apart = np.diff(first[order], prepend=-np.inf) > TOGETHER * step[order]
        group = np.empty(len(first), dtype=np.intp)
        group[order] = np.cumsum(apart) - 1
        computed = np.bincount(group, computed)[group].astype(np.float64)
        attended = np.bincount(group, attended)[group].astype(np.float64)
    steps = np.ceil(computed / np.maximum(setting.budget - batch, 1.0))
    prompts = cost.token * computed + cost.attended * attended
    return np.maximum(steps * (step + cost.mixed) + prompts, 1e-6)


def write(
    replicas: dict[int, Replica], setting: Setting, cost: Cost | None, knots: tuple[float, ...]
) -> Equations:
    """All equations of all replicas, with the batch in these segments."""
    parts = []
    for replica in replicas.values():
        parts.append(_decode(replica, knots))
        parts.append(
            _prefill(replica, knots)
            if setting.scheduled_known
            else _first_token(replica, knots, cost)
        )
    return Equations(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("rows", "duration", "scale", "call", "prefill", "envelope")
        )
    )


def _exact_steps(columns: Floats, steps: Floats) -> Floats:
    """Columns that count steps, brought to the number of steps that is known."""
    ratio = steps / np.maximum(columns[:, 0], 1e-9)
    scaled = columns.copy()
    scaled[:, :-3] *= ratio[:, None]
    scaled[:, 0] = steps
    return scaled


def _with_own(columns: Floats, replica: Replica, rows: npt.NDArray[np.intp]) -> Floats:
    """Prompt columns with the whole of a call's own prompt, where replicas share the load."""
    own = 1 - replica.occupancy.share
    whole = columns.copy()
    whole[:, -2] += own * replica.calls.computed[rows]
    whole[:, -1] += own * replica.calls.attended[rows]
    return whole


def _decode(replica: Replica, knots: tuple[float, ...]) -> Equations:
    calls = replica.calls
    rows = np.flatnonzero(calls.clean & (calls.output >= 2) & (calls.end > calls.first))
    first, end, steps = calls.first[rows], calls.end[rows], calls.output[rows] - 1
    columns = _exact_steps(replica.state.columns(first, end, knots), steps)
    own = 1 - replica.occupancy.share
    columns[:, -4] += own * steps * (calls.input[rows] + (steps + 1) / 2)
    duration = end - first
    return Equations(
        np.column_stack([columns, np.zeros(len(rows))]),
        duration,
        duration + duration / steps,
        replica.index[rows],
        np.zeros(len(rows), dtype=bool),
        np.zeros(len(rows), dtype=bool),
    )


def _prefill(replica: Replica, knots: tuple[float, ...]) -> Equations:
    calls = replica.calls
    told = calls.clean & (calls.first > calls.scheduled) & np.isfinite(replica.chunks)
    rows = np.flatnonzero(told)
    start, first = calls.scheduled[rows], calls.first[rows]
    steps = replica.chunks[rows] + replica.lead[rows]
    columns = _exact_steps(replica.state.columns(start, first, knots), steps)
    columns = _with_own(columns, replica, rows)
    columns[:, -3] = replica.chunks[rows]
    duration = first - start
    return Equations(
        np.column_stack([columns, np.zeros(len(rows))]),
        duration,
        duration + duration / np.maximum(steps, 1.0),
        replica.index[rows],
        np.ones(len(rows), dtype=bool),
        np.zeros(len(rows), dtype=bool),
    )


def _found_room(replica: Replica) -> Bools:
    """Whether all that came before a call had begun their prefill when it arrived."""
    return nobody_waiting(replica.calls.arrival, replica.occupancy.prefill_start)


def nobody_waiting(arrival: Floats, begun: Floats) -> Bools:
    """Whether each call's predecessors had all begun when it arrived (sorted by arrival)."""
    latest = np.maximum.accumulate(np.where(np.isfinite(begun), begun, -np.inf))
    return np.concatenate([[True], latest[:-1] <= arrival[1:]])


def _first_token(replica: Replica, knots: tuple[float, ...], cost: Cost | None) -> Equations:
    """Time to first token where nothing says when the call was scheduled: front end, the rest
    of the step that was running, its own steps; longer ones also waited (`envelope`)."""
    calls, state = replica.calls, replica.state
    told = calls.clean & (calls.first > calls.arrival) & np.isfinite(replica.chunks)
    rows = np.flatnonzero(told & _found_room(replica))
    start, first = replica.occupancy.prefill_start[rows], calls.first[rows]
    columns = _exact_steps(state.columns(start, first, knots), replica.chunks[rows])
    columns = _with_own(columns, replica, rows)
    columns[:, -3] = replica.chunks[rows]
    duration = first - calls.arrival[rows]
    if cost is not None:
        rest = state.step_at(calls.arrival[rows]) / 2
        duration = np.maximum(duration - np.minimum(rest, duration / 2), 1e-6)
    return Equations(
        np.column_stack([columns, np.ones(len(rows))]),
        duration,
        duration + float(np.median(duration)) if len(rows) else duration,
        replica.index[rows],
        np.ones(len(rows), dtype=bool),
        np.ones(len(rows), dtype=bool),
    )
