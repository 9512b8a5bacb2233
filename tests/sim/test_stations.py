"""Stations, their limits, and callers who give up; to the tick."""

import pytest
from tests.sim.making import delay, fleet, log_of, scenario, station, told, visit

from sojourn.sim.log import CANCELLED, ERROR, FIRST_SKIP, OK, TIMEOUT
from sojourn.sim.lowering import lower
from sojourn.sim.luck import SERVICE, draw, pick
from sojourn.sim.simulate import ENGINES
from sojourn.sim.ticks import PER_S, ticks

pytestmark = pytest.mark.parametrize("kind", sorted(ENGINES))


def run(kind, arrivals, services, model, **retry):
    made = scenario(arrivals, [[visit("s", s)] for s in services], fleet(stations=[model], **retry))
    return log_of(made, kind)


def rows(log):
    return told(log.visits, "started", "ended", "status")


def test_first_come_first_served(kind):
    log = run(kind, [0, 0, 0.5, 0.625], [3, 1, 1, 1], station("s", 2))
    assert rows(log) == [(0, 3, OK), (0, 1, OK), (1, 2, OK), (2, 3, OK)]


def test_without_a_limit_everyone_is_served_at_once(kind):
    log = run(kind, [0, 0, 0], [2, 2, 2], station("s", None))
    assert rows(log) == [(0, 2, OK)] * 3


@pytest.mark.parametrize(("stops", "begins"), [(False, 3.0), (True, 1.0)])
def test_a_service_whose_caller_has_gone_runs_on_unless_the_station_stops(kind, stops, begins):
    model = station("s", 1, stops_on_cancel=stops)
    log = run(kind, [0, 0.75], [3, 0.125], model, attempt_timeout_s=1.0)
    second = (begins, begins + 0.125, OK) if stops else (None, 1.75, CANCELLED)
    assert rows(log) == [(0, 1, CANCELLED), second]
    assert log.ends["status"].tolist() == [TIMEOUT, OK if stops else TIMEOUT]


@pytest.mark.parametrize("stops", [False, True])
def test_a_caller_that_gives_up_in_the_queue_leaves_it(kind, stops):
    model = station("s", 1, stops_on_cancel=stops, timeout_s=2.5)
    log = run(kind, [0, 0.125, 1], [2.25, 2, 0.25], model)
    # the second is served from 2.25 but given up at 2.625; its server works to 4.25
    third = (2.625, 2.875, OK) if stops else (None, 3.5, TIMEOUT)
    assert rows(log) == [(0, 2.25, OK), (2.25, 2.625, TIMEOUT), third]


def test_a_queue_limit_refuses_at_once(kind):
    log = run(kind, [0, 0.25, 0.5, 1.25], [1, 1, 1, 1], station("s", 1, queue_limit=1))
    assert rows(log) == [(0, 1, OK), (1, 2, OK), (None, 0.5, ERROR), (2, 3, OK)]
    assert log.ends["status"].tolist() == [OK, OK, ERROR, OK]
    log = run(kind, [0, 0.25], [1, 1], station("s", 1, queue_limit=0))
    assert rows(log) == [(0, 1, OK), (None, 0.25, ERROR)]


def test_a_rate_limit_lets_a_burst_through(kind):
    """A visit a second, two at once: theoretical arrival times 1, 2, -, 3, -, 5."""
    arrivals = [0, 0, 0, 1, 1.5, 4]
    log = run(kind, arrivals, [0] * 6, station("s", None, rate_per_s=1.0, burst=2))
    assert log.ends["status"].tolist() == [OK, OK, ERROR, OK, ERROR, OK]


def test_a_visit_refused_by_the_queue_counts_against_the_rate(kind):
    """The second asks at 1, is let through by the rate and refused by the queue; the third, at
    1.5, is over the rate."""
    model = station("s", 1, rate_per_s=1.0, queue_limit=0)
    log = run(kind, [0, 1, 1.5, 2], [9, 1, 1, 1], model)
    assert log.ends["status"].tolist() == [OK, ERROR, ERROR, ERROR]
    free = station("s", None, rate_per_s=1.0, queue_limit=0)
    log = run(kind, [0, 1, 1.5, 2], [9, 1, 1, 1], free)
    assert log.ends["status"].tolist() == [OK, OK, ERROR, OK]


def test_an_optional_station_is_left_out_when_refused(kind):
    model = station("s", 1, queue_limit=0, optional=True)
    made = scenario(
        [0, 0.5], [[visit("s", 2)], [visit("s", 2), delay(0.25, group=1)]], fleet(stations=[model])
    )
    log = log_of(made, kind)
    assert told(log.ends, "end", "degraded", "status") == [
        (2.0, 0, OK), (0.75, 1 << FIRST_SKIP, OK),
    ]  # fmt: skip


def test_a_station_of_another_name_shares_the_queue_not_the_limit(kind):
    tools = [
        station("a", 1, pool="tools"),
        station("b", 1, pool="tools", queue_limit=1, timeout_s=1.5),
    ]
    programs = [[visit("a", 1)], [visit("a", 1)], [visit("b", 1)]]
    log = log_of(scenario([0, 0.25, 0.5], programs, fleet(stations=tools)), kind)
    assert rows(log) == [(0, 1, OK), (1, 2, OK), (None, 0.5, ERROR)]


def test_a_retry_draws_from_the_samples_at_the_level_of_its_time(kind):
    """The second attempt begins at 1, when work takes 1.7 times the samples, and is drawn anew."""
    samples = (0.125, 0.25, 0.375, 0.5)
    model = station("s", None, samples=samples, drift=((-9.0, 3.0), (0.75, 1.7), (5.0, 9.0)))
    made = scenario([0.0], [[visit("s", 9)]], fleet(stations=[model], attempt_timeout_s=1.0,
                    max_attempts=2), seed=3)  # fmt: skip
    lowered = lower(made)
    luck = draw(3, int(lowered.requests.identity[0]), 1, 0, SERVICE)
    drawn = round(pick([ticks(s) for s in samples], luck) * 1.7)
    visits = log_of(made, kind).visits
    assert visits["started"].tolist() == [0, PER_S]
    assert int(visits["ended"][1]) == PER_S + drawn


def test_before_the_first_level_of_a_drift_it_counts_already(kind):
    model = station("s", None, samples=(0.25,), drift=((100.0, 2.0),))
    log = run(kind, [0.0], [9], model, attempt_timeout_s=1.0, max_attempts=2)
    assert rows(log) == [(0, 1, CANCELLED), (1, 1.5, OK)]
