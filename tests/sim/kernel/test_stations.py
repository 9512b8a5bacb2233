"""Visits: queues, limits, time limits and giving up, to the tick."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.kernel.plans import delay, ints, lowered, retry, rows, station, visit

from sojourn.sim.log import CANCELLED, ERROR, FIRST_SKIP, OK, TIMEOUT


def visits(log):
    return rows(log.visits, "request", "entered", "started", "ended", "status")


def test_one_server_serves_in_the_order_of_arrival(run):
    log = run(lowered([[visit(10)]] * 3, [0, 1, 2], stations=[station()], servers=[1]))
    assert visits(log) == [(0, 0, 0, 10, OK), (1, 1, 10, 20, OK), (2, 2, 20, 30, OK)]
    assert rows(log.ends, "arrival", "end", "status") == [(0, 10, OK), (1, 20, OK), (2, 30, OK)]


def test_stations_of_one_worker_pool_share_its_queue(run):
    programs = [[visit(10)], [visit(10, station=1)]]
    log = run(lowered(programs, [0, 1], stations=[station(), station()], servers=[1]))
    assert visits(log) == [(0, 0, 0, 10, OK), (1, 1, 10, 20, OK)]


def test_without_limit_nobody_waits(run):
    log = run(lowered([[visit(10)]] * 3, [0, 0, 0], stations=[station()], servers=[-1]))
    assert visits(log) == [(r, 0, 0, 10, OK) for r in range(3)]


def test_a_rate_limit_lets_a_burst_pass_and_then_its_rate(run):
    limited = station(interval=10, burst=2)
    arrivals = [0, 0, 0, 5, 15, 20]
    log = run(lowered([[visit(1)]] * 6, arrivals, stations=[limited], servers=[-1]))
    assert [s for (s,) in rows(log.ends, "status")] == [OK, OK, ERROR, ERROR, OK, OK]
    assert (2, 0, -1, 0, ERROR) in visits(log)


@pytest.mark.parametrize("optional", [True, False])
def test_a_full_queue_refuses_and_an_optional_station_is_done_without(run, optional):
    full = station(queue_limit=1, optional=optional)
    programs = [[visit(10), delay(3, group=1)]] * 3
    log = run(lowered(programs, [0, 1, 2], stations=[full], servers=[1]))
    assert (2, 2, -1, 2, ERROR) in visits(log)
    last = rows(log.ends, "end", "status", "degraded")[2]
    assert last == ((5, OK, 1 << FIRST_SKIP) if optional else (2, ERROR, 0))


@pytest.mark.parametrize(("stops", "third"), [(False, (2, 7, 10, 12)), (True, (2, 7, 7, 12))])
def test_a_server_works_on_for_nobody_unless_it_stops(run, stops, third):
    limited = station(timeout=5, stops=stops)
    log = run(lowered([[visit(10)]] * 3, [0, 1, 7], stations=[limited], servers=[1]))
    second = (1, 1, 5, 6, TIMEOUT) if stops else (1, 1, -1, 6, TIMEOUT)
    assert visits(log) == [(0, 0, 0, 5, TIMEOUT), second, (*third, TIMEOUT)]


def test_work_that_ends_at_its_time_limit_is_in_time(run):
    log = run(lowered([[visit(5)]], [0], stations=[station(timeout=5)], servers=[1]))
    assert visits(log) == [(0, 0, 0, 5, OK)]


def test_a_group_waits_for_its_last_step(run):
    program = [visit(10), visit(4, station=1), delay(3, group=1)]
    log = run(lowered([program], [0], stations=[station(0), station(1)], servers=[1, 1]))
    assert rows(log.visits, "place", "entered", "ended") == [(1, 0, 4), (0, 0, 10), (2, 10, 13)]


def test_a_step_that_fails_cancels_the_others_in_the_order_of_their_place(run):
    stations = [station(0), station(1, timeout=5), station(2)]
    program = [visit(100), visit(100, station=1), visit(100, station=2), delay(50)]
    log = run(lowered([program], [0], stations=stations, servers=[1, 1, 1]))
    assert rows(log.visits, "place", "ended", "status") == [
        (1, 5, TIMEOUT), (0, 5, CANCELLED), (2, 5, CANCELLED), (3, 5, CANCELLED),
    ]  # fmt: skip
    assert rows(log.attempts, "started", "ended", "backoff", "status") == [(0, 5, -1, TIMEOUT)]


def test_a_server_that_stops_takes_the_next_even_of_the_attempt_that_ends(run):
    stations = [station(0, stops=True), station(1, timeout=5)]
    program = [visit(100), visit(100), visit(100, station=1)]
    log = run(lowered([program], [0], stations=stations, servers=[1, 1]))
    assert rows(log.visits, "place", "started", "status") == [
        (2, 0, TIMEOUT), (0, 0, CANCELLED), (1, 5, CANCELLED),
    ]  # fmt: skip


def test_a_repeated_visit_draws_its_time_which_drifts(run):
    drifting = station(
        samples=ints([20]), drift_start=ints([0, 100, 1000]), drift_factor=np.array([1, 1.5, 9])
    )
    plan = retry(timeout=30, most=2)
    log = run(lowered([[visit(100)]], [0], stations=[drifting], servers=[-1], retry=plan))
    assert visits(log) == [(0, 0, 0, 30, CANCELLED), (0, 130, 130, 160, OK)]
