"""What the steps of all requests share, and what a step is to its attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sojourn.sim.lowered import Lowered
from sojourn.sim.luck import draw
from sojourn.sim.reference.control import Gateway
from sojourn.sim.reference.events import Events, Key
from sojourn.sim.reference.journal import Journal
from sojourn.sim.reference.pools import Pool


@dataclass(frozen=True)
class World:
    """The plan in Python's own numbers, the clock, the journal, and the fleet's parts that a
    request asks itself."""

    plan: Lowered
    events: Events
    journal: Journal
    pools: list[Pool]
    gateway: Gateway


@dataclass(frozen=True)
class Place:
    """Where a step is: its request and attempt, its place in the program, its row in `steps`."""

    row: int
    attempt: int
    place: int
    step: int

    @property
    def key(self) -> Key:
        """The key of its events."""
        return self.row, self.attempt, self.place

    def luck(self, plan: Lowered, purpose: int) -> int:
        """A draw for this step."""
        identity = plan.requests.identity[self.row]
        return draw(plan.seed, identity, self.attempt, self.place, purpose)


class Owner(Protocol):
    """The attempt that a step belongs to."""

    def degrade(self, bit: int) -> None:
        """The answer lacks something."""

    def done(self, place: int) -> None:
        """The step is over."""

    def fail(self, place: int, status: int, *, final: bool = False) -> None:
        """The step failed and with it the attempt; `final`: no retry can help."""


class UnderWay(Protocol):
    """A step that has begun."""

    def give_up(self) -> None:
        """The attempt is over: stop, and log what there was."""
