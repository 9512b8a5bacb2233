"""The event loop: total order, cancellation, a clock that never runs back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import DomainError
from sojourn.sim.events import EventLoop


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.5]), st.integers(0, 3))))
def test_events_run_by_time_priority_and_order_of_asking(asked):
    loop, seen = EventLoop(), []
    for number, (time_s, priority) in enumerate(asked):
        loop.at(time_s, priority, lambda key=(time_s, priority, number): seen.append(key))
    loop.run()
    assert seen == sorted((*key, number) for number, key in enumerate(asked))


def test_an_event_may_add_events_of_its_own_instant():
    loop, seen = EventLoop(), []
    loop.at(1.0, 5, lambda: (seen.append("first"), loop.at(1.0, 0, lambda: seen.append("second"))))
    loop.at(1.0, 6, lambda: seen.append("third"))
    loop.run()
    assert seen == ["first", "second", "third"]
    assert loop.now == 1.0


def test_reached_is_the_highest_priority_of_the_instant():
    loop, seen = EventLoop(), []
    loop.at(1.0, 5, lambda: loop.at(1.0, 0, lambda: seen.append(loop.reached)))
    loop.at(2.0, 1, lambda: seen.append(loop.reached))
    loop.run()
    assert seen == [5, 1]


def test_a_cancelled_event_does_not_run_and_cancelling_twice_is_harmless():
    loop, seen = EventLoop(), []
    ticket = loop.at(1.0, 0, lambda: seen.append("no"))
    other = loop.after(2.0, 0, lambda: seen.append("yes"))
    loop.cancel(ticket)
    loop.cancel(ticket)
    loop.run()
    loop.cancel(other)
    assert seen == ["yes"]
    assert loop.now == 2.0


@pytest.mark.parametrize("time_s", [0.5, math.nan])
def test_the_clock_never_runs_back(time_s):
    loop = EventLoop(1.0)
    with pytest.raises(DomainError, match="cannot be reached"):
        loop.at(time_s, 0, lambda: None)
