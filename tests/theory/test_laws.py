"""Laws at scale, on the compiled engine; on random small scenarios they are in tests/properties."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, station, step_model
from tests.theory.running import (
    UNIT_S,
    call_waits,
    calls,
    of_place,
    poisson,
    served_by,
    stream_of,
    visits,
)

from sojourn.capacity.policies import Client, Order, Router, RouterPolicy, Scheduler
from sojourn.sim.log import NONE, OK
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import ticks

COUNT = 30_000


def chain(seed, *, rate=2.7, count=COUNT, **retry):
    """Retrieval, two tools at once, a call, postprocessing; time limits, retries, refusals, and too
    few KV blocks."""
    rng = np.random.default_rng(seed)
    samples = tuple(UNIT_S * rng.exponential(1.0, 200))
    stations = [
        station("kb", 3, samples=samples, timeout_s=5 * UNIT_S),
        station("web", 4, samples=samples, timeout_s=4 * UNIT_S, optional=True),
        station("sql", 2, samples=samples, queue_limit=3, stops_on_cancel=True),
    ]
    model = engine(
        step_model(base=UNIT_S / 50, per_decode=UNIT_S / 2000, token=UNIT_S / 5000),
        replicas=2, seqs=16, blocks=60, router=Router(policy=RouterPolicy.LEAST_LOADED),
    )  # fmt: skip
    policies = {"client": Client(retry_on_error=True, retry_budget_per_success=0.5)}
    options = {"attempt_timeout_s": 20 * UNIT_S, "max_attempts": 3, "backoff_s": UNIT_S,
               "jitter": 0.5} | retry  # fmt: skip
    work = rng.exponential([1.0, 0.6, 0.5, 0.2], (count, 4)).T
    lengths = rng.integers(1, 150, (2, count))
    stream = stream_of(
        poisson(rng, rate, count),
        visits("kb", work[0]),
        visits("web", work[1], group=1),
        visits("sql", work[2], group=1),
        calls(*lengths, group=2),
        visits("post", work[3], group=3),
    )
    return Scenario(stream, served_by(stations, engine=model, policies=policies, **options), seed)


def test_everything_is_conserved():
    """Requests by status, attempts by request, visits and calls by attempt, tokens by replica."""
    run = simulate(chain(1), engine="kernel")
    log, counts = run.log, dict(run.counts)
    assert counts.pop("arrived") == COUNT == sum(counts.values())
    assert counts["in_flight"] == 0
    assert min(counts["ok"], counts["timeout"], counts["error"]) > 100
    tried = np.bincount(log.attempts["request"], minlength=COUNT)
    assert np.array_equal(tried, log.ends["attempts"])
    assert (log.attempts["backoff"] != NONE).sum() == len(log.attempts) - COUNT
    first, most = (log.attempts["attempt"] == 0).sum(), log.attempts["attempt"].max()
    assert (first, most) == (COUNT, 2)
    well = (log.attempts["status"] == OK).sum()
    done = {place: rows_of(log, place)["status"] for place in range(5)}
    assert (done[4] == OK).sum() == well
    assert len(done[1]) == len(done[2]) == (done[0] == OK).sum()
    assert log.calls["preemptions"].sum() > 0
    tail = log.samples[-2:]  # the last reading of both replicas: all is over
    assert tail["preemptions"].sum() == log.calls["preemptions"].sum()
    assert not (tail["used_blocks"] | tail["running"] | tail["waiting"]).any()
    ok = log.calls["status"] == OK
    assert tail["written_tokens"].sum() >= log.calls["written"][ok].sum()


def rows_of(log, place):
    rows = log.calls if place == 3 else log.visits
    return rows[rows["place"] == place]


def test_littles_law_is_exact():
    """At every reading the gauges hold just the calls that are inside by the log, on each replica;
    so their means and the mean times inside agree as Little's law says."""
    log = simulate(chain(2, attempt_timeout_s=None), engine="kernel").log
    assert len(log.samples) > 1000
    for replica in (0, 1):
        mine = log.calls[log.calls["replica"] == replica]
        gauge = log.samples[log.samples["replica"] == replica]
        came, left = (
            np.searchsorted(np.sort(mine[name]), gauge["t"], side="right")
            for name in ("queued", "end")
        )
        assert np.array_equal(gauge["running"] + gauge["waiting"], came - left)
        assert (gauge["waiting"] > 0).any()


def test_the_utilisation_law_is_exact():
    """Time in steps = steps x their length, one slot: U = X S."""
    rng = np.random.default_rng(3)
    tokens = rng.geometric(1 / 20, COUNT)
    model = engine(step_model(base=UNIT_S / 20), seqs=1)
    made = stream_of(poisson(rng, 0.8, COUNT), calls(1, tokens))
    log = simulate(Scenario(made, served_by([], engine=model)), engine="kernel").log
    assert log.samples["busy"][-1] == tokens.sum() * ticks(UNIT_S / 20)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_load_never_shortens_the_mean_wait(seed):
    """Common random numbers: the same calls, with ever more others among them."""
    rng = np.random.default_rng(seed)
    arrivals, lengths = poisson(rng, 1.0, COUNT), rng.integers(1, 200, (2, COUNT))
    rank = rng.random(COUNT)
    model = engine(step_model(base=UNIT_S / 50, per_decode=2e-5, token=1e-6), seqs=4, blocks=80)
    means = []
    for share in (0.4, 0.6, 0.8, 1.0):
        chosen = rank < share
        made = stream_of(arrivals[chosen], calls(*lengths[:, chosen]))
        run = simulate(Scenario(made, served_by([], engine=model)), engine="kernel")
        means.append(call_waits(run)[rank[chosen] < 0.4].mean())
    assert means == sorted(means)
    assert means[-1] > 2 * means[0]


@pytest.mark.parametrize("seed", range(4))
def test_more_kv_never_lowers_throughput(seed):
    """First come first served, a backlog, steps with a fixed cost: over sooner the more fit."""
    rng = np.random.default_rng(seed)
    made = stream_of(np.zeros(4000), calls(*rng.integers(1, 200, (2, 4000))))
    ends, preempted = [], []
    for blocks in (26, 40, 80, 160, 320, 640, 100_000):
        model = engine(step_model(token=2e-5, per_decode=1e-4), blocks=blocks)
        run = simulate(Scenario(made, served_by([], engine=model)), engine="kernel")
        assert run.counts["ok"] == 4000
        ends.append(run.end_s)
        preempted.append(int(run.log.calls["preemptions"].sum()))
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < ends[0] / 2
    assert preempted[0] > 100
    assert preempted[-1] == 0


def test_the_same_seed_gives_the_same_bytes():
    """And another seed other luck."""
    first, again, other = (
        simulate(Scenario(made.stream, made.fleet, seed), engine="kernel").log
        for made, seed in ((chain(4), 4), (chain(4), 4), (chain(4), 5))
    )
    for name in ("ends", "calls", "visits", "attempts", "samples", "changes"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    assert not first.same(other)


def test_priority_to_nobody_is_first_come_first_served():
    """With one priority for all the order of the queue is that of arrival."""
    rng = np.random.default_rng(6)
    made = stream_of(poisson(rng, 1.2, COUNT), calls(*rng.integers(1, 100, (2, COUNT))))
    logs = []
    for order in (Order.FCFS, Order.PRIORITY):
        model = engine(
            step_model(base=UNIT_S / 100), seqs=4, blocks=16, scheduler=Scheduler(order=order)
        )
        logs.append(simulate(Scenario(made, served_by([], engine=model)), engine="kernel").log)
    assert of_place(logs[0].calls)["preemptions"].sum() > 10
    assert logs[0].same(logs[1])
