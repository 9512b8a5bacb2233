"""Laws every simulated run obeys, on random scenarios."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.making import (
    call,
    columns,
    delay,
    engine,
    fleet,
    scenario,
    station,
    step_model,
    visit,
)

from sojourn.sim.simulate import simulate

TABLES = ("requests", "calls", "spans", "engine_samples")
few = settings(max_examples=60, deadline=None)


@st.composite
def scenarios(draw, *, most=30):
    """Small systems in which everything happens: queues, preemption, timeouts, retries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, most))
    programs = []
    for _ in range(count):
        steps = []
        for group in range(rng.integers(1, 5)):
            for _ in range(rng.integers(1, 3)):
                kind = rng.choice(["call", "station", "delay"], p=[0.5, 0.35, 0.15])
                if kind == "call":
                    prompt = int(rng.integers(1, 150))
                    steps.append(
                        call(
                            prompt,
                            int(rng.integers(1, 60)),
                            cached=int(rng.integers(0, prompt)),
                            group=group,
                        )
                    )
                elif kind == "station":
                    name = str(rng.choice(["kb", "tool", "far"]))
                    steps.append(visit(name, rng.exponential(0.3), group=group))
                else:
                    steps.append(delay(rng.exponential(0.1), group=group))
        programs.append(steps)
    arrivals = np.cumsum(rng.exponential(draw(st.sampled_from([0.02, 0.1, 0.5])), count))
    samples = rng.exponential(0.3, 20)
    block = draw(st.sampled_from([1, 16]))
    seqs = draw(st.integers(1, 8))
    the_fleet = fleet(
        engine(
            step_model(
                base=rng.uniform(0.004, 0.02),
                per_decode=rng.uniform(0, 0.001),
                slope=draw(st.sampled_from([0.0, 1.3e-6])),
                token=rng.uniform(0, 1e-4),
                context=rng.uniform(0, 1e-6),
                front=draw(st.sampled_from([0.0, 0.0031])),
            ),
            replicas=draw(st.integers(1, 3)),
            seqs=seqs,
            budget=max(seqs, draw(st.sampled_from([4, 32, 256]))),
            block=block,
            blocks=draw(st.sampled_from([224, 240, 320, 4800])) // block,
        ),
        [
            station("kb", 1, samples=samples, timeout_s=draw(st.sampled_from([None, 0.77]))),
            station(
                "tool", 2, samples=samples, timeout_s=0.53, optional=draw(st.booleans()),
                stops_on_cancel=draw(st.booleans()),
            ),
        ],
        attempt_timeout_s=draw(st.sampled_from([None, 0.41, 2.3])),
        max_attempts=draw(st.integers(1, 3)),
        backoff_s=draw(st.sampled_from([0.0, 0.1])),
        jitter=draw(st.sampled_from([0.0, 0.5])),
        retry_on_timeout=draw(st.booleans()),
        degrade_on_timeout=draw(st.booleans()),
    )  # fmt: skip
    return scenario(arrivals, programs, the_fleet, seed=draw(st.integers(0, 5)))


def as_bytes(run):
    sink = io.BytesIO()
    for name in TABLES:
        table = run.tables.table(name)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


@few
@given(scenarios())
def test_requests_are_conserved_and_each_ends_once(made):
    run = simulate(made)
    arrived = made.stream.requests.num_rows
    counts = dict(run.counts)
    assert counts.pop("arrived") == arrived == sum(counts.values())
    assert counts["in_flight"] == 0
    ids = made.stream.requests.column("request_id").to_pylist()
    assert run.tables.requests.column("request_id").to_pylist() == ids


@few
@given(scenarios())
def test_time_runs_forward_in_every_row(made):
    tables = simulate(made).tables
    for table, marks in (
        (tables.requests, ("arrival_s", "end_s")),
        (tables.calls, ("arrival_s", "scheduled_s", "first_token_s", "end_s")),
        (tables.spans, ("start_s", "end_s")),
    ):
        for row in zip(*columns(table, *marks), strict=True):
            known = [value for value in row if value is not None]
            assert known == sorted(known)
    times = tables.engine_samples.column("t_s").to_pylist()
    assert times == sorted(times)


@few
@given(scenarios())
def test_children_lie_within_their_parents_and_name_them(made):
    spans = simulate(made).tables.spans.to_pylist()
    by_id = {span["span_id"]: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        if span["parent"] is None:
            assert span["stage"] is None
            continue
        parent = by_id[span["parent"]]
        assert parent["stage"] is None
        assert parent["request_id"] == span["request_id"]
        assert parent["start_s"] <= span["start_s"]
        # a backoff's own end is an event of its own: both sums round alike
        assert span["end_s"] <= parent["end_s"]


@few
@given(scenarios())
def test_the_same_seed_gives_the_same_bytes(made):
    assert as_bytes(simulate(made)) == as_bytes(simulate(made))


@few
@given(scenarios())
def test_both_engines_write_the_same_bytes(made):
    assert as_bytes(simulate(made)) == as_bytes(simulate(made, engine="kernel"))


@few
@given(scenarios())
def test_what_changes_nothing_changes_nothing(made):
    """A station nobody visits, a step model scaled by 1, a deadline nobody meets."""
    whole = made.fleet
    idle = {**whole.stations, "nobody": station("nobody", 1)}
    same_steps = whole.engine.model_copy(update={"step": whole.engine.step.scaled(1.0)})
    late = {
        name: model if model.timeout_s else model.model_copy(update={"timeout_s": 1e9})
        for name, model in whole.stations.items()
    }
    before = as_bytes(simulate(made))
    for change in ({"stations": idle}, {"engine": same_steps}, {"stations": late}):
        after = replace(made, fleet=whole.model_copy(update=change))
        assert as_bytes(simulate(after)) == before


@few
@given(scenarios())
def test_kv_blocks_are_conserved(made):
    """No more are in use than there are, and none where nothing runs."""
    samples = simulate(made).log.samples
    assert np.all(samples["used_blocks"] >= 0)
    assert np.all(samples["used_blocks"] <= made.fleet.engine.kv_blocks)
    idle = samples["running"] == 0
    assert np.all(samples["used_blocks"][idle] == 0)
    assert np.all(samples["used_blocks"][~idle] > 0)


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0.1, 0.9))
def test_more_load_never_shortens_a_wait(seed, servers, keep):
    """First come first served, c servers: with more customers among them nobody waits less.

    Pathwise, by the Kiefer-Wolfowitz recursion, so it holds for the mean as well."""
    rng = np.random.default_rng(seed)
    arrivals, service = np.cumsum(rng.exponential(1.0, 150)), rng.exponential(0.9 * servers, 150)
    kept = rng.random(150) < keep
    kept[0] = True
    the_fleet = fleet(stations=[station("s", servers)])

    def waits(mask):
        run = simulate(
            scenario(
                arrivals[mask],
                [[visit("s", v)] for v in service[mask]],
                the_fleet,
                ids=[f"r{i}" for i in np.flatnonzero(mask)],
            )
        )
        spans = run.tables.spans.filter(pa.compute.equal(run.tables.spans.column("name"), "s"))
        return dict(zip(*columns(spans, "request_id", "wait_s"), strict=True))

    light, full = waits(kept), waits(np.ones(150, bool))
    assert all(light[name] <= full[name] + 1e-9 for name in light)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_load_never_shortens_the_mean_wait_of_the_engine(seed):
    rng = np.random.default_rng(seed)
    count = 1500
    arrivals = np.cumsum(rng.exponential(0.05, count))
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 200, (count, 2))]
    rank = rng.random(count)
    the_fleet = fleet(engine(step_model(token=2e-5, per_decode=2e-4), seqs=32, blocks=600))
    core = rank < 0.4
    means = []
    for share in (0.4, 0.6, 0.8, 1.0):
        chosen = np.flatnonzero(rank < share)
        run = simulate(
            scenario(
                arrivals[chosen], [programs[i] for i in chosen], the_fleet,
                ids=[str(i) for i in chosen],
            )
        )  # fmt: skip
        rows = zip(
            *columns(run.tables.calls, "request_id", "arrival_s", "scheduled_s"), strict=True
        )
        means.append(np.mean([when - came for name, came, when in rows if core[int(name)]]))
    assert means == sorted(means)
    assert means[-1] > means[0]


@pytest.mark.parametrize("seed", range(4))
def test_more_kv_never_lowers_throughput(seed):
    """A backlog of requests, steps with a fixed cost: the run is over sooner the more fit."""
    rng = np.random.default_rng(seed)
    count = 300
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 200, (count, 2))]
    ends = []
    for blocks in (26, 40, 80, 160, 320, 640, 100_000):
        the_fleet = fleet(engine(step_model(token=2e-5, per_decode=1e-4), blocks=blocks))
        run = simulate(scenario([0.0] * count, programs, the_fleet))
        assert run.counts["ok"] == count
        ends.append(run.end_s)
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < ends[0] / 2


def test_littles_law_between_gauges_and_calls():
    """Requests in the engine (read once a second) = arrival rate times time in the engine."""
    rng = np.random.default_rng(5)
    count = 6000
    arrivals = np.cumsum(rng.exponential(0.25, count))
    programs = [[call(int(p), int(o))] for p, o in rng.integers(1, 120, (count, 2))]
    the_fleet = fleet(engine(step_model(base=0.02), seqs=8, blocks=200))
    tables = simulate(scenario(arrivals, programs, the_fleet)).tables
    running, waiting = (
        tables.engine_samples.column(name).to_numpy() for name in ("running", "waiting")
    )
    came, left = (tables.calls.column(name).to_numpy() for name in ("arrival_s", "end_s"))
    inside = running + waiting
    expected = (left - came).sum() / len(inside)
    # 20 blocks of readings: a 99.9% interval of their mean must hold the exact value
    blocks = [part.mean() for part in np.array_split(inside, 20)]
    half = 3.88 * np.std(blocks, ddof=1) / np.sqrt(20)
    assert half < 0.25 * expected
    assert abs(inside.mean() - expected) < half
