"""Per bucket: lengths, rounds, time outside the engine, and a sample of whole programs."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.records import Stage
from sojourn.trace.arrays import Bools, Floats, Ints
from sojourn.trace.tables import Tables
from sojourn.workload.arrivals import inside
from sojourn.workload.buckets import gather
from sojourn.workload.distributions import summarize
from sojourn.workload.hashing import hash_strings, uniform
from sojourn.workload.imputation import repaired
from sojourn.workload.observed import STAGE_CODE, STAGES, Observed
from sojourn.workload.profile_records import Arrivals, BucketProfile, Step, Template
from sojourn.workload.programs import Programs, programs
from sojourn.workload.replay import DEFAULT_POOL, kin
from sojourn.workload.steps import CALL, KINDS, STATION, Steps

MAX_TEMPLATES: Final = 400
"""Whole programs kept per bucket: its P99 then still rests on four of them."""
_SALT: Final = 41


def bucket_profiles(
    tables: Tables, observed: Observed, arriving: Arrivals, seed: int
) -> dict[str, BucketProfile]:
    """Profiles by bucket name, most requests first.

    Lengths and rounds are those of whole programs: of a request that broke off the rest comes
    from a donor (`imputation.repaired`), for timeouts select long requests and leaving them out
    would make the traffic look shorter than it is. `outside_s` is measured on completed ones.
    Templates are a seeded simple random sample of whole programs.
    """
    seen = programs(observed)
    whole = repaired(seen, kin(tables, observed), seed)
    names = np.asarray(tables.requests.column("bucket").to_pylist(), dtype=np.str_)
    lengths = _Lengths(whole, observed.size)
    outside = np.where(seen.complete, seen.outside_s, np.nan)
    images = gather(observed).images
    peak = inside(observed.arrival, arriving.peak)
    chosen = _sampled(tables, names, lengths.usable, seed)
    templates = _templates(tables, seen, whole, chosen)
    found, counts = np.unique(names, return_counts=True)
    result = {}
    for name in (str(n) for n in found[np.argsort(-counts, kind="stable")]):
        mine = names == name
        number = int(mine.sum())
        length = arriving.peak.length_s
        result[name] = BucketProfile(
            name=name,
            requests=number,
            share=number / observed.size,
            rate_per_s=number / arriving.duration_s if arriving.duration_s > 0 else 0.0,
            peak_rate_per_s=float((mine & peak).sum()) / length if length > 0 else 0.0,
            input=summarize(lengths.input[mine]),
            output=summarize(lengths.output[mine]),
            input_call=summarize(lengths.call_input[mine[lengths.call_owner]]),
            calls_per_request=float(lengths.calls[mine].mean()),
            tool_rounds=float(lengths.rounds[mine].mean()),
            outside_s=None if np.isnan(outside[mine]).all() else summarize(outside[mine]),
            image_share=float(images[mine].mean()),
            templates=tuple(templates[row] for row in chosen[mine[chosen]]),
        )
    return result


class _Lengths:
    """Lengths per request: sums over its calls, NaN where a call does not tell."""

    def __init__(self, steps: Steps, size: int) -> None:
        call = steps.kind == CALL
        self.call_owner = steps.request[call]
        self.call_input = steps.input[call]
        self.calls = np.bincount(self.call_owner, minlength=size)
        self.input = self._sum(steps.input[call], size)
        self.output = self._sum(steps.output[call], size)
        tool = (steps.kind == STATION) & (steps.stage == STAGE_CODE[Stage.TOOL])
        width = int(steps.group.max(initial=0)) + 1
        rounds = np.unique(steps.request[tool] * width + steps.group[tool]) // width
        self.rounds = np.bincount(rounds, minlength=size)
        steps_of = np.bincount(steps.request, minlength=size)
        told = (self.calls == 0) | ~np.isnan(self.input + self.output)
        self.usable: Bools = (steps_of > 0) & told

    def _sum(self, values: Floats, size: int) -> Floats:
        total = np.bincount(self.call_owner, values, minlength=size).astype(np.float64)
        return np.where(self.calls > 0, total, np.nan)


def _sampled(tables: Tables, names: npt.NDArray[np.str_], usable: Bools, seed: int) -> Ints:
    """Rows of up to MAX_TEMPLATES usable requests per bucket: those with the smallest hashes."""
    luck = uniform(hash_strings(tables.requests.column("request_id")), seed, _SALT)
    chosen = []
    for name in np.unique(names):
        mine = np.flatnonzero(usable & (names == name))
        chosen.append(mine[np.argsort(luck[mine], kind="stable")[:MAX_TEMPLATES]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _templates(tables: Tables, seen: Programs, whole: Steps, chosen: Ints) -> dict[int, Template]:
    taken = np.zeros(tables.requests.num_rows, dtype=np.bool_)
    taken[chosen] = True
    some = whole.rows(np.flatnonzero(taken[whole.request]))
    pools = (*seen.pools, DEFAULT_POOL)
    steps: dict[int, list[Step]] = {row: [] for row in chosen.tolist()}
    given = np.maximum(np.nan_to_num(some.input), 1)
    cached = np.minimum(np.nan_to_num(some.cached), given)
    for i in range(some.size):
        call = some.kind[i] == CALL
        steps[int(some.request[i])].append(
            Step(
                group=int(some.group[i]),
                kind=KINDS[some.kind[i]],
                stage=str(STAGES[some.stage[i]]),
                name=seen.names[some.name[i]] or "",
                service_s=float(some.service[i]),
                pool=pools[some.pool[i]] or DEFAULT_POOL,
                input_tokens=int(given[i]) if call else 0,
                cached_tokens=int(cached[i]) if call else 0,
                output_tokens=max(int(some.output[i]), 1) if call else 0,
                image_tokens=int(np.nan_to_num(some.image[i])) if call else 0,
            )
        )
    of_request = tables.requests.select(["tenant", "route", "priority"]).take(pa.array(chosen))
    return {
        row: Template(
            steps=tuple(steps[row]),
            tenant=facts["tenant"],
            route=facts["route"],
            priority=facts["priority"] or 0,
        )
        for row, facts in zip(chosen.tolist(), of_request.to_pylist(), strict=True)
    }
