"""Intervals hold what they should as often as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.making import scenario, visit

from sojourn.interval import Excuse
from sojourn.sim.estimates import across, batch_means, mser5, paired, stays
from sojourn.sim.simulate import simulate


def covered(intervals, value):
    return np.mean([interval.contains(value) for interval in intervals])


def test_the_mean_across_replications_is_held_as_often_as_said():
    rng = np.random.default_rng(1)
    found = [across(rng.exponential(2.0, (10, 50)).mean(axis=1)) for _ in range(1000)]
    assert 0.93 < covered(found, 2.0) < 0.97  # 95%: a binomial sd is 0.7 points


def test_differences_by_seed_are_narrower_than_those_of_two_means():
    rng = np.random.default_rng(2)
    luck = rng.exponential(5.0, 20)
    before, after = luck + rng.normal(0, 0.1, 20), luck - 1.0 + rng.normal(0, 0.1, 20)
    change = paired(before, after)
    assert change.high < 0
    assert change.contains(-1.0)
    assert change.width < 0.1 * across(before).width
    with pytest.raises(ValueError, match="equal seeds"):
        paired(before, after[:-1])


def autoregressive(rng, count, memory=0.8):
    noise = rng.normal(0, 1, count)
    made = np.empty(count)
    made[0] = noise[0] / np.sqrt(1 - memory**2)
    for i in range(1, count):
        made[i] = memory * made[i - 1] + noise[i]
    return made


def test_batch_means_of_a_run_with_memory():
    """Values taken as independent would give an interval a third as wide, and hold 0 half as
    often as said."""
    rng = np.random.default_rng(3)
    runs = [autoregressive(rng, 4000) + 7.0 for _ in range(300)]
    assert 0.91 < covered([batch_means(run) for run in runs], 7.0) < 0.98
    singly = np.mean([abs(run.mean() - 7.0) < 1.96 * run.std() / np.sqrt(4000) for run in runs])
    assert singly < 0.6


def test_batches_of_a_quantile():
    rng = np.random.default_rng(4)
    runs = [rng.exponential(1.0, 10_000) for _ in range(300)]
    found = [batch_means(run, 0.9) for run in runs]
    assert 0.90 < covered(found, np.log(10)) < 0.99
    assert all(f.mid == np.quantile(run, 0.9) for f, run in zip(found, runs, strict=True))


def test_too_little_is_refused_with_what_to_do():
    assert isinstance(across([1.0]), Excuse)
    assert "1 of 2 runs" in across([1.0, np.nan]).reason
    assert isinstance(batch_means(np.ones(199)), Excuse)
    assert "20 batches of 1000" in batch_means(np.ones(500), 0.99).reason
    assert batch_means(np.ones(200)).width == 0


def test_the_warm_up_is_cut_where_it_ends():
    """A start 10 sd too high that fades within some 200 values."""
    rng = np.random.default_rng(5)
    cuts = []
    for _ in range(100):
        values = rng.normal(0, 1, 4000) + 10 * np.exp(-np.arange(4000) / 60)
        cuts.append(mser5(values))
    assert np.median(cuts) == pytest.approx(250, abs=120)
    assert all(cut % 5 == 0 for cut in cuts)


def test_a_run_without_warm_up_keeps_nearly_all():
    rng = np.random.default_rng(6)
    cuts = [mser5(rng.normal(0, 1, 4000)) for _ in range(100)]
    assert np.median(cuts) < 200
    assert mser5(np.ones(49)) == 0


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=50, max_size=300))
def test_the_cut_is_the_one_that_the_definition_gives(values):
    means = np.array(values[: len(values) // 5 * 5]).reshape(-1, 5).mean(axis=1)
    n = len(means)
    spread = [means[d:].var() / (n - d) for d in range(n // 2)]
    cut = mser5(np.array(values)) // 5
    least = min(spread)
    assert spread[cut] <= least + 1e-9 * (1 + least + means.var())


def test_stays_of_a_run_without_its_warm_up():
    stay = np.concatenate([np.full(100, 9.0), np.full(900, 1.0)])
    run = simulate(scenario(np.arange(1000), [[visit("s", s)] for s in stay]))
    assert stays(run).tolist() == stay.tolist()
    assert stays(run, warm_up_s=100.0).tolist() == stay[100:].tolist()
    assert stays(run, warm_up_s=None).tolist() == stay[100:].tolist()
