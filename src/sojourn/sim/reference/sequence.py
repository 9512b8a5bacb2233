"""What a replica works with: sequences (what it knows of a call), batches, and totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sojourn.sim.log import NONE

if TYPE_CHECKING:
    from sojourn.sim.reference.engine import Replica


class Tail:
    """Full blocks beyond the hashes that a sequence held, kept as one entry."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class Hit(NamedTuple):
    """What is cached of a sequence: `tokens` in all, in `blocks` full blocks of which others hold
    `shared`; its first `hashes` hashes are among them."""

    tokens: int
    blocks: int = 0
    shared: int = 0
    hashes: int = 0


class Aim(NamedTuple):
    """What a sequence has to do in its replica: it ends when it has written `target` tokens.

    `at_hand`: tokens that are its hit where there is no prefix cache, `at_hand_again` after a
    preemption. `moves`: when it ends, its blocks stay held until its KV has moved to another
    replica.
    """

    prompt: int
    target: int
    at_hand: int
    at_hand_again: int
    hashes: list[int]
    moves: bool = False


class Sequence:
    """A call in a replica; of a disaggregated call, one of its halves."""

    __slots__ = (
        "at_hand", "at_hand_again", "blocks", "cached", "computed", "ended", "first", "given_up",
        "hashes", "held", "luck", "moves", "number", "preemptions", "priority", "prompt", "queued",
        "registered", "registering", "scheduled", "tail", "target", "verified", "written",
    )  # fmt: skip

    def __init__(self, aim: Aim, *, priority: int, luck: int, ended: Callable[[], None]) -> None:
        self.prompt, self.target, self.at_hand, self.at_hand_again, self.hashes, self.moves = aim
        self.priority = priority
        self.luck = luck
        """Draw that says which drafted tokens are accepted."""
        self.ended = ended
        self.computed = self.written = self.blocks = 0
        self.given_up = False
        # in the queue, and what the log wants to know
        self.number = self.queued = self.scheduled = self.first = NONE
        self.cached = self.preemptions = self.verified = 0
        # in the prefix cache
        self.held = 0
        """Leading hashes that it hit or registered in this stay."""
        self.registering = False
        self.registered = 0
        """`held` when it was preempted; `tail` comes after them."""
        self.tail: Tail | None = None

    @property
    def known(self) -> int:
        """Prompt and written tokens."""
        return self.prompt + self.written

    @property
    def decodes(self) -> bool:
        """Whether it has written something and all but its last known token are computed."""
        return self.written > 0 and self.computed == self.known - 1

    @property
    def rank(self) -> tuple[int, int]:
        """With priorities: the lowest is served first, the greatest preempted first."""
        return self.priority, self.number


class Totals:
    """Counters of a replica since the start; `busy` in ticks."""

    __slots__ = ("busy", "hit", "preemptions", "prompt", "query", "written")

    def __init__(self) -> None:
        self.busy = self.hit = self.preemptions = self.prompt = self.query = self.written = 0


class Batch:
    """What a step computes, while it is put together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.preempted = False
        self.decodes: list[Sequence] = []
        self.prompts: list[tuple[Sequence, int]] = []

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prompts)

    def drop(self, victim: Sequence, decode_tokens: int) -> None:
        """A victim leaves the batch; its tokens go back to the budget."""
        self.preempted = True
        if victim in self.decodes:
            self.decodes.remove(victim)
            self.budget += decode_tokens
        for chunk in self.prompts:
            if chunk[0] is victim:
                self.prompts.remove(chunk)
                self.budget += chunk[1]
                return


class Watcher(Protocol):
    """Who is told of what happens in a replica."""

    def scheduled(self, *, waited: bool) -> None:
        """A sequence was scheduled for the first time; it had waited or not."""

    def emptied(self, replica: Replica) -> None:
        """The load of the replica is 0."""
