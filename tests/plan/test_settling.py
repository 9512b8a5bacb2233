"""A short run is no evidence of capacity: runs are lengthened until they tell."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity.records import Fleet, StepModel
from sojourn.config import Config, Retry
from sojourn.interval import Interval, Provenance
from sojourn.plan.estimates import quantile
from sojourn.plan.holding import holding
from sojourn.plan.holding_records import Settled
from sojourn.plan.settling import Longer, first_decided, lowered, of_days, of_rate
from sojourn.plan.slo import judge
from sojourn.plan.sustained import sustained
from sojourn.report.capacity_blocks import verdict
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.stability import Trend

SLOTS, OUTPUT, PROMPT = 256, 200, 100
FULL = 1 / (OUTPUT * 0.0356 / SLOTS + PROMPT * 2e-5)
"""Calls a second with every slot in use: 33.5."""


def tutorial(build, load, count, seed=1):
    """One engine of 256 slots at a share of its capacity, `count` requests from empty."""
    step = StepModel(
        batches=(0, 1, SLOTS),
        base_s=(0.01, 0.0101, 0.0356),
        slope_s_per_token=(0.0, 0.0, 0.0),
        prefill_s_per_token=2e-5,
        provenance=Provenance.ASSUMED,
        source="made for the test",
    )
    engine = build.engine(
        step=step, max_num_seqs=SLOTS, max_num_batched_tokens=8192, kv_blocks=100_000
    )
    gaps = np.random.default_rng(seed).exponential(1 / (load * FULL), count)
    rows = [(t, "short_chat", [build.call(PROMPT, OUTPUT)]) for t in np.cumsum(gaps)]
    return build.stream(rows), Fleet(engine=engine)


def targets(replications=2):
    return Config.from_dict(
        {
            "slo": {"default": {"percentile": 0.99, "ttft_s": 1.0}},
            "analysis": {"replications": replications},
        }
    )


def test_a_fleet_slightly_over_its_capacity_looks_fine_and_is_not(build):
    """The tutorial's trap: 1,000 requests are fine, of 20,000 the waits are many seconds. The
    answer rests on the thousand alone and must say that the queue grows."""
    config = targets()
    tails = {}
    for count in (1_000, 20_000):
        stream, fleet = tutorial(build, 1.04, count)
        tails[count] = quantile(judge(simulate(Scenario(stream, fleet, 0)), config).ttft_s, 0.99)
    assert tails[1_000] < 1.0
    assert tails[20_000] > 10.0

    stream, fleet = tutorial(build, 1.04, 1_000)
    found = holding(stream, fleet, config)
    assert found.load_factor.high < 1
    assert "GROWS" in found.breaks
    assert "only because it ends" in found.note
    assert found.settled.trend is Trend.STABLE
    assert 0.93 * FULL < found.rate_per_s.mid < 1.02 * FULL
    steady = sustained(stream, fleet, config, start_per_s=found.rate_per_s.mid)
    assert 0.9 * FULL < steady.rate_per_s.mid < FULL
    assert steady.settled.trend is Trend.STABLE


def test_a_peak_that_drains_is_no_growing_queue(build):
    """Half a minute at twice the capacity in ten minutes at a third of it: the backlog is gone
    when the next day begins."""
    rng = np.random.default_rng(2)
    calm, rush = (rng.exponential(1 / rate, n) for rate, n in ((11.0, 3000), (67.0, 2000)))
    gaps = np.concatenate([calm[:1500], rush, calm[1500:]])
    _, fleet = tutorial(build, 0.5, 10)
    rows = [(t, "short_chat", [build.call(PROMPT, OUTPUT)]) for t in np.cumsum(gaps)]
    found = first_decided(of_days(build.stream(rows), fleet, 0))
    assert found.settled.trend is Trend.STABLE
    assert found.settled.days == 8


@pytest.mark.parametrize(("load", "trend"), [(0.7, Trend.STABLE), (1.06, Trend.GROWING)])
def test_a_steady_rate_settles_below_capacity_and_grows_above(build, load, trend):
    stream, fleet = tutorial(build, 0.5, 200)
    found = first_decided(of_rate(stream, fleet, load * FULL, 0))
    assert found.settled.trend is trend
    growth = found.settled.growth
    assert growth.contains(1 - 1 / load) if trend is Trend.GROWING else growth.contains(0.0)


def test_runs_get_longer_within_their_budget(build):
    stream, fleet = tutorial(build, 0.5, 300)
    runs = list(of_days(stream, fleet, 0, budget=10_000))
    assert [run.settled.requests for run in runs] == pytest.approx([2_400, 9_600], rel=0.05)
    assert [run.settled.days for run in runs] == [8, 32]
    assert [r.settled.requests for r in of_rate(stream, fleet, 5.0, 0, budget=8_000)] == [8_000]
    assert list(of_rate(stream, fleet, 5.0, 0, budget=7_999)) == []
    assert list(of_rate(stream, fleet, 0.01, 0)) == [], "nine days: longer than a run may be"


def settled(trend, growth=0.0):
    return Settled(
        trend=trend,
        requests=100,
        days=8,
        arrival_per_s=1.0,
        growth=Interval(low=growth - 0.01, mid=growth, high=growth + 0.01),
        in_flight=3,
    )


def test_growth_must_be_seen_twice_and_the_longest_run_is_kept_when_none_tells():
    def first(*trends):
        runs = (Longer(None, settled(trend).model_copy(update={"requests": n}))
                for n, trend in enumerate(trends))  # fmt: skip
        return first_decided(runs).settled.requests

    short, stable, growing = Trend.TOO_SHORT, Trend.STABLE, Trend.GROWING
    assert first(stable, growing) == 0
    assert first(growing, stable) == 1
    assert first(growing, growing, stable) == 1
    assert first(short, growing, short) == 2
    assert first_decided(iter(())) is None


def test_a_load_is_lowered_to_where_the_queue_no_longer_grows():
    """Capacity 10: at 15 a third of the arrivals stays; found to one per cent from below."""
    seen = []

    def look(load):
        seen.append(load)
        over = max(0.0, 1 - 10 / load)
        return load <= 10, settled(Trend.GROWING if over else Trend.STABLE, over)

    last, load = lowered(look, 15.0, 0.01)
    assert 10 / 1.01 <= load <= 10
    assert last.trend is Trend.STABLE
    assert len(seen) < 12
    assert lowered(look, 5.0, 0.01)[1] == 5.0


def test_the_sentence_says_what_is_known():
    assert "stable over 100" in settled(Trend.STABLE).describe()
    assert "GROWS" in settled(Trend.GROWING, 0.05).describe()
    assert "neither to stay nor to grow" in settled(Trend.TOO_SHORT).describe()


def test_a_retry_storm_has_no_steady_rate_beyond_it(build):
    """Attempts cut short are repeated: past the knee the queue grows on its own."""
    stream, fleet = tutorial(build, 0.5, 300)
    stormy = fleet.model_copy(
        update={"retry": Retry(attempt_timeout_s=9.0, max_attempts=4, backoff_s=0.1)}
    )
    found = sustained(stream, stormy, targets(), start_per_s=20.0)
    assert found.rate_per_s.mid < FULL
    assert found.settled.trend is not Trend.GROWING


def test_the_verdict_counts_the_whole_interval(build):
    """0 above today's load, 3 below, 4 where today's lies inside."""
    from sojourn.plan.records import Holding

    class Found:
        def __init__(self, *bounds):
            low, mid, high = bounds
            factor = Interval(low=low, mid=mid, high=high)
            self.holding = Holding(
                load_factor=factor, rate_per_s=factor, breaks="all: x", binds="y", curve=()
            )

    assert verdict(Found(1.1, 1.2, 1.3))[1] == 0
    assert verdict(Found(0.7, 0.8, 0.9))[1] == 3
    assert verdict(Found(0.9, 1.1, 1.3))[1] == 4
    assert verdict(Found(0.0, 0.0, 0.0))[1] == 3
