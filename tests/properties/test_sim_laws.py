"""Laws every simulated run obeys, whichever engine runs it, on random scenarios."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.sim.making import (
    call,
    columns,
    engine,
    fleet,
    log_of,
    scenario,
    station,
    step_model,
    visit,
)
from tests.sim.scenarios import random_scenario

from sojourn.capacity.policies import (
    Admission,
    AdmissionPolicy,
    Autoscaler,
    Client,
    Encoder,
    Ladder,
    LoadMetric,
    Router,
    RouterPolicy,
    Rung,
)
from sojourn.config import Retry
from sojourn.progress import silent
from sojourn.sim.log import CALLS, CANCELLED, NONE, OK
from sojourn.sim.lowering import lower
from sojourn.sim.simulate import ENGINES, simulate
from sojourn.sim.ticks import PER_S

each = pytest.mark.parametrize("kind", sorted(ENGINES))
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
TABLES = ("requests", "calls", "spans", "engine_samples")
MARKS = [name for name in CALLS.names if CALLS[name].itemsize == 8]
OFTEN = PER_S // 27 + 1
"""Ticks between samples that hardly ever fall on anything else."""


def scenarios():
    """Small systems in which everything happens."""
    return st.integers(0, 2**32 - 1).map(random_scenario)


def pools_of(lowered):
    """The plan of each replica's pool, by the replica's number."""
    return [pool for pool in lowered.pools for _ in range(pool.room)]


def changed(made, **fields):
    return replace(made, fleet=made.fleet.model_copy(update=fields))


# Conservation and order


@each
@few
@given(scenarios())
def test_requests_and_attempts_are_conserved(kind, made):
    log = log_of(made, kind)
    assert len(log.ends) == made.stream.requests.num_rows
    assert (log.ends["status"] != NONE).all()
    tried = np.bincount(log.attempts["request"], minlength=len(log.ends))
    assert tried.tolist() == log.ends["attempts"].tolist()
    order = np.lexsort([log.attempts["attempt"], log.attempts["request"]])
    numbers = [np.arange(n) for n in tried]
    assert log.attempts["attempt"][order].tolist() == np.concatenate(numbers).tolist()
    retried = log.attempts["attempt"] + 1 < log.ends["attempts"][log.attempts["request"]]
    assert ((log.attempts["backoff"] != NONE) == retried).all()


@each
@few
@given(scenarios())
def test_the_counts_of_a_run_add_up(kind, made):
    counts = dict(simulate(made, engine=kind).counts)
    assert counts.pop("in_flight") == 0
    assert counts.pop("arrived") == sum(counts.values()) == made.stream.requests.num_rows


@each
@few
@given(scenarios())
def test_time_runs_forward_in_every_row_and_from_row_to_row(kind, made):
    log = log_of(made, kind)
    for rows, marks in (
        (log.ends, ["arrival", "end"]),
        (log.attempts, ["started", "ended"]),
        (log.visits, ["entered", "started", "ended"]),
        (log.calls, MARKS),
    ):
        for row in rows[marks].tolist():
            known = [t for t in row if t != NONE]
            assert known == sorted(known)
    for rows, mark in (
        (log.attempts, "ended"), (log.visits, "ended"), (log.calls, "end"), (log.samples, "t"),
        (log.changes, "t"),
    ):  # fmt: skip
        assert (np.diff(rows[mark]) >= 0).all()


@each
@few
@given(scenarios())
def test_visits_and_calls_lie_within_their_attempt(kind, made):
    log = log_of(made, kind)
    spans = {(r, k): (a, b) for a, b, _, r, k, _ in log.attempts.tolist()}
    for rows, first, last in ((log.visits, "entered", "ended"), (log.calls, "arrival", "end")):
        for r, k, a, b in rows[["request", "attempt", first, last]].tolist():
            started, ended = spans[r, k]
            assert started <= a <= b <= ended
    # once per step and attempt
    for rows in (log.visits, log.calls):
        places = rows[["request", "attempt", "place"]].tolist()
        assert len(set(places)) == len(places)


@each
@few
@given(scenarios())
def test_gauges_and_counters_stay_in_their_bounds(kind, made):
    lowered = replace(lower(made), sample_every=OFTEN)
    samples = ENGINES[kind](lowered, silent).samples
    for number, pool in enumerate(pools_of(lowered)):
        mine = samples[samples["replica"] == number]
        assert (mine["running"] <= pool.seqs).all()
        assert ((mine["used_blocks"] >= 0) & (mine["used_blocks"] <= pool.blocks)).all()
        assert (mine["hit_tokens"] <= mine["query_tokens"]).all()
        assert (mine["busy"] <= mine["t"]).all()
        assert (np.diff(mine["busy"]) <= np.diff(mine["t"])).all()
        for counter in (
            "busy", "prompt_tokens", "written_tokens", "hit_tokens", "query_tokens", "preemptions",
        ):  # fmt: skip
            assert (np.diff(mine[counter]) >= 0).all()
        held = mine["used_blocks"] * pool.block
        assert (held[mine["running"] > 0] > 0).all()


@each
@few
@given(scenarios())
def test_the_same_seed_gives_the_same_log_and_the_same_bytes(kind, made):
    assert log_of(made, kind).same(log_of(made, kind))
    assert as_bytes(simulate(made, engine=kind)) == as_bytes(simulate(made, engine=kind))


@few
@given(scenarios())
def test_all_engines_write_the_same_log_and_the_same_bytes(made):
    runs = [simulate(made, engine=kind) for kind in sorted(ENGINES)]
    assert all(run.log.same(runs[0].log) for run in runs)
    told = [as_bytes(run) for run in runs]
    assert all(found == told[0] for found in told)


def as_bytes(run):
    sink = io.BytesIO()
    for name in TABLES:
        table = run.tables.table(name)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


@each
@few
@given(scenarios())
def test_children_lie_within_their_parents_and_name_them(kind, made):
    spans = simulate(made, engine=kind).tables.spans.to_pylist()
    by_id = {span["span_id"]: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        if span["parent"] is None:
            assert span["stage"] is None
            continue
        parent = by_id[span["parent"]]
        assert parent["stage"] is None
        assert parent["request_id"] == span["request_id"]
        assert parent["start_s"] <= span["start_s"] <= span["end_s"] <= parent["end_s"]


# Work conservation


def calm(made):
    """The same calls, none given up: no limits, no retries, KV does not move, replicas stay."""
    pools = {
        name: pool.model_copy(update={"prefill": None, "autoscaler": None})
        for name, pool in made.fleet.pools.items()
    }
    first = made.fleet.engine.model_copy(update={"autoscaler": None})
    stations = {
        name: model.model_copy(update={"timeout_s": None, "queue_limit": None, "rate_per_s": None})
        for name, model in made.fleet.stations.items()
    }
    return changed(
        made, engine=first, pools=pools, stations=stations, retry=Retry(), admission=None,
        ladder=None,
    )  # fmt: skip


@each
@few
@given(scenarios())
def test_a_replica_works_exactly_while_it_has_calls(kind, made):
    """Busy ticks are the length of the union of the times its calls spent in it."""
    log = log_of(calm(made), kind)
    assume(not (log.calls["status"] == CANCELLED).any())
    inside = log.calls[log.calls["queued"] != NONE]
    for number in set(log.samples["replica"].tolist()):
        spans = sorted(inside[inside["replica"] == number][["queued", "end"]].tolist())
        busy, until = 0, 0
        for start, end in spans:
            busy += max(0, end - max(start, until))
            until = max(until, end)
        last = log.samples[log.samples["replica"] == number][-1]
        assert last["busy"] == busy
        assert (last["running"], last["waiting"], last["used_blocks"]) == (0, 0, 0)


@each
@few
@given(scenarios())
def test_none_waits_beside_an_empty_replica(kind, made):
    """Unless KV on its way to another replica holds its blocks."""
    lowered = replace(lower(made), sample_every=OFTEN)
    samples = ENGINES[kind](lowered, silent).samples
    idle = (samples["running"] == 0) & (samples["waiting"] > 0)
    waiting_at = samples[idle]
    sending = {p.prefill_pool for p in lowered.pools}
    for row in waiting_at:
        pool = next(
            i for i, p in enumerate(lowered.pools) if p.first <= row["replica"] < p.first + p.room
        )
        assert pool in sending
        assert row["used_blocks"] > 0


@each
@few
@given(scenarios())
def test_tokens_and_blocks_are_accounted_for(kind, made):
    """Where no call is given up, what replicas count is what calls got."""
    quiet = calm(made)
    log = log_of(quiet, kind)
    assume(not (log.calls["status"] == CANCELLED).any())
    done = log.calls[log.calls["status"] == OK]
    step = lower(quiet).requests.first_step[done["request"]] + done["place"]
    prompt = lower(quiet).steps.prompt[step]
    last = {r: log.samples[log.samples["replica"] == r][-1] for r in set(log.samples["replica"])}
    for number, row in last.items():
        mine = done["replica"] == number
        assert row["written_tokens"] == done["written"][mine].sum()
        assert row["preemptions"] == done["preemptions"][mine].sum()
        assert row["hit_tokens"] == done["cached"][mine].sum()
        assert row["query_tokens"] == row["prompt_tokens"] == prompt[mine].sum()
    assert (done["written"] == np.minimum(lower(quiet).steps.output[step], done["written"])).all()


# What changes nothing changes nothing


def alone(made):
    """One replica in each pool."""

    def one(pool):
        return pool.model_copy(update={"replicas": 1, "autoscaler": None})

    pools = {name: one(pool) for name, pool in made.fleet.pools.items()}
    return changed(made, engine=one(made.fleet.engine), pools=pools)


def with_engines(made, **fields):
    pools = {name: p.model_copy(update=fields) for name, p in made.fleet.pools.items()}
    return changed(made, engine=made.fleet.engine.model_copy(update=fields), pools=pools)


@each
@few
@given(scenarios(), st.sampled_from(RouterPolicy))
def test_a_router_has_no_choice_of_one(kind, made, policy):
    single = alone(made)
    router = Router(policy=policy, load_weight_tokens=3.0)
    assert log_of(with_engines(single, router=router), kind).same(log_of(single, kind))


@each
@few
@given(scenarios())
def test_policies_that_are_never_met_change_nothing(kind, made):
    """A ladder out of reach, a limit nobody meets, a bucket that is never empty, a scaler that
    may not scale."""
    bare = changed(made, ladder=None, admission=None, client=made.fleet.client.model_copy(
        update={"max_in_flight": None, "retry_budget_per_success": None}
    ))  # fmt: skip
    before = log_of(bare, kind)
    rung = Rung(above=1e9, below=0.0, skip=("search",), output_most=1, max_attempts=1)
    endless = {"retry_budget_per_success": 0.0, "retry_budget_most": 1e6}
    whole = bare.fleet
    for change in (
        {"ladder": Ladder(metric=LoadMetric.IN_FLIGHT, every_s=0.25, rungs=(rung,))},
        {"admission": Admission(policy=AdmissionPolicy.THRESHOLD, high=1e9)},
        {"admission": Admission(policy=AdmissionPolicy.PROBABILISTIC, low=1e8, high=1e9)},
        {"admission": Admission(policy=AdmissionPolicy.PREDICTED_MISS, wait_s=1e5)},
        {"client": whole.client.model_copy(update={"max_in_flight": 10**6})},
        {"client": whole.client.model_copy(update=endless)},
        {"stations": {n: _out_of_reach(s) for n, s in whole.stations.items()}},
    ):
        assert log_of(changed(bare, **change), kind).same(before), change


def _out_of_reach(model):
    far = {"timeout_s": model.timeout_s or 1e5}
    far["queue_limit"] = 10**9 if model.queue_limit is None else model.queue_limit
    return model.model_copy(update=far)


@each
@few
@given(scenarios())
def test_engine_options_that_are_never_met_change_nothing(kind, made):
    steps = made.stream.steps
    blind = steps.set_column(
        steps.schema.get_field_index("image_tokens"), "image_tokens", pa.array([0] * len(steps))
    )
    bare = alone(replace(made, stream=replace(made.stream, steps=blind)))
    bare = with_engines(bare, encoder=None)
    before = log_of(bare, kind)
    fixed = Autoscaler(target=0.1, every_s=0.3, most=1)
    for fields in ({"encoder": Encoder(base_s=9.0)}, {"autoscaler": fixed}):
        assert log_of(with_engines(bare, **fields), kind).same(before), fields
    pools = [p.max_num_batched_tokens for p in (bare.fleet.engine, *bare.fleet.pools.values())]
    if all(p.scheduler.long_prompt_cap is None
           for p in (bare.fleet.engine, *bare.fleet.pools.values())):  # fmt: skip
        engine = _capped(bare.fleet.engine, max(pools))
        capped = {n: _capped(p, max(pools)) for n, p in bare.fleet.pools.items()}
        assert log_of(changed(bare, engine=engine, pools=capped), kind).same(before)


def _capped(pool, tokens):
    scheduler = pool.scheduler.model_copy(update={"long_prompt_cap": tokens})
    return pool.model_copy(update={"scheduler": scheduler})


@each
@few
@given(scenarios())
def test_a_station_nobody_visits_changes_nothing(kind, made):
    stations = {"nobody": station("nobody", 1), **made.fleet.stations}
    before, after = (simulate(m, engine=kind) for m in (made, changed(made, stations=stations)))
    assert as_bytes(before) == as_bytes(after)


@each
@few
@given(scenarios())
def test_a_think_time_without_a_closed_loop_is_nothing(kind, made):
    open_loop = changed(made, client=Client())
    thinking = changed(made, client=Client(think_samples_s=(1.0, 5.0)))
    assert log_of(open_loop, kind).same(log_of(thinking, kind))


# Load and capacity


@each
@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0.1, 0.9))
def test_more_load_never_shortens_a_wait(kind, seed, servers, keep):
    """First come first served, c servers: with more customers among them nobody waits less.

    Pathwise, by the Kiefer-Wolfowitz recursion, so it holds for the mean as well."""
    rng = np.random.default_rng(seed)
    arrivals, service = np.cumsum(rng.exponential(1.0, 150)), rng.exponential(0.9 * servers, 150)
    kept = rng.random(150) < keep
    kept[0] = True
    the_fleet = fleet(stations=[station("s", servers)])

    def waits(mask):
        chosen = np.flatnonzero(mask)
        made = scenario(arrivals[mask], [[visit("s", v)] for v in service[mask]], the_fleet)
        visits = log_of(made, kind).visits
        waited = visits["started"] - visits["entered"]
        return dict(zip(chosen[visits["request"]].tolist(), waited.tolist(), strict=True))

    light, full = waits(kept), waits(np.ones(150, bool))
    assert all(light[name] <= full[name] for name in light)


@each
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_load_never_shortens_the_mean_wait_of_the_engine(kind, seed):
    rng = np.random.default_rng(seed)
    count = 600
    arrivals = np.cumsum(rng.exponential(0.05, count))
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 200, (count, 2))]
    rank = rng.random(count)
    the_fleet = fleet(engine(step_model(token=2e-5, per_decode=2e-4), seqs=32, blocks=600))
    core = rank < 0.4
    means = []
    for share in (0.4, 0.6, 0.8, 1.0):
        chosen = np.flatnonzero(rank < share)
        made = scenario(arrivals[chosen], [programs[i] for i in chosen], the_fleet)
        calls = log_of(made, kind).calls
        waited = calls["scheduled"] - calls["arrival"]
        means.append(waited[core[chosen[calls["request"]]]].mean())
    assert means == sorted(means)
    assert means[-1] > means[0]


@each
@pytest.mark.parametrize("seed", range(4))
def test_more_kv_never_lowers_what_is_served_by_a_time(kind, seed):
    """A backlog of single calls, steps of a fixed cost: whenever one looks, as many have been
    served with more blocks as with fewer."""
    rng = np.random.default_rng(seed)
    count = 150
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 100, (count, 2))]
    ends = []
    for blocks in (13, 20, 40, 80, 160, 100_000):
        the_fleet = fleet(engine(step_model(base=0.01), blocks=blocks))
        log = log_of(scenario([0.0] * count, programs, the_fleet), kind)
        assert (log.ends["status"] == OK).all()
        ends.append(np.sort(log.ends["end"]))
    for fewer, more in pairwise(ends):
        assert (more <= fewer).all()
    assert ends[-1][-1] < ends[0][-1] / 2


@each
def test_littles_law_between_gauges_and_calls(kind):
    """Requests in the engine (read once a second) = arrival rate times time in the engine."""
    rng = np.random.default_rng(5)
    count = 3000
    arrivals = np.cumsum(rng.exponential(0.25, count))
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 120, (count, 2))]
    the_fleet = fleet(engine(step_model(base=0.02), seqs=8, blocks=200))
    log = log_of(scenario(arrivals, programs, the_fleet), kind)
    inside = log.samples["running"] + log.samples["waiting"]
    spent = (log.calls["end"] - log.calls["queued"]).sum() / PER_S
    # 20 blocks of readings: a 99.9% interval of their mean must hold the exact value
    blocks = [part.mean() for part in np.array_split(inside, 20)]
    half = 3.88 * np.std(blocks, ddof=1) / np.sqrt(20)
    assert half < 0.3 * spent / len(inside)
    assert abs(inside.mean() - spent / len(inside)) < half


@each
def test_tables_tell_the_log(kind):
    """The requests of a run are those of its log: ends in seconds, in the order of the stream."""
    made = random_scenario(11)
    run = simulate(made, engine=kind)
    came, left = columns(run.tables.requests, "arrival_s", "end_s")
    origin = lower(made).origin_s
    np.testing.assert_array_equal(np.array(left), run.log.ends["end"] / PER_S + origin)
    assert (np.array(left) >= np.array(came)).all() or made.fleet.client.closed_loop
