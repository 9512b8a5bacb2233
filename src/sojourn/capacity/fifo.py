"""First come, first served, looked at from outside: waits and servers from starts and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappush, heapreplace

import numpy as np

from sojourn.trace.arrays import Bools, Floats

FEWEST_VISITS = 60
"""A rank correlation of 0.3 is told from none at p = 0.01 from about 60 pairs on."""
LOADED = 0.3
"""Rank correlation of duration and number present from which a queue is looked for, in both
halves of the recording: an unrelated drift rarely shows in both."""
EXPLAINED = 0.4
"""Part of that correlation that may be left once the right number of servers is taken."""
IMPOSSIBLE = 0.01
"""Share of visits that may end before the reconstruction starts them: clocks are not perfect."""
LEAST_WAITING = 0.02
"""Share of busy time in which somebody must wait before a plateau is looked for."""
ENVELOPE = 0.95
HELD = 0.5
"""Share of waiting time in which exactly that many must be served: a limit is a limit."""
MOST_VISITS = 20_000
"""Visits that servers are estimated from; the longest loaded stretch says as much as all."""


def service_starts(arrival: Floats, departure: Floats, servers: int) -> Floats:
    """When the work on each visit began, G/G/c first come first served; sorted by arrival.

    start_i = max(arrival_i, c-th latest departure among the visits before i), seconds.
    NaN departures never held a server (they left the queue).
    Source: Kiefer and Wolfowitz 1955 (the workload vector, read backwards).
    Wrong when: the station serves in another order, or visits are missing from the tables.
    """
    starts = np.array(arrival, dtype=np.float64)
    busy: list[float] = []
    for index, (came, left) in enumerate(zip(arrival.tolist(), departure.tolist(), strict=True)):
        if len(busy) >= servers:
            starts[index] = max(came, busy[0])
        if math.isnan(left):
            continue
        if len(busy) < servers:
            heappush(busy, left)
        elif left > busy[0]:
            heapreplace(busy, left)
    return starts


def present_at_arrival(arrival: Floats, departure: Floats) -> Floats:
    """Visits still there when each one arrives, itself not counted; sorted by arrival."""
    before = np.arange(len(arrival), dtype=np.float64)
    return before - np.searchsorted(np.sort(departure), arrival, side="right")


def estimate_servers(arrival: Floats, departure: Floats, *, censored: Bools) -> int | None:
    """Servers of a station that records no waits, or None: its times do not grow with our load.

    Of all c, the one whose reconstructed service times depend least on the number present at
    arrival; accepted when durations clearly do and reconstructed services hardly do.
    Wrong when: the service itself slows down under load (shared CPU) instead of queueing, or
    another client's load moves with ours.
    """
    use = slice(0, MOST_VISITS)
    arrival, departure, clean = arrival[use], departure[use], ~censored[use]
    if clean.sum() < FEWEST_VISITS:
        return None
    present = present_at_arrival(arrival, departure)
    raw = _both_halves(present, departure - arrival, clean)
    most = int(present.max()) + 1
    if raw < LOADED or most < 2:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high)
            if _left_over(arrival, departure, present, clean, middle) < 0
            else (low, middle)
        )
    near = range(max(1, low - 1), min(most, low + 1) + 1)
    left = {c: abs(_left_over(arrival, departure, present, clean, c)) for c in near}
    best = min(left, key=lambda c: left[c])
    return best if best < most and left[best] <= EXPLAINED * raw else None


def _rank(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation; 0 where one of them does not vary."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(_places(x), _places(y))[0, 1])


def _places(values: Floats) -> Floats:
    """Ranks, equal values sharing their mean rank (Spearman)."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _both_halves(present: Floats, duration: Floats, clean: Bools) -> float:
    """The smaller of the two halves' correlations."""
    half = len(present) // 2
    first, second = clean.copy(), clean.copy()
    first[half:], second[:half] = False, False
    return min(_rank(present[part], duration[part]) for part in (first, second))


def _left_over(arrival: Floats, departure: Floats, present: Floats, clean: Bools, c: int) -> float:
    """Correlation of reconstructed service and number present; -1 where c cannot be."""
    service = departure - service_starts(arrival, departure, c)
    span = float(np.median(departure - arrival))
    if float((service < -0.01 * span).mean()) > IMPOSSIBLE:
        return -1.0
    return _rank(present[clean], service[clean])


@dataclass(frozen=True)
class Plateau:
    """A limit on visits served at once, and the share of waiting time in which it was held."""

    servers: int
    held: float


def plateau(arrival: Floats, served: Floats, departure: Floats) -> Plateau | None:
    """The limit that those served reach while others wait, where waits are recorded.

    arrival <= served <= departure, seconds; visits never served have served = departure.
    Wrong when: waits come from something else than busy workers (then the served are no plateau
    and None is the answer).
    """
    times = np.unique(np.concatenate([arrival, served, departure]))
    if len(times) < 2:
        return None
    lengths = np.diff(times)
    working = _count(times, served, departure)
    waiting = _count(times, arrival, served) > 0
    idle_wait, busy = float(lengths[waiting].sum()), float(lengths[working > 0].sum())
    if busy == 0 or idle_wait < LEAST_WAITING * busy:
        return None
    order = np.argsort(working[waiting])
    weight = np.cumsum(lengths[waiting][order]) / idle_wait
    limit = int(working[waiting][order][np.searchsorted(weight, ENVELOPE)])
    if limit < 1 or float(lengths[working > limit].sum()) > (1 - ENVELOPE) * busy:
        return None
    held = float(lengths[waiting & (working == limit)].sum()) / idle_wait
    return Plateau(limit, held) if held >= HELD else None


@dataclass(frozen=True)
class Match:
    """Servers whose queue gives the recorded waits back, and the share of waiting explained."""

    servers: int
    explained: float


def match_waits(arrival: Floats, departure: Floats, wait: Floats, known: Bools) -> Match | None:
    """The c whose first-come-first-served waits are nearest to the recorded ones (`known`).

    explained = 1 - sum |reconstructed - recorded| / sum recorded. Departures of visits that held
    a worker beyond their caller's patience may be estimates; NaN where none was held.
    Wrong when: the order of service is not that of arrival.
    """
    use = slice(0, MOST_VISITS)
    arrival, departure, wait, known = arrival[use], departure[use], wait[use], known[use]
    total = float(wait[known].sum())
    held = np.isfinite(departure)
    if total < LEAST_WAITING * float((departure - arrival)[held].sum()):
        return None

    def off(servers: int) -> Floats:
        starts = service_starts(arrival, departure, servers)
        return np.asarray((starts - arrival - wait)[known], dtype=np.float64)

    low, high = 1, int(held.sum())
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if off(middle).sum() > 0 else (low, middle)
    near = [c for c in (low - 1, low, low + 1) if c >= 1]
    explained = {c: 1 - float(np.abs(off(c)).sum()) / total for c in near}
    best = max(near, key=lambda c: explained[c])
    return Match(best, explained[best]) if explained[best] >= HELD else None


def _count(times: Floats, begin: Floats, end: Floats) -> Floats:
    change = np.bincount(np.searchsorted(times, begin), minlength=len(times)).astype(float)
    change -= np.bincount(np.searchsorted(times, end), minlength=len(times))
    return np.asarray(np.cumsum(change)[:-1], dtype=np.float64)
