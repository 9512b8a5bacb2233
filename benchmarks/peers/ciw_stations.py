"""Stations in a row in Ciw, with the arrivals and service times of a file.

    python ciw_stations.py WORKLOAD.npz

The file holds `arrival_s` (n), `service_s` (n x stations) and `servers` (stations; 0: no limit).
Prints one JSON object: wall seconds of the run (set-up and Ciw's records included, reading left
out) and the mean wait at each station, seconds.
"""

from __future__ import annotations

import json
import sys
import time

import ciw
import numpy as np


class Given(ciw.dists.Distribution):
    """Service times by customer: Ciw numbers customers from 1, in the order of arrival."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def sample(self, t: float | None = None, ind: ciw.Individual | None = None) -> float:
        """The service time of this customer."""
        return self.values[ind.id_number - 1]


def main() -> None:
    """Run and print."""
    data = np.load(sys.argv[1])
    arrival, service = data["arrival_s"], data["service_s"]
    servers = [count or float("inf") for count in data["servers"].tolist()]
    places = len(servers)
    gaps = np.diff(arrival, prepend=0.0).tolist()
    columns = [service[:, place].tolist() for place in range(places)]
    began = time.perf_counter()
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gaps, float("inf")])] + [None] * (places - 1),
        service_distributions=[Given(column) for column in columns],
        number_of_servers=servers,
        routing=[[float(to == here + 1) for to in range(places)] for here in range(places)],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(len(arrival), method="Finish")
    records = simulation.get_all_records()
    wall_s = time.perf_counter() - began
    waits = np.zeros(places)
    for record in records:
        waits[record.node - 1] += record.waiting_time
    means = (waits / len(arrival)).tolist()
    json.dump({"wall_s": wall_s, "wait_s": means, "version": ciw.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
