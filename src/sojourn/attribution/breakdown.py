"""`Breakdown`: where requests spend their time, per bucket and percentile, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sojourn.attribution import retries
from sojourn.attribution.attempts import attempts
from sojourn.attribution.critical_path import BACKOFF, CODE
from sojourn.attribution.decompose import STAGE_COLUMNS, stage_matrix, with_phases
from sojourn.attribution.engine_use import engine_use
from sojourn.attribution.euler import Sample
from sojourn.attribution.infer import Phases, codes, phases
from sojourn.attribution.peak import windows
from sojourn.attribution.records import ALL, Breakdown, Tail
from sojourn.attribution.stretch import per_request, stretch
from sojourn.config import Config
from sojourn.records import ENGINE_STAGES, Stage, Status
from sojourn.trace.arrays import Floats, Ints, floats, rows_of
from sojourn.trace.tables import Tables

QUEUE, PREFILL, DECODE = CODE[Stage.QUEUE], CODE[Stage.PREFILL], CODE[Stage.DECODE]
NO_STATION: Final = [*sorted(ENGINE_STAGES - {Stage.ENCODE}), Stage.BACKOFF, Stage.UNEXPLAINED]


def break_down(
    tables: Tables, config: Config, *, percentiles: Sequence[float] = (0.5, 0.95, 0.99)
) -> Breakdown:
    """Where the time goes: tails with Euler shares, means, stations, retries, engine use.

    Every request that was served at all counts, failed ones with the time until they failed;
    shed requests (turned away at the door) have no stages and are left out, with a note.
    """
    call_phases = phases(tables.calls)
    table = with_phases(tables, call_phases)
    total, stages = floats(table["total_s"]), stage_matrix(table)
    shed = np.asarray(pc.fill_null(pc.equal(tables.requests["status"], Status.SHED), False))
    use = np.isfinite(total) & ~shed
    arrival = floats(table["arrival_s"])
    when = windows(arrival, arrival + total, window_s=config.analysis.peak_window_s)
    facts = _facts(tables, call_phases, stages, total)
    percentiles = tuple(sorted(percentiles))
    tails: list[Tail] = []
    peaks: list[Tail] = []
    means: dict[str, dict[str, float]] = {}
    tail_facts: dict[str, dict[str, float]] = {}
    for bucket, mask in _buckets(table["bucket"]).items():
        rows = np.flatnonzero(mask & use)
        if not len(rows):
            continue
        sample = Sample(total[rows], stages[rows])
        means[bucket] = dict(zip(STAGE_COLUMNS, stages[rows].mean(axis=0).tolist(), strict=True))
        tails += _tails(sample, bucket, percentiles, config)
        at_peak = np.flatnonzero(mask & use & when.peak)
        if len(at_peak):
            busy = Sample(total[at_peak], stages[at_peak])
            peaks += _tails(busy, bucket, percentiles, config)
        tail_facts[bucket] = _near_facts(
            sample, {k: v[rows] for k, v in facts.items()}, percentiles
        )
    stations, station_stages = _stations(tables.spans)
    return Breakdown(
        requests=tables.requests.num_rows,
        percentiles=percentiles,
        tails=tuple(tails),
        mean_stages=means,
        stations=stations,
        station_stages=station_stages,
        peak_tails=tuple(peaks),
        retries=retries.report(tables, config, when),
        engine=engine_use(tables, config, when, call_phases),
        tail_facts=tail_facts,
        notes=_notes(tables, call_phases, total, shed),
    )


def _buckets(column: pa.ChunkedArray) -> dict[str, NDArray[np.bool_]]:
    """Rows of each bucket, `all` first. A request without a bucket counts in `all` only."""
    code = codes(column)
    out = {ALL: np.ones(len(code), dtype=np.bool_)}
    for value in np.unique(code[code >= 0]):
        mask = code == value
        out[str(column[int(np.flatnonzero(mask)[0])])] = mask
    return out


def _tails(sample: Sample, bucket: str, percentiles: Sequence[float], config: Config) -> list[Tail]:
    confidence = config.analysis.confidence
    return [sample.tail(bucket, p, confidence=confidence, names=STAGE_COLUMNS) for p in percentiles]


def _facts(tables: Tables, call_phases: Phases, stages: Floats, total: Floats) -> dict[str, Floats]:
    """Per request, seconds: see `Breakdown.tail_facts`."""
    count = tables.requests.num_rows
    row = rows_of(tables.calls["request_id"], tables.requests["request_id"])
    cuts = call_phases.cuts
    shares = stretch(tables.calls, call_phases)
    prefill = stages[:, PREFILL] * per_request(shares.prefill, cuts[:, 2] - cuts[:, 1], row, count)
    decode = stages[:, DECODE] * per_request(shares.decode, cuts[:, 3] - cuts[:, 2], row, count)
    guessed = np.where(call_phases.inferred, cuts[:, 2] - cuts[:, 0], 0.0)
    guessed += np.where(call_phases.borrowed, cuts[:, 3] - cuts[:, 0], 0.0)
    split = np.bincount(row[row >= 0], weights=guessed[row >= 0], minlength=count)
    facts = {
        "total": total,
        "removable": stages[:, QUEUE] + 0.5 * (prefill + decode),
        "prefill_stretch": prefill,
        "decode_stretch": decode,
        "inferred": np.minimum(split, total),
        "failed_attempts": np.minimum(_failed_time(tables, count) + stages[:, BACKOFF], total),
    }
    if tables.spans["wait_s"].null_count < tables.spans.num_rows:  # unknown waits are no short ones
        facts["station_wait"] = np.minimum(_station_wait(tables, count), total)
    return facts


def _failed_time(tables: Tables, count: int) -> Floats:
    """Seconds in attempts that failed and were tried again, per request."""
    rows = attempts(tables)
    if rows is None:
        return np.zeros(count)
    again = rows.attempt + 1 < np.nan_to_num(rows.per_request[rows.request], nan=1.0)
    use = rows.failed & again & np.isfinite(rows.duration_s)
    seconds = np.bincount(rows.request[use], weights=rows.duration_s[use], minlength=count)
    return np.asarray(seconds, dtype=np.float64)


def _station_wait(tables: Tables, count: int) -> Floats:
    row: Ints = rows_of(tables.spans["request_id"], tables.requests["request_id"])
    wait = floats(tables.spans["wait_s"])
    use = (row >= 0) & np.isfinite(wait)
    seconds = np.bincount(row[use], weights=wait[use], minlength=count)
    return np.asarray(seconds, dtype=np.float64)


def _near_facts(
    sample: Sample, facts: dict[str, Floats], percentiles: Sequence[float]
) -> dict[str, float]:
    """Shares of the largest percentile's total, over the requests near it."""
    values = np.column_stack(list(facts.values()))
    means = dict(zip(facts, sample.mean_near(values, percentiles[-1]).tolist(), strict=True))
    whole = means.pop("total")
    return {name: value / whole if whole > 0 else 0.0 for name, value in means.items()}


def _stations(spans: pa.Table) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Figures of each part outside the engine, by span name, and its stage."""
    outside = pc.and_(
        pc.is_valid(spans["stage"]), pc.invert(pc.is_in(spans["stage"], pa.array(NO_STATION)))
    )
    visits = spans.filter(pc.and_(outside, pc.is_valid(spans["name"])))
    spent = floats(visits["end_s"]) - floats(visits["start_s"])
    wait, name = floats(visits["wait_s"]), codes(visits["name"])
    lost = np.asarray(
        pc.fill_null(pc.is_in(visits["status"], value_set=pa.array(["error", "timeout"])), False)
    )
    figures: dict[str, dict[str, float]] = {}
    stages: dict[str, str] = {}
    for code in np.unique(name):
        here = np.flatnonzero(name == code)
        label = str(visits["name"][int(here[0])])
        p50, p95, p99 = np.quantile(spent[here], [0.5, 0.95, 0.99]).tolist()
        figures[label] = {
            "mean": float(spent[here].mean()),
            "p50": p50,
            "p95": p95,
            "p99": p99,
            "visits": float(len(here)),
            "failed_share": float(lost[here].mean()),
        }
        if np.isfinite(wait[here]).any():
            figures[label]["wait_mean"] = float(np.nanmean(wait[here]))
        stages[label] = str(visits["stage"][int(here[0])])
    return figures, stages


def _notes(
    tables: Tables, call_phases: Phases, total: Floats, shed: NDArray[np.bool_]
) -> tuple[str, ...]:
    """What the figures leave out, and what was inferred, in sentences."""
    notes = []
    unknown = int((~np.isfinite(total) & ~shed).sum())
    if unknown:
        notes.append(f"{unknown:,} requests have no end and are in no figure of time.")
    if shed.any():
        notes.append(f"{int(shed.sum()):,} shed requests have no stages and are left out.")
    inferred = int(call_phases.inferred.sum())
    if inferred:
        notes.append(
            f"{inferred:,} of {tables.calls.num_rows:,} calls: queue and prefill are inferred from"
            " the time to the first token (lower envelope over computed prompt tokens)."
        )
    borrowed = int(call_phases.borrowed.sum())
    if borrowed:
        notes.append(
            f"{borrowed:,} calls were cut off before the engine reported: their queue and prefill"
            " are those of the calls around them, the rest is decode (inferred)."
        )
    if len(call_phases.cuts):
        opaque = int(((call_phases.stages[:, 2] != DECODE) & call_phases.known_end).sum())
        if opaque:
            notes.append(f"{opaque:,} calls have no first token: their time is unexplained.")
    return tuple(notes)
