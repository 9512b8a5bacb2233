"""The event loop of the reference: total order, cancellation, a clock that never runs back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import DomainError
from sojourn.sim.reference.events import Events

asked = st.lists(
    st.tuples(st.sampled_from([0, 5, 15]), st.integers(0, 3), st.integers(0, 9)), unique=True
)


@given(asked, st.randoms())
def test_events_run_by_time_kind_and_key_whoever_asked_first(wanted, shuffler):
    once = list({(kind, key): (time, kind, key) for time, kind, key in wanted}.values())
    shuffler.shuffle(once)
    events, seen = Events(), []
    for time, kind, key in once:
        events.at(time, kind, (key,), lambda what=(time, kind, key): seen.append(what))
    events.run()
    assert seen == sorted(once)


def test_an_event_may_add_events_of_its_own_instant_also_of_an_earlier_kind():
    events, seen = Events(), []

    def first():
        seen.append("first")
        events.at(1, 0, (0,), lambda: seen.append("second"))

    events.at(1, 5, (0,), first)
    events.at(1, 6, (0,), lambda: seen.append("third"))
    events.run()
    assert seen == ["first", "second", "third"]
    assert events.now == 1


def test_a_cancelled_event_does_not_run_and_cancelling_twice_is_harmless():
    events, seen = Events(), []
    events.at(1, 0, (0,), lambda: seen.append("no"))
    events.at(2, 0, (1,), lambda: seen.append("yes"))
    events.cancel(0, (0,))
    events.cancel(0, (0,))
    events.run()
    assert seen == ["yes"]
    assert events.now == 2


def test_a_cancelled_event_may_be_asked_for_again_at_another_time():
    events, seen = Events(), []
    for time in (3, 1, 2):
        events.cancel(0, (0,))
        events.at(time, 0, (0,), lambda: seen.append(events.now))
    events.run()
    assert seen == [2]


def test_the_past_is_refused_and_a_second_event_of_one_key():
    events = Events()
    events.at(5, 0, (0,), lambda: events.at(4, 0, (0,), lambda: None))
    with pytest.raises(DomainError, match="the clock stands at 5"):
        events.run()
    events.at(7, 0, (1,), lambda: None)
    with pytest.raises(DomainError, match="pending already"):
        events.at(8, 0, (1,), lambda: None)
