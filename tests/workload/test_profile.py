"""The profile as a record: shares, rounds, stations, attempts, what is unknown."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.trace.tables import Tables
from sojourn.workload.bucket_profiles import MAX_TEMPLATES
from sojourn.workload.profile import mean_interval, profile
from sojourn.workload.profile_records import Profile


def test_an_incident(incident):
    for i in range(8):
        incident.request(f"r{i}", 30.0 * i, end_s=incident.attempt(f"r{i}", 30.0 * i))
    incident.request("k", 300.0, tenant="b", attempts=2, end_s=317.0)
    incident.span("k", "retrieval", "retrieval kb", 300.0, 305.0, status="timeout")
    incident.attempt("k", 306.0, number=1)
    found = profile(incident.tables(), Config())
    (bucket,) = found.buckets.values()
    assert (bucket.name, bucket.requests, bucket.share) == ("tool_agent", 9, 1.0)
    assert bucket.tool_rounds == 1  # two tools at once are one round
    assert bucket.calls_per_request == 1
    assert bucket.outside_s is not None
    assert bucket.outside_s.p50 == pytest.approx(10.5 - 2.1)
    assert found.stations["retrieval kb"].visits == 10
    assert found.stations["retrieval kb"].visits_per_request == pytest.approx(10 / 9)
    assert found.stations["retrieval kb"].wait_s.count == 9
    assert found.stations["postprocess"].wait_s is None
    assert set(found.stations) == {
        "retrieval kb", "rerank", "execute_tool x", "execute_tool y", "postprocess"
    }  # fmt: skip
    assert found.attempts_per_request.mid == pytest.approx(10 / 9)
    assert found.attempts_per_request.low >= 1
    assert found.tenants == {"a": pytest.approx(8 / 9), "b": pytest.approx(1 / 9)}
    assert found.models == {"m": 1.0}
    assert found.routes == {}
    assert found.prefix.hit_share == pytest.approx(0.1)


def test_it_can_be_saved_and_loaded(incident, tmp_path):
    incident.request("r", 0.0, end_s=incident.attempt("r", 0.0))
    found = profile(incident.tables(), Config())
    found.save(tmp_path / "profile.json")
    # NaN is unequal to itself, so compare what is written
    again = Profile.load(tmp_path / "profile.json")
    assert again.model_dump_json() == found.model_dump_json()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_shares_add_up(one_call_each, data):
    number = data.draw(st.integers(1, 30))

    def pick(*values):
        return [data.draw(st.sampled_from(values)) for _ in range(number)]

    tables = one_call_each(
        np.array(pick(0.0, 1.0, 2.5, 70.0, 300.0)),
        pick(1, 50, 4000, None),
        pick(0, 1, 700, None),
        images=pick(None, 0, 2),
        model=pick("a", "b", None),
    )
    found = profile(tables, Config())
    assert sum(b.share for b in found.buckets.values()) == pytest.approx(1)
    assert sum(b.requests for b in found.buckets.values()) == number
    assert sum(b.peak_rate_per_s for b in found.buckets.values()) == pytest.approx(
        found.arrivals.peak.requests / found.arrivals.peak.length_s
    )
    assert not found.models or sum(found.models.values()) == pytest.approx(1)
    assert 0 <= found.long_context_share <= 1
    assert 0 <= found.multimodal_share <= 1
    for concentration in found.concentration:
        assert concentration.curve[-1] == pytest.approx((1, 1))


def test_templates_are_a_seeded_sample(one_call_each):
    number = 3 * MAX_TEMPLATES
    tables = one_call_each(np.arange(number), np.arange(1, number + 1), [5] * number)
    one, same, other = (
        profile(tables, Config.from_dict({"analysis": {"seed": s}})).buckets["short_chat"].templates
        for s in (0, 0, 1)
    )
    assert len(one) == MAX_TEMPLATES
    assert one == same
    assert one != other
    inputs = [t.steps[0].input_tokens for t in one]
    assert len(set(inputs)) == MAX_TEMPLATES
    assert np.mean(inputs) == pytest.approx(number / 2, rel=0.15)


def test_nothing_to_profile():
    with pytest.raises(InputError, match="no requests"):
        profile(Tables(), Config())


def test_unknown_lengths_stay_unknown(one_call_each):
    found = profile(one_call_each([0.0, 1.0], [None, None], [None, None]), Config())
    (bucket,) = found.buckets.values()
    assert bucket.input.count == 0
    assert math.isnan(bucket.input.mean)
    assert bucket.templates == ()
    assert found.concentration == ()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=50))
def test_interval_of_a_mean(values):
    found = mean_interval(np.array(values, dtype=float), 0.9, floor=1.0)
    assert 1 <= found.low <= found.mid <= found.high
    assert found.mid == pytest.approx(np.mean(values))


def test_interval_of_a_mean_covers():
    """Of 400 samples of 50, about 90% of the intervals hold the true mean."""
    rng = np.random.default_rng(8)
    draws = rng.geometric(0.5, size=(400, 50)).astype(float)
    held = [mean_interval(row, 0.9, floor=1.0).contains(2.0) for row in draws]
    assert 0.83 <= np.mean(held) <= 0.95


def test_a_hundred_thousand_requests_take_a_second(one_call_each):
    """No Python per row: a limit far above the time it takes, far below what rows would."""
    rng = np.random.default_rng(0)
    number = 100_000
    arrival = np.sort(rng.uniform(0, 36_000, number))
    tables = one_call_each(arrival, rng.integers(1, 8000, number), rng.integers(1, 900, number))
    start = time.process_time()
    profile(tables, Config())
    assert time.process_time() - start < 5
