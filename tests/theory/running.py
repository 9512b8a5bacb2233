"""How theory is tested: replications, their interval, and what it must hold and must not.

A test says what a scenario is, which figures are read off a run, and what theory says they are.
`replicated` runs it under `RUNS` seeds; `agrees` asks that Student's interval of the replications
holds the closed form, and that it does not hold a wrong one, which the test names: most often the
same formula at 3% more load. So every agreement here could have failed. (`test_power.py` runs the
simulator itself at 3% more load, and counts how often intervals hold the truth.)

Confidence is 99.99% a figure: with some 150 figures in the folder, a change of seeds that alters
nothing else brings a false alarm in one of 70. Time is in units of a mean service.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from tests.sim.making import fleet

from sojourn.sim.estimates import student
from sojourn.sim.log import NONE
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import PER_S
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_REQUESTS, STREAM_STEPS, Stream

RUNS = 24
COUNT = 40_000
CONFIDENCE = 0.9999
MORE = 1.03
"""Load at which a formula is wrong."""
EDGE = 0.05
"""Share of the requests left out at the front (the system is still filling) and at the end (it
empties: nobody arrives behind them)."""
SHORT = 120
"""Requests of the run that is made by both engines."""
UNIT_S = 0.05
"""A unit of time in seconds: short, since the gauges of the (idle) engine are read every second."""


# Streams, column by column


def visits(name, work, *, group=0):
    """A visit of every request to a station, `work` units of time."""
    return {"kind": "station", "stage": "tool", "name": name, "group": group,
            "service_s": UNIT_S * np.asarray(work, dtype=float)}  # fmt: skip


def calls(prompt, output, *, group=0, hashes=None, **more):
    """A model call of every request. `hashes`: a list per request, or none."""
    made = {"kind": "call", "stage": "decode", "name": "m", "group": group,
            "input_tokens": prompt, "output_tokens": output, **more}  # fmt: skip
    return made if hashes is None else {**made, "block_hashes": hashes}


def stream_of(arrivals, *steps, sessions=None):
    """Requests that arrive at `arrivals` (units of time), each with all `steps`."""
    count, width = len(arrivals), len(steps)
    requests = {
        "request_id": pa.array(np.arange(count)).cast(pa.string()),
        "arrival_s": UNIT_S * np.asarray(arrivals, dtype=float),
        "session_id": pa.nulls(count, pa.string())
        if sessions is None
        else pa.array(sessions).cast(pa.string()),
        "tenant": pa.nulls(count, pa.string()),
        "route": pa.nulls(count, pa.string()),
        "priority": np.zeros(count, np.int64),
        "bucket": pa.repeat("short_chat", count),
    }
    defaults = {"service_s": 0.0, "pool": "default", "request": np.arange(count)}
    columns = {}
    for field in STREAM_STEPS:
        values = [step.get(field.name, defaults.get(field.name, 0)) for step in steps]
        columns[field.name] = _interleaved(values, count, field.type)
    table = pa.table(columns, schema=STREAM_STEPS)
    if any("block_hashes" in step for step in steps):
        lists = [step.get("block_hashes") for step in steps]
        rows = [None if one is None else one[i] for i in range(count) for one in lists]
        field = STREAM_IDENTITIES.field("block_hashes")
        table = table.append_column(field, pa.array(rows, field.type))
    assert table.num_rows == count * width
    return Stream(pa.table(requests, schema=STREAM_REQUESTS), table)


def _interleaved(values, count, kind):
    """One value (or array of them) per step, as the column of all requests' steps."""
    if pa.types.is_string(kind):
        return pa.array(values, kind).take(pa.array(np.tile(np.arange(len(values)), count)))
    wide = [np.broadcast_to(value, count) for value in values]
    return pa.array(np.stack(wide, axis=1).ravel()).cast(kind)


def poisson(rng, rate, count):
    """Arrival times of a Poisson process."""
    return np.cumsum(rng.exponential(1 / rate, count))


def served_by(stations, *, engine=None, policies=None, **retry):
    """A fleet of stations. `policies`: client, admission, ladder."""
    made = fleet(engine, stations, **retry)
    return made.model_copy(update=policies or {})


# What happened, by request, in units of time


def units(ticks):
    """Ticks as units of time."""
    return np.asarray(ticks, dtype=float) / (PER_S * UNIT_S)


def between(rows, first, last):
    """Time from one mark of a log row to another, NaN where either did not come."""
    known = (rows[first] != NONE) & (rows[last] != NONE)
    return np.where(known, units(rows[last] - rows[first]), np.nan)


def of_place(rows, place=0, attempt=0):
    """The rows of one step of the program, one per request that came to it, by request."""
    mine = rows[(rows["place"] == place) & (rows["attempt"] == attempt)]
    return mine[np.argsort(mine["request"])]


def waits(run, place=0):
    """Time waited at a station in the first attempt."""
    return between(of_place(run.log.visits, place), "entered", "started")


def call_waits(run, place=0):
    """Time in the queue of an engine in the first attempt."""
    return between(of_place(run.log.calls, place), "queued", "scheduled")


def stays(run):
    """Time from arrival to end of each request."""
    return between(run.log.ends, "arrival", "end")


def steady(values):
    """Those of the middle of the run."""
    edge = int(EDGE * len(values))
    return values[edge : len(values) - edge]


# Replications


def replicated(
    make: Callable[[np.random.Generator, int], Scenario],
    measure: Callable[[SimRun], object],
    *,
    seed: int,
    runs: int = RUNS,
    count: int = COUNT,
):
    """Figures of `runs` runs, one row each. `make(rng, count)` gives a scenario of `count`
    requests. A short one is run by both engines first: they must write the same log."""
    short = make(np.random.default_rng(seed), SHORT)
    reference, kernel = (simulate(short, engine=name).log for name in ("reference", "kernel"))
    assert reference.same(kernel), "the two engines differ"
    found = []
    for number in range(runs):
        scenario = make(np.random.default_rng([seed, number]), count)
        seeded = Scenario(scenario.stream, scenario.fleet, seed=1000 * seed + number)
        found.append(np.atleast_1d(measure(simulate(seeded, engine="kernel"))))
    return np.array(found, dtype=float).T


def agrees(values, expected, *, unlike, slack=0.0):
    """The interval of the replications holds `expected` and does not hold `unlike`.

    `slack`: how far, at most, the scenario itself is from what the formula describes (a step that
    is short but not infinitely so); both ends are moved outwards by it."""
    found = student(np.asarray(values), CONFIDENCE)
    low, high = found.low - slack, found.high + slack
    told = f"{found.mid:.5g} ({low:.5g} to {high:.5g})"
    assert low <= expected <= high, f"{told} against {expected:.5g} in theory"
    for wrong in np.atleast_1d(unlike):
        assert not low <= wrong <= high, f"{told} holds {wrong:.5g} too: it could not fail"


def above(values, bound):
    """The interval of the replications lies above a bound (a number, or one per replication)."""
    found = student(np.asarray(values) - bound, CONFIDENCE)
    assert found.low > 0, (
        f"above the bound by {found.mid:.5g} ({found.low:.5g} to {found.high:.5g})"
    )
