"""`Digest`: what is kept of one simulated run of a scenario, read off its log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.attribution.records import ALL
from sojourn.capacity.drift import level_of
from sojourn.capacity.records import Fleet, StationModel
from sojourn.plan.simulated_records import Change
from sojourn.sim.log import ERROR, NONE, OK, SHED, TIMEOUT
from sojourn.sim.luck import SERVICE
from sojourn.sim.scenario import SimRun
from sojourn.sim.stability import Stability, stability
from sojourn.sim.ticks import PER_S
from sojourn.trace.arrays import Bools, Floats, Ints, floats, texts
from sojourn.workload.hashing import hash_strings, mix

MOMENTS: Final = 12
MOST_CHANGES: Final = 200
"""Kept one by one; all are counted."""
MOST_ATTRIBUTED: Final = 100_000
"""Requests of which every span is looked at: a P99 then rests on a thousand."""


@dataclass(frozen=True)
class Served:
    """Requests after the warm-up: one entry each, by arrival. Durations in seconds, NaN where
    there is none; shed requests have no latency."""

    bucket: npt.NDArray[np.object_]
    arrival_s: Floats
    end_s: Floats
    e2e_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    failed: Bools
    shed: Bools
    degraded: Bools
    attempts: Ints

    def rows(self, bucket: str) -> Served:
        """Those of a bucket."""
        if bucket == ALL:
            return self
        mine = self.bucket == bucket
        return Served(**{name: getattr(self, name)[mine] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Load:
    """Of a pool or a station, by the names of `ResourceResult`; NaN where there is no such."""

    name: str
    kind: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Digest:
    """One replication."""

    served: Served
    loads: tuple[Load, ...]
    stability: Stability
    counts: dict[str, int]
    changes: tuple[Change, ...]
    change_counts: dict[str, int]


def digest(run: SimRun, *, warm_up_s: float, confidence: float) -> Digest:
    """Of a run. Requests that arrive in the first `warm_up_s` are left out of `served`."""
    first = run.log.ends["arrival"].min(initial=0) / PER_S
    start = first + warm_up_s
    end = float(run.log.ends["arrival"].max(initial=0)) / PER_S
    changes = run.changes
    what = texts(changes["what"], "")
    kinds, number = np.unique(what.astype(str), return_counts=True)
    head = changes.slice(0, MOST_CHANGES)
    return Digest(
        served=_served(run, warm_up_s),
        loads=(*_pools(run, start, end), *_stations(run, start, end)),
        stability=stability(run, confidence=confidence),
        counts=run.counts,
        changes=tuple(Change(**row) for row in head.to_pylist()),
        change_counts=dict(zip(kinds.tolist(), number.tolist(), strict=True)),
    )


def _served(run: SimRun, warm_up_s: float) -> Served:
    ends = run.outcomes
    keep = ends.arrival_s >= ends.arrival_s.min(initial=0.0) + warm_up_s
    order = np.flatnonzero(keep)
    order = order[np.argsort(ends.arrival_s[order], kind="stable")]

    def of(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[order]

    arrival, end = of(ends.arrival_s), of(ends.end_s)
    shed = of(ends.status) == SHED
    e2e = np.where(shed, np.nan, end - arrival)
    # of a request without a call in its last attempt the answer itself is the first byte
    without = (of(ends.status) == OK) & ~(of(ends.call_attempt) >= of(ends.attempts) - 1)
    has_calls = bool(len(run.log.calls))
    ttft = np.where(without & has_calls, e2e, of(ends.first_token_s) - arrival)
    written = of(ends.output_tokens)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (of(ends.call_end_s) - of(ends.first_token_s)) / (written - 1)
    buckets = run.scenario.stream.requests.column("bucket").take(pa.array(ends.row[order]))
    return Served(
        bucket=texts(buckets, ""),
        arrival_s=np.asarray(arrival, dtype=np.float64),
        end_s=np.asarray(end, dtype=np.float64),
        e2e_s=e2e,
        ttft_s=ttft,
        tpot_s=np.where(written >= 2, tpot, np.nan),
        failed=np.isin(of(ends.status), (ERROR, TIMEOUT, SHED)),
        shed=shed,
        degraded=np.asarray(of(ends.degraded), dtype=bool),
        attempts=np.asarray(of(ends.attempts), dtype=np.int64),
    )


def _pools(run: SimRun, start: float, end: float) -> list[Load]:
    fleet, names = run.scenario.fleet, run.legend.replicas
    pools = {"default": fleet.engine, **fleet.pools}
    owner = np.array([list(pools).index(n.split("/")[0] if "/" in n else "default") for n in names])
    samples, calls = run.log.samples, run.log.calls
    inside = (samples["t"] >= start * PER_S) & (samples["t"] <= end * PER_S)
    found = []
    for number, (name, engine) in enumerate(pools.items()):
        mine = owner[samples["replica"]] == number
        figures = _sampled(samples[inside & mine], engine.kv_blocks, engine.max_num_seqs)
        figures |= _counters(samples[mine], caches=engine.prefix_cache is not None)
        figures |= _queued(calls, number, fleet, end)
        shown = name if len(pools) > 1 else "engine"
        found.append(Load(shown, "pool", figures))
    return found


def _queued(calls: npt.NDArray[np.void], number: int, fleet: Fleet, end: float) -> dict[str, float]:
    """Calls that were queued in a pool: its own, and those whose prompts it computes for others.
    With prompts computed elsewhere a call is queued from when its KV has moved."""
    pools = {"default": fleet.engine, **fleet.pools}
    name = list(pools)[number]
    own = calls[calls["pool"] == number]
    moves = pools[name].prefill is not None
    marks = [("moved", "resumed", own) if moves else ("queued", "scheduled", own)]
    for other, engine in enumerate(pools.values()):
        if engine.prefill is not None and engine.prefill.pool == name:
            marks.append(("queued", "scheduled", calls[calls["pool"] == other]))
    entered = np.concatenate([rows[first] for first, _, rows in marks])
    left = np.concatenate([rows[second] for _, second, rows in marks])
    gone = np.concatenate([rows["end"] for _, _, rows in marks])
    came, went = entered != NONE, left != NONE
    waits = (left - entered)[came & went] / PER_S
    at_end = came & (entered <= end * PER_S) & (np.where(went, left, gone) > end * PER_S)
    return {
        "visits": float(came.sum()),
        "wait_s": float(waits.mean()) if waits.size else np.nan,
        "waiting_at_end": float(at_end.sum()),
        "refused": float((own["replica"] == NONE).sum()),
    }


def _sampled(mine: npt.NDArray[np.void], blocks: int, slots: int) -> dict[str, float]:
    """Gauges of a pool's replicas, averaged over samples."""
    if not len(mine):
        return {}
    order = np.lexsort((mine["t"], mine["replica"]))
    rows = mine[order]
    same = rows["replica"][1:] == rows["replica"][:-1]
    passed = np.diff(rows["t"])[same].sum()
    busy = np.diff(rows["busy"])[same].sum()
    used = rows["used_blocks"] / blocks
    return {
        "busy": float(busy / passed) if passed > 0 else np.nan,
        "slots": float((rows["running"] / slots).mean()),
        "kv": float(used.mean()),
        "kv_most": float(used.max()),
        "replicas": len(rows) / len(np.unique(rows["t"])),
    }


def _counters(every: npt.NDArray[np.void], *, caches: bool) -> dict[str, float]:
    """Totals of a pool at the last sample of each replica."""
    if not len(every):
        return {}
    order = np.lexsort((every["t"], every["replica"]))
    rows = every[order]
    last = np.append(rows["replica"][1:] != rows["replica"][:-1], True)
    queries = float(rows["query_tokens"][last].sum())
    hits = float(rows["hit_tokens"][last].sum())
    return {
        "preemptions": float(rows["preemptions"][last].sum()),
        "hit_share": hits / queries if queries and (caches or hits) else np.nan,
    }


def _stations(run: SimRun, start: float, end: float) -> list[Load]:
    visits = run.log.visits
    fleet = run.scenario.fleet
    found = []
    for number, name in enumerate(run.legend.stations):
        mine = visits[visits["station"] == number]
        if not len(mine):
            continue
        went = mine["started"] != NONE
        begun = np.where(went, mine["started"], mine["ended"])
        model = fleet.stations.get(name)
        busy = np.nan
        if model is not None and model.servers is not None and end > start:
            freed = np.where(went, _freed(run, mine, model), begun)
            low, high = start * PER_S, end * PER_S
            inside = np.clip(freed, low, high) - np.clip(begun, low, high)
            busy = float(inside.sum() / ((high - low) * model.servers))
        at_end = (mine["entered"] <= end * PER_S) & (begun > end * PER_S)
        figures = {
            "busy": busy,
            "visits": float(len(mine)),
            "wait_s": float((begun - mine["entered"]).mean()) / PER_S,
            "waiting_at_end": float(at_end.sum()),
            "refused": float(((mine["status"] == ERROR) & ~went).sum()),
            "timed_out": float((mine["status"] == TIMEOUT).sum()),
        }
        found.append(Load(name, "station", figures))
    return found


def _freed(run: SimRun, visits: npt.NDArray[np.void], model: StationModel) -> Floats:
    """When each visit that was begun freed its server, ticks: one that was given up holds it to
    the end of its work, unless the station stops then. Work of later attempts is drawn as the
    engines draw it (`sojourn.sim.luck`)."""
    ended = visits["ended"].astype(np.float64)
    left = np.flatnonzero((visits["status"] != OK) & (visits["started"] != NONE))
    if model.stops_on_cancel or not left.size:
        return ended
    rows = visits[left]
    step = run.legend.first_step[rows["request"]] + rows["place"]
    service = floats(run.scenario.stream.steps["service_s"])[step]
    again = np.flatnonzero(rows["attempt"] > 0)
    if again.size and model.service_samples_s:
        late = rows[again]
        ids = run.scenario.stream.requests["request_id"].take(pa.array(late["request"]))
        key = mix(mix(np.array([run.seed], dtype=np.uint64)) ^ hash_strings(ids))
        key ^= (
            (late["attempt"].astype(np.uint64) << np.uint64(40))
            | (late["place"].astype(np.uint64) << np.uint64(8))
            | np.uint64(SERVICE)
        )
        samples = np.array(model.service_samples_s)
        place = ((mix(key) >> np.uint64(32)) * np.uint64(samples.size)) >> np.uint64(32)
        at = late["entered"] / PER_S + run.legend.origin_s
        service[again] = samples[place.astype(np.int64)] * level_of(model.drift, at)
    ended[left] = np.maximum(ended[left], rows["started"] + service * PER_S)
    return ended


def part_of(run: SimRun, warm_up_s: float) -> SimRun:
    """The run with at most `MOST_ATTRIBUTED` of its requests, those in the middle of what is left
    after the warm-up: spans of a million requests take gigabytes."""
    arrival = run.log.ends["arrival"]
    rows = np.flatnonzero(arrival >= arrival.min(initial=0) + warm_up_s * PER_S)
    if rows.size == len(arrival) and rows.size <= MOST_ATTRIBUTED:
        return run
    skip = max(0, rows.size - MOST_ATTRIBUTED) // 2
    chosen = np.zeros(len(arrival), dtype=bool)
    chosen[rows[skip : skip + MOST_ATTRIBUTED]] = True
    ends = run.log.ends.copy()
    ends["status"][~chosen] = NONE
    log = replace(
        run.log,
        ends=ends,
        **{
            name: getattr(run.log, name)[chosen[getattr(run.log, name)["request"]]]
            for name in ("calls", "visits", "attempts")
        },
    )
    return replace(run, log=log)
