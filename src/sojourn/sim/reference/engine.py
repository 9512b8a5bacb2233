"""A replica of the engine (rule book: "The engine"): its queue, its steps, its counters.

One event per step. Outside, `enter`, `give_up` and `give_back` are all that is done to it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Protocol

from sojourn.capacity.policies import Order
from sojourn.sim.log import NONE
from sojourn.sim.lowered import ORDERS, PoolPlan
from sojourn.sim.luck import mixed
from sojourn.sim.reference.events import STEP_BEGIN, STEP_END, Events
from sojourn.sim.reference.prefix import ABORTED, ENDED, PREEMPTED, Holding, blocks_of

FCFS, PRIORITY, PREFILL_FIRST = (
    ORDERS.index(o) for o in (Order.FCFS, Order.PRIORITY, Order.PREFILL_FIRST)
)
ACTIVE, STARTING, DRAINING, STOPPED = range(4)


class Sequence(Holding):
    """A call in a replica; of a disaggregated call, one of its halves.

    It ends when it has written `target` tokens. `moves`: its blocks stay held then, until its KV
    has moved to another replica.
    """

    __slots__ = (
        "cached", "ended", "first", "given_up", "luck", "moves", "number", "preemptions",
        "priority", "queued", "scheduled", "target", "verified",
    )  # fmt: skip

    def __init__(
        self, tokens: tuple[int, int, int], at_hand: int, hashes: list[int], *,
        priority: int, luck: int, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        prompt, written, self.target = tokens
        super().__init__(prompt, written, at_hand, hashes)
        self.priority = priority
        self.luck = luck
        self.ended = ended
        self.moves = False
        self.given_up = False
        self.number = NONE
        self.queued = self.scheduled = self.first = NONE
        self.cached = self.preemptions = self.verified = 0

    @property
    def decodes(self) -> bool:
        """Whether it has written something and all but its last known token are computed."""
        return self.written > 0 and self.computed == self.known - 1

    @property
    def rank(self) -> tuple[int, int]:
        """With priorities: the lowest is served first, the greatest preempted first."""
        return self.priority, self.number


class Watcher(Protocol):
    """Who is told of what happens in a replica."""

    def scheduled(self, *, waited: bool) -> None:
        """A sequence was scheduled for the first time; it had waited or not."""

    def emptied(self, replica: Replica) -> None:
        """The load of the replica is 0."""


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


class Counters:
    """Totals of a replica since the start."""

    __slots__ = ("busy", "hit", "preemptions", "prompt", "query", "written")

    def __init__(self) -> None:
        self.busy = self.hit = self.preemptions = self.prompt = self.query = self.written = 0


class Replica:
    """One replica. `load`: calls routed here that have not left."""

    def __init__(self, events: Events, plan: PoolPlan, number: int, watcher: Watcher) -> None:
        self.plan = plan
        self.number = number
        self.state = ACTIVE
        self.load = 0
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.total = Counters()
        self.blocks = blocks_of(plan)
        self._events = events
        self._watcher = watcher
        self._batch = Batch(0)
        self._began = NONE
        self._numbers = 0
        self._decode_tokens = 1 + len(plan.accept)

    @property
    def busy(self) -> int:
        """Ticks in steps so far, the step under way included up to now."""
        under_way = 0 if self._began == NONE else self._events.now - self._began
        return self.total.busy + under_way

    # The outside

    def enter(self, sequence: Sequence) -> None:
        """A sequence enters the queue."""
        sequence.queued = self._events.now
        sequence.number = self._numbers
        self._numbers += 1
        self._wait(sequence, at_head=False)
        self._wake()

    def give_up(self, sequence: Sequence) -> None:
        """The caller has gone. Without abort the sequence stays to its end."""
        if not self.plan.abort:
            return
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            self.leave()
            if self.waiting:
                self._wake()
        elif self._began != NONE:
            sequence.given_up = True
        else:
            self._release(sequence, ABORTED)

    def give_back(self, sequence: Sequence, why: int) -> None:
        """The KV of a sequence that has left `running` has moved, or need not move any more."""
        self.blocks.leave(sequence, why)
        self.leave()
        if self.waiting:
            self._wake()

    def leave(self) -> None:
        """A call that was routed here has left."""
        self.load -= 1
        if not self.load:
            self._watcher.emptied(self)

    def _wait(self, sequence: Sequence, *, at_head: bool) -> None:
        if self.plan.order == PRIORITY:
            insort(self.waiting, sequence, key=lambda s: s.rank)
        elif at_head:
            self.waiting.insert(0, sequence)
        else:
            self.waiting.append(sequence)

    def _wake(self) -> None:
        """A step begins at this instant, unless one is under way."""
        key = (self.number,)
        if self._began == NONE and not self._events.is_pending(STEP_BEGIN, key):
            self._events.at(self._events.now, STEP_BEGIN, key, self._begin)

    # A step begins

    def _begin(self) -> None:
        plan = self.plan
        batch = self._batch = Batch(plan.budget)
        together = len(self.running) + len(self.waiting) > 1
        chunk = plan.cap if plan.cap >= 0 and together else plan.budget
        if plan.order == PREFILL_FIRST:
            self._take_prompts(batch, chunk)
            self._admit(batch, chunk)
            if not batch:
                self._take_decodes(batch)
        else:
            self._take_decodes(batch)
            self._take_prompts(batch, chunk)
            self._admit(batch, chunk)
        if not batch:
            return
        now = self._began = self._events.now
        self._events.at(now + self._ticks(batch), STEP_END, (self.number,), self._end)

    def _take_decodes(self, batch: Batch) -> None:
        """1. decodes, in the order of admission."""
        for sequence in [s for s in self.running if s.decodes]:
            if self._has_room(sequence, self._decode_tokens, batch):
                batch.decodes.append(sequence)
                batch.budget -= self._decode_tokens

    def _take_prompts(self, batch: Batch, chunk: int) -> None:
        """2. unfinished prompts, in the order of admission."""
        for sequence in [s for s in self.running if not s.decodes]:
            taken = min(sequence.known - sequence.computed, chunk, batch.budget)
            if taken and self._has_room(sequence, taken, batch):
                self._take_chunk(batch, sequence, taken)

    def _admit(self, batch: Batch, chunk: int) -> None:
        """3. admission, unless a sequence was preempted in this step."""
        while (
            not batch.preempted
            and self.waiting
            and batch.budget > 0
            and len(self.running) < self.plan.seqs
        ):
            sequence = self.waiting[0]
            hit = self.blocks.hit(sequence)
            taken = min(sequence.known - hit.tokens, chunk, batch.budget)
            whole = sequence.known if self.plan.full_input else hit.tokens + taken
            spare = self.plan.watermark if self.running else 0
            if self.blocks.needed(whole) - hit.shared + spare > self.blocks.free:
                return
            del self.waiting[0]
            self.running.append(sequence)
            self.blocks.admit(sequence, hit)
            self.blocks.grow(sequence, hit.tokens + taken)
            self._take_chunk(batch, sequence, taken)
            if sequence.scheduled == NONE:
                self._first_time(sequence, hit.tokens)

    def _take_chunk(self, batch: Batch, sequence: Sequence, taken: int) -> None:
        batch.prompts.append((sequence, taken))
        batch.budget -= taken
        self.blocks.register(sequence, min(sequence.computed + taken, sequence.prompt))

    def _first_time(self, sequence: Sequence, hit: int) -> None:
        now = self._events.now
        sequence.scheduled = now
        sequence.cached = hit
        if not sequence.written:
            self.total.query += sequence.prompt
            self.total.hit += hit
        self._watcher.scheduled(waited=now > sequence.queued)

    def _has_room(self, sequence: Sequence, tokens: int, batch: Batch) -> bool:
        """Whether a running sequence has the blocks for `tokens` more, others being preempted for
        it. Not if it has been preempted itself."""
        if sequence not in self.running:
            return False
        tokens += sequence.computed
        while self.blocks.needed(tokens) - sequence.blocks > self.blocks.free:
            victim = self._victim()
            self._preempt(victim)
            batch.drop(victim, self._decode_tokens)
            if victim is sequence:
                return False
        self.blocks.grow(sequence, tokens)
        return True

    def _victim(self) -> Sequence:
        if self.plan.order == PRIORITY:
            return max(self.running, key=lambda s: s.rank)
        return self.running[-1]

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.blocks.leave(victim, PREEMPTED)
        victim.preemptions += 1
        self.total.preemptions += 1
        self._wait(victim, at_head=True)

    def _ticks(self, batch: Batch) -> int:
        """base[B] + slope[B] x contexts + prompt[n] + context x c."""
        plan, decodes = self.plan, len(batch.decodes)
        contexts = sum(s.computed + 1 for s in batch.decodes)
        tokens = sum(taken for _, taken in batch.prompts)
        attended = sum(n * s.computed + n * (n + 1) // 2 for s, n in batch.prompts)
        ticks = (
            plan.base[decodes]
            + plan.slope[decodes] * contexts
            + plan.prompt[tokens]
            + plan.context * attended
        )
        return max(1, int(ticks))

    # A step ends

    def _end(self) -> None:
        self.total.busy += self._events.now - self._began
        self._began = NONE
        for sequence in [s for s in self.running if s.given_up]:
            self._release(sequence, ABORTED)
        done = [s for s in self._batch.decodes if not s.given_up and self._decoded(s)]
        done += [s for s, n in self._batch.prompts if not s.given_up and self._computed(s, n)]
        for sequence in done:
            self._release(sequence, ENDED)
        for sequence in done:
            sequence.ended()
        if self.running or self.waiting:
            self._wake()

    def _decoded(self, sequence: Sequence) -> bool:
        """The tokens of a decode; whether it has written all."""
        tokens = min(1 + self._accepted(sequence), sequence.target - sequence.written)
        sequence.computed += tokens
        return self._wrote(sequence, tokens)

    def _computed(self, sequence: Sequence, tokens: int) -> bool:
        """The tokens of a prompt; whether it has written all."""
        sequence.computed += tokens
        if sequence.computed < sequence.known:
            return False
        if not sequence.written:
            sequence.first = self._events.now
            self.total.prompt += sequence.prompt
        return self._wrote(sequence, 1)

    def _wrote(self, sequence: Sequence, tokens: int) -> bool:
        sequence.written += tokens
        self.total.written += tokens
        return sequence.written >= sequence.target

    def _accepted(self, sequence: Sequence) -> int:
        """Tokens accepted of a draft: those before the first that is not."""
        luck = sequence.luck + 16 * sequence.verified
        sequence.verified += 1
        for place, chance in enumerate(self.plan.accept):
            if mixed(luck + place) >> 11 >= chance:
                return place
        return len(self.plan.accept)

    def _release(self, sequence: Sequence, why: int) -> None:
        """A sequence leaves `running`; unless its KV has yet to move, it leaves the replica."""
        self.running.remove(sequence)
        if why == ENDED and sequence.moves:
            return
        self.blocks.leave(sequence, why)
        self.leave()
