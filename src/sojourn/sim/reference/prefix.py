"""KV blocks of a replica, with and without a prefix cache (rule book: "Prefix cache").

A block is clean, used, or kept: cached and used by nobody. `free` are the clean and the kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sojourn.sim.lowered import PoolPlan

ENDED, ABORTED, PREEMPTED = range(3)
"""Why a sequence leaves."""


class Tail:
    """Full blocks beyond the hashes that a sequence held, kept as one entry."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class Holding:
    """What a sequence has to do with the blocks of its replica."""

    __slots__ = (
        "at_hand", "blocks", "computed", "hashes", "held", "prompt", "registered", "registering",
        "tail", "written",
    )  # fmt: skip

    def __init__(self, prompt: int, written: int, at_hand: int, hashes: list[int]) -> None:
        self.prompt = prompt
        self.written = written
        self.computed = 0
        self.blocks = 0
        self.at_hand = at_hand
        """Tokens that are its hit where there is no prefix cache."""
        self.hashes = hashes
        self.held = 0
        """Leading hashes that it hit or registered in this stay."""
        self.registering = False
        self.registered = 0
        """`held` when it was preempted: `tail` comes after them."""
        self.tail: Tail | None = None

    @property
    def known(self) -> int:
        """Prompt and written tokens."""
        return self.prompt + self.written


class Hit(NamedTuple):
    """What is cached of a sequence: `tokens` in all, in `blocks` full blocks of which others hold
    `shared`; the first `hashes` hashes are among them."""

    tokens: int
    blocks: int = 0
    shared: int = 0
    hashes: int = 0


class Blocks:
    """Without a prefix cache: the tokens at hand are the hit, in blocks of the sequence's own."""

    def __init__(self, total: int, block: int) -> None:
        self.total = self.free = total
        self.block = block

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.total - self.free

    def needed(self, tokens: int) -> int:
        """Blocks for that many tokens."""
        return -(-tokens // self.block)

    def hit(self, sequence: Holding) -> Hit:
        """What is cached of a sequence. Touches nothing."""
        return Hit(sequence.at_hand)

    def admit(self, sequence: Holding, hit: Hit) -> None:
        """A sequence takes its hit."""
        sequence.computed = hit.tokens
        sequence.blocks = hit.blocks

    def grow(self, sequence: Holding, tokens: int) -> None:
        """A sequence takes what it lacks of blocks for that many tokens. They are free."""
        more = max(0, self.needed(tokens) - sequence.blocks)
        self._take(more)
        sequence.blocks += more

    def register(self, sequence: Holding, tokens: int) -> None:
        """The hashes of the sequence's first `tokens` tokens become present."""

    def leave(self, sequence: Holding, why: int) -> None:
        """A sequence gives its blocks back."""
        self.free += sequence.blocks
        sequence.blocks = 0
        if why == PREEMPTED:
            sequence.computed = 0

    def _take(self, blocks: int) -> None:
        self.free -= blocks


class MovedBlocks(Blocks):
    """Where KV comes from a prefill pool: the prompt is at hand once, hashes are not used."""

    def leave(self, sequence: Holding, why: int) -> None:
        """After a preemption nothing is cached."""
        super().leave(sequence, why)
        if why == PREEMPTED:
            sequence.at_hand = 0


class PrefixBlocks(Blocks):
    """With a prefix cache: a hash stands for `unit` blocks."""

    def __init__(self, total: int, block: int, unit: int) -> None:
        super().__init__(total, block)
        self.unit = unit
        self.clean = total
        self.users: dict[int, int] = {}
        """Sequences that use a hash, of all that are present. 0: it is kept."""
        self.kept: OrderedDict[int | Tail, None] = OrderedDict()
        """Hashes and tails used by nobody, the least recent first."""
        self.evicted = 0
        """Blocks taken from the kept so far."""

    def hit(self, sequence: Holding) -> Hit:
        """Leading hashes that are present; and its own tail if all before that are."""
        hashes = self._present(sequence)
        blocks = hashes * self.unit
        if sequence.tail is not None and hashes >= sequence.registered:
            blocks = max(blocks, sequence.registered * self.unit + sequence.tail.blocks)
        used = [h for h in sequence.hashes[:hashes] if self.users[h]]
        return Hit(blocks * self.block, blocks, len(used) * self.unit, hashes)

    def _present(self, sequence: Holding) -> int:
        most = (sequence.known - 1) // (self.unit * self.block)
        count = 0
        for value in sequence.hashes[:most]:
            if value not in self.users:
                break
            count += 1
        return count

    def admit(self, sequence: Holding, hit: Hit) -> None:
        """A sequence takes its hit. What it does not hit of its own tail becomes clean."""
        super().admit(sequence, hit)
        sequence.held = hit.hashes
        sequence.registering = True
        for value in sequence.hashes[: hit.hashes]:
            if not self.users[value]:
                del self.kept[value]
                self.free -= self.unit
            self.users[value] += 1
        if sequence.tail is not None:
            own = hit.blocks - hit.hashes * self.unit
            self.kept.pop(sequence.tail, None)
            self.clean += sequence.tail.blocks - own
            self.free -= own
            sequence.tail = None

    def register(self, sequence: Holding, tokens: int) -> None:
        """One hash after the other, up to the first that is present already."""
        most = tokens // (self.unit * self.block)
        for value in sequence.hashes[sequence.held : most]:
            sequence.registering = sequence.registering and value not in self.users
            if not sequence.registering:
                return
            self.users[value] = 1
            sequence.held += 1

    def leave(self, sequence: Holding, why: int) -> None:
        """The tail becomes kept, then the hashes from the last to the first, each more recent
        than the one before; the rest becomes clean."""
        if why == ENDED:
            self.register(sequence, sequence.computed)
        own = sequence.blocks - sequence.held * self.unit
        tail = Tail(max(0, sequence.computed // self.block - sequence.held * self.unit))
        self.clean += own - tail.blocks
        self.free += own
        if tail.blocks:
            self.kept[tail] = None
        for value in reversed(sequence.hashes[: sequence.held]):
            self.users[value] -= 1
            if not self.users[value]:
                self.kept[value] = None
                self.free += self.unit
        if why == PREEMPTED:
            sequence.registered, sequence.tail = sequence.held, tail
            sequence.computed = 0
        sequence.blocks = sequence.held = 0

    def _take(self, blocks: int) -> None:
        while self.clean < blocks:
            self._evict(blocks - self.clean)
        self.clean -= blocks
        self.free -= blocks

    def _evict(self, wanted: int) -> None:
        """The least recent entry: a hash goes whole, of a tail its last blocks as far as wanted."""
        oldest = next(iter(self.kept))
        if isinstance(oldest, Tail):
            freed = min(wanted, oldest.blocks)
            oldest.blocks -= freed
            gone = not oldest.blocks
        else:
            freed, gone = self.unit, True
            del self.users[oldest]
        if gone:
            del self.kept[oldest]
        self.clean += freed
        self.evicted += freed


def blocks_of(plan: PoolPlan) -> Blocks:
    """The blocks of a replica."""
    if plan.prefill_pool >= 0:
        return MovedBlocks(plan.blocks, plan.block)
    if plan.unit < 0:
        return Blocks(plan.blocks, plan.block)
    return PrefixBlocks(plan.blocks, plan.block, plan.unit)
