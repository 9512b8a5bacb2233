"""How occupied the engine was in the peak window: from its samples, else from the calls.

Occupancy decides whether a long engine stage is the engine's fault. Figures are per replica,
averaged over the replicas. A batch that exists (`running` > 0) is no proof of a busy device:
`busy_from` says what `busy_share` rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.attribution.infer import PREFILL, QUEUE, Phases, codes, computed_tokens
from sojourn.attribution.occupancy import Steps, share, time_quantile
from sojourn.attribution.peak import Windows
from sojourn.attribution.records import EngineUse
from sojourn.config import Config
from sojourn.trace.arrays import Floats, Ints, floats
from sojourn.trace.tables import Tables

PLATEAU_SHARE: Final = 0.1
"""A maximum held for a tenth of the time is a limit; a maximum of chance is passed at once."""

PLATEAU_MIN: Final = 2
"""One request at a time is what any light load looks like."""

LONG_QUANTILE: Final = 0.95
LONG_RATIO: Final = 4.0
"""A prompt is long when it is among the longest 5% and four times the median: a mix without such
prompts has no head of line to speak of."""


def engine_use(tables: Tables, config: Config, windows: Windows, phases: Phases) -> EngineUse:
    """Occupancy of the engine in the peak window (of the whole recording where that has none)."""
    load = _from_samples(tables, windows.peak_s)
    if not load:
        load = _from_calls(tables, phases, windows.peak_s, config.deployment.replicas)
    slots, full = _slots(load, _configured_slots(tables, config))
    most, held = _in_flight(phases, windows.peak_s)
    line_share, line_lift = head_of_line(tables.calls, phases, windows.peak_s)
    samples = _in_window(tables.engine_samples, windows.peak_s)
    device = _mean(floats(samples["gpu_busy"]))
    busy = [share(r.seconds, r.running > 0) for r in load]
    return EngineUse(
        busy_share=device if device is not None else float(np.mean(busy)) if busy else None,
        busy_from="device" if device is not None else load[0].source if busy else "",
        slots=slots,
        slots_full_share=full,
        waiting_share=_average(
            [share(r.seconds, r.waiting >= 1) for r in load if r.waiting is not None]
        ),
        kv_usage_p95=_quantile(floats(samples["kv_usage"]), 0.95),
        running_mean=_average([float(np.average(r.running, weights=r.seconds)) for r in load]),
        running_max=max((float(r.running.max()) for r in load), default=None),
        preemptions=_preemptions(tables, samples),
        prefix_hit_share=_prefix_hits(tables, samples),
        host_cpu_p95=_quantile(floats(samples["host_cpu"]), 0.95),
        in_flight_max=most,
        in_flight_max_share=held,
        head_of_line_share=line_share,
        head_of_line_lift=line_lift,
    )


@dataclass(frozen=True)
class _Load:
    """One replica: counts and for how many seconds each held."""

    seconds: Floats
    running: Floats
    waiting: Floats | None
    source: str


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _quantile(values: Floats, quantile: float) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, quantile)) if len(known) else None


def _average(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _in_window(samples: pa.Table, window: tuple[float, float]) -> pa.Table:
    """Samples of the window; all of them where the window has fewer than two."""
    time = floats(samples["t_s"])
    inside = (time >= window[0]) & (time <= window[1])
    return samples.filter(pa.array(inside)) if int(inside.sum()) >= 2 else samples


def _replicas(samples: pa.Table) -> list[Ints]:
    """Row numbers of each replica, by time."""
    replica, time = codes(samples["replica"]), floats(samples["t_s"])
    out = []
    for code in np.unique(replica):
        rows = np.flatnonzero(replica == code)
        out.append(rows[np.argsort(time[rows], kind="stable")])
    return out


def _from_samples(tables: Tables, window: tuple[float, float]) -> list[_Load]:
    samples = _in_window(tables.engine_samples, window)
    running, waiting = floats(samples["running"]), floats(samples["waiting"])
    out = []
    for rows in _replicas(samples):
        run, wait = running[rows], waiting[rows]
        known = np.isfinite(run)
        if not known.any():
            continue
        has_waiting = bool(np.isfinite(wait[known]).any())
        out.append(
            _Load(
                np.ones(int(known.sum())),
                run[known],
                np.nan_to_num(wait[known]) if has_waiting else None,
                "running",
            )
        )
    return out


def _from_calls(
    tables: Tables, phases: Phases, window: tuple[float, float], replicas: int
) -> list[_Load]:
    """Running and waiting counts from the calls' own phases, where they have a queue.

    Where calls do not name their replica the counts are spread over the configured number. An
    inferred queue tells how long, not whether: noise of the envelope would be waiting all the
    time, so it gives no waiting count.
    """
    use = (phases.stages[:, 0] == QUEUE) & phases.known_end
    if not use.any() or window[1] <= window[0]:
        return []
    replica = codes(tables.calls["replica"])
    out = []
    for code in np.unique(replica[use]):
        cuts = phases.cuts[use & (replica == code)]
        running, waiting = Steps.of(cuts[:, 1], cuts[:, 3]), Steps.of(cuts[:, 0], cuts[:, 1])
        moments = np.unique(np.r_[running.time, waiting.time, window])
        moments = moments[(moments >= window[0]) & (moments <= window[1])]
        middle = (moments[:-1] + moments[1:]) / 2
        spread = replicas if code < 0 else 1
        measured = not bool((phases.inferred & use & (replica == code)).any())
        out.append(
            _Load(
                np.diff(moments),
                _at(running, middle) / spread,
                _at(waiting, middle) / spread if measured else None,
                "calls",
            )
        )
    return out


def _at(steps: Steps, moments: Floats) -> Floats:
    at = np.searchsorted(steps.time, moments, side="right") - 1
    return np.where(at >= 0, steps.count[np.maximum(at, 0)], 0.0)


def _configured_slots(tables: Tables, config: Config) -> float | None:
    if "max_num_seqs" in config.deployment.model_fields_set:
        return float(config.deployment.max_num_seqs)
    told = tables.meta.get("max_num_seqs", "")
    return float(told) if told.isdecimal() and int(told) > 0 else None


def _slots(load: list[_Load], configured: float | None) -> tuple[float | None, float | None]:
    """Slots of a replica, and the share of time they were all taken.

    Without a configured number a plateau shows it: the largest batch, held for a tenth of the
    time, with requests waiting during most of that. No plateau: the slots were never full.
    """
    if not load:
        return None, None
    slots = configured
    if slots is None:
        tops = [top for top in map(_plateau, load) if top is not None]
        slots = max(tops, default=None)
    if slots is None:
        return None, 0.0 if any(r.waiting is not None for r in load) else None
    return slots, _average([share(r.seconds, r.running > slots - 0.5) for r in load])


def _plateau(load: _Load) -> float | None:
    top = float(load.running.max())
    full = load.running >= top
    if load.waiting is None or top < PLATEAU_MIN or share(load.seconds, full) < PLATEAU_SHARE:
        return None
    return top if share(load.seconds[full], load.waiting[full] >= 1) > 0.5 else None


def _in_flight(phases: Phases, window: tuple[float, float]) -> tuple[float | None, float | None]:
    """Most calls in flight in the window, and the share of time with that many."""
    if not phases.known_end.any() or window[1] <= window[0]:
        return None, None
    cuts = phases.cuts[phases.known_end]
    count, seconds = Steps.of(cuts[:, 0], cuts[:, 3]).within(*window)
    most = time_quantile(count, seconds, 0.99)  # a hand-over lets one more in for a moment
    return most, share(seconds, (count >= most))


def _increase(values: Floats) -> float:
    """Increase of a counter that may restart from zero."""
    known = values[np.isfinite(values)]
    steps = np.diff(known)
    return float(np.where(steps >= 0, steps, known[1:]).sum()) if len(known) > 1 else 0.0


def _counter(samples: pa.Table, name: str) -> float | None:
    values = floats(samples[name])
    if not np.isfinite(values).any():
        return None
    return sum(_increase(values[rows]) for rows in _replicas(samples))


def _preemptions(tables: Tables, samples: pa.Table) -> float | None:
    counted = _counter(samples, "preemptions_total")
    if counted is not None:
        return counted
    by_call = floats(tables.calls["preemptions"])
    return float(np.nansum(by_call)) if np.isfinite(by_call).any() else None


def _prefix_hits(tables: Tables, samples: pa.Table) -> float | None:
    """Prompt tokens found in the cache, of those looked up."""
    for source in (samples, tables.engine_samples):
        hits = _counter(source, "prefix_hit_tokens_total")
        asked = _counter(source, "prefix_query_tokens_total")
        if hits is not None and asked:
            return min(hits / asked, 1.0)
    cached, prompt = floats(tables.calls["cached_tokens"]), floats(tables.calls["input_tokens"])
    known = np.isfinite(cached) & np.isfinite(prompt)
    if not known.any() or prompt[known].sum() <= 0:
        return None
    return float(min(cached[known].sum() / prompt[known].sum(), 1.0))


def head_of_line(
    calls: pa.Table, phases: Phases, window: tuple[float, float]
) -> tuple[float | None, float | None]:
    """Part of short calls' time to first token in which their replica prefilled a long prompt,
    and that part over the share of time it does so anyway (1: no more than by chance).

    None where prompts do not differ enough or prefill is not known.
    """
    tokens, replica = computed_tokens(calls), codes(calls["replica"])
    arrived = phases.cuts[:, 0]
    use = (phases.stages[:, 1] == PREFILL) & np.isfinite(tokens)
    use &= (arrived >= window[0]) & (arrived < window[1])
    if int(use.sum()) < 20:
        return None, None
    middle = float(np.median(tokens[use]))
    limit = max(float(np.quantile(tokens[use], LONG_QUANTILE)), LONG_RATIO * middle)
    long, short = use & (tokens >= limit), use & (tokens <= middle)
    if not long.any():
        return None, None
    covered = waited = by_chance = 0.0
    for code in np.unique(replica[short]):
        here = replica == code
        steps = Steps.of(phases.cuts[long & here, 1], phases.cuts[long & here, 2])
        once = Steps(steps.time, np.minimum(steps.count, 1.0))
        cuts = phases.cuts[short & here]
        wait = float((cuts[:, 2] - cuts[:, 0]).sum())
        covered += float((once.integral(cuts[:, 2]) - once.integral(cuts[:, 0])).sum())
        waited += wait
        ends = once.integral(np.asarray(window))
        by_chance += wait * float(ends[1] - ends[0]) / max(window[1] - window[0], 1e-9)
    if waited <= 0:
        return None, None
    return covered / waited, covered / by_chance if by_chance > 0 else None
