"""Model calls, from their step's beginning to the engine and through it (rule book: "Model calls",
"Disaggregation"); and the encoders of replicas."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable

from sojourn.sim.log import CANCELLED, ERROR, NONE, OK, SHORT_ANSWER
from sojourn.sim.lowered import EncoderPlan
from sojourn.sim.luck import ACCEPT, FRONT, pick
from sojourn.sim.reference.engine import Replica
from sojourn.sim.reference.events import WORK, Events
from sojourn.sim.reference.pools import Pool
from sojourn.sim.reference.prefix import ABORTED, ENDED
from sojourn.sim.reference.sequence import Aim, Sequence
from sojourn.sim.reference.world import Owner, Place, World


class Encoder:
    """The encoder of a replica: its servers, their queue, and the images it remembers."""

    def __init__(self, plan: EncoderPlan, events: Events) -> None:
        self.plan = plan
        self._events = events
        self._busy = 0
        self._waiting: deque[Call] = deque()
        self._images: OrderedDict[int, None] = OrderedDict()

    def knows(self, image: int) -> bool:
        """Whether an image is in the cache; if so it becomes the most recently used."""
        if image not in self._images:
            return False
        self._images.move_to_end(image)
        return True

    def ask(self, call: Call) -> None:
        """Encode, or let it wait."""
        if self._busy < self.plan.servers:
            self._busy += 1
            call.encode()
        else:
            self._waiting.append(call)

    def leave(self, call: Call) -> None:
        """A call given up leaves the queue, or its server, which takes the next at once."""
        if call in self._waiting:
            self._waiting.remove(call)
        else:
            self._release()

    def finish(self, image: int) -> None:
        """Encoding ends: the image is remembered, the server takes the next."""
        if image:
            self._images[image] = None
            self._images.move_to_end(image)
            while len(self._images) > self.plan.cache:
                self._images.popitem(last=False)
        self._release()

    def _release(self) -> None:
        self._busy -= 1
        if self._waiting:
            self._busy += 1
            self._waiting.popleft().encode()


class Call:
    """A model call. `_stop` is what giving up does in the stage that it is in."""

    def __init__(
        self, owner: Owner, place: Place, world: World, encoders: dict[int, Encoder]
    ) -> None:
        steps = world.plan.steps
        self._owner = owner
        self._place = place
        self._world = world
        self._encoders = encoders
        self._arrival = world.events.now
        self._encode = self._encode_start = NONE
        self._given_up = False
        self._replica: Replica | None = None
        self._prompt: int = steps.prompt[place.step]
        self._output = self._output_now(steps.output[place.step])
        self._pool = world.pools[steps.pool[place.step]]
        self._entry = self._pool
        if self._pool.plan.prefill_pool >= 0:
            self._entry = world.pools[self._pool.plan.prefill_pool]
        self._halves = [self._first_half()]
        self._stop: Callable[[], None] = self._drop_work
        if self._fits():
            self._enter_front()
        else:
            world.events.at(self._arrival, WORK, place.key, self._refused)

    def _output_now(self, wanted: int) -> int:
        output = self._world.gateway.ladder.output(wanted)
        if output < wanted:
            self._owner.degrade(SHORT_ANSWER)
        return output

    def _fits(self) -> bool:
        """Whether a replica of each pool concerned could hold the call alone."""
        plan, entry = self._pool.plan, self._entry.plan
        whole = self._prompt + self._output - 1 + len(plan.accept)
        if whole > plan.blocks * plan.block:
            return False
        return entry is plan or self._prompt <= entry.blocks * entry.block

    @property
    def _sequence(self) -> Sequence:
        """The call in the engine where it is now."""
        return self._halves[-1]

    def _first_half(self) -> Sequence:
        """The call in the engine; of a disaggregated one its prompt and first token."""
        steps, step = self._world.plan.steps, self._place.step
        first, end = steps.first_hash[step : step + 2]
        moves = self._entry is not self._pool and self._output > 1
        aim = Aim(
            prompt=self._prompt,
            target=1 if moves else self._output,
            at_hand=steps.cached[step],
            at_hand_again=steps.cached[step],
            hashes=list(steps.hashes[first:end]),
            moves=moves,
        )
        return Sequence(
            aim,
            priority=self._world.plan.requests.priority[self._place.row],
            luck=self._place.luck(self._world.plan, ACCEPT),
            ended=self._ended,
        )

    def _second_half(self) -> Sequence:
        """The rest of a disaggregated call: the KV of its prompt is at hand."""
        before = self._sequence
        aim = Aim(self._prompt, self._output, at_hand=self._prompt, at_hand_again=0, hashes=[])
        half = Sequence(aim, priority=before.priority, luck=before.luck, ended=self._ended)
        half.written = before.written
        return half

    def _refused(self) -> None:
        self._log(ERROR)
        self._owner.fail(self._place.place, ERROR, final=True)

    # Front end, encoder, queue

    def _enter_front(self) -> None:
        world = self._world
        self._route(self._entry)
        self._stop = self._stop_front
        front = self._front_time()
        if front:
            world.events.at(self._arrival + front, WORK, self._place.key, self._enter_encoder)
        else:
            self._enter_encoder()

    def _front_time(self) -> int:
        plan = self._entry.plan
        front = pick(plan.front, self._place.luck(self._world.plan, FRONT))
        if not len(plan.front_load) or self._replica is None:
            return front
        level = max(0, bisect_right(plan.front_load, self._replica.load) - 1)
        factor: float = plan.front_factor[level]
        return round(front * factor)

    def _route(self, pool: Pool) -> None:
        session = self._world.plan.requests.session[self._place.row]
        self._replica = pool.route(self._sequence, session)

    def _enter_encoder(self) -> None:
        steps, step, now = self._world.plan.steps, self._place.step, self._world.events.now
        encoder = self._encoders.get(self._at.number)
        if encoder is None or not steps.image_tokens[step]:
            self._enter_queue()
            return
        self._encode = now
        if encoder.knows(steps.image[step]):
            self._encode_start = now
            self._enter_queue()
            return
        self._stop = self._stop_encoder
        encoder.ask(self)

    def encode(self) -> None:
        """The encoder begins."""
        events, plan = self._world.events, self._encoders[self._at.number].plan
        self._encode_start = events.now
        tokens = self._world.plan.steps.image_tokens[self._place.step]
        end = events.now + plan.base + plan.per_token * tokens
        events.at(end, WORK, self._place.key, self._encoded)

    def _encoded(self) -> None:
        image = self._world.plan.steps.image[self._place.step]
        self._encoders[self._at.number].finish(image)
        self._enter_queue()

    def _enter_queue(self) -> None:
        self._stop = self._stop_engine
        self._at.enter(self._sequence)

    @property
    def _at(self) -> Replica:
        assert self._replica is not None, "a call is routed before all else"
        return self._replica

    # The end in a replica; KV moves to another

    def _ended(self) -> None:
        if self._sequence.moves:
            self._move()
        elif not self._given_up:
            self._log(OK)
            self._owner.done(self._place.place)

    def _move(self) -> None:
        events, plan = self._world.events, self._pool.plan
        self._stop = self._stop_moving
        end = events.now + plan.transfer + plan.transfer_token * self._prompt
        events.at(end, WORK, self._place.key, self._has_moved)

    def _has_moved(self) -> None:
        self._at.give_back(self._sequence, ENDED)
        self._halves.append(self._second_half())
        self._route(self._pool)
        self._enter_queue()

    # Given up

    def give_up(self) -> None:
        """The attempt is over."""
        self._given_up = True
        self._log(CANCELLED)
        self._stop()

    def _drop_work(self) -> None:
        self._world.events.cancel(WORK, self._place.key)

    def _stop_front(self) -> None:
        self._drop_work()
        self._at.leave()

    def _stop_encoder(self) -> None:
        self._drop_work()
        self._encoders[self._at.number].leave(self)
        self._at.leave()

    def _stop_engine(self) -> None:
        self._at.give_up(self._sequence)

    def _stop_moving(self) -> None:
        self._drop_work()
        self._at.give_back(self._sequence, ABORTED)

    def _log(self, status: int) -> None:
        first, last = self._halves[0], self._halves[-1]
        has_moved = last is not first
        number = NONE if self._replica is None else self._replica.number
        self._world.journal.calls.append(
            (
                self._arrival, self._encode, self._encode_start, first.queued, first.scheduled,
                first.first, last.queued if has_moved else NONE,
                last.scheduled if has_moved else NONE, self._world.events.now, *self._place.key,
                self._world.plan.steps.pool[self._place.step], number, first.cached, last.written,
                sum(half.preemptions for half in self._halves), status,
            )
        )  # fmt: skip
