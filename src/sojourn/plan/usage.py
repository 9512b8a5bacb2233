"""What a run used and cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.trace.arrays import Floats, floats, texts
from sojourn.trace.tables import Tables
from sojourn.units import S_PER_HOUR


@dataclass(frozen=True)
class Usage:
    """What a run used and cost. None where not known."""

    usd_per_hour: float | None
    engine_busy: float | None


def usage(tables: Tables, config: Config, fleet: Fleet | None) -> Usage:
    """Price per hour (replicas x price + station visits x price) and the engine's busy share.

    Without any price, the cost booked on the requests is taken where the source has it.
    """
    arrivals = floats(tables.requests["arrival_s"])
    hours = (np.ptp(arrivals) if arrivals.size > 1 else 0.0) / S_PER_HOUR
    hourly = _engine_usd_per_hour(config, fleet)
    per_visit = {name: s.usd_per_call for name, s in config.stations.items() if s.usd_per_call}
    if fleet is not None:
        per_visit |= {name: s.usd_per_call for name, s in fleet.stations.items() if s.usd_per_call}
    visits = 0.0
    if per_visit and hours > 0:
        counts = pc.value_counts(tables.spans.column("name")).to_pylist()
        visits = sum(c["counts"] * per_visit.get(c["values"] or "", 0.0) for c in counts) / hours
    total = None if hourly is None and not per_visit else (hourly or 0.0) + visits
    if total is None and hours > 0:
        booked = pc.sum(tables.requests.column("cost_usd")).as_py()
        total = None if booked is None else booked / hours
    return Usage(usd_per_hour=total, engine_busy=_engine_busy(tables, fleet))


def _engine_usd_per_hour(config: Config, fleet: Fleet | None) -> float | None:
    price = config.deployment.usd_per_replica_hour
    replicas = config.deployment.replicas
    if fleet is not None:
        replicas = fleet.engine.replicas
        own = fleet.engine.usd_per_replica_hour
        price = own if own is not None else price
    return None if price is None else price * replicas


def _engine_busy(tables: Tables, fleet: Fleet | None) -> float | None:
    """Share of time an engine replica has work: device samples, else the union of its calls."""
    sampled = tables.engine_samples.column("gpu_busy")
    mean = pc.mean(sampled).as_py() if tables.engine_samples.num_rows else None
    if mean is not None:
        return float(mean)
    start, end = floats(tables.calls["scheduled_s"]), floats(tables.calls["end_s"])
    replica = texts(tables.calls["replica"], "")
    known = ~(np.isnan(start) | np.isnan(end)) & (end > start)
    if not known.any():
        return None
    span = float(end[known].max() - floats(tables.calls["arrival_s"]).min())
    names = sorted(set(replica[known].tolist()))
    busy = sum(union_s(start[known & (replica == r)], end[known & (replica == r)]) for r in names)
    replicas = max(len(names), fleet.engine.replicas if fleet is not None else 1)
    return min(1.0, busy / (span * replicas)) if span > 0 else None


def union_s(start: Floats, end: Floats) -> float:
    """Length of the union of intervals (at least one), seconds."""
    order = np.argsort(start)
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(0.0, start[1:] - reach[:-1]).sum()
    return float(reach[-1] - start[0] - gaps)
