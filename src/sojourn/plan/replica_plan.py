"""How many replicas of which accelerator carry a target rate within the SLO, and what they cost.

The closed form ranks every layout that fits; the cheapest are simulated (steady traffic of the
recorded mix, stations outside the engine without limit: they are counted apart), and the first of
them is run as a whole at the target rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.records import CapacityModel, EngineModel, Fleet, fast_and_slow
from sojourn.config import Config
from sojourn.interval import Excuse, Interval
from sojourn.plan.capacity_records import ReplicaOption, ReplicaPlan, StationNeed, Unfit
from sojourn.plan.holding_records import Settled
from sojourn.plan.load_search import Limits, knees, over_seeds
from sojourn.plan.replica_candidates import Candidate, Today, candidates, refined
from sojourn.plan.sustained import REQUESTS, RateRuns, rate_limits, settled_rate
from sojourn.progress import Progress, silent
from sojourn.records import ENGINE_STAGES, Bottleneck
from sojourn.sim.ticks import LONGEST_S
from sojourn.units import S_PER_HOUR
from sojourn.workload.stream import Stream

HEADROOM: Final = 0.1
"""Added to the target: a replica less, or a tenth more load, is then no outage."""
SIMULATED: Final = 5
"""Layouts that are simulated, the cheapest by the closed form; the rest are scaled from them."""
SEEDS: Final = 3
START: Final = 0.7
"""Share of the closed form at which the search for the SLO's rate begins."""
MOST_REPLICAS: Final = 1_000
CONFIRMED: Final = 1
TRIES: Final = 3
"""Replicas are added so often where the whole, run together, misses what one alone promises."""
MILLION: Final = 1e6
ALONE: Final = 0.05
ALONE_REQUESTS: Final = 400
"""Share of the closed form, and requests, of a run that shows what a layout does at little load."""
TOO_MANY: Final = Excuse(
    reason=f"More than {MOST_REPLICAS:,} replicas of it would be needed",
    collect=("check the target's unit: requests a second, a minute or an hour",),
)
TOO_SLOW: Final = Excuse(
    reason="The SLO is missed on it even when requests are nearly alone",
    collect=("a faster accelerator, a higher tensor_parallel, or a wider target",),
)


@dataclass(frozen=True)
class Target:
    """The rate to carry, requests per second at the peak, and what else the plan rests on.
    `on_edge`: buckets that miss so often alone that only surely more misses count."""

    per_s: float
    stream: Stream
    config: Config
    model: CapacityModel
    on_edge: frozenset[str] = frozenset()
    progress: Progress = silent

    def runs(self, fleet: Fleet, requests: int = REQUESTS) -> RateRuns:
        """Steady runs of a fleet."""
        return RateRuns(self.stream, fleet, self.config, on_edge=self.on_edge, requests=requests)


@dataclass(frozen=True)
class _Sized:
    """A candidate with what one replica holds, in requests per second."""

    candidate: Candidate
    rate: Interval
    low: float
    high: float
    simulated: bool
    success: float = 1.0


def replica_plan(target: Target, today: Today, gpus: Sequence[Gpu]) -> ReplicaPlan | Excuse:
    """Options by cost, those without a price last; and what does not fit."""
    if not target.config.slo:
        return Excuse(
            reason="No SLO is set, so replicas cannot be counted",
            collect=("set `slo` in sojourn.yaml: ttft_s, tpot_s or e2e_s per bucket",),
        )
    if 2 * REQUESTS / target.per_s > LONGEST_S:
        return _too_rare(target.per_s)
    fit, unfit = candidates(today, gpus)
    fit.sort(key=lambda item: _cost(item, target.per_s, item.closed_per_s))
    sized: list[_Sized] = []
    for number, item in enumerate(fit):
        target.progress(f"{item.degree} x {item.gpu}", 0.9 * number / max(len(fit), 1))
        enough = sum(s.simulated for s in sized) >= SIMULATED
        found = (_scaled if enough else _simulated)(item, target, today, sized)
        if isinstance(found, Excuse):
            unfit.append(Unfit(gpu=item.gpu, tensor_parallel=item.degree, excuse=found))
        elif _count(target.per_s, found.rate.mid) > MOST_REPLICAS:
            unfit.append(Unfit(gpu=item.gpu, tensor_parallel=item.degree, excuse=TOO_MANY))
        else:
            sized.append(found)
    sized.sort(key=lambda s: _cost(s.candidate, target.per_s, s.rate.mid))
    options = [
        _option(item, target, today, confirm=number < CONFIRMED and item.simulated)
        for number, item in enumerate(sized)
    ]
    options.sort(key=lambda o: math.inf if o.usd_per_hour is None else o.usd_per_hour)
    return ReplicaPlan(
        target_per_s=target.per_s,
        headroom=HEADROOM,
        options=tuple(options),
        unfit=tuple(unfit),
        stations=_stations(target.model, target.per_s),
        notes=_notes(target, today),
    )


def _too_rare(per_s: float) -> Excuse:
    least = 2 * REQUESTS / LONGEST_S
    return Excuse(
        reason=f"At {per_s:.3g} requests a second the {REQUESTS:,} requests of a run would take"
        f" longer than a run may ({LONGEST_S / S_PER_HOUR / 24:.0f} days): nothing queues at so"
        " little load, and one replica of whatever fits carries it",
        collect=(f"check the target's unit; a target above {least:.2g} a second is simulated",),
    )


def _count(per_s: float, rate: float) -> int:
    """Replicas for a rate and its headroom."""
    if rate <= 0:
        return MOST_REPLICAS + 1
    return min(max(1, math.ceil(per_s * (1 + HEADROOM) / rate - 1e-9)), MOST_REPLICAS + 1)


def _cost(item: Candidate, per_s: float, rate: float) -> float:
    price = item.usd_per_hour
    return math.inf if price is None else price * _count(per_s, rate)


def _bare(fleet: Fleet, engine: EngineModel) -> Fleet:
    """The fleet on another engine, stations without limit: they scale by themselves."""
    stations = {
        name: s.model_copy(update={"servers": None, "rate_per_s": None, "queue_limit": None})
        for name, s in fleet.stations.items()
    }
    return fleet.model_copy(update={"engine": engine, "stations": stations})


def _simulated(
    quick: Candidate, target: Target, today: Today, _others: list[_Sized]
) -> _Sized | Excuse:
    """What one replica holds, searched for, with the best step times there are."""
    item = refined(today, quick)
    if isinstance(item, Excuse):
        return item
    runs = target.runs(_bare(today.fleet, item.engine))
    seeds = range(target.config.analysis.seed, target.config.analysis.seed + SEEDS)
    start = START * item.closed_per_s
    limits = rate_limits(runs.requests, start)
    limits = Limits(max(limits.least, start / 100), min(limits.most, item.closed_per_s * 2))
    if limits.least >= limits.most:
        return Excuse(reason=f"One replica carries less than {limits.least:.2g} requests/s")
    brackets = knees(runs.held, seeds, start, limits)
    first = brackets[0]
    if first.open and first.low < start:
        return TOO_SLOW
    rate = over_seeds(brackets, target.config.analysis.confidence)
    judged = runs.at(first.low, seeds[0])
    low, high = _at_ends(runs, item.engine, rate, limits)
    return _Sized(item, rate, low, high, True, float(judged.succeeded.mean()))


def _at_ends(
    runs: RateRuns, engine: EngineModel, rate: Interval, limits: Limits
) -> tuple[float, float]:
    """The rate with steps as slow, and as fast, as their spread allows; one seed, 4% steps."""
    ends = fast_and_slow(engine.step)
    if ends is None:
        return rate.low, rate.high
    found = []
    seed = runs.config.analysis.seed
    for step in ends:
        engine_then = engine.model_copy(update={"step": step})
        fleet = runs.fleet.model_copy(update={"engine": engine_then})
        changed = replace(runs, fleet=fleet, judged={})
        slowest = rate_limits(runs.requests, rate.mid).least
        wider = Limits(max(limits.least / 10, slowest), limits.most * 10)
        found.append(knees(changed.held, [seed], rate.mid, wider)[0].low)
    return min(*found, rate.low), max(*found, rate.high)


def _scaled(item: Candidate, target: Target, today: Today, sized: list[_Sized]) -> _Sized | Excuse:
    """The closed form, times what the simulation left of it for those that were simulated; once
    a few requests nearly alone have held the SLO."""
    alone = target.runs(_bare(today.fleet, item.engine), ALONE_REQUESTS)
    little = max(ALONE * item.closed_per_s, rate_limits(ALONE_REQUESTS, item.closed_per_s).least)
    if not alone.held(little, target.config.analysis.seed):
        return TOO_SLOW
    known = [s for s in sized if s.simulated]
    closed = item.closed_per_s
    mid = closed * float(np.median([s.rate.mid / s.candidate.closed_per_s for s in known]))
    low = min(mid, closed * min(s.low / s.candidate.closed_per_s for s in known))
    high = max(mid, closed * max(s.high / s.candidate.closed_per_s for s in known))
    rate = Interval(low=low, mid=mid, high=high, confidence=known[0].rate.confidence)
    success = float(np.median([s.success for s in known]))
    return _Sized(item, rate, low, high, False, success)


def _option(item: _Sized, target: Target, today: Today, *, confirm: bool) -> ReplicaOption:
    count = _count(target.per_s, item.rate.mid)
    settled, note = None, ""
    if confirm:
        count, settled, note = _confirmed(item, count, target, today)
    price = item.candidate.usd_per_hour
    hourly = None if price is None else price * count
    asked = today.asked
    tokens = float((asked.weight * (asked.prompt + asked.output)).sum())
    per_hour = target.per_s * S_PER_HOUR
    return ReplicaOption(
        gpu=item.candidate.gpu,
        tensor_parallel=item.candidate.degree,
        gpus_per_replica=item.candidate.hardware.gpus,
        per_replica_per_s=item.rate,
        replicas=count,
        replicas_low=min(count, _count(target.per_s, item.high)),
        replicas_high=max(count, _count(target.per_s, item.low)),
        headroom=1 - target.per_s / (count * item.rate.mid),
        simulated=item.simulated,
        confirmed=settled,
        usd_per_hour=hourly,
        usd_per_million_tokens=_over(hourly, per_hour * tokens / MILLION),
        usd_per_success=_over(hourly, per_hour * item.success),
        source=item.candidate.engine.step.source,
        note=note,
    )


def _over(value: float | None, count: float) -> float | None:
    return None if value is None or count <= 0 else value / count


def _confirmed(
    item: _Sized, count: int, target: Target, today: Today
) -> tuple[int, Settled | None, str]:
    """The replicas together at the target rate, one more while they miss; what was seen."""
    settled, note = None, ""
    for more in range(TRIES):
        engine = item.candidate.engine.model_copy(update={"replicas": count + more})
        runs = target.runs(_bare(today.fleet, engine))
        seed = target.config.analysis.seed
        target.progress(f"{count + more} replicas of {item.candidate.gpu} together", 0.95)
        if not runs.held(target.per_s, seed):
            note = "one replica more than the rate of one alone says: together they missed it"
            continue
        settled, rate = settled_rate(runs, target.per_s, seed)
        if rate >= target.per_s:
            return count + more, settled, note if more else ""
    return count + TRIES - 1, settled, "not confirmed: together they miss the SLO at the target"


def _stations(model: CapacityModel, per_s: float) -> tuple[StationNeed, ...]:
    """Stations whose workers are too few for the target, by their closed form."""
    needs = []
    for resource in model.resources:
        station = model.fleet.stations.get(resource.name)
        if station is None or station.servers is None or station.stage in ENGINE_STAGES:
            continue
        needed = math.ceil(
            station.servers * per_s * (1 + HEADROOM) / resource.capacity_per_s.mid - 1e-9
        )
        if needed > station.servers and resource.bottleneck is not Bottleneck.RETRY_AMPLIFICATION:
            needs.append(StationNeed(name=resource.name, now=station.servers, needed=needed))
    return tuple(needs)


def _notes(target: Target, today: Today) -> tuple[str, ...]:
    notes = [
        "The target is taken as the rate at the peak, held for as long as it lasts: steady traffic"
        f" of the recorded mix; {HEADROOM:.0%} headroom is added.",
        "Prices are the catalogue's indications (assumed); set deployment.usd_per_replica_hour for"
        " your own.",
    ]
    if today.fleet.stations:
        notes.append(
            "Stations outside the engine are taken without limit here: how many workers they need"
            " is said apart."
        )
    return tuple(notes)
