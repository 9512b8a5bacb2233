"""How much of each resource a run used in its busiest window: what binds."""

from __future__ import annotations

import numpy as np

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.trace.arrays import Floats, floats, texts
from sojourn.trace.tables import Tables


def utilisations(tables: Tables, fleet: Fleet, config: Config) -> dict[str, float]:
    """Share used in the window with most arrivals: workers of each station pool, the engine's
    batch slots, its KV memory, and its time (what its calls need at full batches).

    Stations without a limit cannot bind and are left out. Work is span time less waiting.
    """
    start, end = _window(tables, config.analysis.peak_window_s)
    span = max(end - start, 1e-9)
    used = {
        name: busy / (servers * span)
        for name, (busy, servers) in _stations(tables, fleet, start, end).items()
    }
    samples = tables.engine_samples
    at = floats(samples["t_s"])
    inside = (at >= start) & (at <= end)
    for name, column, limit in (
        ("engine slots", "running", float(fleet.engine.max_num_seqs)),
        ("engine KV memory", "kv_usage", 1.0),
    ):
        values = floats(samples[column])[inside]
        values = values[~np.isnan(values)]
        if values.size:
            used[name] = float(values.mean()) / limit
    used["engine time"] = _engine_time(tables, fleet, start, end)
    return used


def _window(tables: Tables, length: float) -> tuple[float, float]:
    """The window of the given length (or the whole run) with most arrivals."""
    arrivals = np.sort(floats(tables.requests["arrival_s"]))
    if not arrivals.size or arrivals[-1] - arrivals[0] <= length:
        return (float(arrivals[0]), float(arrivals[-1])) if arrivals.size else (0.0, 0.0)
    ends = np.searchsorted(arrivals, arrivals + length, side="right")
    first = int(np.argmax(ends - np.arange(len(arrivals))))
    return float(arrivals[first]), float(arrivals[first]) + length


def _clipped(begin: Floats, end: Floats, start: float, stop: float) -> Floats:
    clipped: Floats = np.maximum(0.0, np.minimum(end, stop) - np.maximum(begin, start))
    return clipped


def _stations(
    tables: Tables, fleet: Fleet, start: float, end: float
) -> dict[str, tuple[float, int]]:
    """Busy worker-seconds in the window, and workers, by pool."""
    names = texts(tables.spans["name"], "")
    begin, finish = floats(tables.spans["start_s"]), floats(tables.spans["end_s"])
    wait = np.nan_to_num(floats(tables.spans["wait_s"]))
    found: dict[str, tuple[float, int]] = {}
    for station in fleet.stations.values():
        if station.servers is None:
            continue
        mine = names == station.name
        work = float(_clipped(begin[mine] + wait[mine], finish[mine], start, end).sum())
        pool = station.pool or station.name
        busy, servers = found.get(pool, (0.0, 0))
        found[pool] = (busy + work, max(servers, station.servers))
    return found


def _engine_time(tables: Tables, fleet: Fleet, start: float, end: float) -> float:
    """Time the window's calls need at full batches, over the engine's time in it.

    Prompt tokens computed x their time, and written tokens x decode step / batch at the batch
    limit and the calls' mean context. Being busy is not being full: a batch of one is busy.
    Wrong when: KV memory keeps the batch below its limit (then KV binds, and says so).
    """
    step, slots = fleet.engine.step, fleet.engine.max_num_seqs
    arrival = floats(tables.calls["arrival_s"])
    inside = (arrival >= start) & (arrival <= end)
    tokens, cached, written = (
        np.nan_to_num(floats(tables.calls[name])[inside])
        for name in ("input_tokens", "cached_tokens", "output_tokens")
    )
    if not tokens.size:
        return 0.0
    context = float((tokens + written / 2).mean())
    per_token = step.decode_step_s(slots, slots * context) / slots
    work = step.prefill_s(tokens, cached).sum() + written.sum() * per_token
    return float(work) / (fleet.engine.replicas * max(end - start, 1e-9))
