"""A station's servers, its queue, and callers who give up."""

import pytest

from sojourn.sim.events import TIMER, WORK, EventLoop
from sojourn.sim.station import Station


class Bench:
    """A station with visits at given times; `ends` notes who was served when."""

    def __init__(self, servers):
        self.loop = EventLoop()
        self.station = Station(self.loop, servers)
        self.visits, self.ends = {}, []

    def visit(self, name, at, service_s):
        def enter():
            self.visits[name] = self.station.enter(
                service_s, lambda: self.ends.append((name, self.loop.now))
            )

        self.loop.at(at, WORK, enter)

    def leave(self, name, at, *, stops):
        self.loop.at(at, TIMER, lambda: self.station.leave(self.visits[name], stops=stops))

    def run(self):
        self.loop.run()
        assert self.station.busy == 0
        assert self.station.waiting == 0
        return self.ends


def test_first_come_first_served():
    bench = Bench(2)
    for name, at, service in (("a", 0, 3), ("b", 0, 1), ("c", 0.5, 1), ("d", 0.6, 1)):
        bench.visit(name, at, service)
    assert bench.run() == [("b", 1), ("c", 2), ("a", 3), ("d", 3)]
    assert bench.visits["c"].waited_s(9) == 0.5
    assert bench.visits["a"].waited_s(9) == 0


@pytest.mark.parametrize(("stops", "next_end"), [(False, 4), (True, 2)])
def test_a_service_whose_caller_has_gone_runs_on_unless_the_station_stops(stops, next_end):
    bench = Bench(1)
    bench.visit("a", 0, 3)
    bench.visit("b", 0, 1)
    bench.leave("a", 1, stops=stops)
    assert bench.run() == [("b", next_end)]


@pytest.mark.parametrize("stops", [False, True])
def test_a_caller_that_gives_up_in_the_queue_leaves_it(stops):
    bench = Bench(1)
    for name in "abc":
        bench.visit(name, 0, 2)
    bench.leave("b", 1, stops=stops)
    assert bench.run() == [("a", 2), ("c", 4)]
    assert bench.visits["b"].waited_s(1) == 1


def test_without_a_limit_everyone_is_served_at_once():
    bench = Bench(None)
    for name in "abc":
        bench.visit(name, 0, 2)
    assert bench.run() == [("a", 2), ("b", 2), ("c", 2)]
