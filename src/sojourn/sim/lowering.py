"""A scenario in whole numbers: what both engines run.

Names become numbers, seconds become ticks, step models become tables. Nothing is decided here
that an engine could decide otherwise.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity.policies import Autoscaler, Encoder
from sojourn.capacity.records import EngineModel, Fleet, StationModel
from sojourn.errors import UsageError
from sojourn.sim.log import MOST_STATIONS
from sojourn.sim.lowered import (
    ADMISSIONS,
    METRICS,
    ORDERS,
    ROUTERS,
    SCALES,
    STATION,
    AdmissionPlan,
    ClientPlan,
    EncoderPlan,
    Ints,
    LadderPlan,
    Lowered,
    PoolPlan,
    Requests,
    RetryPlan,
    RungPlan,
    ScalerPlan,
    StationPlan,
    Steps,
)
from sojourn.sim.scenario import Scenario
from sojourn.sim.ticks import LONGEST_S, NEVER, Ticks, ticks, ticks_of
from sojourn.workload.hashing import hash_strings
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream

SAMPLE_S: Final = 1.0
_KNOWN: Final = np.uint64(1 << 63)
"""Set in every session's hash, so that none is 0; the low bits stay even and odd alike."""
MOST_SAMPLES: Final = 20_000


def lower(scenario: Scenario) -> Lowered:
    """Lower a scenario that `sojourn.sim.checks.check` has let pass."""
    stream, fleet = scenario.stream, scenario.fleet
    arrival_s = stream.requests.column("arrival_s").to_numpy()
    origin_s = float(np.floor(arrival_s[0])) if len(arrival_s) else 0.0
    names = list(fleet.stations)
    unknown = [n for n in _station_names(stream) if n not in fleet.stations]
    stations, servers = _stations(fleet, names, unknown, origin_s)
    pools = ("default", *fleet.pools)
    span = float(arrival_s[-1]) - origin_s if len(arrival_s) else 0.0
    return Lowered(
        origin_s=origin_s,
        seed=scenario.seed,
        requests=_requests(stream, origin_s),
        steps=_steps(stream, [*names, *unknown], pools),
        pools=_pools(fleet, pools),
        pool_names=pools,
        stations=stations,
        station_names=(*names, *unknown),
        servers=servers,
        retry=_retry(fleet),
        client=_client(fleet, stream.requests.num_rows),
        admission=_admission(fleet),
        ladder=_ladder(fleet, [*names, *unknown]),
        sample_every=ticks(SAMPLE_S * max(1, int(np.ceil(span / (SAMPLE_S * MOST_SAMPLES))))),
    )


def _station_names(stream: Stream) -> list[str]:
    steps = stream.steps
    visits = steps.filter(pc.equal(steps.column("kind"), StepKind.STATION.value))
    return [str(name) for name in pc.unique(pc.fill_null(visits.column("name"), "")).to_pylist()]


def _requests(stream: Stream, origin_s: float) -> Requests:
    table = stream.requests
    sessions = table.column("session_id")
    known = pc.is_valid(sessions).to_numpy(zero_copy_only=False)
    owner = stream.steps.column("request").to_numpy()
    return Requests(
        arrival=ticks_of(table.column("arrival_s").to_numpy() - origin_s),
        identity=hash_strings(table.column("request_id")),
        session=np.where(known, hash_strings(sessions) | _KNOWN, np.uint64(0)),
        priority=-_ints(table, "priority"),
        first_step=np.searchsorted(owner, np.arange(table.num_rows + 1)).astype(np.int64),
    )


def _steps(stream: Stream, stations: list[str], pools: tuple[str, ...]) -> Steps:
    table = stream.steps
    kind = _codes(table, "kind", [k.value for k in StepKind])
    prompt = np.maximum(_ints(table, "input_tokens"), 1)
    first_hash, hashes = _lists(table, "block_hashes")
    return Steps(
        group=_ints(table, "group"),
        kind=kind,
        station=np.where(kind == STATION, _codes(table, "name", stations), -1),
        pool=np.maximum(_codes(table, "pool", list(pools)), 0),
        service=ticks_of(pc.fill_null(table.column("service_s"), 0.0).to_numpy()),
        prompt=prompt,
        cached=np.minimum(_ints(table, "cached_tokens"), prompt - 1),
        output=np.maximum(_ints(table, "output_tokens"), 1),
        image_tokens=_ints(table, "image_tokens"),
        image=_ints(table, "image_id")
        if "image_id" in table.column_names
        else np.zeros(len(kind), np.int64),
        first_hash=first_hash,
        hashes=hashes,
    )


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(pc.fill_null(table.column(name), 0).to_numpy(), dtype=np.int64)


def _codes(table: pa.Table, name: str, values: list[str]) -> Ints:
    found = pc.index_in(
        pc.fill_null(table.column(name), ""), value_set=pa.array(values, pa.string())
    )
    return np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)


def _lists(table: pa.Table, name: str) -> tuple[Ints, Ints]:
    """Where each row's hashes begin, and all hashes as numbers: that of a hash is how many others
    occurred before it."""
    if name not in table.column_names or table.num_rows == 0:
        return np.zeros(table.num_rows + 1, np.int64), np.zeros(0, np.int32)
    column = table.column(name).combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    numbers = column.flatten().dictionary_encode().indices
    return first, np.asarray(numbers.to_numpy(), dtype=np.int32)


def _pools(fleet: Fleet, names: tuple[str, ...]) -> tuple[PoolPlan, ...]:
    plans: list[PoolPlan] = []
    first = 0
    for engine in (fleet.engine, *fleet.pools.values()):
        plan = _pool(engine, first, names)
        plans.append(plan)
        first += plan.room
    return tuple(plans)


def _pool(engine: EngineModel, first: int, names: tuple[str, ...]) -> PoolPlan:
    step, scheduler, moved = engine.step, engine.scheduler, engine.prefill
    drafts = len(engine.speculative.acceptance) if engine.speculative else 0
    batches = np.arange(engine.max_num_seqs + 1, dtype=np.float64)
    draft_s = engine.speculative.draft_s if engine.speculative else 0.0
    bare = step.model_copy(update={"base_s": (0.0,) * len(step.base_s)})
    fixed = step.host_s + np.where(batches > 0, draft_s, 0.0)
    base = fixed + step.decode_steps_s(batches * (1 + drafts))
    slope = bare.decode_steps_s(batches, 1.0)
    accept = engine.speculative.acceptance if engine.speculative else ()
    return PoolPlan(
        first=first,
        replicas=engine.replicas,
        room=max(engine.replicas, engine.autoscaler.most if engine.autoscaler else 0),
        seqs=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
        block=engine.block_size,
        blocks=engine.kv_blocks,
        base=np.maximum(ticks_of(base), 0),
        slope=np.maximum(ticks_of(slope), 0),
        prompt=_prompt_table(engine),
        context=ticks(step.prefill_s_per_token_context),
        front=ticks_of(np.array(step.front_samples_s or (step.front_s,))),
        front_load=np.array([load for load, _ in step.front_load], dtype=np.int64),
        front_factor=np.array([factor for _, factor in step.front_load], dtype=np.float64),
        order=ORDERS.index(scheduler.order),
        cap=scheduler.long_prompt_cap or -1,
        full_input=scheduler.admit_full_input,
        watermark=int(scheduler.watermark * engine.kv_blocks),
        unit=engine.prefix_cache.tokens_per_hash // engine.block_size
        if engine.prefix_cache
        else -1,
        accept=np.array([round(a * 2**53) for a in accept], dtype=np.int64),
        router=ROUTERS.index(engine.router.policy),
        load_weight=round(engine.router.load_weight_tokens * 1000),
        prefill_pool=names.index(moved.pool) if moved else -1,
        transfer=ticks(moved.transfer_base_s) if moved else 0,
        transfer_token=ticks(moved.transfer_s_per_token) if moved else 0,
        encoder=_encoder(engine.encoder),
        scaler=_scaler(engine.autoscaler),
        abort=engine.abort_on_cancel,
    )


def _prompt_table(engine: EngineModel) -> Ticks:
    tokens = np.arange(engine.max_num_batched_tokens + 1, dtype=np.float64)
    return np.maximum(ticks_of(engine.step.prefill_steps_s(tokens)), 0)


def _encoder(encoder: Encoder | None) -> EncoderPlan | None:
    if encoder is None:
        return None
    return EncoderPlan(
        encoder.servers, ticks(encoder.base_s), ticks(encoder.s_per_token), encoder.cache_images
    )


def _scaler(scaler: Autoscaler | None) -> ScalerPlan | None:
    if scaler is None:
        return None
    return ScalerPlan(
        metric=SCALES.index(scaler.metric),
        target=max(1, round(scaler.target * 1000)),
        every=ticks(scaler.every_s),
        cold_start=ticks(scaler.cold_start_s),
        least=scaler.least,
        most=scaler.most,
        after=ticks(min(scaler.scale_down_after_s, LONGEST_S)),
        tolerance=round(scaler.tolerance * 1000),
    )


def _limit(seconds: float | None) -> int:
    """A time limit; one beyond the longest run is none (-1)."""
    return -1 if seconds is None or seconds > LONGEST_S else ticks(seconds)


def _stations(
    fleet: Fleet, names: list[str], unknown: list[str], origin_s: float
) -> tuple[tuple[StationPlan, ...], Ints]:
    """Stations that name one pool share a queue, with the largest of their `servers`; one that
    the fleet does not know has no limit."""
    if len(names) + len(unknown) > MOST_STATIONS:
        raise UsageError(
            f"{len(names) + len(unknown)} stations: the simulator takes at most {MOST_STATIONS};"
            " give those that hardly matter one name"
        )
    queues: dict[str, int] = {}
    servers: list[int] = []
    plans = []
    for name in names:
        model = fleet.stations[name]
        key = model.pool or f"\0{name}"
        own = -1 if model.servers is None else model.servers
        if key not in queues:
            queues[key] = len(servers)
            servers.append(own)
        place = queues[key]
        servers[place] = -1 if -1 in (own, servers[place]) else max(own, servers[place])
        plans.append(_station(model, place, origin_s))
    for _ in unknown:
        plans.append(
            StationPlan(
                queue=len(servers), timeout=-1, stops=False, optional=False, queue_limit=-1,
                interval=-1, burst=1, samples=np.zeros(0, np.int64),
                drift_start=np.zeros(0, np.int64), drift_factor=np.zeros(0),
            )
        )  # fmt: skip
        servers.append(-1)
    return tuple(plans), np.array(servers, dtype=np.int64)


def _station(model: StationModel, queue: int, origin_s: float) -> StationPlan:
    return StationPlan(
        queue=queue,
        timeout=_limit(model.timeout_s),
        stops=model.stops_on_cancel,
        optional=model.optional,
        queue_limit=-1 if model.queue_limit is None else model.queue_limit,
        interval=-1 if model.rate_per_s is None else ticks(1 / model.rate_per_s),
        burst=model.burst,
        samples=ticks_of(np.array(model.service_samples_s, dtype=np.float64)),
        drift_start=ticks_of(np.array([s - origin_s for s, _ in model.drift], dtype=np.float64)),
        drift_factor=np.array([f for _, f in model.drift], dtype=np.float64),
    )


def _retry(fleet: Fleet) -> RetryPlan:
    retry, client = fleet.retry, fleet.client
    waits = retry.backoff_s * retry.backoff_factor ** np.arange(retry.max_attempts)
    gain = client.retry_budget_per_success
    return RetryPlan(
        timeout=_limit(retry.attempt_timeout_s),
        most=retry.max_attempts,
        backoff=ticks_of(np.asarray(waits, dtype=np.float64)),
        jitter=retry.jitter,
        on_timeout=retry.retry_on_timeout,
        on_error=client.retry_on_error,
        degrade=retry.degrade_on_timeout,
        budget_gain=-1 if gain is None else round(gain * 1000),
        budget_most=round(client.retry_budget_most * 1000),
    )


def _client(fleet: Fleet, requests: int) -> ClientPlan:
    """(A client beyond the last request finds none and stops.)"""
    client = fleet.client
    return ClientPlan(
        closed=min(client.closed_loop, max(1, requests)) if client.closed_loop else -1,
        cap=client.max_in_flight or -1,
        think=ticks_of(np.array(client.think_samples_s or (0.0,))),
    )


def _admission(fleet: Fleet) -> AdmissionPlan | None:
    found = fleet.admission
    if found is None:
        return None
    return AdmissionPlan(
        policy=ADMISSIONS.index(found.policy),
        metric=METRICS.index(found.metric),
        low=found.low,
        high=found.high,
        wait=ticks(min(found.wait_s, LONGEST_S)),
    )


def _ladder(fleet: Fleet, stations: list[str]) -> LadderPlan | None:
    ladder = fleet.ladder
    if ladder is None:
        return None
    rungs = tuple(
        RungPlan(
            above=rung.above,
            below=rung.below,
            skip=sum(1 << stations.index(name) for name in set(rung.skip) if name in stations),
            output=rung.output_most or -1,
            attempts=rung.max_attempts or -1,
            shed_from=NEVER if rung.shed_priority_to is None else -rung.shed_priority_to,
        )
        for rung in ladder.rungs
    )
    return LadderPlan(METRICS.index(ladder.metric), ticks(ladder.every_s), rungs)
