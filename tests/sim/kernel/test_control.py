"""Ladder, admission, autoscaler and samples, to the tick."""

from __future__ import annotations

import pytest
from tests.sim.kernel.plans import (
    PREDICTED_MISS,
    PROBABILISTIC,
    THRESHOLD,
    admission,
    call,
    delay,
    ladder,
    lowered,
    pool,
    rows,
    rung,
    scaler,
)

from sojourn.capacity.policies import LoadMetric, ScaleMetric
from sojourn.sim.log import (
    DRAINING,
    LEVEL,
    OK,
    READY,
    SHED,
    STARTING,
    STOPPED,
)
from sojourn.sim.luck import SHED as SHED_DRAW
from sojourn.sim.luck import draw, uniform


def statuses(log):
    return [status for (status,) in rows(log.ends, "status")]


def changes(log):
    return rows(log.changes, "t", "what", "which")


def test_the_ladder_climbs_and_descends_one_rung_at_a_time(run):
    rungs = [rung(2.0, 2.0), rung(3.0, 2.5)]
    programs = [[delay(450)], [delay(450)], [delay(250)], [delay(850)]]
    log = run(lowered(programs, [0, 0, 0, 0], ladder=ladder(*rungs)))
    assert changes(log) == [(100, LEVEL, 1), (200, LEVEL, 2), (500, LEVEL, 1), (600, LEVEL, 0)]


def test_the_ladder_may_look_at_those_that_wait_per_active_replica(run):
    """One runs in each of two replicas, three wait: 1.5 per replica."""
    metric = {"metric": LoadMetric.WAITING, "every": 10}
    for above, times in ((1.5, [10]), (1.6, [])):
        log = run(
            lowered(
                [[call(90, 1)]] * 5, [0] * 5,
                pools=[pool(replicas=2, seqs=1, budget=128)],
                ladder=ladder(rung(above, 0.0), **metric),
            )
        )  # fmt: skip
        assert [t for t, _, _ in changes(log)] == times


def test_a_threshold_sheds_from_the_metric_on(run):
    gate = admission(THRESHOLD, high=3.0)
    log = run(lowered([[delay(100)]] * 4, [0, 1, 2, 150], admission=gate))
    assert statuses(log) == [OK, OK, SHED, OK]
    assert rows(log.attempts, "request", "started", "ended", "status")[0] == (2, 2, 2, SHED)


def test_probabilistic_shedding_is_the_draw_of_the_attempt(run):
    count = 40
    gate = admission(PROBABILISTIC, low=0.0, high=2.0)
    log = run(lowered([[delay(1)]] * count, [10 * r for r in range(count)], admission=gate))
    expected = [
        SHED if uniform(draw(7, r + 1, 0, 0, SHED_DRAW)) < 0.5 else OK for r in range(count)
    ]
    assert statuses(log) == expected
    assert {OK, SHED} == set(expected)


def test_a_predicted_miss_is_shed(run):
    """One at a time, 14 ticks each: the gap is 14, two wait at tick 30."""
    programs = [[call()]] * 4
    for wait, last in ((28, OK), (27, SHED)):
        log = run(
            lowered(
                [*programs, [call()]], [0, 0, 0, 0, 15], pools=[pool(seqs=1)],
                admission=admission(PREDICTED_MISS, wait=wait),
            )
        )  # fmt: skip
        assert statuses(log)[:4] == [OK] * 4
        assert statuses(log)[4] == last


def test_an_autoscaler_starts_what_is_wanted_and_drains_the_highest(run):
    pools = [pool(replicas=1, room=3, scaler=scaler())]
    programs = [*[[call(4, 50)]] * 3, [call(4, 100)], [delay(1000)]]
    log = run(lowered(programs, [0, 0, 0, 160, 0], pools=pools))
    ended = 160 + 14 + 990
    assert rows(log.calls, "request", "replica", "end")[-1] == (3, 1, ended)
    assert changes(log) == [
        (100, STARTING, 1), (100, STARTING, 2), (150, READY, 1), (150, READY, 2),
        (600, DRAINING, 2), (600, STOPPED, 2), (600, DRAINING, 1), (ended, STOPPED, 1),
    ]  # fmt: skip


def test_a_draining_replica_is_the_first_to_serve_again(run):
    programs = [[call(4, 60)], [call(4, 60)], *[[call(4, 20)]] * 3]
    pools = [pool(replicas=2, room=3, scaler=scaler(target=2000, cold_start=0))]
    log = run(lowered(programs, [0, 0, 150, 150, 150], pools=pools))
    assert changes(log)[:3] == [(100, DRAINING, 1), (200, READY, 1), (200, STARTING, 2)]


@pytest.mark.parametrize(("after", "time"), [(0, 100), (150, 300), (200, 300)])
def test_fewer_replicas_are_wanted_for_a_while_before_one_drains(run, after, time):
    pools = [pool(replicas=2, scaler=scaler(target=5000, after=after))]
    log = run(lowered([[delay(1000)]], [0], pools=pools))
    assert changes(log)[:2] == [(time, DRAINING, 1), (time, STOPPED, 1)]


@pytest.mark.parametrize(
    ("metric", "target", "wanted"),
    [
        (ScaleMetric.WAITING, 1000, 3),  # 3 wait
        (ScaleMetric.RUNNING, 1000, 1),  # 1 runs
        (ScaleMetric.OUTSTANDING, 2000, 2),
        (ScaleMetric.KV_USAGE, 100, 3),  # 16 of 64 blocks: 250 thousandths
    ],
)
def test_what_an_autoscaler_looks_at(run, metric, target, wanted):
    wish = scaler(metric, target=target, every=50, most=4)
    pools = [pool(replicas=1, room=4, seqs=1, scaler=wish)]
    log = run(lowered([[call(62, 1)]] * 4, [0] * 4, pools=pools))
    started = [w for t, what, w in changes(log) if what == STARTING and t == 50]
    assert started == list(range(1, wanted))


def test_samples_are_the_gauges_of_that_time(run):
    """Prompts of 4 and 8 in one step: 22 ticks; then decodes, 10 ticks each."""
    log = run(lowered([[call(4, 4)], [call(8, 3)], [call(4, 1)]], [0, 0, 65], sample_every=15))
    assert rows(
        log.samples, "t", "busy", "running", "waiting", "used_blocks", "prompt_tokens",
        "written_tokens", "query_tokens",
    ) == [
        (15, 15, 2, 0, 3, 0, 0, 12), (30, 30, 2, 0, 5, 12, 2, 12), (45, 45, 1, 0, 2, 12, 6, 12),
        (60, 52, 0, 0, 0, 12, 7, 12), (75, 62, 1, 0, 1, 12, 7, 16),
    ]  # fmt: skip
