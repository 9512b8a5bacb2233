"""Stations in a row in SimPy, with the arrivals and service times of a file.

    python simpy_stations.py WORKLOAD.npz

The file holds `arrival_s` (n), `service_s` (n x stations) and `servers` (stations; 0: no limit).
Prints one JSON object: wall seconds of the run (set-up included, reading left out) and the mean
wait at each station, seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator

import numpy as np
import simpy

Process = Generator[simpy.Event, None, None]


def customer(
    env: simpy.Environment,
    service_s: list[float],
    stations: list[simpy.Resource | None],
    waits: list[float],
) -> Process:
    """One customer's way through the stations."""
    for place, station in enumerate(stations):
        asked = env.now
        if station is None:
            yield env.timeout(service_s[place])
            continue
        with station.request() as turn:
            yield turn
            waits[place] += env.now - asked
            yield env.timeout(service_s[place])


def source(
    env: simpy.Environment,
    customers: list[tuple[float, list[float]]],
    stations: list[simpy.Resource | None],
    waits: list[float],
) -> Process:
    """Customers (arrival, service times) at their times."""
    for at, service_s in customers:
        yield env.timeout(at - env.now)
        env.process(customer(env, service_s, stations, waits))


def main() -> None:
    """Run and print."""
    data = np.load(sys.argv[1])
    customers = list(zip(data["arrival_s"].tolist(), data["service_s"].tolist(), strict=True))
    servers = data["servers"].tolist()
    began = time.perf_counter()
    env = simpy.Environment()
    stations = [simpy.Resource(env, capacity=count) if count else None for count in servers]
    waits = [0.0] * len(servers)
    env.process(source(env, customers, stations, waits))
    env.run()
    wall_s = time.perf_counter() - began
    means = [wait / len(customers) for wait in waits]
    json.dump({"wall_s": wall_s, "wait_s": means, "version": simpy.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
