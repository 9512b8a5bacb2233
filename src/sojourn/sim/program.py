"""Programs: the steps of every request, as the simulator walks them; and what a scenario must
satisfy."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.errors import UsageError
from sojourn.sim.scenario import Scenario
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream

KINDS: Final = tuple(kind.value for kind in StepKind)
_COUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "image_tokens")


class Work(NamedTuple):
    """One step of a program. `place` is its place in the program, `turn` its place among the
    program's calls (0 for other steps)."""

    place: int
    turn: int
    group: int
    kind: str
    stage: str
    name: str
    service_s: float
    pool: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    image_tokens: int


Program = tuple[tuple[Work, ...], ...]
"""Groups in order; the steps of one group run at once."""


@dataclass(frozen=True)
class Requests:
    """The stream in the form the loop reads: one entry per request."""

    ids: list[str]
    arrivals: list[float]
    names: list[str]
    programs: list[Program] = field(repr=False)


def requests_of(stream: Stream) -> Requests:
    """Arrow columns to Python lists, once per run."""
    steps = stream.steps
    count = stream.requests.num_rows
    first = np.searchsorted(_column(steps, "request", 0), np.arange(count + 1))
    rows = list(
        zip(
            _column(steps, "group", 0).tolist(),
            steps.column("kind").to_pylist(),
            *(pc.fill_null(steps.column(name), "").to_pylist() for name in ("stage", "name")),
            _column(steps, "service_s", 0.0).tolist(),
            pc.fill_null(steps.column("pool"), "default").to_pylist(),
            *(_column(steps, name, 0).tolist() for name in _COUNTS),
            strict=True,
        )
    )
    starts = first.tolist()
    programs = [_program(rows[a:b]) for a, b in pairwise(starts)]
    routes = pc.fill_null(stream.requests.column("route"), "request").to_pylist()
    return Requests(
        ids=stream.requests.column("request_id").to_pylist(),
        arrivals=stream.requests.column("arrival_s").to_pylist(),
        names=routes,
        programs=programs,
    )


def check(scenario: Scenario) -> None:
    """What every engine may rely on.

    Raises:
        UsageError: says which step or request breaks what, and what was expected.
    """
    stream = scenario.stream
    arrivals = _column(stream.requests, "arrival_s", np.nan)
    if arrivals.size and not np.isfinite(arrivals).all():
        raise UsageError(f"stream request {_first(~np.isfinite(arrivals))}: arrival_s is no number")
    if arrivals.size and (np.diff(arrivals) < 0).any():
        raise UsageError(
            f"stream request {_first(np.diff(arrivals) < 0) + 1} arrives before the one above it;"
            " sort requests by arrival_s"
        )
    _check_steps(stream)


def _check_steps(stream: Stream) -> None:
    owner = _column(stream.steps, "request", -1)
    group = _column(stream.steps, "group", -1)
    same = np.diff(owner) == 0
    if (np.diff(owner) < 0).any() or (same & (np.diff(group) < 0)).any():
        raise UsageError("stream steps must be sorted by (request, group)")
    missing = np.bincount(owner[owner >= 0], minlength=stream.requests.num_rows) == 0
    if missing.any() or (owner < 0).any() or (owner >= stream.requests.num_rows).any():
        raise UsageError(
            "stream steps do not fit the requests: every request needs a step, and every step"
            " the row of its request"
        )
    kinds = pc.is_in(stream.steps.column("kind"), value_set=pa.array(KINDS))
    _refuse(~kinds.to_numpy(), "kind", f"one of {', '.join(KINDS)}")
    service = _column(stream.steps, "service_s", 0.0)
    _refuse(~(np.isfinite(service) & (service >= 0)), "service_s", "seconds, 0 or more")
    for name in _COUNTS:
        _refuse(_column(stream.steps, name, 0) < 0, name, "tokens, 0 or more")


def _refuse(bad: np.ndarray, name: str, expected: str) -> None:
    if bad.any():
        raise UsageError(f"stream step {_first(bad)}: {name} must be {expected}")


def _first(mask: np.ndarray) -> int:
    return int(np.flatnonzero(mask)[0])


def _column(table: pa.Table, name: str, null: float) -> np.ndarray:
    return np.asarray(pc.fill_null(table.column(name), null).to_numpy())


def _program(rows: list[tuple[object, ...]]) -> Program:
    groups: list[tuple[Work, ...]] = []
    current: list[Work] = []
    turn = 0
    for index, row in enumerate(rows):
        is_call = row[1] == StepKind.CALL.value
        work = Work._make((index, turn if is_call else 0, *row))
        turn += is_call
        if current and current[-1].group != work.group:
            groups.append(tuple(current))
            current = []
        current.append(work)
    groups.append(tuple(current))
    return tuple(groups)
