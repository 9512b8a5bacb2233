"""The tests of this folder can fail, and their intervals are as wide as they say."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import station
from tests.theory.running import (
    MORE,
    agrees,
    poisson,
    replicated,
    served_by,
    steady,
    stream_of,
    visits,
    waits,
)

from sojourn.capacity.queueing import erlang_c, mm1_wait, mmc_wait
from sojourn.sim.estimates import student
from sojourn.sim.scenario import Scenario


def station_of(rate, servers):
    the_fleet = served_by([station("s", servers)])

    def make(rng, count):
        arrivals = poisson(rng, rate, count)
        return Scenario(stream_of(arrivals, visits("s", rng.exponential(1.0, count))), the_fleet)

    return make


@pytest.mark.parametrize(("rate", "servers"), [(0.7, 1), (2.25, 3)])
def test_a_run_at_three_per_cent_more_load_is_refused(rate, servers):
    """The simulator at 1.03 lambda against theory at lambda; and at lambda with one service time in
    thirty a little longer (3% more work)."""

    def measure(run):
        found = steady(waits(run))
        return found.mean(), (found > 0).mean()

    mean, waiting = replicated(station_of(MORE * rate, servers), measure, seed=900)
    with pytest.raises(AssertionError, match="in theory"):
        agrees(mean, mmc_wait(rate, 1, servers), unlike=[])
    with pytest.raises(AssertionError, match="in theory"):
        agrees(waiting, erlang_c(servers, rate), unlike=[])
    with pytest.raises(AssertionError, match="could not fail"):
        agrees(mean, mmc_wait(MORE * rate, 1, servers), unlike=mean.mean())


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 80 intervals of 80% (8 runs each), 64 +- 3.6 hold the mean wait of M/M/1: 50 to 77 but for
    one seed in ten thousand. A warm-up left in, or a wrong t, would show."""
    groups, runs, confidence = 80, 8, 0.8
    (found,) = replicated(
        station_of(0.5, 1), lambda run: steady(waits(run)).mean(), seed=910,
        runs=groups * runs, count=2000,
    )  # fmt: skip
    truth = mm1_wait(0.5, 1)
    intervals = [student(group, confidence) for group in found.reshape(groups, runs)]
    held = sum(interval.low <= truth <= interval.high for interval in intervals)
    assert 50 <= held <= 77
    assert np.isclose(found.mean(), truth, rtol=0.01)
