"""Capacity and headroom of every resource, in requests per second of the profile's mix.

The closed-form first guess: where each resource is full. The largest load *within the SLO* is
smaller and is found by simulation (`sojourn.plan.holding`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.capacity.demand import Demand, demand
from sojourn.capacity.queueing import allen_cunneen_wait, hidden_capacity
from sojourn.capacity.records import CapacityModel, EngineModel, Fleet, Resource, StationModel
from sojourn.errors import DomainError
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.records import Bottleneck, Stage
from sojourn.workload.profile_records import Profile

ENGINE_MAX_RHO: Final = 0.9
"""Beyond this share of the slots the two-moment wait is refused: near the cliff it is off by
more than itself (fleet-sim of vllm-project/semantic-router stops at 0.85, llm-d's planner at
0.9)."""
SLOT_GAIN: Final = 0.10
"""Slots (or KV) count as the limit when four times as many would carry a tenth more: below that,
raising the flag buys less than the model's own error."""
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


_GRID: Final = np.concatenate(
    (np.geomspace(1e-3, 0.99, 60), np.arange(1, 65), np.geomspace(66, 16_384, 300))
)
"""Batches at which the curve is computed: the same for every fleet, so that comparing two fleets
compares the fleets and not the interpolation."""


class _Limit(NamedTuple):
    name: str
    bottleneck: Bottleneck
    attempts_per_s: float
    scale_by: str
    note: str


@dataclass(frozen=True)
class _Curve:
    """Calls per second one replica carries with B decodes running, by B (ascending)."""

    batches: NDArray[np.float64]
    calls_per_s: NDArray[np.float64]

    def at(self, batch: float) -> float:
        return float(np.interp(batch, self.batches, self.calls_per_s))

    def batch_of(self, calls_per_s: float) -> float | None:
        """The batch that carries a rate: the fixed point B = lambda T(B), or None beyond it."""
        if calls_per_s > self.calls_per_s[-1]:
            return None
        return float(np.interp(calls_per_s, self.calls_per_s, self.batches))


def capacity(profile: Profile, fleet: Fleet) -> CapacityModel:
    """Every resource's capacity, load and headroom; the one with the least headroom first.

    Attempts per request multiply the load on engine and stations. The retry budget comes last:
    it is the point above which an overload no longer drains by itself, not a limit.
    """
    asked = demand(profile)
    load = _load(profile)
    curve = _curve(fleet.engine, asked) if asked.calls else None
    found: list[Resource] = []
    if curve is not None:
        found += _engine_resources(fleet.engine, asked, load, curve)
    found += [
        _station(station, asked.visits.get(name, 0.0), load)
        for name, station in fleet.stations.items()
        if station.servers is not None and asked.visits.get(name, 0.0) > 0
    ]
    found.sort(key=lambda resource: resource.headroom)
    if not found:
        found = [_nothing_known(load)]
    if fleet.retry.max_attempts > 1:
        found.append(_retry_budget(found, fleet.retry.max_attempts, load))
    return CapacityModel(
        fleet=fleet,
        resources=tuple(found),
        engine_wait_s=_engine_wait(profile, fleet.engine, asked, load, curve=curve),
        notes=_notes(fleet, asked, load),
    )


def _load(profile: Profile) -> _Load:
    mean = profile.arrivals.rate_per_s
    peak = profile.arrivals.peak
    at_peak = peak.requests / peak.length_s if peak.length_s > 0 else mean
    return _Load(mean, max(mean, at_peak), profile.attempts_per_request)


def _decode_s(engine: EngineModel, batch: float, context: float) -> float:
    """A decode step with a fractional mean batch: between the two whole ones."""
    low = math.floor(batch)
    left = engine.step.decode_step_s(low, low * context)
    right = engine.step.decode_step_s(low + 1, (low + 1) * context)
    return left + (right - left) * (batch - low)


def _curve(engine: EngineModel, asked: Demand) -> _Curve:
    """lambda(B) = 1 / (P + m d(B)/B): prefill and decode share the engine's time.

    Symbols: P mean prefill time of a call, m mean output tokens, d(B) decode step at batch B and
    the mix's mean context. From t = d(B) + lambda t P (a step carries the prompts that came
    meanwhile) and B = lambda m t (Little). Made monotone: more slots never carry less.
    Source: derived from Little's law and the step time. Wrong when: prompts wait for whole
    prefills (no chunking), or contexts differ so much that the mean misleads.
    """
    prefill = asked.mean(asked.prefill_s(engine.step))
    tokens = asked.output_mean
    context = asked.context_mean
    batches = np.unique(np.concatenate((_GRID, np.asarray(engine.step.batches[1:], dtype=float))))
    steps = np.array([_decode_s(engine, float(b), context) for b in batches])
    per_call = prefill + tokens * steps / batches
    rate = 1 / np.maximum(per_call, 1e-12)
    return _Curve(batches, np.maximum.accumulate(rate))


def _kv_batch(engine: EngineModel, asked: Demand) -> float:
    """Requests whose KV fits at once: tokens over mean context, half a block lost to rounding."""
    held = asked.context_mean + engine.block_size / 2
    return engine.kv_blocks * engine.block_size / held


def _engine_resources(
    engine: EngineModel, asked: Demand, load: _Load, curve: _Curve
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
        for entry in _engine_limits(engine, asked, curve)
        if math.isfinite(entry.attempts_per_s)
    ]


def _engine_limits(engine: EngineModel, asked: Demand, curve: _Curve) -> list[_Limit]:
    """Limits of the engine, in calls per second and replica."""
    slots, held = float(engine.max_num_seqs), _kv_batch(engine, asked)
    limit = min(slots, held)
    prefill = asked.mean(asked.prefill_s(engine.step))
    decode = asked.output_mean * _decode_s(engine, limit, asked.context_mean) / limit
    return [
        _engine_time(curve, limit, prefill, decode),
        _Limit(
            "prefill compute",
            Bottleneck.PREFILL_COMPUTE,
            1 / prefill if prefill > 0 else math.inf,
            "engine replicas, prefix cache hits, or shorter prompts",
            "were the engine to do nothing else",
        ),
        _Limit(
            "decode",
            Bottleneck.DECODE_BANDWIDTH,
            1 / decode if decode > 0 else math.inf,
            "engine replicas, shorter outputs, or quantised weights",
            "were the engine to do nothing else, at the largest batch it may form",
        ),
        _Limit(
            "batch slots",
            Bottleneck.BATCH_SLOTS,
            curve.at(slots),
            "max_num_seqs (while KV cache and step time allow), or engine replicas",
            f"{engine.max_num_seqs} slots x {engine.replicas} replicas",
        ),
        _Limit(
            "KV tokens",
            Bottleneck.KV_CAPACITY,
            curve.at(held),
            "KV memory (memory share, fp8 KV, tensor parallelism), or engine replicas",
            f"{engine.kv_blocks * engine.block_size:,} tokens per replica hold {held:.1f} requests"
            f" of {asked.context_mean:,.0f} tokens; blocks {engine.kv_blocks_provenance}",
        ),
    ]


def _engine_time(curve: _Curve, limit: float, prefill: float, decode: float) -> _Limit:
    """The engine's own time, by the phase that takes more of it.

    At today's largest batch; at four times that batch when slots or KV cache are what stops it
    (`SLOT_GAIN`), so that then they bind and not the engine.
    """
    far = min(4 * limit, float(curve.batches[-1]))
    joint = curve.at(limit)
    if curve.at(far) >= (1 + SLOT_GAIN) * joint:
        joint = curve.at(far)
    busy = prefill + decode
    share = prefill / busy if busy else 0.0
    return _Limit(
        "engine time",
        Bottleneck.PREFILL_COMPUTE if prefill > decode else Bottleneck.DECODE_BANDWIDTH,
        joint,
        "engine replicas, or a faster accelerator",
        f"prefill takes {share:.0%} of the engine's time at a full batch",
    )


def _resource(limit: _Limit, load: _Load, *, spread: float, provenance: Provenance) -> Resource:
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


def _station(station: StationModel, visits: float, load: _Load) -> Resource:
    """c / (v S): servers over the busy time an attempt asks of them."""
    servers = station.servers or 1
    busy = max(visits * station_service_s(station), 1e-9)
    noise = Z_90 * math.sqrt(max(station.service_s.cv2, 0.0) / max(station.service_s.count, 1))
    spread = max(noise, 0.5 * RELATIVE_ERROR[station.provenance])
    limit = _Limit(
        station.name,
        _BOTTLENECK_OF.get(Stage(station.stage), Bottleneck.TOOL),
        servers / busy,
        f"servers of {station.name} (now {servers}), or a shorter service time",
        station.note,
    )
    return _resource(limit, load, spread=spread, provenance=station.provenance)


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
    profile: Profile, engine: EngineModel, asked: Demand, load: _Load, *, curve: _Curve | None
) -> float | Excuse:
    """Mean wait for a batch slot in the peak window, s, by Allen-Cunneen over all slots.

    c = usable slots x replicas, S = time in the batch at the peak's own fixed point, Ca2 and Cs2
    measured (gaps of requests; time in the batch over the calls of the mix).
    Wrong when: calls of one request come close together, or prompts wait for each other while
    slots are free (then the wait is longer).
    """
    if curve is None:
        return Excuse(reason="no model calls in the profile", collect=("calls with their tokens",))
    limit = min(float(engine.max_num_seqs), _kv_batch(engine, asked))
    rate = load.peak_per_s * load.attempts.mid * asked.calls
    batch = curve.batch_of(rate / engine.replicas)
    if batch is None or batch > ENGINE_MAX_RHO * limit:
        share = "more than it can carry" if batch is None else f"{batch / limit:.0%} of its slots"
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
