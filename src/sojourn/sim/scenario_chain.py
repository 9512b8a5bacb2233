"""The chain of a scenario in order: dependencies become layers, names are looked up."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from sojourn.errors import InputError
from sojourn.sim.log import MOST_STATIONS
from sojourn.sim.scenario_records import DEFAULT_POOL, ChainStep, RequestClass, ScenarioFile


@dataclass(frozen=True)
class Chain:
    """Steps with the layer of each. A layer begins when the one before it is over; `notes` says
    which steps wait longer for that than their `after` asks."""

    steps: tuple[ChainStep, ...]
    layers: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def main(self, kind: RequestClass) -> int | None:
        """The call of a class that its agent repeats and its conversation grows by: the one that
        `agent.step` names, else the last with the tokens of the class."""
        named = None if kind.agent is None else kind.agent.step
        found = None
        for place, step in enumerate(self.steps):
            taken = not step.classes or kind.name in step.classes
            if step.call is not None and taken and step.input_tokens is None:
                if named == step.label:
                    return place
                found = place
        return found


def chain_of(scenario: ScenarioFile) -> Chain:
    """The steps of a scenario, layered.

    Layer of a step: the longest path of `after` that leads to it. Steps of one layer run at once.
    Wrong when: a step could begin before the whole layer below it is over; `notes` names it.

    Raises:
        InputError: two steps of one name, a name that nothing bears, or a cycle.
    """
    steps = scenario.chain or (ChainStep(call=DEFAULT_POOL),)
    labels = [step.label for step in steps]
    for place, label in enumerate(labels):
        if label in labels[:place]:
            raise InputError(
                f"a second step is called {label!r}",
                field=f"chain[{place}]",
                todo="Give it a `name:` of its own",
            )
    before = [_before(steps, labels, place) for place in range(len(steps))]
    _check_names(scenario, steps)
    layers: dict[int, int] = {}
    for place in _sorted(labels, before):
        layers[place] = 1 + max((layers[other] for other in before[place]), default=-1)
    ordered = tuple(layers[place] for place in range(len(steps)))
    chain = Chain(tuple(steps), ordered, _longer_waits(labels, before, ordered))
    for number, kind in enumerate(scenario.workload.classes):
        _check_agent(scenario, chain, kind, number)
    return chain


def _before(steps: tuple[ChainStep, ...], labels: list[str], place: int) -> list[int]:
    named = steps[place].after
    if named is None:
        return [place - 1] if place else []
    return [
        labels.index(known(name, labels, "step", f"chain[{place}].after[{number}]"))
        for number, name in enumerate(named)
    ]


def known(name: str, names: Iterable[str], what: str, field: str) -> str:
    """The name, if something bears it.

    Raises:
        InputError: nothing does; says which name is near, and all there are.
    """
    there = list(names)
    if name in there:
        return name
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(sorted(there)[:30]) or "none"
    raise InputError(f"there is no {what} {name!r}", field=field, todo=f"{hint}Known: {listed}")


def _sorted(labels: list[str], before: list[list[int]]) -> list[int]:
    """Places in an order in which each comes after those it waits for.

    Raises:
        InputError: there is no such order; names a circle.
    """
    order: list[int] = []
    placed: set[int] = set()
    while len(order) < len(before):
        ready = [p for p in range(len(before)) if p not in placed and placed.issuperset(before[p])]
        if not ready:
            ring = _ring(before, placed)
            shown = " after ".join(labels[place] for place in ring)
            raise InputError(
                f"the chain runs in a circle: {shown}",
                field=f"chain[{ring[0]}].after",
                todo="Take one of these out of an `after:`",
            )
        order += ready
        placed.update(ready)
    return order


def _ring(before: list[list[int]], placed: set[int]) -> list[int]:
    """A circle among the places that are left: each of them waits for one that is left."""
    path = [next(place for place in range(len(before)) if place not in placed)]
    while True:
        following = next(other for other in before[path[-1]] if other not in placed)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


def _longer_waits(
    labels: list[str], before: list[list[int]], layers: tuple[int, ...]
) -> tuple[str, ...]:
    """Steps that wait for more than they say, because a layer ends as a whole."""
    notes = []
    for place, layer in enumerate(layers):
        needed: set[int] = set()
        left = list(before[place])
        while left:
            other = left.pop()
            if other not in needed:
                needed.add(other)
                left += before[other]
        extra = [labels[p] for p, of in enumerate(layers) if of < layer and p not in needed]
        if extra:
            notes.append(
                f"step {labels[place]} also waits for {', '.join(extra)}: steps run in layers,"
                " and a layer begins when the one before it is over"
            )
    return tuple(notes)


def _check_names(scenario: ScenarioFile, steps: tuple[ChainStep, ...]) -> None:
    classes = [kind.name for kind in scenario.workload.classes]
    for place, step in enumerate(steps):
        at = f"chain[{place}]"
        if step.station is not None:
            known(step.station, scenario.stations, "station", f"{at}.station")
        if step.call is not None:
            known(step.call, [DEFAULT_POOL, *scenario.pools], "pool", f"{at}.call")
        for number, name in enumerate(step.classes):
            known(name, classes, "class", f"{at}.classes[{number}]")
    if len(scenario.stations) > MOST_STATIONS:
        raise InputError(
            f"there are {len(scenario.stations)} stations, at most {MOST_STATIONS} are simulated",
            field="stations",
            todo="Leave out those that hardly matter, or give them one name",
        )
    if scenario.ladder is not None:
        for rung, item in enumerate(scenario.ladder.rungs):
            for number, name in enumerate(item.skip):
                field = f"ladder.rungs[{rung}].skip[{number}]"
                known(name, scenario.stations, "station", field)


def _check_agent(scenario: ScenarioFile, chain: Chain, kind: RequestClass, number: int) -> None:
    if kind.agent is None:
        return
    at = f"workload.classes[{number}].agent"
    for tool in kind.agent.tools:
        known(tool, scenario.stations, "station", f"{at}.tools.{tool}")
    calls = [
        step.label
        for step in chain.steps
        if step.call is not None and (not step.classes or kind.name in step.classes)
    ]
    if kind.agent.step is not None:
        known(kind.agent.step, calls, "call", f"{at}.step")
    main = chain.main(kind)
    if main is None or kind.agent.step not in (None, chain.steps[main].label):
        raise InputError(
            f"class {kind.name!r} has no call to repeat that takes the tokens of its class",
            field=at,
            todo="Add a `call` without input_tokens to the chain, or take `agent` out",
        )
    beside = [
        step.label
        for place, step in enumerate(chain.steps)
        if place != main
        and chain.layers[place] == chain.layers[main]
        and (not step.classes or kind.name in step.classes)
    ]
    if beside:
        raise InputError(
            f"step {chain.steps[main].label!r} is repeated by the agent of class {kind.name!r}, so"
            f" nothing can run beside it, but {', '.join(beside)} does",
            field=at,
            todo="Put that before or after it with `after:`",
        )
