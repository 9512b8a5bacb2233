"""Limits beside the device: the host's busiest core, the engine's front end, its image encoder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sojourn.capacity.demand import Demand
from sojourn.capacity.engine_limits import Limit
from sojourn.capacity.records import EngineModel
from sojourn.records import Bottleneck
from sojourn.trace.arrays import floats
from sojourn.trace.tables import Tables
from sojourn.workload.profile_records import Arrivals


class HostGauge(NamedTuple):
    """Share of time the busiest core of the engine's host was at work: on average, and in the peak
    window of the arrivals."""

    mean: float
    peak: float


def host_gauge(tables: Tables, arrivals: Arrivals) -> HostGauge | None:
    """What the samples say of the host while requests arrived; None where they do not."""
    samples = tables.engine_samples
    at, busy = floats(samples["t_s"]), floats(samples["host_cpu"])
    known = ~(np.isnan(at) | np.isnan(busy))
    came = floats(tables.requests["arrival_s"])
    if not known.any() or not came.size:
        return None
    first = float(np.nanmin(came))
    inside = known & (at >= first) & (at <= first + arrivals.duration_s)
    opened = arrivals.windows[0].start_s if arrivals.windows else 0.0
    start = first + arrivals.peak.start_s - opened
    peak = inside & (at >= start) & (at <= start + arrivals.peak.length_s)
    if not inside.any():
        return None
    mean = float(busy[inside].mean())
    return HostGauge(mean, float(busy[peak].mean()) if peak.any() else mean)


def measured_host(gauge: HostGauge, requests_per_s: float) -> Limit | None:
    """Requests per second at which the busiest core is full: rate over its share of busy time.

    Wrong when: part of its work is there without requests (then more is carried than this says),
    or the core waits for the device by spinning and looks busy (then much more).
    """
    if gauge.mean <= 0 or requests_per_s <= 0:
        return None
    return Limit(
        "host CPU",
        Bottleneck.HOST_CPU,
        requests_per_s / gauge.mean,
        "more API-server processes, a faster core, or more replicas on hosts of their own",
        f"the busiest core was at work {gauge.mean:.0%} of the time, {gauge.peak:.0%} in the peak"
        " window",
    )


def front_end(engine: EngineModel, asked: Demand) -> Limit | None:
    """Attempts per second at which the front end is full, did it work on one call at a time.

    A warning, no measured limit. Wrong when: `front_s` holds time on the network or in a queue, or
    the server has several processes (then more is carried).
    """
    step = engine.step
    each = float(np.mean(step.front_samples_s)) if step.front_samples_s else step.front_s
    if each <= 0 or not asked.calls:
        return None
    return Limit(
        "engine front end",
        Bottleneck.HOST_CPU,
        engine.replicas / (each * asked.calls),
        "more API-server processes, or engine replicas",
        f"{each * 1e3:.3g} ms a call before it is queued, were it one process that works on one"
        " call at a time; not measured",
    )


def encoder(engine: EngineModel, asked: Demand) -> Limit | None:
    """c / (calls with images x time): the image encoder's workers over the time an attempt asks.

    Images found in the encoder's cache are counted as encoded: an upper bound of the load.
    """
    if engine.encoder is None or not asked.calls:
        return None
    with_image = asked.image > 0
    each = engine.encoder.base_s + engine.encoder.s_per_token * asked.image[with_image]
    busy = float((asked.weight[with_image] * each).sum())
    if busy <= 0:
        return None
    return Limit(
        "image encoder",
        Bottleneck.ENCODER,
        engine.encoder.servers * engine.replicas / busy,
        "encoder workers, a cache of images, smaller images, or engine replicas",
        f"{engine.encoder.servers} workers x {engine.replicas} replicas",
    )
