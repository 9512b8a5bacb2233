"""The readable engine: wires loop, stations, replicas and requests, and runs a scenario."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.records import Fleet
from sojourn.errors import SojournError
from sojourn.sim.chain import RequestRun, World
from sojourn.sim.events import SAMPLE, WORK, EventLoop
from sojourn.sim.program import Requests, check, requests_of
from sojourn.sim.record import Recorder
from sojourn.sim.replica import Replica, StepTable
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.station import Station

SAMPLE_S: Final = 1.0
"""Simulated seconds between two readings of the engine's gauges."""
MOST_SAMPLES: Final = 100_000
"""Readings per replica a run keeps at most; a longer stream (over a day) is read less often."""


def reference(scenario: Scenario) -> SimRun:
    """Run a scenario to the end of every request."""
    return run(scenario, leap=True)


def stepwise(scenario: Scenario) -> SimRun:
    """As `reference`, every engine step an event of its own: slow, and the check on leaping."""
    return run(scenario, leap=False)


def run(scenario: Scenario, *, leap: bool) -> SimRun:
    """Run a scenario to the end of every request.

    Raises:
        UsageError: the stream is not what `sojourn.sim.program.check` demands.
        SojournError: requests are left over: a defect of the simulator.
    """
    check(scenario)
    requests = requests_of(scenario.stream)
    start = math.floor(requests.arrivals[0]) if requests.arrivals else 0.0
    loop = EventLoop(min(0.0, start))
    world = World(
        loop=loop,
        fleet=scenario.fleet,
        stations=_stations(scenario.fleet, loop),
        replicas=_replicas(scenario.fleet, loop, leap=leap),
        record=Recorder(),
        seed=scenario.seed,
    )
    arrivals = _Arrivals(world, requests)
    if requests.arrivals:
        arrivals.wait()
        _Sampler(world, arrivals, start).wait()
    loop.run()
    if world.in_flight or arrivals.left:
        raise SojournError(f"{world.in_flight} requests never ended: please report the scenario")
    end_s = max((end for _, end, *_ in world.record.ends), default=0.0)
    name = "reference" if leap else "stepwise"
    return world.record.run(scenario, engine=name, end_s=end_s)


def _stations(fleet: Fleet, loop: EventLoop) -> dict[str, Station]:
    """Live stations by name; those of one pool are one, with the largest of their `servers`."""
    pools: dict[str, int | None] = {}
    for model in fleet.stations.values():
        key = model.pool or f"\0{model.name}"
        known = pools.get(key, 0)
        unlimited = model.servers is None or known is None
        pools[key] = None if unlimited else max(known or 0, model.servers or 0)
    live = {key: Station(loop, servers) for key, servers in pools.items()}
    return {name: live[m.pool or f"\0{m.name}"] for name, m in fleet.stations.items()}


def _replicas(fleet: Fleet, loop: EventLoop, *, leap: bool) -> list[Replica]:
    engine = fleet.engine
    table = StepTable(engine.step)
    return [Replica(loop, engine, table, index=i, leap=leap) for i in range(engine.replicas)]


class _Arrivals:
    """Requests enter in the stream's order, each waking the next."""

    def __init__(self, world: World, requests: Requests) -> None:
        self._world = world
        self._requests = requests
        self._next = 0

    @property
    def left(self) -> int:
        """Requests that have not arrived yet."""
        return len(self._requests.arrivals) - self._next

    def wait(self) -> None:
        """Wake at the next arrival."""
        if self.left:
            self._world.loop.at(self._requests.arrivals[self._next], WORK, self._arrive)

    def _arrive(self) -> None:
        row, requests = self._next, self._requests
        self._next += 1
        self.wait()
        RequestRun(self._world, row, requests.ids[row], requests.names[row], requests.programs[row])


class _Sampler:
    """Reads every replica's gauges once per interval, as a scrape would."""

    def __init__(self, world: World, arrivals: _Arrivals, start_s: float) -> None:
        self._world = world
        self._arrivals = arrivals
        span = arrivals._requests.arrivals[-1] - start_s
        self._every = SAMPLE_S * max(1, math.ceil(span / (SAMPLE_S * MOST_SAMPLES)))
        self._start_s = start_s
        self._count = 0
        self._busy = [0.0] * len(world.replicas)

    def wait(self) -> None:
        """Wake at the next reading."""
        self._count += 1
        at = self._start_s + self._count * self._every
        self._world.loop.at(at, SAMPLE, self._read)

    def _read(self) -> None:
        world = self._world
        for index, replica in enumerate(world.replicas):
            gauge = replica.gauge()
            busy = min(1.0, max(0.0, (gauge.busy_s - self._busy[index]) / self._every))
            self._busy[index] = gauge.busy_s
            world.record.samples.append((world.loop.now, index, gauge, busy))
        if self._arrivals.left or world.in_flight:
            self.wait()
