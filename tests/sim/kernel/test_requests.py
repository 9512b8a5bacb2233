"""Clients, attempts, retries and budgets, to the tick."""

from __future__ import annotations

import pytest
from tests.sim.kernel.plans import (
    call,
    capped,
    closed,
    delay,
    ints,
    ladder,
    lowered,
    retry,
    rows,
    rung,
    station,
    visit,
)

from sojourn.sim.log import (
    CANCELLED,
    ERROR,
    FIRST_SKIP,
    OK,
    PARTIAL_ANSWER,
    SHED,
    SHORT_ANSWER,
    TIMEOUT,
)
from sojourn.sim.luck import BACKOFF, draw, uniform


def attempts(log):
    return rows(log.attempts, "request", "attempt", "started", "ended", "backoff", "status")


def test_a_request_without_steps_ends_as_it_arrives(run):
    log = run(lowered([[], [delay(4)]], [3, 3]))
    assert rows(log.ends, "arrival", "end", "attempts", "status") == [(3, 3, 1, OK), (3, 7, 1, OK)]
    assert attempts(log) == [(0, 0, 3, 3, -1, OK), (1, 0, 3, 7, -1, OK)]


def test_a_cap_holds_requests_back_in_their_order(run):
    log = run(lowered([[delay(10)]] * 4, [0, 0, 5, 10], client=capped(1)))
    assert rows(log.attempts, "request", "started") == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert rows(log.ends, "arrival", "end") == [(0, 10), (0, 20), (5, 30), (10, 40)]


def test_clients_of_a_closed_loop_think_between_requests(run):
    plan = lowered([[delay(10)]] * 5, [0] * 5, client=closed(2, think=(5,)))
    log = run(plan)
    assert rows(log.ends, "arrival", "end") == [(0, 10), (0, 10), (15, 25), (15, 25), (30, 40)]


@pytest.mark.parametrize(
    ("budget", "count"), [({"budget_gain": -1}, 6), ({"budget_gain": 0, "budget_most": 2500}, 4)]
)
def test_a_budget_limits_the_retries_of_all(run, budget, count):
    """Three requests wait for one that holds the only server; each is refused twice."""
    plan = retry(most=2, on_error=True, backoff=ints([10, 10]), **budget)
    programs = [[visit(1000)], *[[visit(1)]] * 3]
    none_waits = station(queue_limit=0)
    log = run(lowered(programs, [0, 1, 2, 3], stations=[none_waits], servers=[1], retry=plan))
    refused = [a for a in attempts(log) if a[5] == ERROR]
    assert len(refused) == count if budget["budget_gain"] < 0 else len(refused) == count + 1
    assert [a[4] for a in refused[:3]] == [10, 10, 10 if count == 6 else -1]


def test_a_success_fills_the_budget_up_to_its_most(run):
    plan = retry(most=2, on_error=True, budget_gain=600, budget_most=1000, backoff=ints([10, 10]))
    none_waits = station(queue_limit=0)
    programs = [[visit(100)], [visit(1)], [visit(1)], [delay(1)], [visit(1)]]
    log = run(
        lowered(
            programs, [0, 1, 2, 3, 5], stations=[none_waits], servers=[1], retry=plan,
        )
    )  # fmt: skip
    waits = {(a[0], a[1]): a[4] for a in attempts(log)}
    assert [waits[r, 0] for r in (1, 2, 4)] == [10, -1, -1]
    programs.append([delay(1)])
    programs.append([visit(1)])
    log = run(
        lowered(
            programs, [0, 1, 2, 3, 5, 6, 8], stations=[none_waits], servers=[1], retry=plan,
        )
    )  # fmt: skip
    assert {(a[0], a[1]): a[4] for a in attempts(log)}[6, 0] == 10


def test_a_backoff_is_jittered_by_the_draw_of_its_attempt(run):
    plan = retry(timeout=50, most=3, backoff=ints([1000, 2000]), jitter=0.5)
    log = run(lowered([[delay(100)]], [0], retry=plan))
    waits = [a[4] for a in attempts(log)]
    expected = [
        round(wait * (1.0 + 0.5 * (2.0 * uniform(draw(7, 1, k + 1, 0, BACKOFF)) - 1.0)))
        for k, wait in enumerate([1000, 2000])
    ]
    assert waits == [*expected, -1]
    assert rows(log.ends, "end", "attempts", "status") == [(150 + sum(expected), 3, TIMEOUT)]


def test_a_deadline_may_end_in_a_partial_answer(run):
    plan = retry(timeout=50, most=3, degrade=True)
    log = run(lowered([[delay(100)]], [0], retry=plan))
    assert rows(log.visits, "ended", "status") == [(50, CANCELLED)]
    assert attempts(log) == [(0, 0, 0, 50, -1, TIMEOUT)]
    assert rows(log.ends, "end", "status", "degraded") == [(50, OK, 1 << PARTIAL_ANSWER)]


@pytest.mark.parametrize(("on_timeout", "count"), [(True, 3), (False, 1)])
def test_timeouts_are_retried_only_if_asked(run, on_timeout, count):
    plan = retry(timeout=50, most=3, on_timeout=on_timeout)
    log = run(lowered([[delay(100)]], [0], retry=plan))
    assert len(log.attempts) == count


def test_rungs_in_force_cut_attempts_output_and_stations_and_shed(run):
    """From tick 100 on, two requests in flight: the rung holds."""
    hard = rung(2.0, 1.0, skip=0b10, output=2, attempts=1, shed_from=5)
    plan = retry(timeout=400, most=2)
    both = [delay(300), delay(300)]
    program = [visit(5), visit(7, station=1), call(4, 9, group=1), delay(1000, group=2)]
    log = run(
        lowered(
            [both, both, program, [delay(1)]], [0, 0, 150, 160], priorities=[0, 0, 0, 5],
            stations=[station(0), station(1)], servers=[-1, -1], ladder=ladder(hard), retry=plan,
        )
    )  # fmt: skip
    assert rows(log.changes, "t", "which")[0] == (100, 1)
    assert (2, 0, 150, 550, -1, TIMEOUT) in attempts(log)
    assert (3, 0, 160, 160, -1, SHED) in attempts(log)
    assert rows(log.ends, "degraded")[2] == (1 << FIRST_SKIP + 1 | 1 << SHORT_ANSWER,)
    assert rows(log.calls, "written", "end") == [(2, 155 + 14 + 10)]
    assert rows(log.visits, "request", "place", "status")[-1] == (2, 3, CANCELLED)
