"""What a request would have needed, had nothing hindered it: repairs of programs cut short."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.trace.arrays import Ints
from sojourn.workload.hashing import Hashes, combine, hash_strings, mix, uniform
from sojourn.workload.hotdeck import Level, draw_above, pick
from sojourn.workload.observed import ranks_within
from sojourn.workload.programs import Programs
from sojourn.workload.steps import CALL, DELAY, STATION, Steps, numbered

_SALT_DONOR: Final = 21
_SALT_STATION: Final = 22
_SALT_TOKENS: Final = 23
MIN_ENDED: Final = 30
"""Visits of a bucket that ended, from which its times stand for themselves: below, the tail of a
distribution estimated from them is one or two requests."""
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Kin:
    """What likeness of requests is judged by, per request: codes and a hash of the identity."""

    identity: Hashes
    bucket: Ints
    tenant: Ints
    retried: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Outline:
    """Working groups (those that are not delays) of programs.

    `before`: working groups before each step. `count`: working groups of each request. Per prefix
    of each program, the empty one included: `request`, `depth` and a hash of its names.
    """

    before: Ints
    count: Ints
    request: Ints
    depth: Ints
    prefix: Hashes


def repaired(programs: Programs, kin: Kin, seed: int) -> Steps:
    """Whole programs for all requests.

    1. The rest of a program that broke off comes from a donor: a completed request that began
       with the same steps (so its prefix is at least as long), of the same bucket and tenant and,
       where there are some, itself retried; each condition gives way in turn (hot deck, seeded).
       Timeouts select long requests, so a donor drawn from all that completed would be too
       short: the conditions hold equal what was seen of the request, and donors whose own first
       attempt failed were selected by the same timeout.
    2. A station's time cut short by a timeout or cancel is censored: it is replaced by a draw
       from what times longer than it turn out to be (Kaplan and Meier, `draw_above`, over all
       visits of the station, within the bucket where enough ended). Of a visit that does not tell
       its wait where others do, none is sure to be work: any time may stand for it. Times in a
       donor's part are drawn anew where the station's visits are cut at all: the donor completed
       because its own were short.
    3. Calls that do not tell their tokens take them from the donor's call at the same place, else
       from a call of the same bucket and place that tells; cached tokens unknown are 0.

    Wrong when: most requests of a bucket failed; the few that completed are no fair donors.
    Outputs of calls cut short are drawn from calls that ended, hence rather too short.
    """
    outline = _outline(programs.steps, programs)
    donor = _donors(programs, outline, kin, seed)
    steps = _with_tails(programs, outline, donor)
    steps = _stations_redrawn(programs, steps, kin, seed)
    return _tokens_filled(programs, steps, donor, kin, seed)


def _stations_redrawn(programs: Programs, steps: Steps, kin: Kin, seed: int) -> Steps:
    """Draw what was censored anew, and what a donor gave at stations that are cut at all."""
    visits = programs.visits
    wanting = (steps.kind == STATION) & (steps.censored | np.isnan(steps.service))
    if not wanting.any():
        return steps
    luck = uniform(
        combine(kin.identity[steps.request].view(np.int64), ranks_within(steps.request)),
        seed,
        _SALT_STATION,
    )
    service = steps.service.copy()
    for name in np.unique(steps.name[wanting]):
        at = np.flatnonzero(visits.name == name)
        times, cut = visits.service[at], visits.censored[at]
        untold = np.isnan(visits.wait[at])
        waits_told = bool((~untold & ~cut).any())
        if waits_told:
            times = np.where(cut & untold, 0.0, times)
        mine = np.flatnonzero(wanting & (steps.name == name))
        floor = np.nan_to_num(service[mine])
        if waits_told:
            floor[np.isnan(steps.wait[mine])] = 0.0
        drawn = draw_above(times, cut, floor, luck[mine])
        of_visit, of_step = kin.bucket[visits.request[at]], kin.bucket[steps.request[mine]]
        for bucket in np.unique(of_step):
            own, here = of_visit == bucket, of_step == bucket
            if (own & ~cut).sum() >= MIN_ENDED:
                drawn[here] = draw_above(times[own], cut[own], floor[here], luck[mine][here])
        seen = np.nan_to_num(service[mine])
        service[mine] = np.where(drawn > 0, drawn, seen)
    return replace(steps, service=service)


def _outline(steps: Steps, programs: Programs) -> _Outline:
    size = programs.complete.size
    opens = np.ones(steps.size, dtype=np.bool_)
    opens[1:] = (steps.request[1:] != steps.request[:-1]) | (steps.group[1:] != steps.group[:-1])
    working = steps.kind != DELAY
    heads = np.flatnonzero(opens)
    member = np.cumsum(opens) - 1
    # A group works if any of its steps does (a measured network span may run beside a call).
    works = np.bincount(member, working, minlength=heads.size) > 0
    owner = steps.request[heads]
    count = np.bincount(owner[works], minlength=size)
    inclusive = np.cumsum(works)
    base = np.cumsum(count) - count
    before = (inclusive - works - base[owner])[member]
    name_hash = hash_strings_of(programs.names)
    signature = np.zeros(heads.size, dtype=np.uint64)
    np.add.at(signature, member[working], name_hash[steps.name[working]])
    request, depth, prefix = _prefixes(owner[works], signature[works], count)
    return _Outline(before, count, request, depth, prefix)


def hash_strings_of(names: tuple[str, ...]) -> Hashes:
    """Hashes of a vocabulary."""
    return hash_strings(pa.array([name or "" for name in names], type=pa.string()))


def _prefixes(owner: Ints, signature: Hashes, count: Ints) -> tuple[Ints, Ints, Hashes]:
    """Hash of every prefix of every program, by depth: one vector step per depth."""
    size = count.size
    first = np.cumsum(count) - count
    requests, depths, hashes = [np.arange(size)], [np.zeros(size, np.int64)], [np.zeros(size, "u8")]
    alive = requests[0]
    state = hashes[0]
    for depth in range(int(count.max(initial=0))):
        going = count[alive] > depth
        alive, state = alive[going], state[going]
        state = mix(state * _PRIME + signature[first[alive] + depth])
        requests.append(alive)
        depths.append(np.full(alive.size, depth + 1))
        hashes.append(state)
    return np.concatenate(requests), np.concatenate(depths), np.concatenate(hashes)


def _donors(programs: Programs, outline: _Outline, kin: Kin, seed: int) -> Ints:
    """Row of the donor of each incomplete request; -1 for the others and where there is none."""
    donor = np.full(programs.complete.size, -1, dtype=np.int64)
    wanting = np.flatnonzero(~programs.complete)
    if wanting.size in (0, programs.complete.size):
        return donor
    whole = programs.complete[outline.request] & (outline.count[outline.request] > 0)
    who, prefix = outline.request[whole], outline.prefix[whole].view(np.int64)
    depth = outline.depth[whole]
    last = np.zeros(programs.complete.size, dtype=np.int64)
    ends = outline.depth == outline.count[outline.request]
    last[outline.request[ends]] = outline.prefix[ends].view(np.int64)
    seen, reach = last[wanting], outline.count[wanting]
    bucket, tenant = kin.bucket, kin.tenant
    retried = kin.retried.astype(np.int64)
    yes = np.ones(wanting.size, dtype=np.int64)
    levels = [
        Level(
            combine(prefix, bucket[who], tenant[who], retried[who]),
            who,
            combine(seen, bucket[wanting], tenant[wanting], yes),
        ),
        Level(combine(prefix, bucket[who], retried[who]), who, combine(seen, bucket[wanting], yes)),
        Level(
            combine(prefix, bucket[who], tenant[who]),
            who,
            combine(seen, bucket[wanting], tenant[wanting]),
        ),
        Level(combine(prefix, bucket[who]), who, combine(seen, bucket[wanting])),
        Level(combine(prefix), who, combine(seen)),
        Level(combine(depth, bucket[who]), who, combine(reach, bucket[wanting])),
        Level(combine(depth), who, combine(reach)),
    ]
    donor[wanting] = pick(levels, uniform(kin.identity[wanting], seed, _SALT_DONOR))
    return donor


def _with_tails(programs: Programs, outline: _Outline, donor: Ints) -> Steps:
    """Append to each request with a donor the donor's steps after as many working groups. Times
    at stations of which visits are cut become NaN: to be drawn."""
    steps = programs.steps
    taking = np.flatnonzero(donor >= 0)
    if taking.size == 0:
        return steps
    width = int(outline.before.max(initial=0)) + 2
    place = steps.request * width + outline.before
    first = np.searchsorted(place, donor[taking] * width + outline.count[taking])
    end = np.searchsorted(steps.request, donor[taking], side="right")
    length = end - first
    source = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    tail = steps.rows(source)
    values = {field.name: getattr(tail, field.name) for field in fields(Steps)}
    cut_at = np.unique(programs.visits.name[programs.visits.censored])
    anew = (tail.kind == STATION) & np.isin(tail.name, cut_at)
    values["service"] = np.where(anew, np.nan, tail.service)
    values["wait"] = np.where(anew, 0.0, tail.wait)
    tail = Steps(**{**values, "request": np.repeat(taking, length)})
    joined = Steps.joined(steps, tail)
    is_tail = np.repeat([0, 1], [steps.size, tail.size])
    order = np.lexsort((joined.group, is_tail, joined.request))
    joined, is_tail = joined.rows(order), is_tail[order]
    cell = (joined.request * 2 + is_tail) * (int(joined.group.max(initial=0)) + 1) + joined.group
    fresh = np.ones(joined.size, dtype=np.bool_)
    fresh[1:] = cell[1:] != cell[:-1]
    return numbered(joined, fresh)


def _tokens_filled(programs: Programs, steps: Steps, donor: Ints, kin: Kin, seed: int) -> Steps:
    call = np.flatnonzero(steps.kind == CALL)
    if call.size == 0:
        return steps
    # Calls of attempts that no program was read from stand behind: donors of last resort.
    spare = programs.spare
    owner = np.concatenate([steps.request[call], np.full(spare.size, -1)])
    tokens = {
        name: np.concatenate([getattr(steps, name)[call], getattr(spare, name)])
        for name in ("input", "cached", "output", "image")
    }
    unknown = np.isnan(tokens["input"]) | np.isnan(tokens["output"])
    unknown[: call.size] |= steps.cut[call]
    source = _token_sources(owner, unknown, donor, kin, seed)
    wanting = np.flatnonzero(unknown[: call.size])
    wanting, source = wanting[source >= 0], source[source >= 0]
    blank = np.isnan(tokens["input"][wanting])
    for name in ("input", "cached", "image"):
        tokens[name][wanting] = np.where(blank, tokens[name][source], tokens[name][wanting])
    own = tokens["output"][wanting]
    tokens["output"][wanting] = np.fmax(tokens["output"][source], own)
    values = {field.name: getattr(steps, field.name) for field in fields(Steps)}
    for name, filled in tokens.items():
        column = values[name].copy()
        column[call] = filled[: call.size]
        values[name] = column
    return Steps(**values)


def _token_sources(
    owner: Ints, unknown: npt.NDArray[np.bool_], donor: Ints, kin: Kin, seed: int
) -> Ints:
    """For each call of a program that lacks tokens the call it takes them from; -1 where no call
    tells any.

    `owner`: the request of each call, ascending, then -1 for spare ones; `unknown`: whether it
    lacks tokens.
    """
    programmed = int((owner >= 0).sum())
    ordinal = ranks_within(owner)
    told = np.flatnonzero(~unknown[:programmed])
    wanting = np.flatnonzero(unknown[:programmed])
    spare = programmed + np.flatnonzero(~unknown[programmed:])
    width = int(ordinal[:programmed].max(initial=0)) + 1
    place = (owner * width + ordinal)[:programmed]
    # The donor's call at the same place: places ascend, so a binary search finds it.
    giver = donor[owner[wanting]]
    sought = giver * width + ordinal[wanting]
    at = np.minimum(np.searchsorted(place, sought), place.size - 1)
    direct = np.where((place[at] == sought) & ~unknown[at] & (giver >= 0), at, -1)
    bucket = kin.bucket
    anyone = np.zeros(wanting.size, dtype=np.uint64)
    levels = [
        Level(
            combine(bucket[owner[told]], ordinal[told]),
            told,
            combine(bucket[owner[wanting]], ordinal[wanting]),
        ),
        Level(combine(bucket[owner[told]]), told, combine(bucket[owner[wanting]])),
        Level(np.zeros(told.size, dtype=np.uint64), told, anyone),
        Level(np.zeros(spare.size, dtype=np.uint64), spare, anyone),
    ]
    identity = combine(kin.identity[owner[wanting]].view(np.int64), ordinal[wanting])
    drawn = pick(levels, uniform(identity, seed, _SALT_TOKENS))
    return np.where(direct >= 0, direct, drawn)
