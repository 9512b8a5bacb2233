"""Steps of one group begin together, and the request goes on when the last is done."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.making import station
from tests.theory.closed_forms import (
    fork_join_about,
    fork_join_bounds,
    fork_join_two,
    harmonic,
)
from tests.theory.running import (
    MORE,
    above,
    agrees,
    poisson,
    replicated,
    served_by,
    stays,
    steady,
    stream_of,
    visits,
)

from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

NAMES = "abcdefgh"


def branches(rate, width, servers=1):
    the_fleet = served_by([station(name, servers) for name in NAMES[:width]])

    def make(rng, count):
        work = rng.exponential(1.0, (width, count))
        steps = [visits(name, w) for name, w in zip(NAMES, work, strict=False)]
        return Scenario(stream_of(poisson(rng, rate, count), *steps), the_fleet)

    return make


def mean_stay(run):
    return steady(stays(run)).mean()


@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_two_branches(rate):
    """T = (12 - rho) / 8 x 1 / (mu - lambda), exactly."""
    (mean,) = replicated(branches(rate, 2), mean_stay, seed=301)
    agrees(mean, fork_join_two(rate), unlike=[fork_join_two(MORE * rate), 1.5 / (1 - rate)])


@pytest.mark.parametrize("width", [3, 8])
def test_many_branches_lie_between_their_bounds(width):
    """Below independent branches, above those of deterministic arrivals, and within the 5% that
    Nelson and Tantawi claim for their scaled form."""
    rate = 0.6
    count = 40_000 if width == 3 else 20_000
    (mean,) = replicated(branches(rate, width), mean_stay, seed=310 + width, count=count)
    low, high = fork_join_bounds(rate, width)
    above(mean, low)
    above(-mean, -high)
    about = fork_join_about(rate, width)
    above(mean, 0.95 * about)
    above(-mean, -1.05 * about)


def test_without_queues_it_is_the_longest_branch():
    """The longest of n exponential times is H_n in the mean."""
    (mean,) = replicated(branches(1.0, 5, None), mean_stay, seed=320, runs=12, count=20_000)
    agrees(mean, harmonic(5), unlike=[0.99 * harmonic(5), harmonic(4)])
    found = branches(1.0, 5, None)(np.random.default_rng(321), 500)
    longest = found.stream.steps.column("service_s").to_numpy().reshape(-1, 5).max(axis=1)
    ends = simulate(found, engine="kernel").outcomes
    np.testing.assert_allclose(ends.end_s - ends.arrival_s, longest, atol=1e-9)
