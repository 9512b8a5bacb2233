"""The stream of a scenario: classes drawn and sent through the chain, or a recording again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity.drift import level_of
from sojourn.errors import InputError
from sojourn.records import Stage
from sojourn.sim.scenario_chain import Chain
from sojourn.sim.scenario_prefixes import Unit, block_hashes
from sojourn.sim.scenario_records import Agent, ChainStep, RequestClass, ScenarioFile, StationSpec
from sojourn.sim.scenario_requests import Crowd, weighted, whole
from sojourn.trace.arrays import Floats, Ints
from sojourn.workload.hashing import Hashes, combine
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_REQUESTS, STREAM_STEPS, Stream
from sojourn.workload.variates import drawn, generator

MOST_STEPS: Final = 50_000_000
"""Steps of all requests together: a hundred bytes each while they are drawn."""
_KINDS: Final = (StepKind.STATION.value, StepKind.CALL.value, StepKind.DELAY.value)
_STATION, _CALL, _DELAY = range(3)
_SPREAD: Final = 1_000_000
"""Places between two layers: turns of an agent lie there."""
_NUMBERS: Final = ("input_tokens", "output_tokens", "image_tokens", "image")


@dataclass
class _Part:
    """Steps of one kind of one class: one entry per step. Tokens are 0 but on calls."""

    kind: int
    stage: str
    name: str
    pool: str
    request: Ints
    place: Ints
    service: Floats | None = None
    numbers: dict[str, Ints] = field(default_factory=dict)
    conversation: Hashes | None = None
    shared: tuple[Hashes, Ints] | None = None

    @property
    def size(self) -> int:
        return len(self.request)


def drawn_stream(
    scenario: ScenarioFile, chain: Chain, crowds: list[Crowd], seed: int, *, unit: Unit | None
) -> tuple[Stream, int | None]:
    """The requests of every class with their programs, sorted by arrival; and the tokens that a
    block hash covers (`unit`; None: no prefixes are shared).

    Raises:
        InputError: more steps than can be held.
    """
    classes = scenario.workload.classes
    parts: list[list[_Part]] = [
        _Drawing(scenario, chain, kind, crowd, seed).parts()
        for kind, crowd in zip(classes, crowds, strict=True)
    ]
    arrival = np.concatenate([crowd.arrival for crowd in crowds])
    order = np.argsort(arrival, kind="stable")
    rank = np.empty(order.size, dtype=np.int64)
    rank[order] = np.arange(order.size)
    offset = np.cumsum([0, *(crowd.size for crowd in crowds)])
    flat = [
        replace(part, request=rank[part.request + offset[number]])
        for number, mine in enumerate(parts)
        for part in mine
        if part.size
    ]
    rows = [_requests(kind, crowd) for kind, crowd in zip(classes, crowds, strict=True)]
    requests = pa.concat_tables(rows).take(pa.array(order))
    steps, tokens = _steps(flat, unit)
    return _covered(Stream(requests.combine_chunks(), steps)), tokens


def programs(
    scenario: ScenarioFile, chain: Chain, kind: RequestClass, crowd: Crowd, seed: int
) -> pa.Table:
    """The chain's steps for requests that are there already, in their order."""
    parts = [part for part in _Drawing(scenario, chain, kind, crowd, seed).parts() if part.size]
    return _steps(parts, None)[0]


def _covered(stream: Stream) -> Stream:
    """A request that takes no step (each had a share) still is one: a delay of nothing."""
    owner = stream.steps.column("request").to_numpy()
    bare = np.flatnonzero(np.bincount(owner, minlength=stream.requests.num_rows) == 0)
    if bare.size == 0:
        return stream
    names = stream.steps.column_names
    empty = _steps([_delay(bare, np.zeros(bare.size, np.int64), np.zeros(bare.size))], None)[0]
    for name in names[len(STREAM_STEPS) :]:
        kind = STREAM_IDENTITIES.field(name)
        null = pa.nulls(bare.size, kind.type) if name == "block_hashes" else pa.array(bare * 0)
        empty = empty.append_column(kind, null)
    joined = pa.concat_tables([stream.steps, empty.select(names)])
    rows = np.argsort(joined.column("request").to_numpy(), kind="stable")
    return Stream(stream.requests, joined.take(pa.array(rows)).combine_chunks())


def _delay(request: Ints, place: Ints, service: Floats) -> _Part:
    stage = Stage.NETWORK.value
    return _Part(_DELAY, stage, "delay", "default", request, place, service)


@dataclass(frozen=True)
class _Drawing:
    """Programs of one class."""

    scenario: ScenarioFile
    chain: Chain
    kind: RequestClass
    crowd: Crowd
    seed: int

    def parts(self) -> list[_Part]:
        """Every step of every request of the class."""
        found: list[_Part] = []
        main = self.chain.main(self.kind)
        for number, step in enumerate(self.chain.steps):
            if step.classes and self.kind.name not in step.classes:
                continue
            rows = self._taking(step)
            place = np.full(rows.size, self.chain.layers[number] * _SPREAD)
            if step.station is not None:
                found.append(self._visit(step.station, step.label, rows, place))
            elif step.delay_s is not None:
                key = (self.kind.name, "delay", step.label)
                service = drawn(step.delay_s, rows.size, self.seed, *key)
                found.append(replace(_delay(rows, place, service), name=step.label))
            elif number == main:
                found += self._conversation(step, rows, place)
            else:
                found.append(self._call(step, rows, place))
        return found

    def _taking(self, step: ChainStep) -> Ints:
        """Requests that take a step."""
        if step.share == 1:
            return np.arange(self.crowd.size)
        luck = generator(self.seed, self.kind.name, "takes", step.label).random(self.crowd.size)
        return np.flatnonzero(luck < step.share)

    def _visit(self, name: str, label: str, rows: Ints, place: Ints) -> _Part:
        station = self.scenario.stations[name]
        key = (self.kind.name, "service", label, name)
        service = drawn(station.service_s, rows.size, self.seed, *key)
        if station.levels:
            service *= level_of(station.levels, self.crowd.arrival[rows])
        return _Part(_STATION, stage_of(name, station), name, "default", rows, place, service)

    def _call(self, step: ChainStep, rows: Ints, place: Ints) -> _Part:
        """A call beside the conversation: its own tokens, or the prefix and the input."""
        name, crowd = self.kind.name, self.crowd
        if step.input_tokens is not None:
            key = (name, "input", step.label)
            numbers = {
                "input_tokens": whole(step.input_tokens, rows.size, self.seed, *key, least=1)
            }
            shared = None
        else:
            image = crowd.image_tokens[rows]
            numbers = {
                "input_tokens": crowd.prefix[rows] + crowd.fresh[rows] + image,
                "image_tokens": image,
                "image": crowd.image[rows],
            }
            shared = (crowd.group[rows], crowd.prefix[rows])
        output = step.output_tokens
        numbers["output_tokens"] = (
            crowd.output[rows]
            if output is None
            else whole(output, rows.size, self.seed, name, "output", step.label, least=1)
        )
        return _Part(
            _CALL, Stage.DECODE.value, step.model, step.call or "", rows, place,
            numbers=numbers, shared=shared,
        )  # fmt: skip

    def _conversation(self, step: ChainStep, rows: Ints, place: Ints) -> list[_Part]:
        """The main call: turns of the agent, tools between them, and a prompt that grows."""
        agent, crowd, name = self.kind.agent, self.crowd, self.kind.name
        turns = np.ones(rows.size, dtype=np.int64)
        if agent is not None:
            turns = whole(agent.turns, rows.size, self.seed, name, "turns", least=1)
            _refuse_many(turns, name)
        owner = np.repeat(np.arange(rows.size), turns)
        turn = np.arange(owner.size) - (np.cumsum(turns) - turns)[owner]
        request = rows[owner]
        added = np.where(turn == 0, crowd.fresh[request] + crowd.image_tokens[request], 0)
        written = crowd.output[request]
        if agent is not None:
            later = turn > 0
            result = whole(agent.result_tokens, owner.size, self.seed, name, "result")
            added = np.where(later, result, added)
            drawn_out = whole(
                self.kind.output_tokens, owner.size, self.seed, name, "turn output", least=1
            )
            written = np.where(later, drawn_out, written)
        if step.output_tokens is not None:
            key = (name, "output", step.label)
            written = whole(step.output_tokens, owner.size, self.seed, *key, least=1)
        history = _before(added + written, crowd.conversation[request])
        several = self.kind.session is not None or agent is not None
        group, prefix = crowd.group[request], crowd.prefix[request]
        label = int(generator(self.seed, name, "conversation").integers(1 << 62))
        calls = _Part(
            kind=_CALL,
            stage=Stage.DECODE.value,
            name=step.model,
            pool=step.call or "",
            request=request,
            place=place[owner] + turn * _stride(agent),
            numbers={
                "input_tokens": prefix + history + added,
                "output_tokens": written,
                "image_tokens": np.where(turn == 0, crowd.image_tokens[request], 0),
                "image": np.where(turn == 0, crowd.image[request], 0),
            },
            conversation=combine(np.full(owner.size, label), crowd.conversation[request])
            if several
            else None,
            shared=(group, prefix),
        )
        if agent is None:
            return [calls]
        return [calls, *self._tools(agent, request, calls.place, turn, turns[owner])]

    def _tools(
        self, agent: Agent, request: Ints, place: Ints, turn: Ints, turns: Ints
    ) -> list[_Part]:
        """Visits after every turn but the last."""
        name = self.kind.name
        visits = whole(agent.tools_per_turn, request.size, self.seed, name, "tools")
        visits = np.where(turn < turns - 1, visits, 0)
        _refuse_many(visits, name)
        owner = np.repeat(np.arange(request.size), visits)
        number = np.arange(owner.size) - (np.cumsum(visits) - visits)[owner]
        if (visits >= _stride(agent)).any():
            raise InputError(
                f"class {name!r}: a turn has {int(visits.max()):,} tool visits in sequence, at"
                f" most {_stride(agent) - 1} are simulated",
                field="workload.classes",
                todo="Cut agent.tools_per_turn with `most:`",
            )
        at = place[owner] + 1 + (0 if agent.at_once else number)
        weights = np.array(list(agent.tools.values()))
        luck = generator(self.seed, name, "which tool").random(owner.size)
        which = weighted(weights, luck)
        return [
            self._visit(tool, f"tool {tool}", request[owner[which == place_]], at[which == place_])
            for place_, tool in enumerate(agent.tools)
        ]


def _stride(agent: Agent | None) -> int:
    """Places between two turns."""
    return 0 if agent is None else 100


def _refuse_many(counts: Ints, name: str) -> None:
    total = int(counts.sum())
    if total > MOST_STEPS or (counts > _SPREAD // 200).any():
        raise InputError(
            f"the agents of class {name!r} take {total:,} turns and visits, {int(counts.max()):,}"
            f" in one request; at most {MOST_STEPS:,} and {_SPREAD // 200:,} are simulated",
            field="workload.classes",
            todo="Cut agent.turns and tools_per_turn with `most:`, or the duration",
        )


def _before(tokens: Ints, conversation: Ints) -> Ints:
    """Tokens of the same conversation before each entry; conversations lie together."""
    passed = np.cumsum(tokens) - tokens
    first = np.concatenate([[True], conversation[1:] != conversation[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(tokens.size), 0))
    return np.asarray(passed - passed[start])


def stage_of(name: str, station: StationSpec) -> str:
    """The stage of a station: as said, else its name (the check has seen that it is one)."""
    return (station.stage or Stage(name)).value


def _requests(kind: RequestClass, crowd: Crowd) -> pa.Table:
    number = crowd.size
    session, position = (pc.cast(pa.array(part), pa.string()) for part in crowd.ids)
    named = pc.binary_join_element_wise(pa.scalar(kind.name), session, "-")
    several = kind.session is not None
    ids = pc.binary_join_element_wise(named, position, ".") if several else named
    named_tenants: list[str | None] = [*kind.tenants] or [None]
    tenants = pa.array(named_tenants, pa.string())
    return pa.table(
        [
            ids,
            pa.array(crowd.arrival),
            named if several else pa.nulls(number, pa.string()),
            tenants.take(pa.array(crowd.tenant)),
            pa.array([kind.route], pa.string()).take(pa.array(np.zeros(number, np.int64))),
            pa.array(np.full(number, kind.priority)),
            pa.array([kind.bucket or kind.name]).take(pa.array(np.zeros(number, np.int64))),
        ],
        schema=STREAM_REQUESTS,
    )


def _steps(parts: list[_Part], unit: Unit | None) -> tuple[pa.Table, int | None]:
    """All parts as one table, sorted by (request, place); places become groups from 0 on."""
    total = sum(part.size for part in parts)
    if total > MOST_STEPS:
        raise InputError(
            f"the requests take {total:,} steps, at most {MOST_STEPS:,} are simulated",
            field="workload",
            todo="Shorten the duration or the chain",
        )
    request = np.concatenate([part.request for part in parts])
    place = np.concatenate([part.place for part in parts])
    order = np.lexsort((place, request))
    request, place = request[order], place[order]
    code = np.repeat(np.arange(len(parts)), [part.size for part in parts])[order]

    def word(of: list[str]) -> pa.Array:
        return pa.array(of, pa.string()).take(pa.array(code))

    numbers = {name: _joined(parts, name)[order] for name in _NUMBERS}
    none = [np.zeros(part.size) if part.service is None else part.service for part in parts]
    columns = [
        pa.array(request),
        pa.array(_groups(request, place)),
        word([_KINDS[part.kind] for part in parts]),
        word([part.stage for part in parts]),
        word([part.name for part in parts]),
        pa.array(np.concatenate(none)[order]),
        word([part.pool for part in parts]),
        pa.array(numbers["input_tokens"]),
        pa.array(np.zeros(total, np.int64)),
        pa.array(numbers["output_tokens"]),
        pa.array(numbers["image_tokens"]),
    ]
    table = pa.table(columns, schema=STREAM_STEPS)
    if numbers["image"].any():
        table = table.append_column(STREAM_IDENTITIES.field("image_id"), pa.array(numbers["image"]))
    if unit is None:
        return table, None
    hashes, tokens = _hashes(parts, order, numbers, unit)
    return table.append_column(STREAM_IDENTITIES.field("block_hashes"), hashes), tokens


def _hashes(
    parts: list[_Part], order: Ints, numbers: dict[str, Ints], unit: Unit
) -> tuple[pa.ListArray, int]:
    zero: list[Hashes] = [np.zeros(0, np.uint64)]
    conversation, group, prefix = [*zero], [*zero], [np.zeros(0, np.int64)]
    for part in parts:
        none = np.zeros(part.size, np.uint64)
        conversation.append(none if part.conversation is None else part.conversation)
        shared = part.shared or (none, np.zeros(part.size, np.int64))
        group.append(shared[0])
        prefix.append(shared[1])
    tokens = numbers["input_tokens"] + numbers["output_tokens"]
    talk, first = np.concatenate(conversation)[order], np.concatenate(group)[order]
    return block_hashes(tokens, talk, first, np.concatenate(prefix)[order], unit=unit)


def _joined(parts: list[_Part], name: str) -> Ints:
    none: npt.NDArray[Any] = np.zeros(0, np.int64)
    columns = [part.numbers.get(name, np.zeros(part.size, np.int64)) for part in parts]
    return np.concatenate([none, *columns])


def _groups(request: Ints, place: Ints) -> Ints:
    """Places numbered from 0 on within each request, equal ones alike."""
    fresh = np.concatenate([[True], request[1:] != request[:-1]])
    moved = fresh | np.concatenate([[True], place[1:] != place[:-1]])
    count = np.cumsum(moved) - 1
    start = np.maximum.accumulate(np.where(fresh, np.arange(request.size), 0))
    return np.asarray(count - count[start])
