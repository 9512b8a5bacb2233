"""The critical path of one request: which stage its answer was waiting for, instant by instant.

`partition` splits [arrival, end] exactly among the stages. It walks back from the end: at each
instant the critical activity is the child that started before and finishes last; the walk then
goes on at that child's start, and the same is done inside each child with the time it was given.
Time of a parent that no child covers is the parent's own (see docs/explanation/conventions.md).

Laws: the parts are >= 0 and sum to end - arrival, whatever the spans look like.
Source of the rule: critical path over a happens-before order taken from the intervals (CRISP,
USENIX ATC 2022), with overlapping siblings clipped instead of dropped so that no time is lost.
Wrong when: a child runs in the background and nobody waits for it, or when clocks of services
differ by more than the spans are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sojourn.records import Stage

STAGES: Final = tuple(Stage)
CODE: Final[dict[str, int]] = {stage.value: code for code, stage in enumerate(STAGES)}
CONTAINER: Final = -1
"""Stage code of a span that only holds others."""

UNEXPLAINED: Final = CODE[Stage.UNEXPLAINED]
NETWORK: Final = CODE[Stage.NETWORK]
BACKOFF: Final = CODE[Stage.BACKOFF]
ENGINE_DETAIL: Final = frozenset(CODE[s] for s in (Stage.QUEUE, Stage.PREFILL, Stage.DECODE))
CLIENT_CALL_NAMES: Final = ("chat", "text_completion", "generate_content", "completion")
"""First words of a client call's span name (the operations of the GenAI conventions)."""

TOLERANCE_S: Final = 1e-6
"""Clocks of one trace are written in microseconds or finer: less than that is no gap."""


@dataclass(slots=True)
class Forest:
    """The spans of one request as parallel lists; `parent` is an id, unknown ones are roots.

    Times in seconds; `stage` is a code of `STAGES` or `CONTAINER`; `attempt` -1 where unknown.
    """

    ids: Sequence[str]
    parents: Sequence[str | None]
    stages: Sequence[int]
    names: Sequence[str]
    attempts: Sequence[int]
    calls: Sequence[str | None]
    starts: Sequence[float]
    ends: Sequence[float]


def partition(forest: Forest, arrival_s: float, end_s: float) -> list[float]:
    """Seconds of [arrival_s, end_s] per stage, in the order of `STAGES`.

    An interval that ends before it starts has no time: all zeros.
    """
    out = [0.0] * len(STAGES)
    if not end_s > arrival_s:
        return out
    tops, children = _tree(forest)
    client_calls = _client_calls(forest)
    stack: list[tuple[Sequence[int], int, float, float]] = [(tops, UNEXPLAINED, arrival_s, end_s)]
    while stack:
        kids, own, low, high = stack.pop()
        if not kids:
            out[own] += high - low
            continue
        for kid, kid_low, kid_high in _back(forest, kids, (own, low, high), out):
            stage = forest.stages[kid]
            if stage == CONTAINER:
                stage = NETWORK if kid in client_calls else UNEXPLAINED
            stack.append((children.get(kid, []), stage, kid_low, kid_high))
    return out


def _back(
    forest: Forest, kids: Sequence[int], own: tuple[int, float, float], out: list[float]
) -> list[tuple[int, float, float]]:
    """Walk back over siblings: the part of [low, high] that each is critical in.

    The rest is booked to the parent's own stage, or to `backoff` between two attempts.
    """
    own_stage, low, high = own
    starts, attempts = forest.starts, forest.attempts
    ends = _ends_of_attempts(forest, kids) if len(kids) > 1 else {kids[0]: forest.ends[kids[0]]}
    order = sorted(
        kids,
        key=lambda k: (min(ends[k], high), attempts[k], -ends[k], -starts[k], -k),
        reverse=True,
    )
    taken: list[tuple[int, float, float]] = []
    cursor, later = high, -1
    for kid in order:
        start, end = max(starts[kid], low), min(ends[kid], cursor)
        if start >= cursor or end <= start:
            continue
        if end < cursor:
            between = later >= 0 and 0 <= attempts[kid] < attempts[later]
            out[BACKOFF if between else own_stage] += cursor - end
        taken.append((kid, start, end))
        cursor, later = start, kid
    if cursor > low:
        out[own_stage] += cursor - low
    return taken


def _ends_of_attempts(forest: Forest, kids: Sequence[int]) -> dict[int, float]:
    """Ends of siblings; work of an attempt given up ends, for its request, at the next attempt."""
    ends = {kid: forest.ends[kid] for kid in kids}
    found = sorted({forest.attempts[kid] for kid in kids if forest.attempts[kid] >= 0})
    for following in found[1:]:
        begins = min(forest.starts[k] for k in kids if forest.attempts[k] == following)
        for kid in kids:
            older = 0 <= forest.attempts[kid] < following
            if older and forest.starts[kid] < begins < ends[kid]:
                ends[kid] = begins
    return ends


def _client_calls(forest: Forest) -> set[int]:
    """Client call containers with engine spans among their children or grandchildren."""
    engine = [k for k, stage in enumerate(forest.stages) if stage in ENGINE_DETAIL]
    if not engine:
        return set()
    index = {span_id: k for k, span_id in reversed(list(enumerate(forest.ids)))}
    found: set[int] = set()
    for kid in engine:
        at: int | None = kid
        for _ in range(2):
            parent = forest.parents[at] if at is not None else None
            at = index.get(parent) if parent is not None else None
            if at is not None and is_client_call(forest.stages[at], forest.names[at]):
                found.add(at)
    return found


def is_client_call(stage: int, name: str) -> bool:
    """Whether a span is the client's side of a model call."""
    return stage == CONTAINER and name.split(" ", 1)[0] in CLIENT_CALL_NAMES


def _tree(forest: Forest) -> tuple[list[int], dict[int, list[int]]]:
    """Top spans and children by span. Unknown parents, loops and equal ids lose no span."""
    index: dict[str, int] = {}
    for k, span_id in enumerate(forest.ids):
        index.setdefault(span_id, k)
    tops: list[int] = []
    children: dict[int, list[int]] = {}
    for k, parent in enumerate(forest.parents):
        at = index.get(parent) if parent is not None else None
        if at is None or at == k:
            tops.append(k)
        else:
            children.setdefault(at, []).append(k)
    seen = _reach(tops, children)
    if len(seen) < len(forest.ids):
        _open_loops(tops, children, seen, len(forest.ids))
    if len(tops) > 1:
        tops = _adopt(forest, tops, children)
    return tops, children


def _reach(tops: Sequence[int], children: dict[int, list[int]]) -> set[int]:
    seen, stack = set(tops), list(tops)
    while stack:
        for kid in children.get(stack.pop(), ()):
            if kid not in seen:
                seen.add(kid)
                stack.append(kid)
    return seen


def _open_loops(
    tops: list[int], children: dict[int, list[int]], seen: set[int], count: int
) -> None:
    """Spans that are their own ancestors: the first of a loop becomes a top span."""
    for k in range(count):
        if k in seen:
            continue
        for kids in children.values():
            if k in kids:
                kids.remove(k)
        tops.append(k)
        seen |= _reach([k], children)


def _adopt(forest: Forest, tops: list[int], children: dict[int, list[int]]) -> list[int]:
    """Give top spans that lie within the longest top container to the innermost container that
    covers them: services that do not pass the parent on still show where they ran."""
    containers = [k for k in tops if forest.stages[k] == CONTAINER]
    if not containers:
        return tops
    length = [end - start for start, end in zip(forest.starts, forest.ends, strict=True)]
    main = max(containers, key=lambda k: (length[k], -k))
    within = [k for k in _reach([main], children) if forest.stages[k] == CONTAINER]
    kept: list[int] = []
    for orphan in tops:
        homes = [
            k
            for k in within
            if orphan not in (main, k)
            and length[k] >= length[orphan]
            and forest.starts[k] - TOLERANCE_S <= forest.starts[orphan]
            and forest.ends[orphan] <= forest.ends[k] + TOLERANCE_S
            and forest.calls[k] in (None, forest.calls[orphan])
        ]
        if not homes:
            kept.append(orphan)
            continue
        own_call = forest.calls[orphan]
        home = min(
            homes,
            key=lambda k: (own_call is None or forest.calls[k] != own_call, length[k], k),
        )
        children.setdefault(home, []).append(orphan)
    return kept
