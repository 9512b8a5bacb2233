"""One engine replica: continuous batching with chunked prefill and paged KV blocks, as vLLM v1.

Each step, in this order and within `max_num_batched_tokens`:
1. running sequences, oldest first: a decode takes one token, an unfinished prompt its next
   chunk. (Only the youngest can have an unfinished prompt, so decodes go first.) A sequence
   that finds no free block preempts the youngest: that one loses its blocks, goes to the head of
   the queue and is computed anew, prompt and written tokens, when it comes back;
2. unless something was preempted: waiting sequences, first come first served, while there is a
   slot (`max_num_seqs`) and the blocks for the chunk. The head waits: nobody overtakes it.
The sequence whose last known token is computed in a step has its next token at the step's end.
Cached prompt tokens need no compute but hold blocks; at least one token is computed.
Source: vllm/v1/core/sched/scheduler.py (vLLM 0.32). Not modelled: priorities, speculative
decoding, sharing of blocks between sequences, eviction from the prefix cache.

Leaping: while every running sequence decodes and nobody can be admitted, k steps are one event;
step j of them takes first + j * growth seconds, so k take k * first + growth * k(k - 1)/2. An
arrival or an abort cuts a leap at the end of the step under way. `leap=False` takes each step as
an event of its own: the same run, up to rounding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sojourn.capacity.records import EngineModel, StepModel
from sojourn.sim.events import STEP, EventLoop

LONGEST_LEAP = 1 << 40
_NO_EVENT, _ENDING = -1, -2


class Sequence:
    """One call inside the engine."""

    __slots__ = (
        "aborted", "blocks", "cached", "computed", "ended", "first_token_s", "output",
        "preemptions", "prompt", "queued_s", "scheduled_s", "written",
    )  # fmt: skip

    def __init__(self, prompt: int, cached: int, output: int, ended: Callable[[], None]) -> None:
        self.prompt = prompt
        self.cached = min(cached, prompt - 1)
        self.output = max(1, output)
        self.ended = ended
        self.computed = 0
        self.written = 0
        self.blocks = 0
        self.preemptions = 0
        self.aborted = False
        self.queued_s: float | None = None
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None


class Gauge(NamedTuple):
    """What a scrape of the replica would read; totals since the start."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    hit_tokens: int
    query_tokens: int
    prompt_tokens: int
    written_tokens: int
    busy_s: float


class Totals:
    """Counters of a replica since its start."""

    __slots__ = ("busy_s", "hit_tokens", "preemptions", "prompt_tokens", "query_tokens", "written")

    def __init__(self) -> None:
        self.preemptions = self.hit_tokens = self.query_tokens = 0
        self.prompt_tokens = self.written = 0
        self.busy_s = 0.0


class StepTable:
    """Base and slope of a decode step by batch size, looked up once each."""

    def __init__(self, model: StepModel) -> None:
        self._whole = model
        self._slopes = model.model_copy(update={"base_s": (0.0,) * len(model.base_s)})
        self._known: dict[int, tuple[float, float]] = {}
        self.per_token = model.prefill_s_per_token
        self.per_context = model.prefill_s_per_token_context

    def decode(self, batch: int) -> tuple[float, float]:
        """(base, slope): a step of `batch` decodes takes base + slope * (sum of contexts)."""
        found = self._known.get(batch)
        if found is None:
            base = max(0.0, self._whole.decode_step_s(batch, 0.0))
            found = (base, max(0.0, self._slopes.decode_step_s(batch, 1.0)))
            self._known[batch] = found
        return found


class Replica:
    """A replica with its queue. `submit` and `abort` are all that the outside does to it."""

    def __init__(
        self, loop: EventLoop, model: EngineModel, table: StepTable, *, index: int, leap: bool
    ) -> None:
        self._loop = loop
        self._table = table
        self._leap = leap
        self._priority = STEP + index
        self._slots = model.max_num_seqs
        self._budget = model.max_num_batched_tokens
        self._block = model.block_size
        self._total_blocks = self.free = model.kv_blocks
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.totals = Totals()
        self._event = _NO_EVENT
        self._batch: list[tuple[Sequence, int]] = []
        self._leaving: list[Sequence] = []
        self._left = 0
        self._calm = True
        self._began_s = 0.0
        self._first_s = 0.0
        self._growth_s = 0.0
        self._steps = 1

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.queued_s = self._loop.now
        blocked = bool(self.waiting) or len(self.running) >= self._slots
        self.waiting.append(sequence)
        if self._event == _NO_EVENT:  # begins when all that came at this instant is queued
            self._began_s = self._loop.now
            self._event = self._loop.at(self._loop.now, self._priority, self._begin)
        elif not blocked:
            self._cut()

    def abort(self, sequence: Sequence) -> None:
        """Its caller has gone: one that waits leaves now, one that runs at the step's end."""
        sequence.aborted = True
        if sequence in self.running:
            self._leaving.append(sequence)
        else:
            self.waiting.remove(sequence)
        self._cut()

    def written(self, sequence: Sequence) -> int:
        """Tokens a sequence has written by now."""
        if self._steps > 1 and sequence in self.running:
            return sequence.written + self._steps_done()
        return sequence.written

    def gauge(self) -> Gauge:
        """The replica's gauges and counters at this instant."""
        busy, written, held = (
            self.totals.busy_s,
            self.totals.written,
            self._total_blocks - self.free,
        )
        if self._event != _NO_EVENT:
            busy += self._loop.now - self._began_s
        if self._steps > 1:
            done = self._steps_done()
            written += done * len(self._batch)
            held += self._more_blocks(min(done + 1, self._steps))
        totals = self.totals
        return Gauge(
            len(self.running), len(self.waiting), held / self._total_blocks, totals.preemptions,
            totals.hit_tokens, totals.query_tokens, totals.prompt_tokens, written, busy,
        )  # fmt: skip

    # A step: begin (schedule, time), end (tokens, finished sequences).

    def _begin(self) -> None:
        self._batch = []
        self._calm = self._continue_running()
        if self._calm:
            self._admit()
        if not self._batch:
            self._event, self._steps = _NO_EVENT, 1
            return
        self._began_s = self._loop.now
        self._time_batch()
        self._event = self._loop.at(self._time_of(self._steps), self._priority, self._end)

    def _continue_running(self) -> bool:
        """Take the running sequences into the batch; False when one was preempted."""
        budget, batch, running, block = self._budget, self._batch, self.running, self._block
        calm = True
        index = 0
        while index < len(running) and budget > 0:
            sequence = running[index]
            tokens = sequence.prompt + sequence.written - sequence.computed
            tokens = min(tokens, budget)
            more = -(-(sequence.computed + tokens) // block) - sequence.blocks
            if more > self.free:
                calm = False
                if not self._make_room(sequence, more):
                    break
            if more > 0:
                self.free -= more
                sequence.blocks += more
            batch.append((sequence, tokens))
            budget -= tokens
            index += 1
        self._left = budget
        return calm

    def _make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Preempt from the youngest until `blocks` are free; False when it was its own turn."""
        while blocks > self.free:
            victim = self.running.pop()
            self._release(victim)
            victim.preemptions += 1
            self.totals.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self) -> None:
        while self.waiting and self._left > 0 and len(self.running) < self._slots:
            sequence = self.waiting[0]
            known = sequence.prompt + sequence.written
            tokens = min(known - sequence.cached, self._left)
            blocks = -(-(sequence.cached + tokens) // self._block)
            if blocks > self.free:
                return
            self.waiting.popleft()
            if sequence.scheduled_s is None:
                sequence.scheduled_s = self._loop.now
                self.totals.query_tokens += sequence.prompt
                self.totals.hit_tokens += sequence.cached
            sequence.computed = sequence.cached
            sequence.blocks = blocks
            self.free -= blocks
            self.running.append(sequence)
            self._batch.append((sequence, tokens))
            self._left -= tokens

    def _time_batch(self) -> None:
        """Duration of the first step, its growth per step, and how many steps are alike."""
        decodes = context = tokens = token_context = 0
        for sequence, count in self._batch:
            known = sequence.computed + count
            if count == 1 and sequence.written and known == sequence.prompt + sequence.written:
                decodes += 1
                context += known
            else:
                tokens += count
                token_context += count * sequence.computed + count * (count + 1) // 2
        base, slope = self._table.decode(decodes)
        self._first_s = (
            base
            + slope * context
            + self._table.per_token * tokens
            + self._table.per_context * token_context
        )
        self._growth_s = slope * decodes
        self._steps = 1
        if self._leap and self._calm and decodes == len(self.running):
            self._steps = self._longest_leap()

    def _longest_leap(self) -> int:
        """Steps until a sequence ends or the free blocks run out."""
        most = min(sequence.output - sequence.written for sequence in self.running)
        most = min(most, LONGEST_LEAP)
        if self._more_blocks(most) <= self.free:
            return most
        fits = 1
        while most - fits > 1:
            middle = (fits + most) // 2
            if self._more_blocks(middle) <= self.free:
                fits = middle
            else:
                most = middle
        return fits

    def _more_blocks(self, steps: int) -> int:
        """Blocks that `steps` decode steps of the batch need beyond those held."""
        block = self._block
        return sum(
            -(-(sequence.computed + steps) // block) - sequence.blocks
            for sequence, _ in self._batch
        )

    def _end(self) -> None:
        now, steps = self._loop.now, self._steps
        self._event = _ENDING
        self.totals.busy_s += now - self._began_s
        if steps > 1:
            self.free -= self._more_blocks(steps)
        finished = []
        for sequence, tokens in self._batch:
            sequence.computed += tokens if steps == 1 else steps
            if steps > 1:
                sequence.blocks = -(-sequence.computed // self._block)
            if steps == 1 and sequence.computed < sequence.prompt + sequence.written:
                continue
            if sequence.written == 0:
                sequence.first_token_s = now
                self.totals.prompt_tokens += sequence.prompt
            sequence.written += steps
            self.totals.written += steps
            if sequence.written >= sequence.output:
                finished.append(sequence)
        self._steps = 1
        self._dismiss(finished)
        if self._event == _ENDING:
            self._begin()

    def _dismiss(self, finished: list[Sequence]) -> None:
        """Sequences that are done or given up leave; then their callers are told, who may give
        up others."""
        while finished or self._leaving:
            gone = finished + self._leaving
            told, finished, self._leaving = finished, [], []
            self.running = [sequence for sequence in self.running if sequence not in gone]
            for sequence in gone:
                self._release(sequence)
            for sequence in told:
                if not sequence.aborted:
                    sequence.ended()

    def _release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = sequence.computed = 0

    # Time inside a leap.

    def _time_of(self, steps: int) -> float:
        """When `steps` steps of the leap have ended."""
        return self._began_s + steps * self._first_s + self._growth_s * (steps * (steps - 1) / 2)

    def _steps_done(self) -> int:
        """Steps of the leap that have ended by now, those of this very instant included where
        their turn has passed."""
        passed = self._loop.reached >= self._priority
        now = self._loop.now

        def over(steps: int) -> bool:
            end = self._time_of(steps)
            return end < now or (passed and end == now)

        done = min(self._steps, max(0, _root(self._first_s, self._growth_s, now - self._began_s)))
        while done > 0 and not over(done):
            done -= 1
        while done < self._steps and over(done + 1):
            done += 1
        return done

    def _cut(self) -> None:
        """End the leap with the step under way."""
        if self._event >= 0 and self._steps > 1:
            self._loop.cancel(self._event)
            self._steps = min(self._steps, self._steps_done() + 1)
            end = max(self._loop.now, self._time_of(self._steps))
            self._event = self._loop.at(end, self._priority, self._end)


def _root(first: float, growth: float, elapsed: float) -> int:
    """About how many steps fit in `elapsed`: k first + growth k(k - 1)/2 = elapsed for k."""
    half = growth / 2
    b = first - half
    if half <= 0.0:
        return int(elapsed / first) if first > 0 else 0
    return int((-b + math.sqrt(b * b + 4 * half * max(0.0, elapsed))) / (2 * half))
