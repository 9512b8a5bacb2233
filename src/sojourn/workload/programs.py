"""`Programs`: what each request did, step by step, read off the attempt that shows most of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.records import ENGINE_HOST_SPANS, Stage
from sojourn.trace.arrays import Bools, Floats, Ints
from sojourn.workload import intervals
from sojourn.workload.observed import STAGE_CODE, STAGES, Calls, Observed, Spans
from sojourn.workload.steps import (
    Steps,
    call_steps,
    delay_steps,
    first_visits,
    numbered,
    span_steps,
)

DELAY_FLOOR_S: Final = 1e-4
"""Shorter gaps get no step of their own (a simulator pays for each); their time is added to the
request's longest gap, so nothing is lost unless all its gaps are that short."""


@dataclass(frozen=True)
class Programs:
    """Programs of all requests (numbered by their row in the table) as far as they were seen.

    `complete`: the program is whole. `attempt`: the attempt it was read from. `outside_s`: time
    of that attempt outside model calls (NaN where calls have no ends). `spare`: calls of the
    attempts that were not read. `visits`: station steps of all attempts, each with its own time.
    """

    steps: Steps
    spare: Steps
    visits: Steps
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
    every = np.flatnonzero(used)
    mine = np.flatnonzero(calls.attempt == attempt[calls.request])
    used &= spans.attempt == attempt[spans.request]
    start, end = _windows(observed, attempt)
    call_end = _call_ends(calls, mine, end)
    items, begins, ends = _items(observed, mine, call_end, (np.flatnonzero(used), every))
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
        spare=call_steps(observed, others),
        visits=span_steps(spans, every, every),
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
    observed: Observed, mine: Ints, call_end: Floats, rows: tuple[Ints, Ints]
) -> tuple[Steps, Floats, Floats]:
    """Call and station steps with their start and end, not sorted yet. `rows`: spans of the
    attempts that are read, and of all attempts."""
    calls, spans = observed.calls, observed.spans
    used, every = rows
    of_spans = span_steps(spans, used, first_visits(spans, used, every))
    begins = np.concatenate([calls.start[mine], spans.start[used]])
    ends = np.concatenate([call_end, spans.end[used]])
    return Steps.joined(call_steps(observed, mine), of_spans), begins, np.maximum(begins, ends)


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
    front = mine & spans.name.isin(ENGINE_HOST_SPANS)
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
    before = delay_steps(delays.request, delays.stage, delays.length)
    after = delay_steps(
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
