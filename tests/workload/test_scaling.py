"""Scaled streams: nested in the factor, the same at one, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.errors import DomainError
from sojourn.workload.replay import replay
from sojourn.workload.scaling import JITTER_S, scale

factors = st.floats(0, 4)


@pytest.fixture(scope="module")
def stream(one_call_each):
    rng = np.random.default_rng(5)
    arrival = np.sort(rng.uniform(0, 300, 400))
    return replay(one_call_each(arrival, rng.integers(1, 5000, 400), rng.integers(1, 900, 400)))


def rows(stream):
    """Request id -> arrival and its program."""
    steps: dict[int, list] = {}
    for step in stream.steps.to_pylist():
        steps.setdefault(step.pop("request"), []).append(tuple(step.values()))
    ids, arrival = (stream.requests.column(n).to_pylist() for n in ("request_id", "arrival_s"))
    return {name: (at, steps[row]) for row, (name, at) in enumerate(zip(ids, arrival, strict=True))}


def test_factor_one_is_the_identity(stream):
    assert scale(stream, 1.0, seed=7) is stream


@settings(max_examples=25, deadline=None)
@given(factors, factors, st.integers(0, 3))
def test_streams_are_nested_in_the_factor(stream, one, two, seed):
    small, large = (rows(scale(stream, f, seed=seed)) for f in sorted((one, two)))
    assert small.items() <= large.items()


@settings(max_examples=25, deadline=None)
@given(factors, st.integers(0, 3))
def test_a_scaled_stream_is_a_stream(stream, factor, seed):
    found = scale(stream, factor, seed=seed)
    arrival = found.requests.column("arrival_s").to_numpy()
    assert (np.diff(arrival) >= 0).all()
    assert ((arrival >= 0) & (arrival <= stream.duration_s)).all()
    ids = found.requests.column("request_id").to_pylist()
    assert len(set(ids)) == len(ids)
    original = rows(stream)
    for name, (at, steps) in rows(found).items():
        source, _, copy = name.partition("~")
        assert steps == original[source][1]
        assert abs(at - original[source][0]) <= (JITTER_S if copy else 0)
    # each request is kept floor(f) or floor(f) + 1 times
    number = len(ids) / stream.requests.num_rows
    assert np.floor(factor) <= number <= np.floor(factor) + 1
    # binomial: within five standard deviations
    assert number == pytest.approx(factor, abs=5 * 0.5 / np.sqrt(400))


def test_copies_are_other_users(incident):
    incident.request("r", 0.0, session_id="s", end_s=incident.attempt("r", 0.0))
    found = scale(replay(incident.tables()), 3.0)
    assert sorted(found.requests.column("session_id").to_pylist()) == ["s", "s~1", "s~2"]
    assert sorted(found.requests.column("request_id").to_pylist()) == ["r", "r~1", "r~2"]
    assert set(found.requests.column("tenant").to_pylist()) == {"a"}


def test_seeds_choose_other_requests(stream):
    one, two = (set(rows(scale(stream, 0.5, seed=s))) for s in (0, 1))
    assert one != two
    assert rows(scale(stream, 0.5, seed=0)).keys() == one


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf")])
def test_no_such_factor(stream, factor):
    with pytest.raises(DomainError, match="load factor"):
        scale(stream, factor)
