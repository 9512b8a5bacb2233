"""KV blocks of a replica, with and without a prefix cache (rule book: "Prefix cache").

A block is clean, used, or kept: cached and used by nobody. `free` are the clean and the kept.
"""

from __future__ import annotations

from collections import OrderedDict

from sojourn.sim.lowered import PoolPlan
from sojourn.sim.reference.sequence import Hit, Sequence, Tail

ENDED, ABORTED, PREEMPTED = range(3)
"""Why a sequence leaves."""


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

    def hit(self, sequence: Sequence) -> Hit:
        """What is cached of a sequence. Touches nothing."""
        return Hit(sequence.at_hand)

    def admit(self, sequence: Sequence, hit: Hit) -> None:
        """A sequence takes its hit."""
        sequence.computed, sequence.blocks = hit.tokens, hit.blocks

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """A sequence takes what it lacks of blocks for that many tokens. They are free."""
        more = max(0, self.needed(tokens) - sequence.blocks)
        self._take(more)
        sequence.blocks += more

    def register(self, sequence: Sequence, tokens: int) -> None:
        """The hashes of the sequence's first `tokens` tokens become present."""

    def leave(self, sequence: Sequence, why: int) -> None:
        """A sequence gives its blocks back."""
        self.free += sequence.blocks
        sequence.blocks = sequence.computed = 0

    def _take(self, blocks: int) -> None:
        self.free -= blocks


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

    def hit(self, sequence: Sequence) -> Hit:
        """Leading hashes that are present; its own tail too, if all before that are."""
        hashes = self._present(sequence)
        blocks = hashes * self.unit
        if sequence.tail is not None and hashes >= sequence.registered:
            blocks = max(blocks, sequence.registered * self.unit + sequence.tail.blocks)
        used = [h for h in sequence.hashes[:hashes] if self.users[h]]
        return Hit(blocks * self.block, blocks, len(used) * self.unit, hashes)

    def _present(self, sequence: Sequence) -> int:
        most = (sequence.known - 1) // (self.unit * self.block)
        for place, value in enumerate(sequence.hashes[:most]):
            if value not in self.users:
                return place
        return min(most, len(sequence.hashes))

    def admit(self, sequence: Sequence, hit: Hit) -> None:
        """A sequence takes its hit. What it does not hit of its own tail becomes clean."""
        super().admit(sequence, hit)
        sequence.held, sequence.registering = hit.hashes, True
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

    def register(self, sequence: Sequence, tokens: int) -> None:
        """One hash after the other, up to the first that is present already."""
        most = tokens // (self.unit * self.block)
        for value in sequence.hashes[sequence.held : most]:
            sequence.registering = sequence.registering and value not in self.users
            if not sequence.registering:
                return
            self.users[value] = 1
            sequence.held += 1

    def leave(self, sequence: Sequence, why: int) -> None:
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
        sequence.blocks = sequence.computed = sequence.held = 0

    def _take(self, blocks: int) -> None:
        while self.clean < blocks:
            self.clean += self._evict(blocks - self.clean)
        self.clean -= blocks
        self.free -= blocks

    def _evict(self, wanted: int) -> int:
        """The least recent entry: a hash goes whole, of a tail its last blocks as far as wanted."""
        oldest = next(iter(self.kept))
        if isinstance(oldest, Tail) and oldest.blocks > wanted:
            oldest.blocks -= wanted
            return wanted
        del self.kept[oldest]
        if isinstance(oldest, Tail):
            freed, oldest.blocks = oldest.blocks, 0
            return freed
        del self.users[oldest]
        return self.unit


def blocks_of(plan: PoolPlan) -> Blocks:
    """The blocks of a replica. Hashes are not used where KV comes from a prefill pool."""
    if plan.unit < 0 or plan.prefill_pool >= 0:
        return Blocks(plan.blocks, plan.block)
    return PrefixBlocks(plan.blocks, plan.block, plan.unit)
