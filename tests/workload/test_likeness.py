"""Streams like a recording: another day, many in a row, one rate for ever."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from tests.plan.conftest import call, make_stream

from sojourn.errors import DomainError
from sojourn.workload.likeness import another, faster, repeated, steady


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


def test_another_day_has_the_same_arrivals_and_the_same_programs_elsewhere():
    day = recording()
    other = another(day, 5)
    assert other.requests.column("arrival_s").equals(day.requests.column("arrival_s"))
    assert other.requests.column("bucket").equals(day.requests.column("bucket"))
    assert Counter(programs(other)) == Counter(programs(day))
    moved = sum(a != b for a, b in zip(programs(other), programs(day), strict=True))
    assert moved > 200
    again = another(day, 5)
    assert again.steps.equals(other.steps)
    assert not another(day, 6).steps.equals(other.steps)


def test_programs_move_no_further_than_their_neighbourhood():
    """Request i wrote a prompt of 10 + i tokens, so its place can be read."""
    other = another(recording(900), 1)
    first = other.steps.filter(pa.array(other.steps.column("group").to_numpy() == 0))
    came_from = first.column("input_tokens").to_numpy() - 10
    assert np.abs(came_from - np.arange(900)).max() < 64 * 3


def test_days_in_a_row_do_not_overlap_and_the_first_is_the_recording():
    day = recording(50)
    longer, edges = repeated(day, 4, 0)
    assert longer.requests.num_rows == 200
    assert len(edges) == 5
    arrivals = longer.requests.column("arrival_s").to_numpy()
    assert (np.diff(arrivals) >= 0).all()
    assert np.histogram(arrivals, edges)[0].tolist() == [50] * 4
    assert longer.requests.slice(0, 50).equals(day.requests)
    assert len(set(longer.requests.column("request_id").to_pylist())) == 200
    assert Counter(programs(longer)) == Counter(
        {program: 4 * n for program, n in Counter(programs(day)).items()}
    )


def test_steady_traffic_takes_every_program_as_often_and_keeps_its_rate():
    day = recording(40)
    stream = steady(day, 8.0, 400, 3)
    assert set(Counter(programs(stream)).values()) == {10}
    arrivals = stream.requests.column("arrival_s").to_numpy()
    assert len(arrivals) / arrivals[-1] == pytest.approx(8.0, rel=0.15)
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
