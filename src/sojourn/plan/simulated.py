"""Run a scenario file: replications, what they came to, whether the system keeps up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from sojourn.attribution.records import ALL, Tail
from sojourn.config import MAX_SEED, Analysis, Config
from sojourn.interval import Excuse, Interval
from sojourn.plan.estimates import share_interval
from sojourn.plan.run_digest import MOMENTS, MOST_ATTRIBUTED, Digest, Served, digest, part_of
from sojourn.plan.simulated_records import BucketResult, Moment, ResourceResult, Simulated
from sojourn.plan.slo import Judged, judge
from sojourn.progress import Progress, silent
from sojourn.sim.estimates import across, batch_means
from sojourn.sim.scenario import SimRun
from sojourn.sim.scenario_build import build
from sojourn.sim.scenario_records import ScenarioFile
from sojourn.sim.scenario_replay import Recording
from sojourn.sim.simulate import simulate
from sojourn.sim.stability import Trend
from sojourn.trace.arrays import Floats

FIGURES: Final = {"mean": None, "p50": 0.50, "p95": 0.95, "p99": 0.99}
PARALLEL: Final = 200_000
"""Requests of all replications together from which starting processes (seconds) pays."""


@dataclass(frozen=True)
class Order:
    """What to run: a scenario file, where it lies, what it replays, on which engine."""

    file: ScenarioFile
    path: Path
    recording: Recording | None
    engine: str


@dataclass(frozen=True)
class Replication:
    """What is kept of one: its digest, its requests judged (where an SLO is set), of the first one
    where the time goes."""

    digest: Digest
    judged: Judged | None
    tails: tuple[Tail, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """The record, the judged requests, and the first run itself (its trace can be kept)."""

    simulated: Simulated
    judged: Judged | None
    first: SimRun
    config: Config


def config_of(file: ScenarioFile) -> Config:
    """The part of a scenario that judging needs."""
    analysis = Analysis(confidence=file.confidence, seed=file.seed, replications=file.replications)
    return Config(slo=file.slo, analysis=analysis)


def run_order(order: Order, tell: Progress) -> Result:
    """Run every replication. Seeds count up from the file's.

    Raises:
        InputError: the scenario's parts do not fit each other.
        UsageError: no such engine.
    """
    file = order.file
    seeds = [(file.seed + number) % (MAX_SEED + 1) for number in range(file.replications)]
    tell("drawing requests", 0.0)
    first, replication = _one(order, seeds[0], lambda text, done: tell(text, done / len(seeds)))
    done = [replication]
    tell("simulating", 1 / len(seeds))
    rest = seeds[1:]
    work = len(first.log.ends) * len(seeds)
    for item in _others(order, rest, side_by_side=work >= PARALLEL):
        done.append(item)
        tell("simulating", len(done) / len(seeds))
    judged = [item.judged for item in done if item.judged is not None]
    return Result(
        simulated=_simulated(order, seeds, done),
        judged=_joined(judged) if judged else None,
        first=first,
        config=config_of(file),
    )


def _others(order: Order, seeds: Sequence[int], *, side_by_side: bool) -> list[Replication]:
    if not side_by_side or len(seeds) < 2:
        return [_alone(order, seed) for seed in seeds]
    from joblib import Parallel, delayed  # noqa: PLC0415  (processes only where asked for)

    found: list[Replication] = Parallel(n_jobs=-1)(delayed(_alone)(order, s) for s in seeds)
    return found


def _alone(order: Order, seed: int) -> Replication:
    return _one(order, seed)[1]


def _one(order: Order, seed: int, tell: Progress = silent) -> tuple[SimRun, Replication]:
    file = order.file
    built = build(file, order.path, seed, order.recording)
    run = simulate(built.scenario, engine=order.engine, progress=tell)
    found = digest(run, warm_up_s=file.warm_up_s, confidence=file.confidence)
    config = config_of(file)
    part = part_of(run, file.warm_up_s)
    judged = judge(part, config) if file.slo else None
    tails: tuple[Tail, ...] = ()
    if seed == file.seed and found.stability.trend is not Trend.GROWING:
        from sojourn.attribution.breakdown import break_down  # noqa: PLC0415  (only for the first)

        tails = break_down(part.tables, config).tails
    notes = built.notes
    if len(found.served.arrival_s) > MOST_ATTRIBUTED and (file.slo or tails):
        text = f"where the time goes, and the SLO, are read off {MOST_ATTRIBUTED:,} requests a run"
        notes = (*notes, text)
    return run, Replication(found, judged, tails, notes)


def _joined(parts: list[Judged]) -> Judged:
    first = parts[0]
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in first.__dataclass_fields__
        if name not in ("misses", "notes")
    }
    misses = {t: np.concatenate([part.misses[t] for part in parts]) for t in first.misses}
    return Judged(misses=misses, notes=first.notes, **arrays)


def _simulated(order: Order, seeds: list[int], done: list[Replication]) -> Simulated:
    file, digests = order.file, [item.digest for item in done]
    growing = [item.stability.trend is Trend.GROWING for item in digests]
    unstable = sum(growing) * 2 > len(growing)
    judged = [item.judged for item in done if item.judged is not None]
    resources = _resources(digests)
    changes: dict[str, float] = {}
    for item in digests:
        for what, count in item.change_counts.items():
            changes[what] = changes.get(what, 0.0) + count / len(digests)
    counts = {key: sum(item.counts[key] for item in digests) for key in digests[0].counts}
    return Simulated(
        requests=counts["arrived"],
        replications=len(done),
        confidence=file.confidence,
        engine=order.engine,
        seeds=tuple(seeds),
        warm_up_s=file.warm_up_s,
        unstable=unstable,
        stability=tuple(item.stability for item in digests),
        saturated=_saturated(resources) if unstable else None,
        buckets=_buckets(digests, judged, file.confidence, unstable=unstable),
        resources=resources,
        tails=() if unstable else done[0].tails,
        moments=_moments(digests, unstable=unstable),
        changes=digests[0].changes,
        change_counts=changes,
        counts=counts,
        notes=_notes(done, growing),
    )


def _notes(done: list[Replication], growing: list[bool]) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for item in done for note in item.notes))
    short = sum(item.digest.stability.trend is Trend.TOO_SHORT for item in done)
    if short:
        which = f"{short} of {len(done)} runs are" if len(done) > 1 else "the run is"
        notes.append(f"{which} too short to say whether the system is stable: simulate longer")
    if any(growing) and not all(growing):
        notes.append(f"{sum(growing)} of {len(growing)} replications are unstable")
    if len(done) == 1:
        notes.append("one replication: intervals rest on its batches, where it is long enough")
    return tuple(notes)


def _saturated(resources: tuple[ResourceResult, ...]) -> str | None:
    """The resource before which most wait when the last request arrives."""
    worst = max(resources, key=lambda item: item.waiting_at_end, default=None)
    return worst.name if worst is not None and worst.waiting_at_end > 0 else None


def _buckets(
    digests: list[Digest], judged: list[Judged], confidence: float, *, unstable: bool
) -> tuple[BucketResult, ...]:
    names = sorted({str(name) for item in digests for name in np.unique(item.served.bucket)})
    shown = [ALL, *names] if len(names) > 1 else [ALL]
    return tuple(
        _bucket(
            name,
            [item.served.rows(name) for item in digests],
            judged,
            confidence,
            unstable=unstable,
        )
        for name in shown
    )


def _bucket(
    name: str,
    parts: list[Served],
    judged: list[Judged],
    confidence: float,
    *,
    unstable: bool,
) -> BucketResult:
    def share(field: str) -> Interval:
        return _figure([getattr(part, field).astype(float) for part in parts], None, confidence)

    latencies = {
        field: {
            key: figure
            for key, q in FIGURES.items()
            if (figure := _known([getattr(part, field) for part in parts], q, confidence))
        }
        for field in (() if unstable else ("e2e_s", "ttft_s", "tpot_s"))
    }
    good = np.concatenate(
        [j.good if name == ALL else j.good[j.bucket == name] for j in judged] or [np.zeros(0)]
    )
    good = good[~np.isnan(good)]
    return BucketResult(
        bucket=name,
        requests=float(np.mean([len(part.arrival_s) for part in parts])),
        failed_share=share("failed"),
        shed_share=share("shed"),
        degraded_share=share("degraded"),
        attempts=share("attempts"),
        attainment=share_interval(int(good.sum()), good.size, confidence) if good.size else None,
        **latencies,
    )


def _known(parts: list[Floats], q: float | None, confidence: float) -> Interval | None:
    """A figure over replications; None where a run has no value at all."""
    if any(np.isnan(part).all() for part in parts):
        return None
    return _figure(parts, q, confidence)


def _figure(parts: list[Floats], q: float | None, confidence: float) -> Interval:
    """Mean or quantile over replications; of one run over its batches; exact where neither can be
    said."""
    known = [part[~np.isnan(part)] for part in parts]
    values = [
        (float(part.mean()) if q is None else float(np.quantile(part, q))) if part.size else 0.0
        for part in known
    ]
    if len(values) == 1:
        found: Interval | Excuse = batch_means(known[0], q, confidence=confidence)
    else:
        found = across(values, confidence=confidence)
    if isinstance(found, Excuse):
        return Interval.exact(float(np.mean(values)))
    return found.model_copy(update={"low": max(0.0, min(found.low, found.mid))})


def _resources(digests: list[Digest]) -> tuple[ResourceResult, ...]:
    """Loads averaged over replications, in the order of the first; a figure that some lack is
    averaged over those that have it."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for item in digests:
        for load in item.loads:
            found.setdefault((load.kind, load.name), []).append(load.figures)
    results = []
    for (kind, name), figures in found.items():
        mean: dict[str, float] = {}
        for key in {key for each in figures for key in each}:
            values = [each[key] for each in figures if not np.isnan(each.get(key, np.nan))]
            if values:
                mean[key] = float(np.mean(values))
        results.append(ResourceResult(name=name, kind=kind, **mean))
    return tuple(results)


def _moments(digests: list[Digest], *, unstable: bool) -> tuple[Moment, ...]:
    served = [item.served for item in digests]
    sizes = [len(part.arrival_s) for part in served]
    if min(sizes) < MOMENTS:
        return ()
    start = min(float(part.arrival_s[0]) for part in served)
    end = max(float(part.arrival_s[-1]) for part in served)
    edges = np.linspace(start, end, MOMENTS + 1)
    arrival, e2e, failed, attempts = (
        np.concatenate([np.asarray(getattr(part, name), dtype=np.float64) for part in served])
        for name in ("arrival_s", "e2e_s", "failed", "attempts")
    )
    ends = np.sort(np.concatenate([part.end_s for part in served]))
    come = np.sort(arrival)
    place = np.minimum(np.searchsorted(edges, arrival, side="right") - 1, MOMENTS - 1)
    flight = partial(np.searchsorted, side="right")
    moments = []
    for number in range(MOMENTS):
        mine = place == number
        known = e2e[mine & ~np.isnan(e2e)]
        some = known.size > 0 and not unstable
        at = edges[number + 1]
        moments.append(
            Moment(
                start_s=float(edges[number]),
                end_s=float(at),
                requests=float(mine.sum()) / len(served),
                failed_share=float(failed[mine].mean()) if mine.any() else 0.0,
                attempts=float(attempts[mine].mean()) if mine.any() else 0.0,
                in_flight=float(flight(come, at) - flight(ends, at)) / len(served),
                e2e_p50_s=float(np.quantile(known, 0.5)) if some else None,
                e2e_p99_s=float(np.quantile(known, 0.99)) if some else None,
            )
        )
    return tuple(moments)
