"""`Programs`: what each request did, step by step, read off the attempt that shows most of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from sojourn.records import Stage
from sojourn.workload import intervals
from sojourn.workload.observed import (
    FRONT_BACK,
    STAGE_CODE,
    STAGES,
    Calls,
    Observed,
    Spans,
    ranks_within,
)
from sojourn.workload.profile_records import StepKind

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STATION, CALL, DELAY = range(3)
KINDS: Final = (StepKind.STATION, StepKind.CALL, StepKind.DELAY)
DELAY_FLOOR_S: Final = 1e-4
"""Shorter gaps get no step of their own (a simulator pays for each); their time is added to the
request's longest gap, so nothing is lost unless all its gaps are that short."""
NAMELESS: Final = len(STAGES)
"""Place of the empty name in `Programs.names`; the stages stand before it."""


@dataclass(frozen=True)
class Steps:
    """Steps sorted by (request, group). Tokens NaN where unknown, and off calls.

    `cut`: the step did not come to its end (timeout, cancel, failed call). `name` is a place in
    `Programs.names`, `pool` in `Programs.pools`, `stage` in `STAGES`.
    """

    request: Ints
    group: Ints
    kind: Ints
    stage: Ints
    name: Ints
    service: Floats
    wait: Floats
    pool: Ints
    input: Floats
    cached: Floats
    output: Floats
    image: Floats
    cut: Bools

    @property
    def size(self) -> int:
        """Number of steps."""
        return len(self.request)

    def rows(self, index: npt.NDArray[np.generic]) -> Self:
        """Some of the steps, in the order given."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def joined(cls, *parts: Steps) -> Self:
        """Several put after each other, not sorted."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@dataclass(frozen=True)
class Programs:
    """Programs of all requests (numbered by their row in the table) as far as they were seen.

    `complete`: the program is whole. `attempt`: the attempt it was read from. `outside_s`: time
    of that attempt outside model calls (NaN where calls have no ends). `spare`: calls of the
    attempts that were not read.
    """

    steps: Steps
    spare: Steps
    names: tuple[str, ...]
    pools: tuple[str, ...]
    complete: Bools
    attempt: Ints
    outside_s: Floats


def programs(observed: Observed) -> Programs:
    """Read every request's program off one of its attempts.

    An ok request is read off its last attempt. Of one that never completed the attempt that got
    furthest (most steps done) is read; its program is marked incomplete. Leaf stage spans outside
    the engine are station steps (service = duration - wait), calls are call steps, time that
    neither covers is a delay: `network` inside a client's chat span, the engine front end's own
    time after the last token `gateway`, the stage of an enclosing stage span, else `unexplained`.
    Wrong when: steps that overlap only in part depend on each other; they start together here
    and the rest of their common time is a delay after them.
    """
    calls, spans = observed.calls, observed.spans
    used = (spans.stage >= 0) & spans.leaf & ~spans.engine
    used &= spans.stage != STAGE_CODE[Stage.BACKOFF]
    attempt = _chosen(observed, used)
    mine = np.flatnonzero(calls.attempt == attempt[calls.request])
    used &= spans.attempt == attempt[spans.request]
    start, end = _windows(observed, attempt)
    call_end = _call_ends(calls, mine, end)
    items, begins, ends = _items(observed, mine, call_end, np.flatnonzero(used))
    groups = intervals.group(items.request, begins, ends)
    items = items.rows(groups.order)
    begins, ends = begins[groups.order], ends[groups.order]
    complete = observed.ok & ~_broke_off(items, groups, observed.size)
    gaps = intervals.gaps(groups, start, np.where(complete, end, np.nan))
    steps = _assembled(items, groups, ends - begins, _delays(gaps, _covers(spans, attempt)))
    inside = intervals.union_length(calls.request[mine], calls.start[mine], call_end, observed.size)
    inside[calls.request[mine][np.isnan(calls.end[mine])]] = np.nan
    names = (*(str(stage) for stage in STAGES), "", *spans.name.names, *calls.model.names)
    others = np.flatnonzero(calls.attempt != attempt[calls.request])
    return Programs(
        steps=steps,
        spare=_call_steps(observed, others),
        names=names,
        pools=calls.pool.names,
        complete=complete,
        attempt=attempt,
        outside_s=np.clip(end - start - inside, 0.0, None),
    )


def _chosen(observed: Observed, used: Bools) -> Ints:
    """The last attempt of ok requests; of the others the one with most steps done, the later of
    equals. 0 where nothing was seen."""
    calls, spans = observed.calls, observed.spans
    request = np.concatenate([calls.request, spans.request[used]])
    attempt = np.concatenate([calls.attempt, spans.attempt[used]])
    done = np.concatenate([~calls.failed, ~spans.failed[used]])
    width = int(attempt.max(initial=0)) + 1
    cells, member = np.unique(request * width + attempt, return_inverse=True)
    who, number = cells // width, cells % width
    score = np.bincount(member, done, minlength=cells.size)
    score[observed.ok[who]] = 0.0
    order = np.lexsort((number, score, who))
    chosen = np.zeros(observed.size, dtype=np.int64)
    chosen[who[order]] = number[order]
    return chosen


def _windows(observed: Observed, attempt: Ints) -> tuple[Floats, Floats]:
    """Start and end of the chosen attempt: of the request where it is its first and last."""
    calls, spans = observed.calls, observed.spans
    size = observed.size
    first, last = np.full(size, np.inf), np.full(size, -np.inf)
    final = np.zeros(size, dtype=np.int64)
    timed = spans.stage != STAGE_CODE[Stage.BACKOFF]
    for who, number, start, end in (
        (calls.request, calls.attempt, calls.start, calls.end),
        (spans.request[timed], spans.attempt[timed], spans.start[timed], spans.end[timed]),
    ):
        np.maximum.at(final, who, number)
        mine = number == attempt[who]
        np.minimum.at(first, who[mine], start[mine])
        ended = mine & ~np.isnan(end)
        np.maximum.at(last, who[ended], end[ended])
    start = np.where((attempt == 0) | np.isinf(first), observed.arrival, first)
    request_end = np.where(attempt == final, observed.end, np.nan)
    end = np.where(np.isnan(request_end), np.where(np.isinf(last), np.nan, last), request_end)
    return start, end


def _call_ends(calls: Calls, mine: Ints, window_end: Floats) -> Floats:
    """Ends of calls; an unknown one is the next call's start, or the end of the attempt."""
    request, start, end = calls.request[mine], calls.start[mine], calls.end[mine]
    following = np.where(
        np.append(request[1:] == request[:-1], np.zeros(min(1, request.size), dtype=np.bool_)),
        np.append(start[1:], start[-1:]),
        window_end[request],
    )
    filled = np.where(np.isnan(end), following, end)
    return np.maximum(np.where(np.isnan(filled), start, filled), start)


def _items(
    observed: Observed, mine: Ints, call_end: Floats, used: Ints
) -> tuple[Steps, Floats, Floats]:
    """Call and station steps with their start and end, not sorted yet."""
    calls, spans = observed.calls, observed.spans
    of_span = NAMELESS + 1 + spans.name.codes[used]
    nothing = np.full(used.size, np.nan)
    duration = spans.end[used] - spans.start[used]
    wait = np.clip(spans.wait[used], 0.0, duration)
    stage = spans.stage[used]
    idle = np.isin(stage, [STAGE_CODE[Stage.NETWORK], STAGE_CODE[Stage.UNEXPLAINED]])
    of_spans = Steps(
        request=spans.request[used],
        group=np.zeros(used.size, dtype=np.int64),
        kind=np.where(idle, DELAY, STATION),
        stage=stage,
        name=np.where(spans.name.codes[used] >= 0, of_span, NAMELESS),
        service=duration - np.nan_to_num(wait),
        wait=wait,
        pool=np.full(used.size, -1),
        input=nothing,
        cached=nothing,
        output=nothing,
        image=nothing,
        cut=spans.cut[used],
    )
    begins = np.concatenate([calls.start[mine], spans.start[used]])
    ends = np.concatenate([call_end, spans.end[used]])
    return Steps.joined(_call_steps(observed, mine), of_spans), begins, np.maximum(begins, ends)


def _call_steps(observed: Observed, mine: Ints) -> Steps:
    calls = observed.calls
    of_model = NAMELESS + 1 + len(observed.spans.name.names) + calls.model.codes[mine]
    none = np.zeros(mine.size)
    return Steps(
        request=calls.request[mine],
        group=np.zeros(mine.size, dtype=np.int64),
        kind=np.full(mine.size, CALL),
        stage=np.full(mine.size, STAGE_CODE[Stage.DECODE]),
        name=np.where(calls.model.codes[mine] >= 0, of_model, NAMELESS),
        service=none,
        wait=none,
        pool=calls.pool.codes[mine],
        input=calls.input[mine],
        cached=_first_cached(calls, mine),
        output=np.where(calls.failed[mine] & (calls.output[mine] == 0), np.nan, calls.output[mine]),
        image=calls.image[mine],
        cut=calls.failed[mine],
    )


def _first_cached(calls: Calls, mine: Ints) -> Floats:
    """Cached tokens as the request's first try of the same call found them.

    A retry finds its prompt in the cache because the try before put it there; the program must
    not count that as reuse. Where the first try did not tell, the mean share of first tries
    (same ordinal, all requests) stands in.
    """
    own = calls.cached[mine]
    retried = calls.attempt[mine] > 0
    if not retried.any():
        return own
    order = np.lexsort((calls.attempt, calls.ordinal, calls.request))
    width = int(calls.ordinal.max(initial=0)) + 1
    cell = (calls.request * width + calls.ordinal)[order]
    cells, place = np.unique(cell, return_index=True)
    first = order[place[np.searchsorted(cells, (calls.request * width + calls.ordinal)[mine])]]
    earlier = first != mine
    fresh = (ranks_within(cell) == 0) & ~np.isnan((calls.cached + calls.input)[order])
    fresh_rows = order[fresh]
    hit = np.bincount(calls.ordinal[fresh_rows], calls.cached[fresh_rows], minlength=width)
    asked = np.bincount(calls.ordinal[fresh_rows], calls.input[fresh_rows], minlength=width)
    share = np.divide(hit, asked, out=np.zeros(width), where=asked > 0)
    usual = np.floor(share[calls.ordinal[mine]] * calls.input[mine])
    told = calls.cached[first]
    return np.where(earlier, np.where(np.isnan(told), usual, np.minimum(told, own)), own)


def _broke_off(items: Steps, groups: intervals.Groups, size: int) -> Bools:
    """Whether the last group of a request has a step that was cut short: nothing came after."""
    final = np.full(size, -1, dtype=np.int64)
    final[groups.key] = np.arange(groups.key.size)
    bad = items.cut & (groups.group == final[items.request])
    result = np.zeros(size, dtype=np.bool_)
    result[items.request[bad]] = True
    return result


def _covers(spans: Spans, attempt: Ints) -> list[tuple[int, tuple[Ints, Floats, Floats]]]:
    """Intervals that name the gaps inside them, outermost kind first: enclosing stage spans, the
    client's chat spans, the engine's front end."""
    mine = spans.attempt == attempt[spans.request]
    outer = mine & (spans.stage >= 0) & ~spans.leaf & ~spans.engine
    chat_names = tuple(name for name in spans.name.names if (name or "").startswith("chat"))
    chat = mine & (spans.stage < 0) & (spans.of_call | spans.name.isin(chat_names))
    front = mine & spans.name.isin(FRONT_BACK)
    kinds = [(int(code), outer & (spans.stage == code)) for code in np.unique(spans.stage[outer])]
    kinds += [(STAGE_CODE[Stage.NETWORK], chat), (STAGE_CODE[Stage.GATEWAY], front)]
    return [
        (code, (spans.request[rows], spans.start[rows], spans.end[rows]))
        for code, rows in kinds
        if rows.any()
    ]


@dataclass(frozen=True)
class _Delays:
    request: Ints
    place: Ints
    stage: Ints
    length: Floats


def _delays(gaps: intervals.Gaps, covers: list[tuple[int, tuple[Ints, Floats, Floats]]]) -> _Delays:
    pieces = intervals.cut(gaps, [interval for _, interval in covers])
    stages = np.array([*(code for code, _ in covers), STAGE_CODE[Stage.UNEXPLAINED]])
    request, place = gaps.key[pieces.gap], gaps.place[pieces.gap]
    length = pieces.length.copy()
    small = length < DELAY_FLOOR_S
    if small.any() and not small.all():
        lost = np.bincount(request[small], length[small], minlength=int(request.max()) + 1)
        order = np.lexsort((length, request))
        longest = order[np.append(request[order][1:] != request[order][:-1], True)]
        longest = longest[~small[longest]]
        length[longest] += lost[request[longest]]
    keep = ~small
    return _Delays(request[keep], place[keep], stages[pieces.label[keep]], length[keep])


def _assembled(items: Steps, groups: intervals.Groups, duration: Floats, delays: _Delays) -> Steps:
    """Steps and delays in order, each group numbered from 0 within its request."""
    longest = np.full(groups.key.size, 0.0)
    np.maximum.at(longest, groups.group, duration)
    rest = (groups.end - groups.start) - longest
    late = np.flatnonzero(rest > max(DELAY_FLOOR_S, intervals.TOLERANCE_S))
    before = _as_steps(delays.request, delays.stage, delays.length)
    after = _as_steps(
        groups.key[late], np.full(late.size, STAGE_CODE[Stage.UNEXPLAINED]), rest[late]
    )
    steps = Steps.joined(before, items, after)
    place = np.concatenate([delays.place, groups.place[groups.group], groups.place[late]])
    sub = np.repeat([0, 1, 2], [before.size, items.size, after.size])
    turn = np.concatenate([np.arange(before.size), np.zeros(items.size + after.size, np.int64)])
    order = np.lexsort((turn, sub, place, steps.request))
    steps = steps.rows(order)
    key = (place * 3 + sub)[order]
    turn = turn[order]
    fresh = np.ones(steps.size, dtype=np.bool_)
    fresh[1:] = (
        (steps.request[1:] != steps.request[:-1]) | (key[1:] != key[:-1]) | (turn[1:] != turn[:-1])
    )
    return numbered(steps, fresh)


def numbered(steps: Steps, fresh: Bools) -> Steps:
    """Steps (sorted) with groups counted from 0 within each request; `fresh` opens a group."""
    counted = np.cumsum(fresh) - 1
    head = np.flatnonzero(
        np.concatenate([np.ones(min(1, steps.size), bool), steps.request[1:] != steps.request[:-1]])
    )
    base = np.repeat(counted[head], np.diff(np.append(head, steps.size)))
    values = {field.name: getattr(steps, field.name) for field in fields(Steps)}
    return Steps(**{**values, "group": counted - base})


def _as_steps(request: Ints, stage: Ints, length: Floats) -> Steps:
    """Delay steps, named by their stage."""
    unknown = np.full(request.size, np.nan)
    return Steps(
        request=request,
        group=np.zeros(request.size, dtype=np.int64),
        kind=np.full(request.size, DELAY),
        stage=stage,
        name=stage,
        service=length,
        wait=np.zeros(request.size),
        pool=np.full(request.size, -1),
        input=unknown,
        cached=unknown,
        output=unknown,
        image=unknown,
        cut=np.zeros(request.size, dtype=np.bool_),
    )
