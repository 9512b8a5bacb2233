"""Requests of a scenario's classes, drawn: when they come, what they carry, whose they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sojourn.errors import InputError
from sojourn.sim.scenario_records import MOST_REQUESTS, RequestClass, SharedPrefix, Workload
from sojourn.trace.arrays import Floats, Ints
from sojourn.workload.arrival_process import arrival_times
from sojourn.workload.hashing import Hashes, combine
from sojourn.workload.variates import Law, drawn, generator

MOST_TOKENS: Final = 1e9
"""Of one call."""


@dataclass(frozen=True)
class Crowd:
    """Requests of one class, those of one session beside each other. One entry per request:
    `conversation` counts sessions (requests without one are each their own), `group` names the
    shared prefix of `prefix` tokens, `image` the image (0: not seen again)."""

    name: str
    ids: tuple[Ints, Ints]
    arrival: Floats
    conversation: Ints
    fresh: Ints
    output: Ints
    prefix: Ints
    group: Hashes
    image_tokens: Ints
    image: Ints
    tenant: Ints

    @property
    def size(self) -> int:
        """Requests."""
        return len(self.arrival)


def crowds(workload: Workload, seed: int) -> list[Crowd]:
    """The requests of every class, in the order of the classes.

    The class of the k-th arrival depends on (seed, k) alone, and what the n-th of a class carries
    on (seed, class, n): other rates or policies meet the same requests.

    Raises:
        InputError: no request arrives, or more than can be held.
    """
    assert workload.arrivals is not None  # the record's own rule
    _refuse_too_many(workload)
    times = arrival_times(
        workload.arrivals, seed, duration_s=workload.duration_s, count=workload.requests
    )
    if times.size == 0:
        raise InputError(
            "no request arrives",
            field="workload.duration_s",
            todo="Raise it, or arrivals.rate_per_s",
        )
    limits = np.cumsum([kind.share for kind in workload.classes])
    limits[-1] = 1.0
    luck = generator(seed, "classes").random(times.size)
    which = np.searchsorted(limits, luck, side="right")
    return [
        _crowd(kind, times[which == place], seed, workload.duration_s)
        for place, kind in enumerate(workload.classes)
    ]


def _refuse_too_many(workload: Workload) -> None:
    assert workload.arrivals is not None  # the record's own rule
    count = float(workload.requests or MOST_REQUESTS)
    if workload.duration_s is not None:
        expected = workload.arrivals.expected(workload.duration_s)
        count = min(count, expected) if workload.requests else expected
    if count > MOST_REQUESTS:
        raise InputError(
            f"{count:,.0f} requests would arrive, at most {MOST_REQUESTS:,} are simulated",
            field="workload.duration_s",
            todo="Shorten it, or set workload.requests",
        )


def whole(law: Law, count: int, seed: int, *key: str, least: int = 0) -> Ints:
    """Draws as whole numbers, `least` at least."""
    values = np.minimum(np.rint(drawn(law, count, seed, *key)), MOST_TOKENS)
    return np.maximum(values.astype(np.int64), least)


def _crowd(kind: RequestClass, first: Floats, seed: int, end_s: float | None) -> Crowd:
    conversation, position, arrival = _sessions(kind, first, seed)
    count = arrival.size
    group, prefix = _prefix(kind.prefix, conversation, kind.name, seed)
    image_tokens, image = _images(kind, count, seed)
    weights = np.array(list(kind.tenants.values()) or [1.0])
    tenant = weighted(weights, generator(seed, kind.name, "tenant").random(first.size))
    crowd = Crowd(
        name=kind.name,
        ids=(conversation, position),
        arrival=arrival,
        conversation=conversation,
        fresh=whole(kind.input_tokens, count, seed, kind.name, "input", least=1),
        output=whole(kind.output_tokens, count, seed, kind.name, "output", least=1),
        prefix=prefix,
        group=group,
        image_tokens=image_tokens,
        image=image,
        tenant=tenant[conversation],
    )
    return crowd if end_s is None or kind.session is None else _until(crowd, end_s)


def _sessions(kind: RequestClass, first: Floats, seed: int) -> tuple[Ints, Ints, Floats]:
    """Conversation, place in it and arrival of every request."""
    if kind.session is None:
        return np.arange(first.size), np.zeros(first.size, np.int64), first
    length = whole(kind.session.requests, first.size, seed, kind.name, "session", least=1)
    total = int(length.sum())
    if total > MOST_REQUESTS:
        raise InputError(
            f"sessions of class {kind.name!r} have {total:,} requests, at most {MOST_REQUESTS:,}"
            " are simulated",
            field="workload.classes",
            todo="Shorten session.requests (with `most:`), or the duration",
        )
    begins = np.cumsum(length) - length
    conversation = np.repeat(np.arange(first.size), length)
    position = np.arange(total) - begins[conversation]
    gaps = drawn(kind.session.gap_s, total, seed, kind.name, "gap")
    gaps[begins] = 0.0
    passed = np.cumsum(gaps)
    return conversation, position, first[conversation] + passed - passed[begins][conversation]


def _prefix(
    shared: SharedPrefix | None, conversation: Ints, name: str, seed: int
) -> tuple[Hashes, Ints]:
    """Name and length of what each request begins with; a conversation has one."""
    if shared is None:
        return np.zeros(conversation.size, np.uint64), np.zeros(conversation.size, np.int64)
    number = int(conversation.max(initial=-1)) + 1
    weights = np.arange(1, shared.groups + 1, dtype=np.float64) ** -shared.skew
    group = weighted(weights, generator(seed, name, "prefix").random(number))
    label = np.full(number, int(generator(0, name, "prefix name").integers(1 << 62)))
    return combine(label, group)[conversation], np.full(conversation.size, shared.tokens)


def weighted(weights: Floats, luck: Floats) -> Ints:
    """The place that each uniform number falls on, by weight."""
    limits = np.cumsum(weights / weights.sum())
    limits[-1] = 1.0
    return np.asarray(np.searchsorted(limits, luck, side="right"), dtype=np.int64)


def _images(kind: RequestClass, count: int, seed: int) -> tuple[Ints, Ints]:
    if kind.images is None:
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    tokens = whole(kind.images.tokens, count, seed, kind.name, "image tokens", least=1)
    has = generator(seed, kind.name, "image").random(count) < kind.images.share
    tokens[~has] = 0
    if kind.images.distinct is None:
        return tokens, np.zeros(count, np.int64)
    luck = generator(seed, kind.name, "image name").random(count)
    number = (luck * kind.images.distinct).astype(np.int64)
    label = np.full(count, int(generator(0, kind.name, "image label").integers(1 << 62)))
    name = (combine(label, number) >> np.uint64(1)).astype(np.int64) | 1
    return tokens, np.where(has, name, 0)


def _until(crowd: Crowd, end_s: float) -> Crowd:
    """Without the requests of sessions that would arrive after the end."""
    keep = crowd.arrival < end_s
    names = [name for name in crowd.__dataclass_fields__ if name not in ("name", "ids")]
    kept: dict[str, Any] = {name: getattr(crowd, name)[keep] for name in names}
    return replace(crowd, ids=(crowd.ids[0][keep], crowd.ids[1][keep]), **kept)
