"""The main loop: of all that is pending, what comes first happens next."""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np
from numba import typeof

from sojourn.errors import SojournError, UsageError
from sojourn.progress import Progress, silent
from sojourn.sim.kernel import chain, control, engine, steps
from sojourn.sim.kernel.arrays import ended, events, requests, turns
from sojourn.sim.kernel.compiled import KEPT, Array, Number, World, compiled, entrance
from sojourn.sim.kernel.events import drop_first, kind_of, number_of
from sojourn.sim.kernel.packing import GROWING, Run, pack
from sojourn.sim.kernel.state import ARRIVE, CONTROL, NIL, SAMPLE, STEP_BEGIN, STEP_END, TIMER, WORK
from sojourn.sim.kernel.turns import IDLE, first_turn, set_turn
from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.ticks import LONGEST_S, NEVER, PER_S

DONE, ROOM, PAUSE, TOO_LONG = range(4)
_PAUSE_EVENTS: Final = 1 << 20
_LONGEST: Final = int(LONGEST_S * PER_S)

_logger: Final = logging.getLogger(__name__)


def kernel(lowered: Lowered, progress: Progress = silent) -> Log:
    """Run to the end of every request.

    Raises:
        UsageError: a run longer than `ticks.LONGEST_S`.
        SojournError: requests are left over: a defect of the simulator.
    """
    run = pack(lowered)
    total = len(lowered.requests.arrival)
    if total == 0:
        return run.log()
    if not KEPT.ready:
        _compile(run)
    begin(run.world)
    while True:
        code = go(run.world, _PAUSE_EVENTS)
        if code == ROOM:
            for name in GROWING:
                run.make_room(name)
        elif code == TOO_LONG:
            raise UsageError(
                f"the simulated run is longer than {LONGEST_S / 86_400:.0f} days: the load is far"
                " beyond what the fleet takes, or a service time is far too long"
            )
        elif code == DONE:
            break
        done = int(run.world[0]["next_row"] - run.world[0]["in_flight"])
        progress("simulating", max(0, done) / total)
    if run.world[0]["in_flight"] or run.world[0]["next_row"] < total:
        raise SojournError(
            f"{run.world[0]['in_flight']} requests never ended: please report the scenario"
        )
    return run.log()


def _compile(run: Run) -> None:
    """Compile both entrances, before anything happens in the run."""
    _logger.warning(
        "Compiling the simulator: once, up to a minute on a busy machine. It is kept %s.",
        KEPT.place(),
    )
    entrances: tuple[tuple[Any, tuple[int, ...]], ...] = ((begin, ()), (go, (_PAUSE_EVENTS,)))
    for entry, arguments in entrances:
        entry.compile(tuple(typeof(value) for value in (run.world, *arguments)))
    KEPT.finish()


@entrance
def begin(world: Array) -> None:
    """Set the first events."""
    chain.start(world[0])


@entrance
def go(world: Array, most: Number) -> Number:
    """Let up to `most` events happen: DONE, ROOM (an array is full), PAUSE or TOO_LONG."""
    w = world[0]
    for _ in range(most):
        if _short_of_room(w):
            return ROOM
        arrival = NEVER
        if w.closed < 0 and w.next_row < w.rows:
            arrival = requests(w)[w.next_row].arrival
        turn = turns(w)[1]
        event = events(w)[0].time if w.event_count > 0 else NEVER
        now = min(arrival, turn >> 1, event)
        if now >= _LONGEST:
            return DONE if now >= NEVER else TOO_LONG
        w.now = now
        t = NIL
        if arrival == now:
            w.kind = ARRIVE
            row = w.next_row
            w.next_row = row + 1
            t = chain.arrive(w, row)
        elif turn == 2 * now and not (event == now and kind_of(events(w)[0].key) == ARRIVE):
            _end_step(w)
        elif event == now:
            t = _happen(w)
        else:
            w.kind = STEP_BEGIN
            steps.step_begin(w, first_turn(w))
        if t != NIL:
            chain.go_on(w, t)
    return PAUSE


@compiled
def _short_of_room(w: World) -> Number:
    margin = w.margin
    return (
        w.event_count + margin > w.events_room
        or w.live_calls + margin > w.calls_room
        or w.call_logs + margin > w.call_log_room
        or w.live_tries + margin > w.tries_room
        or w.attempt_logs + margin > w.attempt_log_room
        or w.live_visits + margin > w.visits_room
        or w.visit_logs + margin > w.visit_log_room
        or w.sample_logs + margin > w.sample_log_room
        or w.change_logs + margin > w.change_log_room
    )


@compiled
def _end_step(w: World) -> None:
    r = first_turn(w)
    w.kind = STEP_END
    w.replica_now = r
    set_turn(w, r, IDLE)
    engine.step_end(w, r)
    for i in range(w.ended_count):
        t = chain.call_ended(w, ended(w)[i])
        if t != NIL:
            chain.go_on(w, t)
    engine.after_end(w, r)


@compiled
def _happen(w: World) -> Number:
    """The first event of the heap. Returns the attempt that it concerns, NIL if none."""
    event = events(w)[0]
    key, slot, stamp = event.key, np.int64(event.slot), np.int64(event.stamp)
    drop_first(w)
    kind = kind_of(key)
    w.kind = kind
    if kind == WORK:
        return chain.work(w, key, slot, stamp)
    if kind == TIMER:
        return chain.timer(w, key, slot, stamp)
    if kind == SAMPLE:
        control.sample(w)
    elif kind == CONTROL:
        control.control(w, number_of(key))
    else:
        return chain.arrive(w, number_of(key))
    return NIL
