"""The SLO is judged jointly, request by request, and nothing that failed is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.config import Config
from sojourn.plan.slo import judge, outcome, slo_held, standings
from sojourn.trace.tables import Tables, from_rows


def tables(requests, calls=(), spans=()):
    rows = [{"arrival_s": 0.0, "bucket": "short_chat", "status": "ok", **r} for r in requests]
    return Tables.of(
        {
            "requests": from_rows("requests", rows),
            "calls": from_rows("calls", [{"arrival_s": 0.0, **c} for c in calls]),
            "spans": from_rows("spans", spans),
        }
    )


def config(**slo):
    return Config.from_dict({"slo": {"default": slo}})


def request(name, **more):
    return {"request_id": name, "end_s": 1.0, **more}


def one_call(name, **more):
    defaults = {
        "call_id": f"{name}-{more.get('attempt', 0)}-{more.get('turn', 0)}", "request_id": name,
        "attempt": 0, "turn": 0, "first_token_s": 0.2, "end_s": 1.0, "input_tokens": 100,
        "output_tokens": 9,
    }  # fmt: skip
    return defaults | more


def test_a_request_is_good_only_when_it_meets_every_target():
    # each misses one other target: three percentiles of 75% would hide that one in four is good
    run = tables(
        [request("a"), request("b"), request("c"), request("d", end_s=9.0)],
        [
            one_call("a"),
            one_call("b", first_token_s=0.9),
            one_call("c", end_s=5.0),
            one_call("d"),
        ],
    )
    judged = judge(run, config(ttft_s=0.5, tpot_s=0.2, e2e_s=2.0))
    assert judged.good.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert [judged.misses[t].sum() for t in ("ttft_s", "tpot_s", "e2e_s")] == [1, 1, 1]
    assert outcome(run, config(ttft_s=0.5, tpot_s=0.2, e2e_s=2.0)).attainment[
        "all"
    ].mid == pytest.approx(0.25)


def test_ttft_is_to_the_first_token_of_the_last_call_of_the_last_attempt():
    run = tables(
        [request("a", end_s=8.0, attempts=2)],
        [
            one_call("a", attempt=0, turn=1, first_token_s=9.5, end_s=9.9),  # ran on, unheard
            one_call("a", attempt=1, turn=0, arrival_s=5.0, first_token_s=5.1, end_s=5.4),
            one_call("a", attempt=1, turn=1, arrival_s=6.0, first_token_s=6.5, end_s=7.3),
        ],
    )
    judged = judge(run, Config())
    assert judged.ttft_s[0] == pytest.approx(6.5)
    assert judged.tpot_s[0] == pytest.approx(0.1)


def test_an_answer_without_a_model_call_has_its_first_byte_at_its_end():
    run = tables(
        [request("a"), request("b", end_s=3.0, attempts=2)],
        [one_call("a"), one_call("b", attempt=0)],
    )
    judged = judge(run, config(ttft_s=2.0))
    assert judged.ttft_s.tolist() == pytest.approx([0.2, 3.0])
    assert judged.good.tolist() == [1.0, 0.0]


def test_ttft_target_grows_with_the_prompt():
    run = tables(
        [request("a"), request("b")],
        [one_call("a", input_tokens=100), one_call("b", input_tokens=10_000)],
    )
    tight = config(ttft_s=0.1, ttft_per_input_token_s=1e-4)
    assert judge(run, tight).good.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("status", ["error", "timeout", "shed"])
def test_failed_requests_are_misses(status):
    run = tables([request("a"), request("b", status=status, end_s=0.01)])
    assert judge(run, config(e2e_s=2.0)).good.tolist() == [1.0, 0.0]
    found = outcome(run, config(e2e_s=2.0))
    assert found.error_share.mid == pytest.approx(0.5)
    assert found.requests == 2


def test_shed_requests_do_not_flatter_the_latency():
    run = tables([request("a", end_s=4.0), request("b", status="shed", end_s=0.0)])
    assert outcome(run, Config()).e2e_s["all"]["p50"].mid == pytest.approx(4.0)


def test_a_cancelled_request_misses_only_when_it_was_late_already():
    run = tables(
        [
            request("a", status="cancelled", end_s=0.5),
            request("b", status="cancelled", end_s=5.0),
            request("c"),
        ]
    )
    good = judge(run, config(e2e_s=2.0)).good
    assert np.isnan(good[0])
    assert good[1:].tolist() == [0.0, 1.0]


def test_requests_in_flight_are_left_out():
    run = tables([request("a"), request("b", status=None, end_s=None)])
    assert np.isnan(judge(run, config(e2e_s=2.0)).good[1])


def test_what_was_not_measured_gives_no_attainment_and_says_so():
    found = outcome(tables([request("a"), request("b")]), config(ttft_s=1.0))
    assert found.attainment == {}
    assert "ttft_s not measured on 100%" in found.notes[0]


def test_without_an_slo_there_is_no_attainment_and_a_note():
    found = outcome(tables([request("a")]), Config())
    assert found.attainment == {}
    assert "no SLO is set" in found.notes[0]
    assert slo_held(tables([request("a")]), Config()) is None


def test_one_miss_cannot_refute_a_target_of_few_requests():
    late = [request("late", end_s=9.0)]
    few = tables([request(f"r{i}") for i in range(20)] + late)
    assert slo_held(few, config(e2e_s=2.0)) is True
    two = tables([request(f"r{i}") for i in range(20)] + late + [request("later", end_s=9.0)])
    assert slo_held(two, config(e2e_s=2.0)) is False
    standing = standings(judge(two, config(e2e_s=2.0)), config(e2e_s=2.0))["short_chat"]
    assert standing.worst == "e2e_s"
    assert "short chat" in standing.describe()


def test_cost_per_success_counts_only_requests_that_succeeded():
    day = {"deployment": {"usd_per_replica_hour": 3.6, "replicas": 2},
           "stations": {"web search": {"usd_per_call": 0.01}}}  # fmt: skip
    rows = [request(f"r{i}", arrival_s=i * 36.0, end_s=i * 36.0 + 1) for i in range(101)]
    for row in rows[:50]:
        row["success"] = False
    visits = [
        {"span_id": f"s{i}", "request_id": "r1", "name": "web search", "stage": "tool",
         "start_s": 0.0, "end_s": 1.0}
        for i in range(10)
    ]  # fmt: skip
    found = outcome(tables(rows, spans=visits), Config.from_dict(day))
    assert found.usd_per_hour == pytest.approx(7.2 + 0.10)  # 10 visits in one hour
    assert found.usd_per_success == pytest.approx(7.3 / 51)


def test_no_price_is_no_cost_but_booked_cost_serves():
    free = outcome(tables([request("a"), request("b", arrival_s=3600.0, end_s=3601.0)]), Config())
    assert free.usd_per_hour is None
    assert free.usd_per_success is None
    rows = [request("a", cost_usd=0.5), request("b", arrival_s=3600.0, end_s=3601.0, cost_usd=1.5)]
    assert outcome(tables(rows), Config()).usd_per_hour == pytest.approx(2.0)


def test_engine_busy_is_the_union_of_its_calls():
    run = tables(
        [request("a", end_s=10.0)],
        [
            one_call("a", turn=0, scheduled_s=0.0, end_s=2.0, replica="0"),
            one_call("a", turn=1, scheduled_s=1.0, end_s=3.0, replica="0"),
            one_call("a", turn=2, scheduled_s=9.0, end_s=10.0, replica="0"),
        ],
    )
    assert outcome(run, Config()).engine_busy == pytest.approx(0.4)


def test_an_empty_recording_has_an_empty_outcome():
    found = outcome(Tables(), config(e2e_s=1.0))
    assert found.requests == 0
    assert found.e2e_s == {}


@given(
    st.lists(
        st.tuples(st.floats(0.01, 10), st.floats(0.01, 1), st.sampled_from(["ok", "timeout"])),
        min_size=1,
        max_size=40,
    )
)
def test_joint_attainment_never_exceeds_that_of_any_target(rows):
    requests = [request(f"r{i}", end_s=e, status=s) for i, (e, _, s) in enumerate(rows)]
    calls = [one_call(f"r{i}", first_token_s=f * e, end_s=e) for i, (e, f, _) in enumerate(rows)]
    run = tables(requests, calls)
    targets = {"ttft_s": 1.0, "tpot_s": 0.3, "e2e_s": 3.0}
    joint = outcome(run, config(**targets)).attainment["all"].mid
    alone = [outcome(run, config(**{k: v})).attainment["all"].mid for k, v in targets.items()]
    assert joint <= min(alone) + 1e-12


def test_missed_by_chance_is_not_surely_missed():
    def standing(n, late):
        rows = [request(f"r{i}", end_s=9.0 if i < late else 1.0) for i in range(n)]
        slo = config(e2e_s=2.0, percentile=0.95)
        return standings(judge(tables(rows), slo), slo)["short_chat"]

    # P(at least 7 of 100 | 5%) = 0.234, P(at least 10) = 0.028
    assert not standing(100, 7).held
    assert not standing(100, 7).surely_missed(0.9)
    assert standing(100, 10).surely_missed(0.9)
    assert not standing(100, 0).surely_missed(0.9)
