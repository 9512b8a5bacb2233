"""A replica of the engine (rule book: "The engine"): queue, steps, counters. One event per step."""

from __future__ import annotations

from bisect import insort

from sojourn.capacity.policies import Order
from sojourn.sim.log import NONE
from sojourn.sim.lowered import ORDERS, PoolPlan
from sojourn.sim.luck import mixed
from sojourn.sim.reference.events import STEP_BEGIN, STEP_END, Events
from sojourn.sim.reference.prefix import ABORTED, ENDED, PREEMPTED, blocks_of
from sojourn.sim.reference.sequence import Batch, Sequence, Totals, Watcher

PRIORITY, PREFILL_FIRST = ORDERS.index(Order.PRIORITY), ORDERS.index(Order.PREFILL_FIRST)
ACTIVE, STARTING, DRAINING, STOPPED = range(4)


class Replica:
    """One replica. `load`: calls routed here that have not left."""

    def __init__(self, events: Events, plan: PoolPlan, number: int, watcher: Watcher) -> None:
        self.plan = plan
        self.number = number
        self.state = ACTIVE
        self.load = 0
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.total = Totals()
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
        return self.total.busy + (0 if self._began == NONE else self._events.now - self._began)

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

    def _begin(self) -> None:
        """A step begins: what it computes, and how long that takes."""
        batch = self._batch = Batch(self.plan.budget)
        is_capped = self.plan.cap >= 0 and len(self.running) + len(self.waiting) > 1
        chunk = self.plan.cap if is_capped else self.plan.budget
        if self.plan.order == PREFILL_FIRST:
            self._take_prompts(batch, chunk)
            self._admit(batch, chunk)
            if not batch:
                self._take_decodes(batch)
        else:
            self._take_decodes(batch)
            self._take_prompts(batch, chunk)
            self._admit(batch, chunk)
        if batch:
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
        while self.waiting and not batch.preempted and batch.budget > 0:
            if len(self.running) == self.plan.seqs:
                return
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
        sequence.scheduled, sequence.cached = self._events.now, hit
        if not sequence.written:
            self.total.query += sequence.prompt
            self.total.hit += hit
        self._watcher.scheduled(waited=sequence.scheduled > sequence.queued)

    def _has_room(self, sequence: Sequence, tokens: int, batch: Batch) -> bool:
        """Whether a running sequence has the blocks for `tokens` more, others being preempted for
        it. Not if it has been preempted itself."""
        if sequence not in self.running:
            return False
        tokens += sequence.computed
        while self.blocks.needed(tokens) - sequence.blocks > self.blocks.free:
            victim = self._preempt()
            batch.drop(victim, self._decode_tokens)
            if victim is sequence:
                return False
        self.blocks.grow(sequence, tokens)
        return True

    def _preempt(self) -> Sequence:
        """The last admitted loses its blocks; with priorities the one of the last rank."""
        by_rank = self.plan.order == PRIORITY
        victim = max(self.running, key=lambda s: s.rank) if by_rank else self.running[-1]
        self.running.remove(victim)
        self.blocks.leave(victim, PREEMPTED)
        victim.preemptions += 1
        self.total.preemptions += 1
        victim.at_hand = victim.at_hand_again
        self._wait(victim, at_head=True)
        return victim

    def _ticks(self, batch: Batch) -> int:
        """base[B] + slope[B] x contexts + prompt[n] + context x c."""
        plan = self.plan
        decodes = batch.decodes + [s for s, _ in batch.prompts if s.decodes]
        chunks = [(s, n) for s, n in batch.prompts if not s.decodes]
        contexts = sum(s.computed + 1 for s in decodes)
        tokens = sum(n for _, n in chunks)
        attended = sum(n * s.computed + n * (n + 1) // 2 for s, n in chunks)
        ticks = plan.base[len(decodes)] + plan.slope[len(decodes)] * contexts
        return max(1, int(ticks + plan.prompt[tokens] + plan.context * attended))

    def _end(self) -> None:
        """A step ends: who was given up leaves, tokens are counted, who is done leaves."""
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
        return self._wrote(sequence, computed=tokens, written=tokens)

    def _computed(self, sequence: Sequence, tokens: int) -> bool:
        """The tokens of a prompt; whether it has written all."""
        is_whole = sequence.computed + tokens == sequence.known
        if is_whole and not sequence.written:
            sequence.first = self._events.now
            self.total.prompt += sequence.prompt
        return self._wrote(sequence, computed=tokens, written=int(is_whole))

    def _wrote(self, sequence: Sequence, *, computed: int, written: int) -> bool:
        sequence.computed += computed
        sequence.written += written
        self.total.written += written
        return sequence.written == sequence.target

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
