"""Stations and delays (rule book: "Stations")."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from sojourn.sim.log import CANCELLED, ERROR, FIRST_SKIP, NONE, OK, TIMEOUT
from sojourn.sim.lowered import StationPlan
from sojourn.sim.luck import SERVICE, pick
from sojourn.sim.reference.events import TIMER, WORK
from sojourn.sim.reference.world import Owner, Place, World


class Queue:
    """Servers with one queue; -1: no limit."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._busy = 0
        self.waiting: deque[Visit] = deque()

    @property
    def has_free(self) -> bool:
        """Whether a server is free."""
        return self._servers < 0 or self._busy < self._servers

    def ask(self, visit: Visit) -> None:
        """Serve a visit, or let it wait."""
        if self.has_free:
            self._busy += 1
            visit.serve()
        else:
            self.waiting.append(visit)

    def release(self) -> None:
        """A server is free again: it takes the first that waits."""
        self._busy -= 1
        if self.waiting:
            self._busy += 1
            self.waiting.popleft().serve()


class Station:
    """A station: its limits, and the queue that it may share."""

    def __init__(self, plan: StationPlan, number: int, queue: Queue) -> None:
        self.plan = plan
        self.number = number
        self.queue = queue
        self._arrival = 0  # theoretical arrival time

    def admits(self, now: int) -> bool:
        """The rate limit (generic cell rate algorithm), then the queue limit."""
        plan = self.plan
        if plan.interval >= 0:
            if now < self._arrival - (plan.burst - 1) * plan.interval:
                return False
            self._arrival = max(self._arrival, now) + plan.interval
        full = 0 <= plan.queue_limit <= len(self.queue.waiting)
        return self.queue.has_free or not full

    def service(self, place: Place, world: World) -> int:
        """Service time of a visit that begins now."""
        plan = self.plan
        if place.attempt == 0 or not len(plan.samples):
            return int(world.plan.steps.service[place.step])
        drawn = pick(list(plan.samples), place.luck(world.plan, SERVICE))
        if not len(plan.drift_start):
            return drawn
        level = max(0, bisect_right(plan.drift_start, world.events.now) - 1)
        factor: float = plan.drift_factor[level]
        return round(drawn * factor)


class Visit:
    """A visit to a station."""

    def __init__(self, owner: Owner, place: Place, world: World, station: Station) -> None:
        self._owner = owner
        self._place = place
        self._world = world
        self._station = station
        self._entered = world.events.now
        self._started = NONE
        self._given_up = False
        if not station.admits(self._entered):
            world.events.at(self._entered, WORK, place.key, self._refused)
            return
        self._service = station.service(place, world)
        station.queue.ask(self)
        if station.plan.timeout >= 0:
            end = self._entered + station.plan.timeout
            world.events.at(end, TIMER, place.key, self._expired)

    def serve(self) -> None:
        """A server takes the visit."""
        events = self._world.events
        self._started = events.now
        events.at(events.now + self._service, WORK, self._place.key, self._served)

    def give_up(self) -> None:
        """The attempt is over."""
        self._leave(CANCELLED)

    def _refused(self) -> None:
        self._log(ERROR)
        self._go_without(ERROR)

    def _served(self) -> None:
        self._station.queue.release()
        if self._given_up:
            return
        self._world.events.cancel(TIMER, self._place.key)
        self._log(OK)
        self._owner.done(self._place.place)

    def _expired(self) -> None:
        self._leave(TIMEOUT)
        self._go_without(TIMEOUT)

    def _go_without(self, status: int) -> None:
        if self._station.plan.optional:
            self._owner.degrade(FIRST_SKIP + self._station.number)
            self._owner.done(self._place.place)
        else:
            self._owner.fail(self._place.place, status)

    def _leave(self, status: int) -> None:
        """Leave the queue, or the server: at once if it stops, else at the end of the service. A
        refusal that has not taken effect yet is forgotten."""
        events, key = self._world.events, self._place.key
        events.cancel(TIMER, key)
        self._log(status)
        self._given_up = True
        if self._started == NONE:
            events.cancel(WORK, key)
            if self in self._station.queue.waiting:
                self._station.queue.waiting.remove(self)
        elif self._station.plan.stops:
            events.cancel(WORK, key)
            self._station.queue.release()

    def _log(self, status: int) -> None:
        self._world.journal.visits.append(
            (
                self._entered, self._started, self._world.events.now, *self._place.key,
                self._station.number, status,
            )
        )  # fmt: skip


class Delay:
    """Time that passes."""

    def __init__(self, owner: Owner, place: Place, world: World) -> None:
        self._owner = owner
        self._place = place
        self._world = world
        self._entered = now = world.events.now
        world.events.at(now + world.plan.steps.service[place.step], WORK, place.key, self._passed)

    def give_up(self) -> None:
        """The attempt is over."""
        self._world.events.cancel(WORK, self._place.key)
        self._log(CANCELLED)

    def _passed(self) -> None:
        self._log(OK)
        self._owner.done(self._place.place)

    def _log(self, status: int) -> None:
        now = self._world.events.now
        row = (self._entered, self._entered, now, *self._place.key, NONE, status)
        self._world.journal.visits.append(row)
