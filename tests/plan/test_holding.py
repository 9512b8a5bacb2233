"""The load that is held, the ladder below it and the time left."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.capacity.records import Fleet
from sojourn.config import Config, Retry
from sojourn.interval import Excuse, Interval
from sojourn.plan.action import Action
from sojourn.plan.actions import ACTIONS
from sojourn.plan.alone import parts as _parts
from sojourn.plan.alone import stretched as _stretched
from sojourn.plan.alone import together as _together
from sojourn.plan.holding import holding
from sojourn.plan.ladder import HYSTERESIS, ladder
from sojourn.plan.ranking import rank
from sojourn.plan.records import Holding
from sojourn.plan.runway import runway
from sojourn.plan.slo import judge, standings
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.scaling import scale


def one_server(build, rate, service=1.0, n=400):
    """A single station of deterministic service: it saturates at 1/service."""
    rng = np.random.default_rng(5)
    rows = [
        (t, "short_chat", [build.visit("tool", "press", service)])
        for t in np.cumsum(rng.exponential(1 / rate, n))
    ]
    fleet = Fleet(
        engine=build.engine(), stations={"press": build.station("press", "tool", [service], 1)}
    )
    return build.stream(rows), fleet


def config(**slo):
    return Config.from_dict(
        {"slo": {"default": {"percentile": 0.9, **slo}}, "analysis": {"replications": 2}}
    )


def test_a_single_server_holds_up_to_its_saturation(build):
    stream, fleet = one_server(build, rate=0.3)
    targets = config(e2e_s=5.0)
    found = holding(stream, fleet, targets)
    assert isinstance(found, Holding)
    # M/D/1: P(T <= 5) = 0.9 lies between rho = 0.6 and 0.8, i.e. 2.0 to 2.8 times 0.3/s
    assert 1.8 < found.load_factor.mid < 2.9
    assert found.rate_per_s.mid == pytest.approx(
        found.load_factor.mid * stream.requests.num_rows / stream.duration_s
    )
    assert "end within" in found.breaks
    assert found.binds.startswith("press")
    assert len(found.curve) >= 8
    factors = [point[0] for point in found.curve]
    assert factors == sorted(factors)
    assert found.load_factor.low <= found.load_factor.mid <= found.load_factor.high


def test_the_load_found_is_held_and_a_higher_one_is_not(build):
    stream, fleet = one_server(build, rate=0.3)
    targets = config(e2e_s=5.0)
    found = holding(stream, fleet, targets, seeds=[0])

    def held(factor):
        run = simulate(Scenario(scale(stream, factor, seed=0), fleet, 0))
        found = standings(judge(run.tables, targets), targets)
        return not any(standing.surely_missed(0.9) for standing in found.values())

    assert held(found.load_factor.mid)
    assert not held(found.load_factor.high * 1.15)


def test_a_load_missed_today_has_a_factor_below_one(build):
    stream, fleet = one_server(build, rate=1.3)
    found = holding(stream, fleet, config(e2e_s=5.0))
    assert isinstance(found, Holding)
    assert found.load_factor.high < 1


def test_refusals_name_their_reason(build):
    stream, fleet = one_server(build, rate=0.3, n=60)
    assert "No SLO" in holding(stream, fleet, Config()).reason
    endless = Fleet(
        engine=build.engine(), stations={"press": build.station("press", "tool", [1.0], None)}
    )
    assert "no limit near" in holding(stream, endless, config(e2e_s=5.0)).reason
    # without a model call there is nothing a token target could miss
    assert "no limit near" in holding(stream, fleet, config(tpot_s=1.0)).reason


def test_a_target_missed_by_requests_alone_holds_at_no_load(build):
    stream, fleet = one_server(build, rate=0.3, n=60)
    tight = holding(stream, fleet, config(e2e_s=0.5))
    assert isinstance(tight, Holding)
    assert tight.load_factor.high == 0
    assert "nearly alone" in tight.note
    assert "end within 0.5 s" in tight.breaks


def test_slow_hours_stay_slow_when_requests_come_apart(build):
    """What drifts with time is stretched with the arrivals: it is no effect of load."""
    stream, fleet = one_server(build, rate=0.3, n=60)
    press = fleet.stations["press"].model_copy(update={"drift": ((0.0, 1.0), (50.0, 3.0))})
    slow = fleet.model_copy(update={"stations": {"press": press}})
    found = _stretched(stream, slow, 10.0, 0)
    assert found.fleet.stations["press"].drift == ((0.0, 1.0), (500.0, 3.0))
    arrivals = found.stream.requests.column("arrival_s").to_numpy()
    assert (arrivals == 10 * stream.requests.column("arrival_s").to_numpy()).all()


def test_more_workers_never_hold_less(build):
    stream, fleet = one_server(build, rate=0.4, n=200)
    two = fleet.model_copy(
        update={"stations": {"press": fleet.stations["press"].model_copy(update={"servers": 2})}}
    )
    targets = config(e2e_s=4.0)
    one, both = (holding(stream, f, targets, seeds=[0]) for f in (fleet, two))
    assert both.load_factor.mid > one.load_factor.mid


def test_a_target_missed_by_a_hair_at_any_load_is_no_knee(build):
    """Service times alone use up the tenth that may miss: the knee is where waits begin."""
    rng = np.random.default_rng(8)
    slow = np.where(np.arange(300) % 10 == 0, 3.0, 0.5)
    rows = [
        (t, "short_chat", [build.visit("tool", "press", s)])
        for t, s in zip(np.cumsum(rng.exponential(2.0, 300)), slow, strict=True)
    ]
    fleet = Fleet(
        engine=build.engine(), stations={"press": build.station("press", "tool", slow, 8)}
    )
    found = holding(build.stream(rows), fleet, config(e2e_s=2.5), seeds=[0])
    assert found.load_factor.mid > 5
    assert found.binds.startswith("press")


def test_retries_bring_the_breaking_load_down(build):
    stream, fleet = one_server(build, rate=0.5, n=300)
    patient = fleet.model_copy(update={"retry": Retry(attempt_timeout_s=4.0, max_attempts=1)})
    blind = fleet.model_copy(update={"retry": Retry(attempt_timeout_s=4.0, max_attempts=3)})
    targets = config(e2e_s=4.5, max_error_share=0.1)
    once, thrice = (holding(stream, f, targets, seeds=[0]) for f in (patient, blind))
    assert thrice.load_factor.mid <= once.load_factor.mid * 1.03


def test_the_ladder_climbs_and_does_not_flap(outside):
    plan = rank(outside)
    rungs = plan.ladder
    assert [r.order for r in rungs] == list(range(1, len(rungs) + 1))
    assert rungs[0].action == "no_blind_retries"
    assert "fewer_attempts" not in [r.action for r in rungs]
    assert "station_workers" not in [r.action for r in rungs]
    on = [r.on_rate_per_s for r in rungs]
    assert on == sorted(on)
    held = plan.holding.rate_per_s.mid
    for rung in rungs:
        assert rung.off_rate_per_s == pytest.approx(rung.on_rate_per_s - HYSTERESIS * held)
    assert on[-1] < held
    bare = ladder(plan.ranked, outside.capacity, Excuse(reason="no SLO"), ACTIONS)
    assert bare[0].on_rate_per_s == pytest.approx(0.8 * outside.capacity.binding.capacity_per_s.low)
    none: tuple[Action, ...] = ()
    assert ladder(plan.ranked, outside.capacity, plan.holding, none) == ()


def a_holding(low, mid, high):
    factor = Interval(low=low, mid=mid, high=high)
    return Holding(load_factor=factor, rate_per_s=factor, breaks="x", binds="y", curve=())


def test_runway_is_logarithmic_in_the_factor():
    found = runway(a_holding(1.5, 2.0, 2.5), 0.05, lead_weeks=3.0)
    assert found.weeks.mid == pytest.approx(math.log(2) / math.log(1.05))
    assert found.order_by_weeks == pytest.approx(math.log(1.5) / math.log(1.05) - 3)
    assert runway(a_holding(0.5, 0.7, 0.9), 0.05).weeks.high == 0
    assert "already" in runway(a_holding(0.5, 0.7, 0.9), 0.05).note
    assert isinstance(runway(a_holding(1.5, 2.0, 2.5), 0.0), Excuse)
    assert isinstance(runway(Excuse(reason="no SLO"), 0.1), Excuse)


def test_requests_too_far_apart_for_one_run_are_run_in_parts(build, monkeypatch):
    """Each part is judged on its own; together they stand as the whole does."""
    stream, fleet = one_server(build, rate=0.01, n=200)
    targets = config(e2e_s=1.5)
    whole = Scenario(stream, fleet, 3)
    monkeypatch.setattr("sojourn.plan.alone.LONGEST_S", 2500.0)
    parts = list(_parts(whole))
    assert len(parts) > 10
    assert sum(part.stream.requests.num_rows for part in parts) == 200
    assert max(part.stream.duration_s for part in parts) <= 1250
    found = _together(standings(judge(simulate(part), targets), targets) for part in parts)
    alone = standings(judge(simulate(whole), targets), targets)
    assert found.keys() == alone.keys()
    assert found["short_chat"].requests == 200
    assert abs(found["short_chat"].missed - alone["short_chat"].missed) <= 1


def test_days_side_by_side_are_the_days_one_after_the_other(build, monkeypatch):
    stream, fleet = one_server(build, rate=0.3, n=120)
    targets = config(e2e_s=5.0)
    alone = holding(stream, fleet, targets, seeds=[0, 1, 2])
    monkeypatch.setattr("sojourn.plan.holding.SIDE_BY_SIDE", 1)
    assert holding(stream, fleet, targets, seeds=[0, 1, 2]) == alone
