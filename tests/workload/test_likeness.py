"""Streams like a recording: another day, many in a row, one rate for ever."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from tests.plan.conftest import call, make_stream

from sojourn.errors import DomainError
from sojourn.workload.likeness import REACH, another, day_s, faster, repeated, steady


def recording(n=300):
    rng = np.random.default_rng(0)
    rows = [
        (
            t,
            ("short_chat", "long_output")[i % 3 == 0],
            [call(10 + i, 5), call(7, i % 9 + 1, group=1)],
        )
        for i, t in enumerate(np.cumsum(rng.exponential(1.0, n)))
    ]
    return make_stream(rows)


def programs(stream):
    """Each request's bucket and calls."""
    owner = stream.steps.column("request").to_numpy()
    tokens = list(
        zip(
            stream.steps.column("input_tokens").to_pylist(),
            stream.steps.column("output_tokens").to_pylist(),
            strict=True,
        )
    )
    ends = np.searchsorted(owner, np.arange(stream.requests.num_rows + 1))
    buckets = stream.requests.column("bucket").to_pylist()
    return [(b, tuple(tokens[ends[i] : ends[i + 1]])) for i, b in enumerate(buckets)]


def test_another_day_is_drawn_from_the_recording_around_each_hour():
    """Request i wrote a prompt of 10 + i tokens, so where it came from can be read: its program and
    the gaps around it stay, and it moves by a few blocks at most."""
    day = recording(960)
    other = another(day, 5)
    first = other.steps.filter(pa.array(other.steps.column("group").to_numpy() == 0))
    came_from = first.column("input_tokens").to_numpy() - 10
    arrival = day.requests.column("arrival_s").to_numpy()
    at = other.requests.column("arrival_s").to_numpy()
    assert (np.diff(at) >= 0).all()
    assert at.min() >= arrival[0]
    assert at.max() <= day_s(day) + arrival[0]
    block = day_s(day) / 60
    moved = (at - arrival[came_from]) / block
    np.testing.assert_allclose(moved, np.round(moved), atol=1e-6)
    assert np.abs(moved).max() < 2 * REACH + 1
    assert set(programs(other)) <= set(programs(day))
    assert 0.85 < other.requests.num_rows / 960 < 1.15
    assert len(set(other.requests.column("request_id").to_pylist())) == other.requests.num_rows
    assert another(day, 5).steps.equals(other.steps)
    assert not another(day, 6).steps.equals(other.steps)


def test_other_days_are_as_many_and_as_bursty_on_average():
    """Counts per day and per block spread as the recording's own do: no noise is added."""
    day = recording(960)
    days = [another(day, seed) for seed in range(40)]
    counts = np.array([d.requests.num_rows for d in days])
    assert counts.mean() == pytest.approx(960, rel=0.02)
    edges = np.linspace(0, day_s(day), 61) + day.requests.column("arrival_s")[0].as_py()

    def dispersion(stream):
        found = np.histogram(stream.requests.column("arrival_s").to_numpy(), edges)[0]
        return found.var() / found.mean()

    own = dispersion(day)
    assert np.mean([dispersion(d) for d in days]) == pytest.approx(own, rel=0.25)
    assert counts.std() == pytest.approx(np.sqrt(960 * own), rel=0.4)


def test_a_slow_swing_of_the_load_stays():
    """Half the day at a tenth of the rate: other days have it in the same half."""
    rng = np.random.default_rng(1)
    gaps = np.concatenate([rng.exponential(1.0, 100), rng.exponential(0.1, 1000)])
    rows = [(t, "short_chat", [call(10, 5)]) for t in np.cumsum(gaps)]
    day = make_stream(rows)
    for seed in range(5):
        at = another(day, seed).requests.column("arrival_s").to_numpy()
        share = float((at < day.duration_s / 2).mean())
        assert share == pytest.approx(0.09, abs=0.08)  # blocks at the turn may be of either half


def test_a_stream_too_short_to_cut_is_left_alone():
    one = recording(1)
    assert another(one, 3) is one


def test_days_in_a_row_do_not_overlap_and_the_first_is_the_recording():
    day = recording(50)
    longer, edges = repeated(day, 4, 0)
    assert len(edges) == 5
    arrivals = longer.requests.column("arrival_s").to_numpy()
    assert (np.diff(arrivals) >= 0).all()
    counts = np.histogram(arrivals, edges)[0]
    assert counts[0] == 50
    assert counts.sum() == longer.requests.num_rows
    assert all(25 < count < 75 for count in counts)
    assert longer.requests.slice(0, 50).equals(day.requests)
    assert len(set(longer.requests.column("request_id").to_pylist())) == longer.requests.num_rows
    assert set(programs(longer)) == set(programs(day))
    owner = longer.steps.column("request").to_numpy()
    assert np.array_equal(np.unique(owner), np.arange(longer.requests.num_rows))


def test_steady_traffic_takes_every_program_as_often_and_keeps_its_rate():
    day = recording(40)
    stream = steady(day, 8.0, 400, 3)
    assert set(Counter(programs(stream)).values()) == {10}
    arrivals = stream.requests.column("arrival_s").to_numpy()
    assert len(arrivals) / arrivals[-1] == pytest.approx(8.0, rel=0.15)
    drawn = steady(day, 8.0, 400, 3, redrawn=True)
    assert 15 < len(set(programs(drawn))) < 35, "a sample with replacement: about 63% of 40"
    twice = steady(day, 16.0, 400, 3)
    np.testing.assert_allclose(twice.requests.column("arrival_s").to_numpy() * 2, arrivals)
    np.testing.assert_allclose(
        faster(stream, 2.0).requests.column("arrival_s").to_numpy() * 2, arrivals
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_no_rate_is_refused(rate):
    with pytest.raises(DomainError, match="rate"):
        steady(recording(10), rate, 10, 0)


def test_nothing_cannot_be_repeated():
    day = recording(10)
    with pytest.raises(DomainError, match="repeated"):
        repeated(day, 0, 0)
