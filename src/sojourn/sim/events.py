"""The event loop. It knows times, priorities and actions, and no domain object.

Events run in the order of (time, priority, sequence): a total order, so a run repeats exactly.
The clock never runs back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from sojourn.errors import DomainError

Action = Callable[[], None]

WORK: Final = 0
"""Arrivals, ends of service, delays: what happens at an instant is known before anyone acts."""
STEP: Final = 10
"""Engine steps end (plus the replica's number): work that came at that instant joins the next."""
TIMER: Final = 1_000_000
"""Deadlines: work that ends exactly on its deadline is in time."""
SAMPLE: Final = 1_000_001
"""Gauges are read when all else of the instant has happened."""


class EventLoop:
    """A heap of events with a clock. `at` gives a ticket with which an event can be cancelled."""

    __slots__ = ("_actions", "_heap", "_sequence", "now", "reached")

    def __init__(self, start_s: float = 0.0) -> None:
        self.now = start_s
        self.reached = -1
        """Highest priority that has run at this instant: events below it are in the past."""
        self._heap: list[tuple[float, int, int]] = []
        self._actions: dict[int, Action] = {}
        self._sequence = 0

    def at(self, time_s: float, priority: int, action: Action) -> int:
        """Run `action` at `time_s`.

        Raises:
            DomainError: the time lies before now, or is NaN.
        """
        if not time_s >= self.now:
            raise DomainError(f"an event at {time_s!r} s cannot be reached from {self.now!r} s")
        ticket = self._sequence
        self._sequence = ticket + 1
        self._actions[ticket] = action
        heapq.heappush(self._heap, (time_s, priority, ticket))
        return ticket

    def after(self, delay_s: float, priority: int, action: Action) -> int:
        """Run `action` in `delay_s` seconds."""
        return self.at(self.now + delay_s, priority, action)

    def cancel(self, ticket: int) -> None:
        """Forget an event; one that has run or was cancelled already is let pass."""
        self._actions.pop(ticket, None)

    def run(self) -> None:
        """Run until no event is left."""
        heap, actions = self._heap, self._actions
        while heap:
            time_s, priority, ticket = heapq.heappop(heap)
            action = actions.pop(ticket, None)
            if action is None:
                continue
            if time_s > self.now:
                self.now = time_s
                self.reached = priority
            elif priority > self.reached:
                self.reached = priority
            action()
