"""A request walks its program: groups in order, the steps of a group at once, with attempts.

An attempt that fails cancels what it has under way: engine calls are aborted, station visits are
left (see `sojourn.sim.station`). Then, by the fleet's retry policy:
- its deadline passed and `degrade_on_timeout`: the request ends ok, degraded `partial_answer`;
- it timed out (the deadline, or a station it cannot do without), attempts are left and
  `retry_on_timeout`: a backoff of backoff_s * factor^(attempt - 1) times a jitter, then again
  from the first step;
- the engine refused a call that no replica can hold: no retry can help, the request ends in error.
A station's timeout where the station is `optional` skips the step: degraded `skip:<station>`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sojourn.capacity.drift import level_at
from sojourn.capacity.records import Fleet, StationModel
from sojourn.records import ENGINE_HOST_SPANS, Stage, Status
from sojourn.sim.events import TIMER, WORK, EventLoop
from sojourn.sim.luck import choice, uniform
from sojourn.sim.program import Program, Work
from sojourn.sim.record import Recorder
from sojourn.sim.replica import Replica, Sequence
from sojourn.sim.station import Station
from sojourn.workload.profile_records import StepKind

OK, ERROR, TIMEOUT, CANCELLED = (
    Status.OK.value, Status.ERROR.value, Status.TIMEOUT.value, Status.CANCELLED.value,
)  # fmt: skip
PARTIAL_ANSWER = "partial_answer"


@dataclass
class World:
    """What all requests share: the loop, the fleet's live parts, the record."""

    loop: EventLoop
    fleet: Fleet
    stations: dict[str, Station]
    replicas: list[Replica]
    record: Recorder
    seed: int
    in_flight: int = 0
    _turn: int = -1

    def next_replica(self) -> int:
        """Round robin over the fleet's replicas, whoever asks."""
        self._turn = (self._turn + 1) % len(self.replicas)
        return self._turn

    def station(self, name: str) -> Station:
        """The live station of a name; one the fleet does not know has no limit."""
        found = self.stations.get(name)
        if found is None:
            found = self.stations[name] = Station(self.loop, None)
        return found

    def fits(self, work: Work) -> bool:
        """Whether a replica could hold the call alone. The last token written is not computed."""
        engine = self.fleet.engine
        tokens = max(1, work.input_tokens) + max(1, work.output_tokens) - 1
        return tokens <= engine.kv_blocks * engine.block_size


class RequestRun:
    """One request, from arrival to its end."""

    __slots__ = (
        "arrival_s",
        "attempts",
        "degraded",
        "id",
        "name",
        "program",
        "root",
        "row",
        "world",
    )

    def __init__(
        self, world: World, row: int, request_id: str, name: str, program: Program
    ) -> None:
        self.world = world
        self.row = row
        self.id = request_id
        self.name = name
        self.program = program
        self.attempts = 0
        self.degraded: list[str] = []
        self.arrival_s = world.loop.now
        self.root = world.record.new_span()
        world.in_flight += 1
        self.attempt()

    def attempt(self) -> None:
        """Begin the next attempt."""
        number = self.attempts
        self.attempts = number + 1
        Attempt(self, number).start()

    def degrade(self, step: str) -> None:
        """Note a degrade step, once."""
        if step not in self.degraded:
            self.degraded.append(step)

    def attempt_over(self, status: str, *, by_deadline: bool) -> None:
        """An attempt ended: end the request, or try again."""
        retry = self.world.fleet.retry
        if by_deadline and retry.degrade_on_timeout:
            self.degrade(PARTIAL_ANSWER)
            self._end(OK)
        elif status == TIMEOUT and retry.retry_on_timeout and self.attempts < retry.max_attempts:
            self._back_off()
        else:
            self._end(status)

    def _back_off(self) -> None:
        retry, world = self.world.fleet.retry, self.world
        wait = retry.backoff_s * retry.backoff_factor ** (self.attempts - 1)
        if retry.jitter and wait:
            draw = uniform(world.seed, self.id, self.attempts, "backoff")
            wait *= 1.0 + retry.jitter * (2.0 * draw - 1.0)
        now = world.loop.now
        if wait > 0:
            world.record.span(
                (self.row, self.attempts, None, self.root),
                (Stage.BACKOFF.value, "backoff", OK),
                (now, now + wait),
            )
        world.loop.after(wait, WORK, self.attempt)

    def _end(self, status: str) -> None:
        world, now = self.world, self.world.loop.now
        world.in_flight -= 1
        world.record.ends.append((self.row, now, status, self.degraded, self.attempts))
        world.record.span(
            (self.row, 0, None, None),
            (None, self.name, status),
            (self.arrival_s, now),
            number=self.root,
        )


class Step(Protocol):
    """A step under way."""

    def cancel(self) -> None:
        """The attempt is over: stop, and record what there was."""


class Attempt:
    """One try of a request's program."""

    __slots__ = ("active", "deadline", "group", "number", "request", "span", "started_s", "world")

    def __init__(self, request: RequestRun, number: int) -> None:
        self.request = request
        self.world = request.world
        self.number = number
        self.group = -1
        self.active: dict[int, Step] = {}
        self.deadline = -1
        self.span = self.world.record.new_span()
        self.started_s = self.world.loop.now

    def start(self) -> None:
        """Set the deadline and begin the first group."""
        timeout = self.world.fleet.retry.attempt_timeout_s
        if timeout is not None:
            self.deadline = self.world.loop.after(timeout, TIMER, self._expired)
        self._next_group()

    def done(self, work: Work) -> None:
        """A step is over; the last of its group begins the next group."""
        del self.active[work.place]
        if not self.active:
            self._next_group()

    def fail(self, work: Work, status: str) -> None:
        """A step failed and with it the attempt."""
        del self.active[work.place]
        self._end(status)

    def where(self, call: int | None = None) -> tuple[int, int, int | None, int | None]:
        """Place of a leaf span below this attempt."""
        return (self.request.row, self.number, call, self.span)

    def _next_group(self) -> None:
        self.group += 1
        program = self.request.program
        if self.group == len(program):
            self._end(OK)
            return
        for work in program[self.group]:
            self.active[work.place] = _STEPS[work.kind](self, work)

    def _expired(self) -> None:
        self._end(TIMEOUT, by_deadline=True)

    def _end(self, status: str, *, by_deadline: bool = False) -> None:
        world, request = self.world, self.request
        world.loop.cancel(self.deadline)
        active, self.active = self.active, {}
        for step in active.values():
            step.cancel()
        world.record.span(
            (request.row, self.number, None, request.root),
            (None, "attempt", status),
            (self.started_s, world.loop.now),
            number=self.span,
        )
        request.attempt_over(status, by_deadline=by_deadline)


class DelayStep:
    """Time that passes. A delay whose stage is unexplained leaves no span: it shows as the gap
    it was."""

    __slots__ = ("attempt", "started_s", "ticket", "work")

    def __init__(self, attempt: Attempt, work: Work) -> None:
        self.attempt = attempt
        self.work = work
        loop = attempt.world.loop
        self.started_s = loop.now
        self.ticket = loop.after(work.service_s, WORK, self._ended)

    def _ended(self) -> None:
        self._record(OK)
        self.attempt.done(self.work)

    def cancel(self) -> None:
        """Stop the clock."""
        self.attempt.world.loop.cancel(self.ticket)
        self._record(CANCELLED)

    def _record(self, status: str) -> None:
        world, stage = self.attempt.world, self.work.stage
        if stage and stage != Stage.UNEXPLAINED.value and world.loop.now > self.started_s:
            world.record.span(
                self.attempt.where(),
                (stage, self.work.name or stage, status),
                (self.started_s, world.loop.now),
            )


class StationStep:
    """A visit to a station."""

    __slots__ = ("attempt", "model", "station", "timer", "visit", "work")

    def __init__(self, attempt: Attempt, work: Work) -> None:
        world = attempt.world
        self.attempt = attempt
        self.work = work
        self.model: StationModel | None = world.fleet.stations.get(work.name)
        self.station = world.station(work.name)
        self.visit = self.station.enter(self._service_s(), self._ended)
        self.timer = -1
        if self.model is not None and self.model.timeout_s is not None:
            self.timer = world.loop.after(self.model.timeout_s, TIMER, self._expired)

    def _service_s(self) -> float:
        """The program's own time first; a retry has new luck, drawn from the station's samples at
        the level of that time."""
        attempt, work = self.attempt, self.work
        if attempt.number == 0 or self.model is None or not self.model.service_samples_s:
            return work.service_s
        key = (attempt.world.seed, attempt.request.id, attempt.number, work.place)
        drawn = choice(self.model.service_samples_s, *key)
        return drawn * level_at(self.model.drift, attempt.world.loop.now)

    def _ended(self) -> None:
        self.attempt.world.loop.cancel(self.timer)
        self._record(OK)
        self.attempt.done(self.work)

    def _expired(self) -> None:
        self._leave(TIMEOUT)
        if self.model is not None and self.model.optional:
            self.attempt.request.degrade(f"skip:{self.work.name}")
            self.attempt.done(self.work)
        else:
            self.attempt.fail(self.work, TIMEOUT)

    def cancel(self) -> None:
        """Give the visit up."""
        self.attempt.world.loop.cancel(self.timer)
        self._leave(CANCELLED)

    def _leave(self, status: str) -> None:
        stops = self.model is not None and self.model.stops_on_cancel
        self.station.leave(self.visit, stops=stops)
        self._record(status)

    def _record(self, status: str) -> None:
        world, work, visit = self.attempt.world, self.work, self.visit
        now = world.loop.now
        world.record.span(
            self.attempt.where(),
            (work.stage, work.name, status),
            (visit.entered_s, now),
            wait_s=visit.waited_s(now),
        )


class CallStep:
    """A model call: the API server's front, then the engine's queue and batches."""

    __slots__ = ("arrived_s", "attempt", "front", "replica", "sequence", "work")

    def __init__(self, attempt: Attempt, work: Work) -> None:
        world = attempt.world
        self.attempt = attempt
        self.work = work
        self.arrived_s = world.loop.now
        self.replica = world.next_replica()
        self.front = -1
        prompt = max(1, work.input_tokens)
        self.sequence = Sequence(prompt, work.cached_tokens, work.output_tokens, self._ended)
        if not world.fits(work):
            self.front = world.loop.at(world.loop.now, WORK, self._refused)
        elif world.fleet.engine.step.front_s > 0:
            self.front = world.loop.after(world.fleet.engine.step.front_s, WORK, self._queue)
        else:
            self._queue()

    def _queue(self) -> None:
        self.attempt.world.replicas[self.replica].submit(self.sequence)

    def _refused(self) -> None:
        self.attempt.world.record.refused_calls += 1
        self._record(ERROR, 0)
        self.attempt.fail(self.work, ERROR)

    def _ended(self) -> None:
        self._record(OK, self.sequence.written)
        self.attempt.done(self.work)

    def cancel(self) -> None:
        """Abort: the engine lets go of it at the end of its step."""
        world = self.attempt.world
        if self.sequence.queued_s is None:
            world.loop.cancel(self.front)
            self._record(CANCELLED, 0)
            return
        replica = world.replicas[self.replica]
        written = replica.written(self.sequence)
        replica.abort(self.sequence)
        self._record(CANCELLED, written)

    def _record(self, status: str, written: int) -> None:
        world, work, attempt, seq = self.attempt.world, self.work, self.attempt, self.sequence
        now = world.loop.now
        written = min(written, work.output_tokens)
        first = seq.first_token_s if written else None
        world.record.calls.append(
            (
                attempt.request.row, attempt.number, work.turn, work.name, work.pool,
                self.replica, seq.prompt, min(work.cached_tokens, seq.prompt), written,
                work.image_tokens, self.arrived_s, seq.scheduled_s, first, now,
                seq.preemptions, status,
            )
        )  # fmt: skip
        parent = world.record.new_span()
        row, number, turn, above = attempt.where(work.turn)
        world.record.span(
            (row, number, turn, above), (None, f"chat {work.name}", status),
            (self.arrived_s, now), number=parent,
        )  # fmt: skip
        marks = (
            (Stage.GATEWAY, ENGINE_HOST_SPANS[0], self.arrived_s, seq.queued_s),
            (Stage.QUEUE, "queue", seq.queued_s, seq.scheduled_s),
            (Stage.PREFILL, "prefill", seq.scheduled_s, seq.first_token_s),
            (Stage.DECODE, "decode", seq.first_token_s, None),
        )
        for stage, name, start, end in marks:
            until = now if end is None else end
            if start is not None and until > start:
                world.record.span(
                    (row, number, turn, parent),
                    (stage.value, name, status if end is None else OK),
                    (start, until),
                )


_STEPS: dict[str, Callable[[Attempt, Work], Step]] = {
    StepKind.DELAY.value: DelayStep,
    StepKind.STATION.value: StationStep,
    StepKind.CALL.value: CallStep,
}
