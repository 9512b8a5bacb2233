"""What is drawn has the moments asked for, the same every time, and the same luck elsewhere."""

from __future__ import annotations

import time

import numpy as np
import pyarrow.compute as pc
import pytest
from tests.scenario.making import built, small

from sojourn.workload.arrival_process import ArrivalProcess, arrival_times
from sojourn.workload.variates import (
    Exponential,
    Fixed,
    Gamma,
    Lognormal,
    Quantiles,
    Samples,
    Uniform,
    drawn,
)

COUNT = 200_000
LAWS = [
    (Fixed(distribution="fixed", value=3), 3, 0),
    (Uniform(distribution="uniform", low=2, high=6), 4, (16 / 12) ** 0.5),
    (Exponential(distribution="exponential", mean=5), 5, 5),
    (Lognormal(distribution="lognormal", mean=300, cv=0.8), 300, 240),
    (Gamma(distribution="gamma", mean=10, cv=0.3), 10, 3),
    (Gamma(distribution="gamma", mean=10, cv=2), 10, 20),
    (Samples(distribution="samples", values=(1, 2, 9)), 4, (38 / 3) ** 0.5),
    (Quantiles(distribution="quantiles", quantiles={0: 0, 0.5: 10, 1: 10}), 7.5, (
        (0.5 * 100 / 3 + 0.5 * 100) - 7.5**2) ** 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("law", "mean", "deviation"), LAWS, ids=lambda v: type(v).__name__)
def test_moments(law, mean, deviation) -> None:
    values = drawn(law, COUNT, 7, "moments")
    error = deviation / COUNT**0.5
    assert abs(values.mean() - mean) <= 5 * error + 1e-9
    assert values.std() == pytest.approx(deviation, rel=0.05, abs=1e-9)


def test_the_first_draws_do_not_depend_on_how_many_follow() -> None:
    law = Gamma(distribution="gamma", mean=10, cv=2)
    assert np.array_equal(drawn(law, 1000, 3, "a")[:10], drawn(law, 10, 3, "a"))
    assert not np.array_equal(drawn(law, 10, 3, "a"), drawn(law, 10, 3, "b"))
    assert not np.array_equal(drawn(law, 10, 3, "ab", "c"), drawn(law, 10, 3, "a", "bc"))


def test_bounds_cut() -> None:
    law = Lognormal(distribution="lognormal", mean=100, cv=2, least=50, most=200)
    values = drawn(law, 10_000, 0, "x")
    assert values.min() == 50
    assert values.max() == 200


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("constant", 0.0), ("gamma", 2.0)])
def test_arrivals_have_the_rate_and_the_spread_of_their_process(process, cv) -> None:
    given = {"process": process, "rate_per_s": 4.0, **({"cv": cv} if process == "gamma" else {})}
    times = arrival_times(ArrivalProcess(**given), 5, duration_s=20_000, count=None)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(80_000, abs=5 * max(cv, 0.01) * 80_000**0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.03)
    assert (gaps >= 0).all()


def test_a_profile_of_rates_is_followed_and_repeats() -> None:
    pieces = [{"for_s": 100, "rate_per_s": r} for r in (1.0, 0.0, 9.0)]
    process = ArrivalProcess(profile=pieces)
    times = arrival_times(process, 1, duration_s=6_000, count=None)
    place = (times % 300) // 100
    counts = [int((place == k).sum()) for k in range(3)]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(2_000, abs=5 * 2_000**0.5)
    assert counts[2] == pytest.approx(18_000, abs=5 * 18_000**0.5)
    assert process.expected(450) == pytest.approx(1 * 100 + 9 * 100 + 100)


def test_another_rate_meets_the_same_luck() -> None:
    slow, fast = (
        built(small(**{"workload.arrivals.rate_per_s": rate})).scenario.stream for rate in (5, 10)
    )
    few = slow.requests.num_rows
    both = pc.is_in(slow.requests["request_id"], value_set=fast.requests["request_id"])
    assert pc.sum(both).as_py() == few
    first = {r["request_id"]: r for r in fast.requests.to_pylist()}
    ratio = [
        r["arrival_s"] / first[r["request_id"]]["arrival_s"] for r in slow.requests.to_pylist()
    ]
    assert ratio == pytest.approx([2.0] * few)


def test_another_policy_changes_no_draw() -> None:
    plain = built(small()).scenario.stream
    other = built(
        small(**{"engine.replicas": 3, "retry.max_attempts": 2, "stations.retrieval.servers": 1})
    ).scenario.stream
    assert plain.requests.equals(other.requests)
    assert plain.steps.equals(other.steps)


def test_another_distribution_changes_nothing_else() -> None:
    plain = built(small()).scenario.stream.steps
    other = built(small(**{"workload.classes.1.output_tokens": 50})).scenario.stream.steps
    assert plain["service_s"].equals(other["service_s"])
    chat = pc.equal(plain["name"], "retrieval")
    assert plain.filter(chat).equals(other.filter(chat))


def test_shares_and_tokens_are_as_asked() -> None:
    raw = small(**{"workload.arrivals.rate_per_s": 500})
    stream = built(raw).scenario.stream
    count = stream.requests.num_rows
    chats = pc.sum(pc.equal(stream.requests["bucket"], "chat")).as_py()
    assert chats / count == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / count) ** 0.5)
    calls = stream.steps.filter(pc.equal(stream.steps["kind"], "call"))
    owner = calls["request"]
    of_chat = pc.equal(stream.requests["bucket"].take(owner), "chat")
    prompt = calls.filter(of_chat)["input_tokens"].to_numpy() - 100
    bounded = np.minimum(Lognormal(distribution="lognormal", mean=300, cv=1).strata(100_000), 3000)
    assert prompt.mean() == pytest.approx(bounded.mean(), abs=5 * bounded.std() / chats**0.5 + 0.5)


def test_an_agents_prompt_holds_all_that_came_before() -> None:
    stream = built(small()).scenario.stream
    agents = pc.equal(stream.requests["bucket"], "agent").to_numpy(zero_copy_only=False)
    row = int(np.flatnonzero(agents)[0])
    steps = stream.steps.filter(pc.equal(stream.steps["request"], row)).to_pylist()
    kinds = [step["name"] for step in steps]
    assert kinds == ["gateway", "model", "search", "model", "search", "model"]
    assert [step["group"] for step in steps] == list(range(6))
    prompts = [step["input_tokens"] for step in steps if step["kind"] == "call"]
    assert prompts == [200, 200 + 40 + 50, 200 + 2 * (40 + 50)]
    hashes = [step["block_hashes"] for step in steps if step["kind"] == "call"]
    assert hashes[2][: len(hashes[1])] == hashes[1]
    assert hashes[1][: len(hashes[0])] == hashes[0]
    assert len(hashes[0]) == (200 + 40) // 16


def test_requests_of_a_group_share_the_prefix_and_nothing_else() -> None:
    stream = built(small()).scenario.stream
    calls = stream.steps.filter(pc.equal(stream.steps["kind"], "call")).to_pylist()
    buckets = stream.requests["bucket"].to_pylist()
    chats = [call["block_hashes"] for call in calls if buckets[call["request"]] == "chat"]
    assert {len(hashes) for hashes in chats} == {100 // 16}
    assert len({tuple(hashes) for hashes in chats}) == 3
    agents = {tuple(c["block_hashes"]) for c in calls if buckets[c["request"]] == "agent"}
    assert len(agents) == sum(buckets[c["request"]] == "agent" for c in calls)


def test_a_session_keeps_its_conversation() -> None:
    raw = small(
        **{
            "workload.classes.0.session": {"requests": 3, "gap_s": 5},
            "workload.classes.0.input_tokens": 100,
            "workload.classes.0.output_tokens": 20,
        }
    )
    stream = built(raw).scenario.stream
    rows = [r for r in stream.requests.to_pylist() if r["session_id"] == "chat-0"]
    assert [r["request_id"] for r in rows] == ["chat-0.0", "chat-0.1", "chat-0.2"]
    assert np.diff([r["arrival_s"] for r in rows]) == pytest.approx([5, 5])
    ids = stream.requests["request_id"].to_pylist()
    calls = stream.steps.filter(pc.equal(stream.steps["kind"], "call")).to_pylist()
    mine = {ids[c["request"]]: c for c in calls}
    prompts = [mine[r["request_id"]]["input_tokens"] for r in rows]
    assert prompts == [200, 100 + 120 + 100, 100 + 240 + 100]
    first, second = (mine[f"chat-0.{k}"]["block_hashes"] for k in (0, 1))
    assert second[: len(first)] == first
    assert pc.max(stream.requests["arrival_s"]).as_py() < 60


def test_parallel_steps_share_a_group_and_longer_waits_are_told() -> None:
    raw = small(
        chain=[
            "gateway",
            {"station": "retrieval", "after": ["gateway"], "classes": ["chat"]},
            {"delay_s": 0.1, "name": "network", "after": []},
            {"call": "default", "after": ["retrieval", "network"]},
        ]
    )
    made = built(raw)
    steps = made.scenario.stream.steps
    one = steps.filter(pc.equal(steps["request"], 0))
    assert one["group"].to_pylist()[:3] == [0, 0, 1]
    assert any("retrieval also waits for network" in note for note in made.notes)


@pytest.mark.slow
def test_a_million_requests_are_drawn_without_a_loop() -> None:
    """Ten microseconds a request would be no numpy: a loop of Python takes 20 and more."""
    raw = small(**{"workload.duration_s": None, "workload.requests": 200_000})
    built(raw)
    started = time.process_time()
    stream = built(raw).scenario.stream
    assert stream.requests.num_rows == 200_000
    assert (time.process_time() - started) / stream.steps.num_rows < 10e-6
