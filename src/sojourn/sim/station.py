"""Stations: parts of the chain outside the engine, c servers (or no limit), first come first
served.

A caller that gives up while it waits leaves the queue. A caller that gives up while it is served
leaves its server busy until the service ends, unless the station stops on cancel: a search
cluster or a tool is rarely told that nobody listens any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sojourn.sim.events import WORK, EventLoop


class Visit:
    """One stay at a station: it waits, is served, and then `ended` is called."""

    __slots__ = ("ended", "entered_s", "gone", "service_s", "started_s", "ticket")

    def __init__(self, entered_s: float, service_s: float, ended: Callable[[], None]) -> None:
        self.entered_s = entered_s
        self.service_s = service_s
        self.ended = ended
        self.started_s: float | None = None
        self.gone = False
        self.ticket = -1

    def waited_s(self, now: float) -> float:
        """Seconds spent waiting for a server until `now`."""
        return (now if self.started_s is None else self.started_s) - self.entered_s


class Station:
    """`servers` None: everyone is served at once."""

    __slots__ = ("_loop", "_queue", "busy", "servers", "waiting")

    def __init__(self, loop: EventLoop, servers: int | None) -> None:
        self.servers = servers
        self.busy = 0
        self.waiting = 0
        self._loop = loop
        self._queue: deque[Visit] = deque()

    def enter(self, service_s: float, ended: Callable[[], None]) -> Visit:
        """Ask for service; the returned visit can be left."""
        visit = Visit(self._loop.now, service_s, ended)
        if self.servers is None or self.busy < self.servers:
            self._serve(visit)
        else:
            self.waiting += 1
            self._queue.append(visit)
        return visit

    def leave(self, visit: Visit, *, stops: bool) -> None:
        """The caller gives up. With `stops` a service under way ends now, else it runs on."""
        visit.gone = True
        if visit.started_s is None:
            self.waiting -= 1  # its place in the queue is skipped when its turn comes
        elif stops:
            self._loop.cancel(visit.ticket)
            self._free()

    def _serve(self, visit: Visit) -> None:
        self.busy += 1
        visit.started_s = self._loop.now
        visit.ticket = self._loop.after(visit.service_s, WORK, lambda: self._end(visit))

    def _end(self, visit: Visit) -> None:
        self._free()
        if not visit.gone:
            visit.ended()

    def _free(self) -> None:
        self.busy -= 1
        while self._queue:
            visit = self._queue.popleft()
            if not visit.gone:
                self.waiting -= 1
                self._serve(visit)
                return
