"""What capacity figures are often mistaken for, said with the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sojourn.capacity.demand import demand
from sojourn.capacity.engine_limits import kv_batch
from sojourn.capacity.records import CapacityModel
from sojourn.config import Deployment
from sojourn.interval import Excuse
from sojourn.plan.holding_records import KneePoint
from sojourn.plan.records import Holding
from sojourn.records import Bottleneck
from sojourn.units import format_seconds, format_share
from sojourn.workload.profile_records import Profile

APART: Final = 0.15
"""Busy share less load from which the two are worth telling apart."""
PEAKED: Final = 1.2
"""Peak over mean rate from which the average misleads."""
MORE: Final = 1.25
"""How much more a figure must be than another to be mistaken for it to any harm."""


def traps(
    model: CapacityModel,
    held: Holding | Excuse,
    profile: Profile,
    deployment: Deployment,
    *,
    busy: float | None,
) -> tuple[str, ...]:
    """Sentences that apply to these figures. `busy`: measured share of time the engine worked."""
    points = held.points if isinstance(held, Holding) else ()
    rate = held.rate_per_s.mid if isinstance(held, Holding) else 0.0
    return (
        *_busy_is_not_load(model, busy),
        *_throughput_is_not_capacity(points, rate),
        *_load_above_the_knee(points, rate),
        *_average_hides_the_peak(profile),
        *_concurrency_is_a_floor(model, profile, deployment),
    )


def _busy_is_not_load(model: CapacityModel, busy: float | None) -> Iterator[str]:
    found = [r for r in model.resources if r.name == "engine time"]
    if busy is None or not found or busy - found[0].mean_load < APART:
        return
    yield (
        f"GPU utilisation is not load: the engine had work {format_share(busy)} of the time, which"
        f" a utilisation gauge shows, and what came was {format_share(found[0].mean_load)} of what"
        " its time carries. A batch of one keeps a GPU busy too"
    )


def _throughput_is_not_capacity(points: tuple[KneePoint, ...], rate: float) -> Iterator[str]:
    best = max(points, key=lambda p: p.throughput_per_s, default=None)
    if best is None or rate <= 0 or best.throughput_per_s < MORE * rate:
        return
    yield (
        f"Throughput is not capacity: up to {_rate(best.throughput_per_s)} requests/s end when"
        f" {_rate(best.offered_per_s)} arrive, but only {_rate(best.good_per_s)} of them in time;"
        f" within the SLO the fleet holds {_rate(rate)}"
    )


def _load_above_the_knee(points: tuple[KneePoint, ...], rate: float) -> Iterator[str]:
    last = points[-1] if points else None
    if last is None or rate <= 0 or last.offered_per_s < MORE * last.throughput_per_s:
        return
    yield (
        f"Load above the knee only builds queue: offered {_rate(last.offered_per_s)} requests/s,"
        f" {_rate(last.throughput_per_s)} end while they come and the P99 is"
        f" {format_seconds(last.p99_s)}"
    )


def _average_hides_the_peak(profile: Profile) -> Iterator[str]:
    arrivals = profile.arrivals
    if arrivals.peak.length_s <= 0 or arrivals.rate_per_s <= 0:
        return
    peak = arrivals.peak.requests / arrivals.peak.length_s
    if peak < PEAKED * arrivals.rate_per_s:
        return
    yield (
        f"The average is not the peak: {_rate(arrivals.rate_per_s)} requests/s on average,"
        f" {_rate(peak)} in the busiest {arrivals.peak.length_s:.0f} s"
        f" ({peak / arrivals.rate_per_s:.2g} times). Size on the peak"
    )


def _concurrency_is_a_floor(
    model: CapacityModel, profile: Profile, deployment: Deployment
) -> Iterator[str]:
    engine = model.fleet.engine
    asked = demand(profile)
    longest = deployment.max_model_len
    tokens = engine.kv_blocks * engine.block_size
    at_longest = None if longest is None else tokens / longest
    if engine.memory is not None and engine.memory.concurrency_at_max_len is not None:
        at_longest = engine.memory.concurrency_at_max_len
    if at_longest is None or not asked.calls:
        return
    held = kv_batch(engine, asked)
    if held < MORE * at_longest:
        return
    yield (
        f"KV concurrency at max_model_len is a floor: the engine prints about {at_longest:.1f}"
        f" requests at once; at the {asked.context_mean:,.0f} tokens yours have, {held:.0f} fit"
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def binding_first(model: CapacityModel) -> str:
    """What binds by the closed form, in a sentence: the answer before any simulation."""
    tight = model.binding
    if tight.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE:
        return f"Closed form: {tight.note}"
    return (
        f"Closed form: {tight.name} is full first, at {tight.capacity_per_s.format(_rate)}"
        f" requests/s; {format_share(tight.mean_load)} of it is used on average,"
        f" {format_share(tight.peak_load)} in the peak window"
    )
