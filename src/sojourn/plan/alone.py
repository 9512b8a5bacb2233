"""How requests stand to their targets when hardly two of them meet: what no load can mend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow.compute as pc

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.plan.slo import Judged, Standing, judge, standings
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import LONGEST_S
from sojourn.workload.scaling import repeated_steps
from sojourn.workload.stream import Stream

APART: Final = 5.0
"""Mean gap over mean stay at which requests count as alone: a fifth in the system on average."""
MATTERS: Final = 0.1
"""Drifting stations a tenth as long as the longest are named with it; shorter ones do not count."""


def alone(
    stream: Stream, fleet: Fleet, config: Config, *, today: Judged, seed: int
) -> dict[str, Standing]:
    """How each bucket stands when its very requests come so far apart that hardly two meet.

    All requests are judged, so a bucket that misses here misses for what its work takes.
    Arrivals, and what drifts with time, are stretched alike. `today`: the stream as it is, run.
    """
    gap = stream.duration_s / max(stream.requests.num_rows, 1)
    stay = float(np.nanmean(today.e2e_s)) if not np.isnan(today.e2e_s).all() else gap
    stretch = max(1.0, APART * stay / gap) if gap > 0 else 1.0
    return together(
        standings(judge(simulate(part), config), config)
        for part in parts(stretched(stream, fleet, stretch, seed))
    )


def stretched(stream: Stream, fleet: Fleet, stretch: float, seed: int) -> Scenario:
    """The same requests, `stretch` times as far apart."""
    index = stream.requests.column_names.index("arrival_s")
    arrivals = pc.multiply(stream.requests.column("arrival_s"), stretch)
    requests = stream.requests.set_column(index, "arrival_s", arrivals)
    stations = {
        name: station.model_copy(
            update={"drift": tuple((start * stretch, level) for start, level in station.drift)}
        )
        for name, station in fleet.stations.items()
    }
    slow = fleet.model_copy(update={"stations": stations})
    return Scenario(Stream(requests, stream.steps), slow, seed)


def parts(scenario: Scenario) -> Iterator[Scenario]:
    """A scenario cut in time, no part longer than a run may be. Requests that are far apart do not
    miss those of the part before."""
    stream = scenario.stream
    arrivals = stream.requests.column("arrival_s").to_numpy()
    part = ((arrivals - arrivals[0]) // (LONGEST_S / 2)).astype(np.int64)
    for number in np.unique(part):
        rows = np.flatnonzero(part == number)
        requests = stream.requests.slice(rows[0], len(rows))
        yield replace(scenario, stream=Stream(requests, repeated_steps(stream.steps, rows)))


def together(found: Iterable[dict[str, Standing]]) -> dict[str, Standing]:
    """Standings of parts as that of the whole."""
    whole: dict[str, Standing] = {}
    for bucket, part in ((name, s) for standing in found for name, s in standing.items()):
        known = whole.get(bucket)
        whole[bucket] = part if known is None else known.plus(part)
    return whole


def own_time(fleet: Fleet) -> str:
    """The time that requests take alone, in words."""
    drifting = [station for station in fleet.stations.values() if station.drift]
    longest = max((station.service_s.mean for station in drifting), default=0.0)
    slow = [s.name for s in drifting if s.service_s.mean >= MATTERS * longest]
    hours = f", with {', '.join(slow)} as slow as at its slow hours" if slow else ""
    return f"the time the work itself takes{hours}"
