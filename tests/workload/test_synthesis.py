"""A synthesized stream has the profile it was made from."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from sojourn.config import Config
from sojourn.errors import DomainError
from sojourn.workload import arrivals
from sojourn.workload.profile import profile
from sojourn.workload.synthesis import synthesize


def arrivals_of(stream):
    times = stream.requests.column("arrival_s").to_numpy()
    return arrivals.describe(times, peak_window_s=60.0)


def poisson(one_call_each, rate, seconds, seed=3):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))
    number = len(times)
    return one_call_each(times, rng.integers(1, 8000, number), rng.integers(1, 900, number))


def spread(found, seeds, **how):
    """Figures of streams over seeds."""
    made = [arrivals_of(synthesize(found, seed=s, **how)) for s in seeds]
    return {
        "rate": np.array([a.rate_per_s for a in made]),
        "cv": np.array([a.cv_interarrival for a in made]),
        **{k: np.array([a.dispersion[k] for a in made]) for k in ("1s", "10s", "60s")},
    }


@pytest.mark.parametrize(("name", "cv"), [("conv", 0.05), ("code", 0.5)])
def test_azure_rate_and_burstiness_come_back(azure, name, cv):
    """The mean over seeds is the profile's, within the tolerance each figure's own sampling
    spread allows; the gaps of `code` (CV 13, by a few long silences) within a half."""
    found = profile(azure(name), Config())
    made = spread(found, range(8), duration_s=found.arrivals.duration_s)
    assert made["rate"].mean() == pytest.approx(found.arrivals.rate_per_s, rel=0.04)
    assert made["cv"].mean() == pytest.approx(found.arrivals.cv_interarrival, rel=cv)
    for scale, value in found.arrivals.dispersion.items():
        assert made[scale].mean() == pytest.approx(value, rel=0.2), scale
    rates = np.array([w.requests for w in found.arrivals.windows[:-1]], dtype=float)
    again = np.mean(
        [
            [w.requests for w in arrivals_of(synthesize(found, duration_s=found.arrivals.duration_s,
                                                        seed=s)).windows[: len(rates)]]
            for s in range(8)
        ],
        axis=0,
    )  # fmt: skip
    assert np.corrcoef(rates, again)[0, 1] > 0.9


def test_poisson_stays_poisson_and_a_clock_a_clock(one_call_each):
    found = profile(poisson(one_call_each, 4.0, 3600), Config())
    made = spread(found, range(6), duration_s=3600)
    for figure in ("1s", "10s", "60s", "cv"):
        assert made[figure].mean() == pytest.approx(1.0, abs=0.2), figure
    times = np.arange(0, 1200, 0.25)
    clock = profile(one_call_each(times, [9] * len(times), [9] * len(times)), Config())
    steady = spread(clock, range(3), duration_s=1200)
    assert steady["cv"].max() < 0.2
    assert steady["1s"].max() < 0.2


def test_stamps_on_a_grid_do_not_become_bursts_of_minutes(mooncake):
    found = profile(mooncake("conversation"), Config())
    made = spread(found, range(4), duration_s=found.arrivals.duration_s)
    assert made["10s"].mean() == pytest.approx(found.arrivals.dispersion["10s"], rel=0.3)


def test_a_profile_of_a_synthesized_run_is_the_profile(incident, played):
    """Bucket shares within binomial limits; lengths by Kolmogorov and Smirnov at one in a
    thousand; rounds, stations' work and tenants as they were."""
    rng = np.random.default_rng(11)
    for i in range(300):
        at = float(rng.uniform(0, 900))
        incident.request(f"a{i}", at, tenant="ab"[i % 2], bucket="agent", end_s=at + 10.5)
        incident.attempt(f"a{i}", at, input_tokens=int(rng.integers(100, 4000)))
    for i in range(600):
        at = float(rng.uniform(0, 900))
        incident.request(f"c{i}", at, tenant="c", bucket="chat", end_s=at + 1)
        row = {"call_id": f"q{i}", "request_id": f"c{i}", "arrival_s": at, "end_s": at + 1}
        size = {"input_tokens": int(rng.geometric(0.01)), "output_tokens": int(rng.geometric(0.02))}
        told = {"status": "ok", "scheduled_s": at, "cached_tokens": 0}
        incident.calls.append({**row, **size, **told})
    first = profile(incident.tables(), Config())
    stream = synthesize(first, duration_s=first.arrivals.duration_s, seed=1)
    second = profile(played(stream), Config())
    number = second.arrivals.requests
    assert abs(number - 900) < 5 * math.sqrt(900)
    for name, bucket in first.buckets.items():
        again = second.buckets[name]
        limit = 4 * math.sqrt(bucket.share * (1 - bucket.share) / number)
        assert again.share == pytest.approx(bucket.share, abs=limit)
        assert again.calls_per_request == bucket.calls_per_request
        assert again.tool_rounds == bucket.tool_rounds
        pairs = (tokens_of(bucket), tokens_of(again))
        for one, two in zip(*(zip(*p, strict=True) for p in pairs), strict=True):
            assert stats.ks_2samp(one, two).pvalue > 0.001
    assert set(second.stations) == set(first.stations)
    for name, station in first.stations.items():
        work = station.duration_s.mean - (station.wait_s.mean if station.wait_s else 0)
        assert second.stations[name].duration_s.mean == pytest.approx(work)
    assert second.tenants.keys() == first.tenants.keys()
    assert second.prefix.hit_share == pytest.approx(first.prefix.hit_share, rel=0.1)
    assert second.attempts_per_request.mid == 1


def tokens_of(bucket):
    """Input and output of each template's first call: the joint sample."""
    calls = [next(s for s in t.steps if s.kind == "call") for t in bucket.templates]
    return [(call.input_tokens, call.output_tokens) for call in calls]


def test_load_factor_and_duration(one_call_each):
    found = profile(poisson(one_call_each, 2.0, 900), Config())
    for seconds, factor in ((900, 3.0), (3600, 1.0), (100, 2.0), (900, 0.25)):
        stream = synthesize(found, duration_s=seconds, load_factor=factor, seed=4)
        expected = found.arrivals.rate_per_s * seconds * factor
        number = stream.requests.num_rows
        assert abs(number - expected) < 5 * math.sqrt(expected)
        assert stream.requests.column("arrival_s").to_numpy().max() < seconds
        assert set(stream.steps.column("request").to_pylist()) == set(range(number))


def test_buckets_follow_their_windows(one_call_each):
    """Documents in the first half, chats in the second: the mix drifts, and so does the copy."""
    times = np.arange(0, 1200, 0.5)
    early = times < 600
    found = profile(one_call_each(times, np.where(early, 6000, 10), [5] * len(times)), Config())
    stream = synthesize(found, duration_s=1199, seed=2)
    names = np.array(stream.requests.column("bucket").to_pylist())
    arrival = stream.requests.column("arrival_s").to_numpy()
    assert Counter(names[arrival < 600]).keys() == {"long_document"}
    assert Counter(names[arrival >= 601]).keys() == {"short_chat"}


def test_seeds(one_call_each):
    found = profile(poisson(one_call_each, 1.0, 600), Config())
    one, same, other = (synthesize(found, duration_s=600, seed=s) for s in (1, 1, 2))
    assert one.requests.equals(same.requests)
    assert one.steps.equals(same.steps)
    assert not one.requests.equals(other.requests)


def test_refusals(one_call_each):
    found = profile(poisson(one_call_each, 1.0, 60), Config())
    for how in ({"duration_s": 0}, {"duration_s": 60, "load_factor": 0}, {"duration_s": math.nan}):
        with pytest.raises(DomainError, match="positive duration"):
            synthesize(found, **how)
    lonely = profile(one_call_each([1.0], [5], [5]), Config())
    with pytest.raises(DomainError, match="fewer than two"):
        synthesize(lonely, duration_s=60)
    untold = profile(one_call_each([1.0, 2.0], [None, None], [None, None]), Config())
    with pytest.raises(DomainError, match="no templates"):
        synthesize(untold, duration_s=60)
