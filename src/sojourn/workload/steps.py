"""`Steps`: steps of many requests in columns, and how calls and spans become steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from sojourn.records import Stage
from sojourn.trace.arrays import Bools, Floats, Ints
from sojourn.workload.observed import STAGE_CODE, STAGES, Calls, Observed, Spans, ranks_within
from sojourn.workload.profile_records import StepKind

STATION, CALL, DELAY = range(3)
KINDS: Final = (StepKind.STATION, StepKind.CALL, StepKind.DELAY)
NAMELESS: Final = len(STAGES)
"""Place of the empty name in `Programs.names`; the stages stand before it."""


@dataclass(frozen=True)
class Steps:
    """Steps sorted by (request, group). Tokens NaN where unknown, and off calls.

    `cut`: the step did not come to its end (timeout, cancel, failed call). `service` of a station
    step is that of the request's first try of the visit, and `censored` says whether that one was
    cut: what later tries took is known only because they were short enough. `name` is a place in
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
    censored: Bools

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


def call_steps(observed: Observed, mine: Ints) -> Steps:
    """Call steps of calls (rows); cached tokens as the first try of the call found them."""
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
        censored=np.zeros(mine.size, dtype=np.bool_),
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


def first_visits(spans: Spans, used: Ints, every: Ints) -> Ints:
    """For each span the span of the same visit (request, name, how manieth) in the earliest
    attempt that came to it."""
    order = every[
        np.lexsort(
            (
                spans.start[every],
                spans.name.codes[every],
                spans.attempt[every],
                spans.request[every],
            )
        )
    ]
    width = int(spans.attempt.max(initial=0)) + 1
    names = len(spans.name.names) + 1
    tried = spans.request[order] * width + spans.attempt[order]
    turn = ranks_within(tried * names + spans.name.codes[order] + 1)
    cell = (spans.request[order] * names + spans.name.codes[order] + 1) * (
        int(turn.max(initial=0)) + 1
    ) + turn
    # attempts ascend within a request, so the first of a cell is of its earliest attempt
    _, first, member = np.unique(cell, return_index=True, return_inverse=True)
    origin = np.zeros(spans.request.size, dtype=np.int64)
    origin[order] = order[first[member]]
    return origin[used]


def span_steps(spans: Spans, used: Ints, first: Ints) -> Steps:
    """Station steps of spans; times of service are those of the spans `first`."""
    nothing = np.full(used.size, np.nan)
    duration = spans.end[first] - spans.start[first]
    wait = np.clip(spans.wait[first], 0.0, duration)
    stage = spans.stage[used]
    idle = np.isin(stage, [STAGE_CODE[Stage.NETWORK], STAGE_CODE[Stage.UNEXPLAINED]])
    named = spans.name.codes[used]
    return Steps(
        request=spans.request[used],
        group=np.zeros(used.size, dtype=np.int64),
        kind=np.where(idle, DELAY, STATION),
        stage=stage,
        name=np.where(named >= 0, NAMELESS + 1 + named, NAMELESS),
        service=duration - np.nan_to_num(wait),
        wait=wait,
        pool=np.full(used.size, -1),
        input=nothing,
        cached=nothing,
        output=nothing,
        image=nothing,
        cut=spans.cut[used],
        censored=spans.cut[first],
    )


def numbered(steps: Steps, fresh: Bools) -> Steps:
    """Steps (sorted) with groups counted from 0 within each request; `fresh` opens a group."""
    counted = np.cumsum(fresh) - 1
    head = np.flatnonzero(
        np.concatenate([np.ones(min(1, steps.size), bool), steps.request[1:] != steps.request[:-1]])
    )
    base = np.repeat(counted[head], np.diff(np.append(head, steps.size)))
    values = {field.name: getattr(steps, field.name) for field in fields(Steps)}
    return Steps(**{**values, "group": counted - base})


def delay_steps(request: Ints, stage: Ints, length: Floats) -> Steps:
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
        censored=np.zeros(request.size, dtype=np.bool_),
    )
