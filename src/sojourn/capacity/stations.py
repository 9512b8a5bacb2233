"""Stations outside the engine: how long the work takes without waiting, and how many work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity.drift import level_of, levels
from sojourn.capacity.fifo import estimate_servers, match_waits, plateau, service_starts
from sojourn.capacity.records import StationModel
from sojourn.capacity.retries import attempt_timeout, attempts_of
from sojourn.capacity.survival import kaplan_meier
from sojourn.config import Config, Station
from sojourn.interval import Provenance
from sojourn.records import ENGINE_HOST_SPANS, Stage, Status
from sojourn.trace.arrays import Bools, Floats, floats
from sojourn.trace.tables import Tables

Rows = npt.NDArray[np.intp]

STATION_STAGES = (
    Stage.GATEWAY,
    Stage.GUARDRAIL,
    Stage.RETRIEVAL,
    Stage.RERANK,
    Stage.TOOL,
    Stage.POSTPROCESS,
)
CUT = (Status.CANCELLED, Status.TIMEOUT)
SAMPLES = 500


@dataclass(frozen=True)
class Visits:
    """Visits of one or several stations, sorted by start. `wait` is NaN where unknown; `cut`
    marks visits whose caller left before they were done; `row` is the row of the span."""

    row: Rows
    start: Floats
    end: Floats
    wait: Floats
    cut: Bools

    def take(self, rows: Bools | Rows) -> Visits:
        """The visits of these rows."""
        return Visits(
            self.row[rows], self.start[rows], self.end[rows], self.wait[rows], self.cut[rows]
        )


@dataclass(frozen=True)
class Reading:
    """Visits with their waits as far as they can be told, and the servers behind them."""

    visits: Visits
    servers: int | None
    provenance: Provenance
    note: str
    held: float = 0.0


def infer(tables: Tables, config: Config) -> tuple[Tables, dict[str, StationModel]]:
    """Stations by span name, and the tables with `spans.wait_s` filled where it can be told.

    Waits that are recorded win. Else, with `servers` known from sojourn.yaml or estimated, the
    wait is what first come first served implies. A visit whose caller left early tells only that
    its work takes longer than what was seen of it (Kaplan-Meier).
    Wrong when: the station does not serve in order of arrival, or serves others too.
    """
    spans = _leaves(tables.spans)
    if spans.num_rows == 0:
        return tables, {}
    kinds = spans.group_by("name").aggregate([("stage", "min")]).to_pylist()
    stage_of = {row["name"]: row["stage_min"] for row in kinds}
    visits, code, order = _visits(spans, tables)
    by_stage: dict[str, list[str]] = {}
    for name in order:
        by_stage.setdefault(stage_of[name], []).append(name)
    waits = floats(tables.spans["wait_s"]).copy()  # to be filled
    models: dict[str, StationModel] = {}
    for members in by_stage.values():
        chosen = {name: visits.take(code == order.index(name)) for name in members}
        for name, (reading, pool) in _read_stage(chosen, visits, config).items():
            waits[reading.visits.row] = reading.visits.wait
            models[name] = _model(name, stage_of[name], reading, pool, config)
    filled = pa.array(waits, from_pandas=True)
    index = tables.spans.column_names.index("wait_s")
    return replace(tables, spans=tables.spans.set_column(index, "wait_s", filled)), models


def _leaves(spans: pa.Table) -> pa.Table:
    """Spans of stations that hold no other stage's span, with their row numbers."""
    spans = spans.append_column("row", pa.array(np.arange(spans.num_rows)))
    staged = spans.filter(pc.is_valid(spans.column("stage")))
    holds = pc.is_in(spans.column("span_id"), value_set=pc.unique(staged.column("parent")))
    own = pc.is_in(spans.column("stage"), value_set=pa.array([s.value for s in STATION_STAGES]))
    # `StepModel.front_s` stands for the engine's own API server
    host = pc.is_in(spans.column("name"), value_set=pa.array(ENGINE_HOST_SPANS))
    named = pc.is_valid(spans.column("name"))
    keep = pc.and_(pc.and_(own, named), pc.and_(pc.invert(holds), pc.invert(host)))
    return spans.filter(pc.fill_null(keep, fill_value=False)).sort_by("start_s")


def _visits(spans: pa.Table, tables: Tables) -> tuple[Visits, npt.NDArray[np.int64], list[str]]:
    """All visits, the code of each one's name, and the names by code."""
    encoded = spans.column("name").combine_chunks().dictionary_encode()
    code = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    start, end = floats(spans["start_s"]), floats(spans["end_s"])
    visits = Visits(
        row=spans.column("row").to_numpy().astype(np.intp),
        start=start,
        end=np.maximum(end, start),
        wait=np.clip(floats(spans["wait_s"]), 0.0, np.maximum(end - start, 0.0)),
        cut=_cut(spans, tables),
    )
    return visits, code, [str(name) for name in encoded.dictionary.to_pylist()]


def _cut(spans: pa.Table, tables: Tables) -> Bools:
    """Whether the caller left: cancelled or timed out, or an error as its attempt ran out of
    time."""
    status = pc.fill_null(spans.column("status"), Status.OK.value)
    gone = pc.is_in(status, value_set=pa.array([s.value for s in CUT]))
    cut = np.array(gone.to_numpy(zero_copy_only=False), dtype=bool)
    failed = np.array(
        pc.equal(status, Status.ERROR.value).to_numpy(zero_copy_only=False), dtype=bool
    )
    if failed.any():
        attempts = attempts_of(tables)
        limit = attempt_timeout(attempts)
        if limit is not None:
            cut |= failed & attempts.ended_at(spans, limit)
    return cut


def _read_stage(
    members: dict[str, Visits], visits: Visits, config: Config
) -> dict[str, tuple[Reading, str | None]]:
    """Each station of one stage, alone or as one pool where that explains the waits better."""
    alone = {
        name: _read(mine, config.stations.get(name, Station())) for name, mine in members.items()
    }
    found: dict[str, tuple[Reading, str | None]] = {name: (r, None) for name, r in alone.items()}
    free = [name for name in members if config.stations.get(name, Station()).servers is None]
    if len(free) < 2:
        return found
    rows = np.sort(
        np.concatenate([np.flatnonzero(np.isin(visits.row, members[n].row)) for n in free])
    )
    together = _read(visits.take(rows), Station())
    if together.servers is None or together.held < max(alone[name].held for name in free):
        return found
    pool = " + ".join(sorted(free))
    for name in free:
        mine = together.visits.take(np.isin(together.visits.row, members[name].row))
        found[name] = (
            replace(together, visits=mine, note=f"{together.note}, shared by {pool}"),
            pool,
        )
    return found


def _read(visits: Visits, told: Station) -> Reading:
    """Waits and servers of visits that share their workers."""
    recorded = np.isfinite(visits.wait)
    if recorded.sum() >= max(1, (~visits.cut).sum() // 2):
        return _from_recorded(visits, told)
    servers, provenance = told.servers, Provenance.MEASURED
    note = "servers from sojourn.yaml; waits inferred, first come first served"
    if servers is None:
        servers = estimate_servers(visits.start, visits.end, censored=visits.cut)
        provenance = Provenance.INFERRED
        note = "servers inferred from how times grow with load; waits first come first served"
    if servers is None:
        return Reading(
            visits, None, Provenance.INFERRED, "no sign of a limit: times do not grow with our load"
        )
    return Reading(_queued(visits, servers), servers, provenance, note, held=1.0)


def _from_recorded(visits: Visits, told: Station) -> Reading:
    """Recorded waits; of visits that recorded none, what their neighbours waited."""
    recorded = np.isfinite(visits.wait)
    began = np.maximum.accumulate((visits.start + visits.wait)[recorded])
    guess = np.interp(visits.start, visits.start[recorded], began) - visits.start
    wait = np.where(recorded, visits.wait, np.clip(guess, 0.0, visits.end - visits.start))
    whole = replace(visits, wait=wait)
    if told.servers is not None:
        return Reading(
            whole, told.servers, Provenance.MEASURED, "servers from sojourn.yaml", held=1.0
        )
    match = match_waits(visits.start, _departures(whole), wait, recorded)
    level = plateau(visits.start, visits.start + wait, visits.end)
    if match is not None:
        note = f"first come first served by {match.servers} explains {match.explained:.0%} of waits"
        return Reading(whole, match.servers, Provenance.INFERRED, note, match.explained)
    if level is not None:
        note = f"{level.servers} at work in {level.held:.0%} of the time in which others waited"
        return Reading(whole, level.servers, Provenance.INFERRED, note)
    return Reading(whole, None, Provenance.INFERRED, "recorded waits show no limit on work at once")


def _departures(visits: Visits) -> Floats:
    """When each visit freed its worker. A visit cut while at work holds it on, for the mean of
    what longer services take beyond it; NaN for those that left while they waited."""
    began = visits.start + visits.wait
    service = visits.end - began
    done = np.sort(service[~visits.cut & (service > 0)])
    if not visits.cut.any() or done.size == 0:
        return visits.end
    tail = np.concatenate([np.cumsum(done[::-1])[::-1], [0.0]])
    index = np.searchsorted(done, service, side="right")
    count = len(done) - index
    longer = np.where(count > 0, tail[index] / np.maximum(count, 1), service)
    left = np.where(service > 0, began + longer, np.nan)
    return np.where(visits.cut, left, visits.end)


def _queued(visits: Visits, servers: int) -> Visits:
    """Waits by first come first served; the second time with what cut visits still held."""
    departure = visits.end
    for _ in range(2):
        began = service_starts(visits.start, departure, servers)
        wait = np.clip(began - visits.start, 0.0, visits.end - visits.start)
        visits = replace(visits, wait=wait)
        departure = _departures(visits)
    return visits


def _model(
    name: str, stage: str, reading: Reading, pool: str | None, config: Config
) -> StationModel:
    told = config.stations.get(name, Station())
    visits = reading.visits
    service = np.maximum(visits.end - visits.start - np.nan_to_num(visits.wait), 0.0)
    served = ~visits.cut | (service > 0)
    drift = levels(visits.start[served], service[served], visits.cut[served])
    known = kaplan_meier(service[served], visits.cut[served])
    flat = service[served] / level_of(drift, visits.start[served])
    level = kaplan_meier(flat, visits.cut[served]) if drift else known
    note = reading.note
    if drift:
        factors = [factor for _start, factor in drift]
        note += f"; its work drifts with time, {min(factors):.2f} to {max(factors):.2f} times"
    if known is None:
        known = level = kaplan_meier(service, np.zeros(len(service), dtype=bool))
        note += "; no visit ended by itself: service times are lower bounds"
    elif visits.cut.any():
        share = float(visits.cut.mean())
        note += f"; {share:.0%} of visits were cut by their caller, their work is longer than seen"
    assert known is not None  # there is at least one visit
    assert level is not None  # as above
    count = min(SAMPLES, len(service))
    draws = np.random.default_rng(config.analysis.seed).permutation(level.strata(count))
    return StationModel(
        name=name,
        stage=stage,
        servers=reading.servers,
        service_s=known.summary(int((~visits.cut).sum())),
        service_samples_s=tuple(draws.tolist()),
        timeout_s=told.timeout_s,
        stops_on_cancel=told.stops_on_cancel,
        optional=told.optional,
        usd_per_call=told.usd_per_call,
        provenance=reading.provenance,
        note=note,
        pool=pool,
        drift=drift,
    )
