"""`reference`: the readable engine from `Lowered` to `Log`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import numpy as np

from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.reference.calls import Encoder
from sojourn.sim.reference.chain import ClosedLoop, OpenLoop, Parts
from sojourn.sim.reference.control import Clocks, Gateway, Ladder, Load, Traffic
from sojourn.sim.reference.events import Events
from sojourn.sim.reference.journal import Journal
from sojourn.sim.reference.pools import Pool
from sojourn.sim.reference.stations import Queue, Station
from sojourn.sim.reference.world import World


def reference(lowered: Lowered) -> Log:
    """Run a scenario until no event is left."""
    plan = plain(lowered)
    requests = len(plan.requests.arrival)
    events, journal, traffic = Events(), Journal(requests), Traffic(requests)
    pools = [Pool(events, pool, journal) for pool in plan.pools]
    load = Load(traffic, pools)
    ladder = Ladder(plan.ladder, events, journal)
    gateway = Gateway(plan, ladder, load, pools)
    world = World(plan, events, journal, pools, gateway)
    parts = Parts(_stations(plan), _encoders(plan, events))
    client = (OpenLoop if plan.client.closed < 0 else ClosedLoop)(world, parts, traffic)
    client.start()
    Clocks(events, traffic, pools).start(plan, ladder, load, journal)
    events.run()
    return journal.log()


def _stations(plan: Lowered) -> list[Station]:
    queues = [Queue(servers) for servers in plan.servers]
    return [Station(s, number, queues[s.queue]) for number, s in enumerate(plan.stations)]


def _encoders(plan: Lowered, events: Events) -> dict[int, Encoder]:
    return {
        pool.first + place: Encoder(pool.encoder, events)
        for pool in plan.pools
        if pool.encoder is not None
        for place in range(pool.room)
    }


def plain(plan: Lowered) -> Lowered:
    """A plan with lists of Python's own numbers in place of numpy's arrays, which read alike."""
    return cast(Lowered, _plain(plan))


def _plain(value: Any) -> Any:  # noqa: ANN401  whatever a plan holds
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)})
    return value
