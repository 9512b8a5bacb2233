"""Laws of the comparison: a window against itself, exchange of sides, coverage, weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.verify.pairs import config, window

from sojourn.attribution.records import EngineUse
from sojourn.interval import Interval
from sojourn.plan.slo import judge
from sojourn.verify import compare, mix
from sojourn.verify.acceptance import accept
from sojourn.verify.engine_figures import engine_figures
from sojourn.verify.questions import load_change
from sojourn.verify.records import Finding

OTHER = {Finding.BETTER: Finding.WORSE, Finding.WORSE: Finding.BETTER}
TIMES = arrays(np.float64, st.integers(1, 60), elements=st.floats(0.01, 1e4))
SHARES = arrays(np.float64, st.integers(1, 60), elements=st.sampled_from([0.0, 1.0]))


@settings(max_examples=10, deadline=None)
@given(st.integers(30, 200), st.floats(0.0, 0.5), st.integers(0, 99))
def test_a_window_against_itself_is_neither_better_nor_worse(n, errors, seed):
    same = window(n, seed=seed, errors=errors)
    found = accept(same, same, config(), rollback=same)
    assert found.accepted is None
    judged = [f for answer in found.answers for f in answer.figures] + list(found.same_mix)
    assert not {f.finding for f in judged} & set(OTHER)
    assert not {answer.finding for answer in found.answers} & set(OTHER)
    assert found.mix_shift.change.mid == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(TIMES, TIMES, st.sampled_from([0.5, 0.95]))
def test_exchanging_the_sides_exchanges_better_and_worse(one, other, q):
    there = compare.time_figure("x", one, other, q, seed=0, confidence=0.9)
    back = compare.time_figure("x", other, one, q, seed=0, confidence=0.9)
    assert back.finding is OTHER.get(there.finding, there.finding)
    assert (1 + there.change.mid) * (1 + back.change.mid) == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(SHARES, SHARES)
def test_exchanging_the_sides_exchanges_shares(one, other):
    def figure(first, second):
        return compare.share_figure(
            "x", first, second, higher_is_better=True, seed=0, confidence=0.9
        )

    there, back = figure(one, other), figure(other, one)
    assert back.finding is OTHER.get(there.finding, there.finding)


def test_verdicts_of_a_clear_pair_exchange():
    fast, slow = window(seed=1, scale=0.5), window(seed=2)
    assert accept(slow, fast, config()).accepted is True
    assert accept(fast, slow, config()).accepted is False


def test_the_interval_of_a_change_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(5)
    truth, runs = 0.8 - 1, 120
    quantiles = shares = 0
    for _ in range(runs):
        one, other = rng.lognormal(0, 0.6, 400), 0.8 * rng.lognormal(0, 0.6, 400)
        figure = compare.time_figure("x", one, other, 0.95, seed=0, confidence=0.9)
        quantiles += figure.change.contains(truth)
        first, second = (rng.random(300) < p for p in (0.03, 0.05))
        sides = [
            compare.share_bounds(compare.mean_estimate(v.astype(float), 0), v.size, 0.9)
            for v in (first, second)
        ]
        shares += compare.share_change(*sides).contains(0.02)
    # three standard errors of a share of 120 at 0.9 are 0.08
    assert quantiles / runs >= 0.82
    assert shares / runs >= 0.82


def test_two_equal_systems_get_a_verdict_no_more_often_than_confidence_allows():
    verdicts = [
        accept(window(300, seed=s), window(300, seed=s + 500), config()).accepted for s in range(30)
    ]
    # at 10% and 30 pairs, eight or more happen once in 130 times
    assert sum(verdict is not None for verdict in verdicts) <= 7


def test_nothing_seen_in_few_requests_is_not_the_same():
    none = np.zeros(12)
    figure = compare.share_figure(
        "errors", none, none, higher_is_better=False, seed=0, confidence=0.9
    )
    assert figure.finding is Finding.UNKNOWN
    assert figure.after.high > 0.1
    many = np.zeros(2000)
    sure = compare.share_figure(
        "errors", many, many, higher_is_better=False, seed=0, confidence=0.9
    )
    assert sure.finding is Finding.SAME


def test_a_p99_needs_five_hundred_requests():
    assert compare.enough(500, 0.99)
    assert not compare.enough(499, 0.99)
    assert compare.enough(100, 0.95)


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ((-0.30, -0.20, -0.10), Finding.BETTER),
        ((0.10, 0.20, 0.30), Finding.WORSE),
        ((-0.04, -0.03, -0.01), Finding.SAME),
        ((-0.15, 0.0, 0.15), Finding.SAME),
        ((-0.30, 0.0, 0.30), Finding.UNKNOWN),
        ((-1.0, -1.0, -1.0), Finding.BETTER),
    ],
)
def test_findings_of_a_change(bounds, found):
    low, mid, high = bounds
    change = Interval(low=low, mid=mid, high=high)
    assert compare.finding(change, higher_is_better=False) is found


@settings(max_examples=60, deadline=None)
@given(TIMES, st.floats(0, 1), st.floats(0.01, 100))
def test_a_weighted_quantile_of_equal_weights_is_the_quantile(values, q, weight):
    got = mix.weighted_quantile(values, np.full(values.size, weight), q)
    assert got == pytest.approx(float(np.quantile(values, q)), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(TIMES, st.floats(0, 1))
def test_a_request_without_weight_does_not_count(values, q):
    extra = np.append(values, 1e9)
    weights = np.append(np.ones(values.size), 0.0)
    got = mix.weighted_quantile(extra, weights, q)
    assert got == pytest.approx(float(np.quantile(values, q)), rel=1e-6)


def test_weights_of_nothing_give_no_number():
    assert np.isnan(mix.weighted_quantile(np.array([np.nan]), np.ones(1), 0.5))
    assert np.isnan(mix.weighted_mean(np.array([1.0]), np.zeros(1)))


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 120), st.integers(2, 120), st.floats(0, 1), st.floats(0, 1))
def test_weights_have_mean_one_and_give_the_mix_of_after(n, m, old_share, new_share):
    old = window(n, seed=1, long_share=old_share)
    new = window(m, seed=2, long_share=new_share)
    found = mix.kinds(old, named(old), new, named(new)).mix()
    assert 0 <= found.unseen <= 1
    assert found.weights.size == n
    assert (found.weights >= 0).all()
    if found.unseen < 1:
        assert found.weights.mean() == pytest.approx(1.0)
        assert found.effective <= n + 1e-9
    if found.unseen == 0:
        long = named(old).bucket == "docs"
        assert float((found.weights * long).mean()) == pytest.approx(
            float((named(new).bucket == "docs").mean())
        )


def named(tables):
    """Judged requests with the route as bucket."""
    place = tables.requests.schema.get_field_index("bucket")
    route = tables.requests.column("route")
    requests = tables.requests.set_column(place, "bucket", route)
    return judge(type(tables)(requests=requests, calls=tables.calls), config())


def test_load_differs_only_beyond_chance():
    assert load_change(2.0, 2.1, (9999, 9999)) == 0.0
    assert load_change(2.0, 1.0, (9999, 9999)) == pytest.approx(-0.5)
    assert load_change(2.0, 1.5, (40, 40)) == 0.0
    assert load_change(None, 1.0, (5, 5)) == 0.0


def test_engine_counters_are_judged_beyond_noise():
    old = EngineUse(prefix_hit_share=0.30, waiting_share=0.40, preemptions=0, running_mean=8)
    new = EngineUse(prefix_hit_share=0.50, waiting_share=0.38, preemptions=9, running_mean=20)
    found = {figure.name: figure for figure in engine_figures(old, new)}
    assert found["prefix tokens found in cache"].finding is Finding.BETTER
    assert found["time with requests waiting"].finding is Finding.SAME
    assert found["preemptions"].finding is Finding.WORSE
    assert not found["requests in the batch, mean"].judged
    quiet = engine_figures(old, EngineUse(preemptions=1))
    assert {f.name: f.finding for f in quiet}["preemptions"] is Finding.SAME
    assert engine_figures(EngineUse(), EngineUse()) == []
