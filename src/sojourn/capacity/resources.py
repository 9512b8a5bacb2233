"""Capacity and headroom of every resource, in requests per second of the profile's mix.

The closed-form first guess: where each resource is full. The largest load *within the SLO* is
smaller and is found by simulation (`sojourn.plan.holding`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.demand import Demand, demand
from sojourn.capacity.engine_limits import Curve, Limit, curve_of, decode_s, engine_limits, kv_batch
from sojourn.capacity.host_limits import HostGauge, encoder, front_end, measured_host
from sojourn.capacity.queueing import allen_cunneen_wait, hidden_capacity
from sojourn.capacity.records import CapacityModel, EngineModel, Fleet, Resource, StationModel
from sojourn.capacity.validity import warnings
from sojourn.errors import DomainError
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.records import Bottleneck, Stage
from sojourn.workload.profile_records import Profile

ENGINE_MAX_RHO: Final = 0.9
"""Beyond this share of the slots the two-moment wait is refused: near the cliff it is off by
more than itself (fleet-sim of vllm-project/semantic-router stops at 0.85, llm-d's planner at
0.9)."""
RELATIVE_ERROR: Final = {
    Provenance.MEASURED: 0.05,
    Provenance.FITTED: 0.10,
    Provenance.INFERRED: 0.15,
    Provenance.SIMULATED: 0.10,
    Provenance.CATALOGUE: 0.30,
    Provenance.ASSUMED: 0.50,
}
"""Half-width of a capacity, relative, where no held-out error says better. Catalogue is the
roofline: the median error of 65 of the 72 groups that `benchmarks/fit_roofline.py` prints (model,
dtype, cards, engine) is within 30%."""
Z_90: Final = 1.645

_BOTTLENECK_OF: Final = {
    Stage.GATEWAY: Bottleneck.GATEWAY,
    Stage.GUARDRAIL: Bottleneck.GATEWAY,
    Stage.RETRIEVAL: Bottleneck.RETRIEVAL,
    Stage.RERANK: Bottleneck.RERANK,
    Stage.ENCODE: Bottleneck.ENCODER,
    Stage.TOOL: Bottleneck.TOOL,
    Stage.NETWORK: Bottleneck.NETWORK,
    Stage.POSTPROCESS: Bottleneck.HOST_CPU,
}


@dataclass(frozen=True)
class _Load:
    mean_per_s: float
    peak_per_s: float
    attempts: Interval


def capacity(profile: Profile, fleet: Fleet, *, host: HostGauge | None = None) -> CapacityModel:
    """Every resource's capacity, load and headroom; the one with the least headroom first.

    Attempts per request multiply the load on engine and stations. `host`: what was measured of the
    engine's host. Last come warnings that are no limits: the front end, where nothing was measured,
    and the retry budget, above which an overload no longer drains by itself.
    """
    asked = demand(profile)
    load = _load(profile)
    curve = curve_of(fleet.engine, asked) if asked.calls else None
    found: list[Resource] = []
    if curve is not None:
        found += _engine_resources(fleet.engine, asked, load, curve)
    found += list(_stations(fleet, asked, load))
    found += _host(fleet.engine, asked, load, host)
    found.sort(key=lambda resource: resource.headroom)
    if not found:
        found = [_nothing_known(load)]
    elif host is None:
        found += _front_end(fleet.engine, asked, load)
    if fleet.retry.max_attempts > 1:
        found.append(_retry_budget(found, fleet.retry.max_attempts, load))
    limit = min(float(fleet.engine.max_num_seqs), kv_batch(fleet.engine, asked))
    return CapacityModel(
        fleet=fleet,
        resources=tuple(found),
        engine_wait_s=_engine_wait(profile, fleet.engine, asked, load, curve=curve),
        notes=_notes(fleet, asked, load),
        warnings=warnings(fleet.engine, asked, limit) if asked.calls else (),
    )


def _load(profile: Profile) -> _Load:
    mean = profile.arrivals.rate_per_s
    peak = profile.arrivals.peak
    at_peak = peak.requests / peak.length_s if peak.length_s > 0 else mean
    return _Load(mean, max(mean, at_peak), profile.attempts_per_request)


def _engine_resources(
    engine: EngineModel, asked: Demand, load: _Load, curve: Curve
) -> list[Resource]:
    """Limits of the engine in requests per second; those that do not apply are left out."""
    spread = engine.step.held_out_error or RELATIVE_ERROR[engine.step.provenance]
    per_request = engine.replicas / asked.calls
    return [
        _resource(
            entry._replace(attempts_per_s=entry.attempts_per_s * per_request),
            load,
            spread=spread,
            provenance=engine.step.provenance,
        )
        for entry in engine_limits(engine, asked, curve)
        if math.isfinite(entry.attempts_per_s)
    ]


def _resource(limit: Limit, load: _Load, *, spread: float, provenance: Provenance) -> Resource:
    """Capacity in requests: attempts a second over attempts per request."""
    spread = min(spread, 0.9)
    mid = limit.attempts_per_s / load.attempts.mid
    low = limit.attempts_per_s * (1 - spread) / load.attempts.high
    high = limit.attempts_per_s / (1 - spread) / load.attempts.low
    mean, peak = load.mean_per_s / mid, load.peak_per_s / mid
    return Resource(
        name=limit.name,
        bottleneck=limit.bottleneck,
        capacity_per_s=Interval(low=min(low, mid), mid=mid, high=max(high, mid)),
        mean_load=mean,
        peak_load=peak,
        headroom=1 - peak,
        scale_by=limit.scale_by,
        provenance=provenance,
        note=limit.note,
    )


def station_service_s(station: StationModel) -> float:
    """Mean time one visit keeps a server busy, s: cut at the time limit where work then stops."""
    if station.timeout_s is not None and station.stops_on_cancel and station.service_samples_s:
        return float(np.minimum(station.service_samples_s, station.timeout_s).mean())
    return station.service_s.mean


def _stations(fleet: Fleet, asked: Demand, load: _Load) -> Iterator[Resource]:
    """Worker pools of stations that are visited and have a limit, and limits of their rate."""
    pools: dict[str, list[StationModel]] = {}
    for name, station in fleet.stations.items():
        if asked.visits.get(name, 0.0) <= 0:
            continue
        if station.servers is not None:
            pools.setdefault(station.pool or name, []).append(station)
        if station.rate_per_s is not None:
            yield _rate_limit(station, station.rate_per_s / asked.visits[name], load)
    for name, members in pools.items():
        yield _pool(name, members, asked, load)


def _pool(name: str, members: list[StationModel], asked: Demand, load: _Load) -> Resource:
    """c / sum of v S: servers over the busy time an attempt asks of them. Stations that share the
    pool share its workers; their errors are taken as one."""
    servers = max(station.servers or 1 for station in members)
    each = [max(asked.visits[s.name] * station_service_s(s), 1e-9) for s in members]
    busiest = members[int(np.argmax(each))]
    noise = max(
        Z_90 * math.sqrt(max(s.service_s.cv2, 0.0) / max(s.service_s.count, 1)) for s in members
    )
    spread = max(noise, 0.5 * RELATIVE_ERROR[busiest.provenance])
    limit = Limit(
        name,
        _BOTTLENECK_OF.get(Stage(busiest.stage), Bottleneck.TOOL),
        servers / sum(each),
        f"servers of {name} (now {servers}), or a shorter service time",
        busiest.note,
    )
    return _resource(limit, load, spread=spread, provenance=busiest.provenance)


def _rate_limit(station: StationModel, attempts_per_s: float, load: _Load) -> Resource:
    limit = Limit(
        f"{station.name}, rate limit",
        _BOTTLENECK_OF.get(Stage(station.stage), Bottleneck.TOOL),
        attempts_per_s,
        f"a higher rate limit of {station.name}, or fewer visits",
        f"more than {station.rate_per_s:g} visits a second are refused",
    )
    return _resource(limit, load, spread=0.0, provenance=station.provenance)


def _host(
    engine: EngineModel, asked: Demand, load: _Load, host: HostGauge | None
) -> list[Resource]:
    """What was measured of the host's busiest core, and the image encoder."""
    found = []
    limit = encoder(engine, asked)
    if limit is not None:
        spread = RELATIVE_ERROR[engine.step.provenance]
        found.append(_resource(limit, load, spread=spread, provenance=engine.step.provenance))
    full = None if host is None else measured_host(host, load.mean_per_s * load.attempts.mid)
    if full is not None:
        spread = RELATIVE_ERROR[Provenance.INFERRED]
        found.append(_resource(full, load, spread=spread, provenance=Provenance.INFERRED))
    return found


def _front_end(engine: EngineModel, asked: Demand, load: _Load) -> list[Resource]:
    limit = front_end(engine, asked)
    if limit is None:
        return []
    spread = RELATIVE_ERROR[Provenance.ASSUMED]
    return [_resource(limit, load, spread=spread, provenance=Provenance.ASSUMED)]


def _retry_budget(limits: list[Resource], max_attempts: int, load: _Load) -> Resource:
    """mu / (r+1) of the tightest limit (see `queueing.hidden_capacity`)."""
    tight = limits[0]
    if not math.isfinite(tight.capacity_per_s.mid):
        mid = tight.capacity_per_s.mid
    else:
        mid = hidden_capacity(tight.capacity_per_s.mid * load.attempts.mid, max_attempts - 1)
    factor = mid / tight.capacity_per_s.mid if math.isfinite(mid) else 1.0
    return Resource(
        name="retry budget",
        bottleneck=Bottleneck.RETRY_AMPLIFICATION,
        capacity_per_s=tight.capacity_per_s.scale(factor),
        mean_load=load.mean_per_s / mid,
        peak_load=load.peak_per_s / mid,
        headroom=1 - load.peak_per_s / mid,
        scale_by="fewer attempts, a retry budget (a share of requests), or longer timeouts",
        provenance=tight.provenance,
        note=f"with all {max_attempts} attempts made, {tight.name} is full at this rate: above it"
        " an overload does not drain by itself (vulnerable, not yet full)",
    )


def _nothing_known(load: _Load) -> Resource:
    return Resource(
        name="none known",
        bottleneck=Bottleneck.INSUFFICIENT_EVIDENCE,
        capacity_per_s=Interval.exact(math.inf),
        mean_load=0.0,
        peak_load=0.0,
        headroom=1.0,
        scale_by="nothing: record model calls or name station servers first",
        provenance=Provenance.ASSUMED,
        note=f"no model call and no station with a known number of servers at"
        f" {load.mean_per_s:.3g} requests/s",
    )


def _engine_wait(
    profile: Profile, engine: EngineModel, asked: Demand, load: _Load, *, curve: Curve | None
) -> float | Excuse:
    """Mean wait for a batch slot in the peak window, s, by Allen-Cunneen over all slots.

    c = usable slots x replicas, S = time in the batch at the peak's own fixed point, Ca2 and Cs2
    measured (gaps of requests; time in the batch over the calls of the mix).
    Wrong when: calls of one request come close together, or prompts wait for each other while
    slots are free (then the wait is longer).
    """
    if curve is None:
        return Excuse(reason="no model calls in the profile", collect=("calls with their tokens",))
    limit = min(float(engine.max_num_seqs), kv_batch(engine, asked))
    rate = load.peak_per_s * load.attempts.mid * asked.calls
    batch = curve.batch_of(rate / engine.replicas)
    if batch is None or batch > ENGINE_MAX_RHO * limit:
        share = "more than it can carry"
        if batch is not None and batch <= limit:
            share = f"{batch / limit:.0%} of its slots"
        return Excuse(
            reason=f"in the peak window the engine is asked for {share}; closed forms hold up to"
            f" {ENGINE_MAX_RHO:.0%}, beyond it the wait depends on how long the peak lasts",
            collect=("nothing more: simulate the peak window",),
        )
    ca2 = profile.arrivals.cv_interarrival**2
    if not math.isfinite(ca2):
        return Excuse(
            reason="the gaps between arrivals are unknown", collect=("arrival times of requests",)
        )
    prefill = asked.prefill_s(engine.step)
    step = batch / (rate / engine.replicas * asked.output_mean) if asked.output_mean else 0.0
    times = prefill + asked.output * step
    mean = asked.mean(times)
    cs2 = asked.mean((times - mean) ** 2) / mean**2 if mean else 0.0
    servers = max(1, math.floor(limit)) * engine.replicas
    try:
        return allen_cunneen_wait(rate, mean, servers, ca2=ca2, cs2=cs2)
    except DomainError as error:
        return Excuse(reason=str(error), collect=("nothing more: simulate the peak window",))


def _notes(fleet: Fleet, asked: Demand, load: _Load) -> tuple[str, ...]:
    notes = [
        "Capacity is where a resource is full, not where the SLO holds: waiting starts below it.",
        f"Engine step time: {fleet.engine.step.source}.",
    ]
    if fleet.pools:
        notes.append(
            f"Calls of the pools {', '.join(sorted(fleet.pools))} are counted on the default engine"
            " here: closed forms know one; the simulation runs every pool."
        )
    if fleet.engine.step.host_s > 0 and asked.calls:
        whole = decode_s(fleet.engine, float(fleet.engine.max_num_seqs), asked.context_mean)
        notes.append(
            f"Of a decode step at {fleet.engine.max_num_seqs} sequences"
            f" {fleet.engine.step.host_s / whole:.0%} is host time, in which the device waits."
        )
    open_ended = [name for name, s in fleet.stations.items() if s.servers is None]
    if open_ended:
        notes.append(
            f"No limit is known for {', '.join(sorted(open_ended))}: no capacity is computed."
        )
    if load.attempts.mid > 1:
        notes.append(
            f"{load.attempts.mid:.2f} attempts per request multiply the load; an attempt that is"
            " cut short counts as whole, so the load is an upper bound."
        )
    if not asked.from_templates:
        notes.append("Some buckets have no recorded programs: their means were used.")
    return tuple(notes)
