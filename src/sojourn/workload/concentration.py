"""Which share of requests takes which share of GPU time, KV cache and money."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.trace.arrays import Floats, floats
from sojourn.units import S_PER_HOUR
from sojourn.workload.observed import Calls, Observed
from sojourn.workload.profile_records import Concentration

DECODE_COST_IN_PROMPT_TOKENS: Final = 4.0
"""GPU time of an output token in prompt tokens, where no engine times are known. Equal arithmetic
would be 1, decoding one sequence alone (bound by reading the weights) over 50; in full batches
public prices and throughputs put it at 3 to 8. A proxy: provenance `assumed`."""
MEASURED_FROM: Final = 0.9
"""Share of finished calls with engine times from which a basis counts as measured."""
POINTS: Final = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5,
                 0.6, 0.7, 0.8, 0.9, 1.0)  # fmt: skip


def concentrations(
    observed: Observed, requests: pa.Table, config: Config
) -> tuple[Concentration, ...]:
    """Curves by basis; a basis that nothing tells is left out. Failed attempts count too: they
    took what they took.

    gpu_time: prefill and decode time of the calls in the engine (from first scheduled to last
    token). Calls of a batch share the device, so this is time in the batch, not device time.
    kv_token_seconds: prompt from scheduled to first token, prompt plus half the output from there
    to the end; without times, that context times the output tokens (each holds it for one step).
    cost: as booked; else, where the replicas have a price, their bill shared by GPU time (who is
    there pays for who is not) plus the priced visits to stations.
    """
    size = observed.size
    gpu = _gpu_time(observed.calls, size)
    found = [
        _curve("gpu_time", *gpu),
        _curve("kv_token_seconds", *_kv_token_seconds(observed.calls, size)),
    ]
    cost = requests.column("cost_usd")
    if cost.null_count < len(cost):
        found.append(_curve("cost", np.nan_to_num(floats(cost)), Provenance.MEASURED))
    elif config.deployment.usd_per_replica_hour:
        found.append(_curve("cost", _shared_bill(observed, gpu[0], config), Provenance.INFERRED))
    return tuple(curve for curve in found if curve is not None)


def _shared_bill(observed: Observed, gpu: Floats, config: Config) -> Floats:
    """Cost of each request, USD: its part of the replicas' bill, and its visits to stations."""
    hours = float(np.ptp(observed.arrival)) / S_PER_HOUR
    fleet = config.deployment.replicas * (config.deployment.usd_per_replica_hour or 0.0)
    total = float(gpu.sum())
    cost: Floats = gpu * (fleet * hours / total) if total > 0 else np.zeros(observed.size)
    spans = observed.spans
    for name, station in config.stations.items():
        visits = spans.request[spans.name.isin((name,))]
        cost = cost + station.usd_per_call * np.bincount(visits, minlength=observed.size)
    return cost


def curve(values: Floats) -> tuple[tuple[float, float], ...]:
    """Share of the total that the largest x of the values take, at the x of `POINTS`.

    Piecewise linear between whole requests: a Lorenz curve from the top, so it is concave.
    """
    ordered = np.sort(values)[::-1]
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    taken = np.interp(np.array(POINTS) * values.size, np.arange(total.size), total) / total[-1]
    return tuple((x, float(min(y, 1.0))) for x, y in zip(POINTS, taken, strict=True))


def _curve(basis: str, values: Floats, provenance: Provenance) -> Concentration | None:
    if values.size == 0 or values.sum() <= 0:
        return None
    points = curve(values)
    return Concentration(
        basis=basis, curve=points, top_10_percent=dict(points)[0.1], provenance=provenance
    )


def _timed(calls: Calls) -> tuple[Floats, Floats, bool]:
    """Start and length in the engine, and whether enough calls tell to be called measured."""
    length = calls.end - calls.scheduled
    finished = ~calls.failed
    told = ~np.isnan(length)
    enough = finished.any() and float(told[finished].mean()) >= MEASURED_FROM
    return calls.scheduled, np.clip(np.nan_to_num(length), 0.0, None), bool(enough)


def _gpu_time(calls: Calls, size: int) -> tuple[Floats, Provenance]:
    _, length, enough = _timed(calls)
    if enough:
        return _by_request(calls, length, size), Provenance.MEASURED
    computed = np.nan_to_num(calls.input) - np.nan_to_num(calls.cached)
    tokens = computed + DECODE_COST_IN_PROMPT_TOKENS * np.nan_to_num(calls.output)
    return _by_request(calls, tokens, size), Provenance.ASSUMED


def _kv_token_seconds(calls: Calls, size: int) -> tuple[Floats, Provenance]:
    prompt, output = np.nan_to_num(calls.input), np.nan_to_num(calls.output)
    context = prompt + output / 2
    start, length, enough = _timed(calls)
    if enough:
        prefill = np.clip(np.nan_to_num(calls.first_token - start), 0.0, length)
        held = prompt * prefill + context * (length - prefill)
        return _by_request(calls, held, size), Provenance.MEASURED
    return _by_request(calls, context * output, size), Provenance.ASSUMED


def _by_request(calls: Calls, values: Floats, size: int) -> Floats:
    return np.bincount(calls.request, values, minlength=size).astype(np.float64)
