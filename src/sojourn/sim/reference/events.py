"""The event loop: a heap by (time, kind, key). No two events pending are equal in all three, so
the order is total and does not depend on who asked first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from sojourn.errors import DomainError

ARRIVE, STEP_END, WORK, TIMER, CONTROL, SAMPLE, STEP_BEGIN = range(7)
"""Kinds, in the order in which the events of one instant run."""

Key = tuple[int, ...]
Action = Callable[[], None]

LADDER_KEY: Final = 0
SCALER_KEY: Final = 1
READY_KEY: Final = 1000


class Events:
    """Pending events and the clock."""

    __slots__ = ("_heap", "_pending", "now")

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, Key]] = []
        self._pending: dict[Key, tuple[int, Action]] = {}

    def at(self, time: int, kind: int, key: Key, action: Action) -> None:
        """Run `action` at that time.

        Raises:
            DomainError: the time has passed, or an event of this kind and key is pending already.
        """
        order = (kind, *key)
        if time < self.now:
            raise DomainError(f"event {order} at tick {time}: the clock stands at {self.now}")
        if order in self._pending:
            raise DomainError(f"event {order} at tick {time}: one is pending already")
        self._pending[order] = (time, action)
        heapq.heappush(self._heap, (time, order))

    def is_pending(self, kind: int, key: Key) -> bool:
        """Whether such an event is to come."""
        return (kind, *key) in self._pending

    def cancel(self, kind: int, key: Key) -> None:
        """Drop a pending event; there need not be one."""
        self._pending.pop((kind, *key), None)

    def run(self) -> None:
        """Run until no event is left. What was dropped leaves its place in the heap behind: it is
        known by having no action, or one at another time."""
        while self._heap:
            time, order = heapq.heappop(self._heap)
            due = self._pending.get(order)
            if due is None or due[0] != time:
                continue
            del self._pending[order]
            self.now = time
            due[1]()
