"""Stations in a row in SimPy, with the arrivals and service times of a file.

    python simpy_stations.py WORKLOAD.npz

The file holds `arrival_s` (n), `service_s` (n x stations) and `servers` (stations; 0: no limit).
Prints one JSON object: wall seconds of the run (set-up included, reading left out) and the mean
wait at each station, seconds.
"""

import json
import sys
import time

import numpy as np
import simpy


def customer(env, number, stations, service, waits):
    """One customer's way through the stations."""
    for place, station in enumerate(stations):
        asked = env.now
        if station is None:
            yield env.timeout(service[number][place])
            continue
        with station.request() as turn:
            yield turn
            waits[place] += env.now - asked
            yield env.timeout(service[number][place])


def source(env, arrival, stations, service, waits):
    """Customers at their times."""
    for number, at in enumerate(arrival):
        yield env.timeout(at - env.now)
        env.process(customer(env, number, stations, service, waits))


def main():
    """Run and print."""
    data = np.load(sys.argv[1])
    arrival, service = data["arrival_s"].tolist(), data["service_s"].tolist()
    servers = data["servers"].tolist()
    began = time.perf_counter()
    env = simpy.Environment()
    stations = [simpy.Resource(env, capacity=count) if count else None for count in servers]
    waits = [0.0] * len(servers)
    env.process(source(env, arrival, stations, service, waits))
    env.run()
    wall_s = time.perf_counter() - began
    means = [wait / len(arrival) for wait in waits]
    json.dump({"wall_s": wall_s, "wait_s": means, "version": simpy.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
