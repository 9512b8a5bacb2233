"""Admission, degrade ladder and autoscaler."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import engine, station, step_model
from tests.theory.closed_forms import birth_death, mmck
from tests.theory.running import (
    MORE,
    UNIT_S,
    agrees,
    calls,
    poisson,
    replicated,
    served_by,
    steady,
    stream_of,
    units,
    visits,
    waits,
)

from sojourn.capacity.policies import (
    Admission,
    AdmissionPolicy,
    Autoscaler,
    Ladder,
    LoadMetric,
    Rung,
    ScaleMetric,
)
from sojourn.sim.log import DRAINING, LEVEL, READY, SHED
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate


def gate(rate, servers, **admission):
    policies = {"admission": Admission(metric=LoadMetric.IN_FLIGHT, **admission)}
    the_fleet = served_by([station("s", servers)], policies=policies)

    def make(rng, count):
        arrivals = poisson(rng, rate, count)
        return Scenario(stream_of(arrivals, visits("s", rng.exponential(1.0, count))), the_fleet)

    return make


def shed(run):
    return np.mean(steady(run.log.ends["status"]) == SHED)


@pytest.mark.parametrize(("servers", "room"), [(1, 4), (3, 6)])
def test_a_threshold_is_mmck(servers, room):
    """A request counts itself: with `high` K + 1, K get in."""
    rate = 0.95 * servers

    def measure(run):
        return shed(run), steady(waits(run)).mean()

    make = gate(rate, servers, policy=AdmissionPolicy.THRESHOLD, high=room + 1)
    lost, mean = replicated(make, measure, seed=700)
    right, wrong = mmck(rate, servers, room), mmck(MORE * rate, servers, room)
    agrees(lost, right[0], unlike=[wrong[0], mmck(rate, servers, room + 1)[0]])
    agrees(mean, right[1], unlike=wrong[1])


def test_probabilistic_admission_is_a_birth_and_death_process():
    """Let in with probability 1 - (n + 1 - low) / (high - low), n before it: births thin out."""
    rate, servers, low, high = 3.0, 2, 2.0, 8.0

    def expected(load):
        before = np.arange(int(high))
        lets_in = np.clip(1 - (before + 1 - low) / (high - low), 0, 1)
        p = birth_death(load * lets_in[:-1], np.minimum(before[1:], servers))
        return float(p @ (1 - lets_in))

    make = gate(rate, servers, policy=AdmissionPolicy.PROBABILISTIC, low=low, high=high)
    (lost,) = replicated(make, shed, seed=710)
    agrees(lost, expected(rate), unlike=expected(MORE * rate))


def ladder_of(bands, every):
    """A ladder that changes nothing (nobody retries): the load does not depend on it."""
    rungs = tuple(Rung(above=up, below=down, max_attempts=1) for up, down in bands)
    return {"ladder": Ladder(metric=LoadMetric.IN_FLIGHT, every_s=every * UNIT_S, rungs=rungs)}


def levels(run):
    rows = run.log.changes[run.log.changes["what"] == LEVEL]
    return list(zip(units(rows["t"]).tolist(), rows["which"].tolist(), strict=True))


def climbed(times, in_flight, bands):
    """The hysteresis by itself: one rung at a time, up at `above`, down under `below`."""
    found, level = [], 0
    for t, n in zip(times.tolist(), in_flight.tolist(), strict=True):
        if level < len(bands) and n >= bands[level][0]:
            level += 1
        elif level > 0 and n < bands[level - 1][1]:
            level -= 1
        else:
            continue
        found.append((t, level))
    return found


@pytest.mark.parametrize("bands", [[(24, 16)], [(22, 18), (26, 20), (30, 24)]])
def test_the_ladder_is_its_hysteresis(bands):
    """M/G/infinity around 20 in flight, known from arrivals and service alone."""
    rng = np.random.default_rng(720)
    every, count = 0.5, 40_000
    arrivals, work = poisson(rng, 20.0, count), rng.exponential(1.0, count)
    the_fleet = served_by([station("s", None)], policies=ladder_of(bands, every))
    run = simulate(Scenario(stream_of(arrivals, visits("s", work)), the_fleet), engine="kernel")
    leaves = np.sort(arrivals + work)
    times = np.arange(1, int(leaves[-1] / every) + 2) * every
    in_flight = np.searchsorted(arrivals, times) - np.searchsorted(leaves, times)
    expected, found = climbed(times, in_flight, bands), levels(run)
    assert [level for _, level in found] == [level for _, level in expected]
    np.testing.assert_allclose([t for t, _ in found], [t for t, _ in expected], atol=1e-9)
    assert len(found) > 100


def test_the_ladder_does_not_flap_inside_its_band():
    """A burst lifts the load over `above`; then it swings between 12 and 18, inside the band (10,
    20), until it ends: one climb, one descent. Without a band it flaps all the time."""
    swing = np.concatenate([np.arange(30), np.full(10, 0.0)])  # 25 and more at the start
    beats = np.arange(1, 200)
    arrivals = np.concatenate([np.sort(swing) / 1000, np.repeat(2.0 * beats, 6) + 0.25])
    base = np.arange(12) / 1000  # twelve that stay to the end
    every = stream_of(
        np.sort(np.concatenate([base, arrivals])),
        visits("s", np.concatenate([np.full(12, 401.0), np.full(40, 1.5), np.full(199 * 6, 1.0)])),
    )
    changes = {}
    for name, band in (("band", (20, 10)), ("none", (15, 15))):
        the_fleet = served_by([station("s", None)], policies=ladder_of([band], 0.5))
        changes[name] = levels(simulate(Scenario(every, the_fleet), engine="kernel"))
    assert [level for _, level in changes["band"]] == [1, 0]
    assert changes["band"][1][0] > 398
    assert len(changes["none"]) > 350


@pytest.mark.parametrize(("load", "begins"), [(10.5, 1), (22.5, 20), (36.5, 1), (1.5, 20)])
@pytest.mark.parametrize("metric", [ScaleMetric.OUTSTANDING, ScaleMetric.RUNNING])
def test_the_autoscaler_reaches_the_load_over_its_target(load, begins, metric):
    """`load` calls of constant time in flight (10 and 11 by turns where it is 10.5), target 4:
    ceil(load / 4) replicas, from below and from above, and then nothing changes any more."""
    target, tokens, count = 4.0, 50, int(60 * load)
    scaler = Autoscaler(
        metric=metric, target=target, every_s=UNIT_S, cold_start_s=0.5 * UNIT_S, most=20,
        scale_down_after_s=2 * UNIT_S, tolerance=0.0,
    )  # fmt: skip
    model = engine(step_model(base=UNIT_S / tokens), replicas=begins, seqs=200, autoscaler=scaler)
    made = stream_of(np.arange(count) / load + 1e-3, calls(1, tokens))
    log = simulate(Scenario(made, served_by([], engine=model)), engine="kernel").log
    came = units(log.changes["t"])
    running = log.changes[came < 55]
    ready, draining = (int((running["what"] == what).sum()) for what in (READY, DRAINING))
    assert begins + ready - draining == np.ceil(load / target)
    assert not ((came > 30) & (came < 55)).any()
