"""Clients, requests, attempts and groups (rule book: "Client")."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from sojourn.sim.log import ERROR, FIRST_SKIP, NONE, OK, PARTIAL_ANSWER, SHED, TIMEOUT
from sojourn.sim.lowered import DELAY, STATION
from sojourn.sim.luck import BACKOFF, THINK, draw, pick, uniform
from sojourn.sim.reference.calls import Call, Encoder
from sojourn.sim.reference.control import Traffic
from sojourn.sim.reference.events import ARRIVE, TIMER, WORK, Key
from sojourn.sim.reference.stations import Delay, Station, Visit
from sojourn.sim.reference.world import Place, UnderWay, World


class Parts:
    """What requests visit: stations by number, encoders by the number of their replica."""

    def __init__(self, stations: list[Station], encoders: dict[int, Encoder]) -> None:
        self.stations = stations
        self.encoders = encoders

    def begin(self, owner: Attempt, place: Place, world: World) -> UnderWay:
        """A step begins."""
        steps = world.plan.steps
        kind = steps.kind[place.step]
        if kind == STATION:
            return Visit(owner, place, world, self.stations[steps.station[place.step]])
        if kind == DELAY:
            return Delay(owner, place, world)
        return Call(owner, place, world, self.encoders)


class Sender(Protocol):
    """Whoever sent a request."""

    def ended(self, request: Request) -> None:
        """A request has ended."""


class Request:
    """One request, from its beginning to its end. `row` in the stream, its steps `first` to
    `end` (excluded)."""

    def __init__(self, row: int, world: World, parts: Parts, sender: Sender) -> None:
        self.row = row
        self.world = world
        self.parts = parts
        self.first, self.end = world.plan.requests.first_step[row : row + 2]
        self._sender = sender
        self._entry = world.journal.ends[row]

    @property
    def last_place(self) -> int:
        """The place after all steps: that of deadlines and backoffs."""
        return int(self.end - self.first)

    def degrade(self, bit: int) -> None:
        """The answer lacks something."""
        self._entry.degraded |= 1 << bit

    def begin_attempt(self, number: int) -> None:
        """Attempt `number` begins, or is shed."""
        self._entry.attempts = number + 1
        if self.world.gateway.sheds(self.row, number):
            now = self.world.events.now
            self.world.journal.attempts.append((now, now, NONE, self.row, number, SHED))
            self.finish(SHED)
        else:
            Attempt(self, number).begin()

    def retry_after(self, attempt: int) -> int:
        """The wait after an attempt; the next begins then."""
        world, retry = self.world, self.world.plan.retry
        wait = retry.backoff[attempt]
        if retry.jitter:
            identity = world.plan.requests.identity[self.row]
            luck = uniform(draw(world.plan.seed, identity, attempt + 1, 0, BACKOFF))
            wait = round(wait * (1.0 + retry.jitter * (2.0 * luck - 1.0)))
        key = (self.row, attempt, self.last_place)
        world.events.at(world.events.now + wait, WORK, key, lambda: self.begin_attempt(attempt + 1))
        return int(wait)

    def finish(self, status: int) -> None:
        """The request ends."""
        self._entry.end = self.world.events.now
        self._entry.status = status
        self._sender.ended(self)


class Attempt:
    """One try of a request's program."""

    def __init__(self, request: Request, number: int) -> None:
        self._request = request
        self._world = request.world
        self._number = number
        self._started = request.world.events.now
        self._next = request.first
        self._under_way: dict[int, UnderWay] = {}

    @property
    def _deadline(self) -> Key:
        return self._request.row, self._number, self._request.last_place

    def begin(self) -> None:
        """The deadline is set, the first group begins."""
        timeout = self._world.plan.retry.timeout
        if timeout >= 0:
            self._world.events.at(self._started + timeout, TIMER, self._deadline, self._expired)
        self._go_on()

    def degrade(self, bit: int) -> None:
        """The answer lacks something."""
        self._request.degrade(bit)

    def done(self, place: int) -> None:
        """A step is over."""
        del self._under_way[place]
        self._go_on()

    def fail(self, place: int, status: int, *, final: bool = False) -> None:
        """A step failed and with it the attempt; `final`: no retry can help."""
        del self._under_way[place]
        self._end(status, may_retry=not final and self._is_retried(status))

    def _go_on(self) -> None:
        """Groups begin until a step is under way; after the last the attempt ends."""
        while not self._under_way:
            if self._next == self._request.end:
                self._end(OK, may_retry=False)
                return
            self._begin_group()

    def _begin_group(self) -> None:
        group = self._world.plan.steps.group
        wanted = group[self._next]
        while self._next < self._request.end and group[self._next] == wanted:
            self._begin_step(self._next)
            self._next += 1

    def _begin_step(self, step: int) -> None:
        steps, request = self._world.plan.steps, self._request
        if steps.kind[step] == STATION:
            station = steps.station[step]
            if self._world.gateway.ladder.skips(station):
                request.degrade(FIRST_SKIP + station)
                return
        place = Place(request.row, self._number, step - request.first, step)
        self._under_way[place.place] = request.parts.begin(self, place, self._world)

    def _expired(self) -> None:
        if self._world.plan.retry.degrade:
            self._request.degrade(PARTIAL_ANSWER)
            self._end(TIMEOUT, may_retry=False, outcome=OK)
        else:
            self._end(TIMEOUT, may_retry=self._is_retried(TIMEOUT))

    def _is_retried(self, status: int) -> bool:
        retry = self._world.plan.retry
        return (status == TIMEOUT and retry.on_timeout) or (status == ERROR and retry.on_error)

    def _end(self, status: int, *, may_retry: bool, outcome: int | None = None) -> None:
        """The attempt ends; the request too, as `outcome` has it, unless it is tried again."""
        world, request = self._world, self._request
        world.events.cancel(TIMER, self._deadline)
        for place in sorted(self._under_way):
            self._under_way.pop(place).give_up()
        if status == OK:
            world.gateway.succeeded()
        again = may_retry and world.gateway.grants_retry(self._number)
        wait = request.retry_after(self._number) if again else NONE
        row = (self._started, world.events.now, wait, request.row, self._number, status)
        world.journal.attempts.append(row)
        if not again:
            request.finish(status if outcome is None else outcome)


class OpenLoop:
    """Requests come at their times. With a cap on those in flight, others wait at the client; one
    that has been let go and has yet to begin counts against the cap."""

    def __init__(self, world: World, parts: Parts, traffic: Traffic) -> None:
        self._world = world
        self._parts = parts
        self._traffic = traffic
        self._cap = world.plan.client.cap
        self._waiting: deque[Request] = deque()
        self._let_go = 0

    def start(self) -> None:
        """All arrivals are events."""
        for row, time in enumerate(self._world.plan.requests.arrival):
            self._world.events.at(time, ARRIVE, (row,), partial(self.send, row))

    def send(self, row: int) -> None:
        """A request arrives: it begins, or waits."""
        self._world.journal.ends[row].arrival = self._world.events.now
        request = Request(row, self._world, self._parts, self)
        taken = self._traffic.in_flight + self._let_go
        if self._cap < 0 or (taken < self._cap and not self._waiting):
            self._begin(request)
        else:
            self._waiting.append(request)

    def ended(self, request: Request) -> None:
        """The first of those that wait is let go."""
        self._traffic.in_flight -= 1
        self._traffic.left -= 1
        if not self._waiting:
            return
        first = self._waiting.popleft()
        self._let_go += 1
        key = (first.row, 0, first.last_place)
        self._world.events.at(self._world.events.now, WORK, key, lambda: self._released(first))

    def _released(self, request: Request) -> None:
        self._let_go -= 1
        self._begin(request)

    def _begin(self, request: Request) -> None:
        self._traffic.in_flight += 1
        request.begin_attempt(0)


class ClosedLoop(OpenLoop):
    """Each client sends the stream's next request, waits for its end, thinks, and sends again."""

    def __init__(self, world: World, parts: Parts, traffic: Traffic) -> None:
        super().__init__(world, parts, traffic)
        self._next_row = 0
        self._client: dict[int, int] = {}

    def start(self) -> None:
        """Every client sends at once."""
        for client in range(self._world.plan.client.closed):
            self._ask_at(0, client)

    def ended(self, request: Request) -> None:
        """The client of the request thinks."""
        plan = self._world.plan
        luck = draw(plan.seed, plan.requests.identity[request.row], 0, 0, THINK)
        think = pick(list(plan.client.think), luck)
        self._ask_at(self._world.events.now + think, self._client.pop(request.row))
        super().ended(request)

    def _ask_at(self, time: int, client: int) -> None:
        self._world.events.at(time, ARRIVE, (client,), lambda: self._ask(client))

    def _ask(self, client: int) -> None:
        row = self._next_row
        if row < len(self._world.plan.requests.arrival):
            self._next_row += 1
            self._client[row] = client
            self.send(row)
