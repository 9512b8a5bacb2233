"""Actions: pure, opened by a verdict, sourced, and right about what they change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity.policies import Order
from sojourn.capacity.records import Fleet
from sojourn.config import Config, Retry
from sojourn.interval import Excuse, Provenance
from sojourn.plan.action import Context, EngineLoad, in_peak, integers
from sojourn.plan.actions import ACTIONS, action
from sojourn.plan.model_layer import speculative_step, tokens_per_round
from sojourn.plan.request_layer import unloaded_s
from sojourn.records import Bottleneck, Layer
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.profile_records import PrefixReuse


@pytest.fixture
def stream(build):
    c, v = build.call, build.visit
    rng = np.random.default_rng(0)
    rows = []
    for i in range(60):
        bucket = ("short_chat", "long_document", "tool_agent")[i % 3]
        steps = {
            "short_chat": [c(100, int(rng.integers(10, 200)))],
            "long_document": [
                v("retrieval", "kb", 0.3, 0), v("rerank", "second rank", 0.1, 1),
                c(6000, 50, cached=1000, group=2),
            ],
            "tool_agent": [
                c(300, 20, group=0), v("tool", "web", 0.5, 1), v("tool", "sql", 0.4, 2),
                c(700, 60, image=200, group=3),
            ],
        }[bucket]  # fmt: skip
        rows.append((i * 0.5 + (i > 30) * 0.01, bucket, steps))
    return build.stream(rows, priorities=[i % 2 - 1 for i in range(60)])


@pytest.fixture
def fleet(build):
    return Fleet(
        engine=build.engine(max_num_batched_tokens=512, max_num_seqs=8),
        stations={
            "kb": build.station("kb", "retrieval", [0.3] * 9 + [1.0], 2),
            "second rank": build.station(
                "second rank", "rerank", [0.1, 0.2, 0.5], 2, optional=True
            ),
            "web": build.station("web", "tool", [0.5, 0.6], 3, optional=True),
            "sql": build.station("sql", "tool", [0.4], None),
        },
        retry=Retry(attempt_timeout_s=2.0, max_attempts=3),
    )


@pytest.fixture
def context(build, stream):
    profile = build.profile(stream).model_copy(
        update={"prefix": PrefixReuse(hit_share=0.1, provenance=Provenance.MEASURED, ideal=0.6)}
    )
    diagnosis = build.diagnosis(*Bottleneck, engine_bound=True)
    config = Config.from_dict(
        {"deployment": {"model": "llama-3.1-8b", "accelerator": "H100-SXM"},
         "analysis": {"peak_window_s": 5}}
    )  # fmt: skip
    load = EngineLoad(running_mean=2.0, running_p95=8.0, kv_p95=0.5, gpu_share=0.6)
    return Context(config, profile, diagnosis, load)


def test_six_layers_each_with_an_action_that_is_simulated():
    simulated = [a for a in ACTIONS if a.simulated]
    assert len(simulated) >= 12
    assert {a.layer for a in simulated} == set(Layer)
    assert len({a.name for a in ACTIONS}) == len(ACTIONS)
    for a in ACTIONS:
        assert a.source, a.name
        assert a.wrong_when, a.name
        assert a.opens_for, a.name


@pytest.mark.parametrize("each", ACTIONS, ids=lambda a: a.name)
def test_an_action_is_pure_and_what_it_changes_can_be_simulated(each, stream, fleet, context):
    steps, requests, before = stream.steps, stream.requests, fleet.model_dump_json()
    copies = (
        steps.slice(0).combine_chunks().to_pydict(), requests.combine_chunks().to_pydict()
    )  # fmt: skip
    changed = each.apply(stream, fleet, context)
    assert stream.steps is steps
    assert stream.requests is requests
    assert (steps.to_pydict(), requests.to_pydict()) == copies
    assert fleet.model_dump_json() == before
    if isinstance(changed, Excuse):
        assert len(changed.reason) > 10
        return
    after, its_fleet = changed
    assert after.steps is not steps or after.requests is not requests or its_fleet != fleet
    run = simulate(Scenario(after, its_fleet))
    ids = stream.requests.column("request_id").to_pylist()
    assert sorted(run.tables.requests.column("request_id").to_pylist()) == sorted(ids)


def test_no_verdict_opens_no_action(build, stream, context):
    quiet = build.diagnosis(Bottleneck.NONE, engine_bound=False)
    calm = Context(context.config, context.profile, quiet)
    assert [a.name for a in ACTIONS if a.called_for(calm)] == []


def test_an_unsure_verdict_opens_nothing(build, stream, context):
    sure = build.diagnosis(Bottleneck.RETRY_AMPLIFICATION, engine_bound=False)
    doubt = sure.model_copy(
        update={"verdicts": tuple(v.model_copy(update={"confidence": 0.3}) for v in sure.verdicts)}
    )
    retries = action("no_blind_retries")
    assert retries.called_for(Context(context.config, context.profile, sure))
    assert not retries.called_for(Context(context.config, context.profile, doubt))


def test_retries_off_and_partial_answers(stream, fleet, context):
    _, off = action("no_blind_retries").apply(stream, fleet, context)
    assert not off.retry.retry_on_timeout
    assert off.retry.max_attempts == fleet.retry.max_attempts
    assert isinstance(action("no_blind_retries").apply(stream, off, context), Excuse)
    _, partial = action("degrade_on_timeout").apply(stream, fleet, context)
    assert partial.retry.degrade_on_timeout
    unlimited = fleet.model_copy(update={"retry": Retry(max_attempts=3)})
    assert isinstance(action("degrade_on_timeout").apply(stream, unlimited, context), Excuse)


def test_output_cap_cuts_each_bucket_at_its_own_p95(stream, fleet, context):
    capped, _ = action("output_cap").apply(stream, fleet, context)
    before, after = integers(stream, "output_tokens"), integers(capped, "output_tokens")
    assert (after <= before).all()
    assert 0 < (after < before).sum() <= 0.06 * len(before) + 1
    assert after.max() < before.max()


def test_trimming_leaves_the_cached_prefix(stream, fleet, context):
    trimmed, _ = action("retrieval_trim").apply(stream, fleet, context)
    tokens, cached = integers(trimmed, "input_tokens"), integers(trimmed, "cached_tokens")
    assert 1000 + 0.7 * 5000 in tokens.tolist()
    assert (tokens >= cached).all()
    assert (cached == integers(stream, "cached_tokens")).all()


def test_compression_pays_for_its_compressor_or_refuses(build, stream, fleet, context):
    shorter, _ = action("prompt_compression").apply(stream, fleet, context)
    delays = [s for s in shorter.steps.to_pylist() if s["kind"] == "delay"]
    assert len(delays) == 20
    assert all(d["service_s"] > 0 for d in delays)
    saved = unloaded_s(stream, fleet) - unloaded_s(shorter, fleet)
    assert saved.sum() > 0
    # with nearly all of the prompt cached there is nothing to compress away
    cached = build.stream([(0.0, "long_document", [build.call(6000, 50, cached=5999)])])
    assert isinstance(action("prompt_compression").apply(cached, fleet, context), Excuse)


def test_parallel_tools_join_only_tools_that_follow_directly(stream, fleet, context):
    joined, _ = action("parallel_tools").apply(stream, fleet, context)
    rows = joined.steps.to_pylist()
    agent = [r for r in rows if r["request"] == 2]
    groups = [r["group"] for r in agent]
    assert groups[1] == groups[2]
    assert len(set(groups)) == 3
    before = [r["group"] for r in stream.steps.to_pylist() if r["request"] == 1]
    after = [r["group"] for r in rows if r["request"] == 1]
    assert len(set(before)) == len(set(after))


def test_optional_steps_go_at_the_peak_only(build, fleet, context):
    v, c = build.visit, build.call
    steps = [v("rerank", "second rank", 0.1, 0), c(50, 5, group=1)]
    times = [*np.arange(0, 100, 5.0), *np.arange(100, 110, 0.2), *np.arange(115, 200, 5.0)]
    stream = build.stream([(t, "short_chat", steps) for t in times])
    dropped, _ = action("no_second_rerank_at_peak").apply(stream, fleet, context)
    has = np.bincount(integers(dropped, "request"), minlength=len(times)) == 2
    at = np.array(times)
    assert has[at < 100].all()
    assert has[at > 115].all()
    assert not has[(at > 105) & (at < 110)].any()


def test_a_request_keeps_at_least_one_step(build, fleet, context):
    only = [build.visit("tool", "web", 0.5, 0)]
    stream = build.stream([(float(t), "tool_agent", only) for t in range(10)])
    assert isinstance(action("no_optional_tools_at_peak").apply(stream, fleet, context), Excuse)


def test_flat_traffic_is_all_peak_and_a_burst_is_not(build):
    step = [build.call(10, 2)]
    flat = build.stream([(float(t), "short_chat", step) for t in range(200)])
    assert in_peak(flat, 10.0)[20:].all()
    burst = build.stream(
        [(t, "short_chat", step) for t in sorted([*np.arange(200.0), *np.linspace(100, 110, 90)])]
    )
    assert in_peak(burst, 10.0).mean() < 0.4


def test_prefix_reuse_reaches_the_ideal_and_no_more(stream, fleet, context):
    better, _ = action("prefix_reuse").apply(stream, fleet, context)
    tokens, cached = integers(better, "input_tokens"), integers(better, "cached_tokens")
    assert cached.sum() / tokens.sum() == pytest.approx(0.6, abs=0.01)
    unknown = Context(
        context.config, context.profile.model_copy(update={"prefix": None}), context.diagnosis
    )
    assert isinstance(action("prefix_reuse").apply(stream, fleet, unknown), Excuse)


@given(st.floats(0.0, 0.99), st.integers(1, 8))
def test_tokens_per_speculative_round(a, g):
    assert tokens_per_round(a, g) == pytest.approx(sum(a**i for i in range(g + 1)))


def test_published_speed_up_of_speculative_decoding():
    # Leviathan et al., arXiv:2211.17192: a=0.7, g=5, c=0.05 gives 2.35x
    assert tokens_per_round(0.7, 5) / (5 * 0.05 + 1) == pytest.approx(2.35, abs=0.01)


def test_speculation_gains_at_batch_one_and_fades_with_the_batch(build):
    step = build.engine().step
    fast = speculative_step(step)
    gain = [step.decode_step_s(b, 0) / fast.decode_step_s(b, 0) for b in (1, 8, 32)]
    assert gain[0] > 1.5
    assert gain == sorted(gain, reverse=True)
    assert fast.decode_step_s(0, 0) == step.decode_step_s(0, 0)


def test_speculation_refuses_when_the_engine_is_saturated(build, stream, fleet, context):
    busy = build.diagnosis(
        Bottleneck.DECODE_BANDWIDTH, Bottleneck.QUEUE_ADMISSION, engine_bound=True
    )
    found = action("speculative_decoding").apply(
        stream, fleet, Context(context.config, context.profile, busy)
    )
    assert isinstance(found, Excuse)
    assert "saturated" in found.reason
    alone = build.diagnosis(Bottleneck.DECODE_BANDWIDTH, engine_bound=True)
    assert not isinstance(
        action("speculative_decoding").apply(
            stream, fleet, Context(context.config, context.profile, alone)
        ),
        Excuse,
    )


def test_quantisation_shortens_memory_bound_steps_only(stream, fleet, context):
    _, changed = action("weight_quantisation").apply(stream, fleet, context)
    old, new = fleet.engine.step, changed.engine.step
    ratio = [new.decode_step_s(b, 0) / old.decode_step_s(b, 0) for b in old.batches if b]
    assert all(0.4 < r <= 1.0 for r in ratio)
    assert ratio[0] < 0.75
    assert new.prefill_s_per_token == old.prefill_s_per_token
    assert changed.engine.kv_blocks >= fleet.engine.kv_blocks
    unnamed = Context(Config(), context.profile, context.diagnosis)
    assert isinstance(action("weight_quantisation").apply(stream, fleet, unnamed), Excuse)


def test_slots_are_not_raised_into_full_memory_or_an_empty_batch(stream, fleet, context):
    def at(**load):
        return Context(context.config, context.profile, context.diagnosis, EngineLoad(**load))

    slots = action("more_slots")
    assert "KV" in slots.apply(stream, fleet, at(kv_p95=0.97, running_p95=8.0)).reason
    assert "does not fill" in slots.apply(stream, fleet, at(kv_p95=0.2, running_p95=2.0)).reason
    _, more = slots.apply(stream, fleet, at(kv_p95=0.2, running_p95=8.0))
    assert more.engine.max_num_seqs == 16


def test_workers_double_only_where_a_verdict_points(build, stream, fleet, context):
    blamed = build.diagnosis(Bottleneck.RETRIEVAL, engine_bound=False)
    _, more = action("station_workers").apply(
        stream, fleet, Context(context.config, context.profile, blamed)
    )
    assert more.stations["kb"].servers == 4
    assert more.stations["web"].servers == 3


def test_time_limits_only_on_optional_stations(stream, fleet, context):
    _, limited = action("stage_limits").apply(stream, fleet, context)
    assert limited.stations["second rank"].timeout_s == pytest.approx(
        fleet.stations["second rank"].service_s.p90
    )
    assert limited.stations["kb"].timeout_s is None


def test_stage_budgets_reach_every_stage_that_can_answer_in_part(stream, fleet, context):
    _, limited = action("stage_budgets").apply(stream, fleet, context)
    for name, station in limited.stations.items():
        assert station.timeout_s == pytest.approx(fleet.stations[name].service_s.p90)
        assert station.optional
    assert not fleet.stations["kb"].optional


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2))
def test_twice_the_replicas_never_worsen_the_mean(build, seed, replicas):
    rng = np.random.default_rng(seed)
    rows = [
        (t, "short_chat", [build.call(int(rng.integers(20, 400)), int(rng.integers(2, 40)))])
        for t in np.cumsum(rng.exponential(0.1, 40))
    ]
    stream = build.stream(rows)
    fleet = Fleet(engine=build.engine(replicas=replicas, max_num_seqs=4))
    context = Context(
        Config(), build.profile(stream), build.diagnosis(Bottleneck.NONE, engine_bound=True)
    )
    _, doubled = action("scale_out").apply(stream, fleet, context)

    def mean(which):
        done = simulate(Scenario(stream, which)).tables.requests
        return float(np.mean(done["end_s"].to_numpy() - done["arrival_s"].to_numpy()))

    # a request may find the lighter engine in the middle of a step: one step of grace
    longest = fleet.engine.step.step_s(4, 2000, 400, 400 * 200)
    assert mean(doubled) <= mean(fleet) + longest


@pytest.mark.parametrize(("low", "put_off"), [(0, False), (-1, True)])
def test_only_requests_marked_to_wait_are_put_off(stream, fleet, context, low, put_off):
    """A lower rank is no permission to wait: a priority below 0 is."""
    ranks = [low if i % 3 else 1 for i in range(stream.requests.num_rows)]
    index = stream.requests.column_names.index("priority")
    ranked = replace(
        stream, requests=stream.requests.set_column(index, "priority", pa.array(ranks))
    )
    found = action("async_low_priority").apply(ranked, fleet, context)
    if put_off:
        assert not isinstance(found, Excuse)
        moved, _fleet = found
        assert moved.duration_s > stream.duration_s
        assert moved.requests.num_rows == stream.requests.num_rows
    else:
        assert "may wait" in found.reason


def test_a_cap_on_long_prompts_is_the_median_prompt_or_none(build, stream, fleet, context):
    _, capped = action("long_prompt_cap").apply(stream, fleet, context)
    computed = [
        s["input_tokens"] - s["cached_tokens"] for s in stream.steps.to_pylist()
        if s["kind"] == "call"
    ]  # fmt: skip
    cap = capped.engine.scheduler.long_prompt_cap
    assert cap == int(np.median(computed))
    assert "at most" in action("long_prompt_cap").apply(stream, capped, context).reason
    alike = build.stream([(0.0, "short_chat", [build.call(200, 5)] * 3)])
    assert "long beside" in action("long_prompt_cap").apply(alike, fleet, context).reason


def test_a_capped_long_prompt_lets_a_short_one_pass(build, context):
    """A step of 2048 tokens takes 1900 of the long prompt and the short one would come after it."""
    c = build.call
    rows = [(0.0, "long_document", [c(8000, 5)])]
    rows += [(0.001 * i, "short_chat", [c(100, 5)]) for i in range(1, 6)]
    stream, fleet = build.stream(rows), Fleet(engine=build.engine())
    _, capped = action("long_prompt_cap").apply(stream, fleet, context)

    def first_tokens(which):
        calls = simulate(Scenario(stream, which)).tables.calls.sort_by("arrival_s")
        return calls["first_token_s"].to_numpy()

    before, after = first_tokens(fleet), first_tokens(capped)
    assert (after[1:] < before[1:]).all()
    assert after[0] > before[0]


def test_orders_change_into_each_other_and_only_from_what_they_replace(stream, fleet, context):
    prefill, decode = action("prefill_first"), action("decode_first")
    assert "fcfs" in decode.apply(stream, fleet, context).reason
    _, first = prefill.apply(stream, fleet, context)
    assert first.engine.scheduler.order is Order.PREFILL_FIRST
    assert isinstance(prefill.apply(stream, first, context), Excuse)
    _, back = decode.apply(stream, first, context)
    assert back == fleet


def test_important_requests_overtake_where_some_are(build, stream, fleet, context):
    """One slot: the last to come, of the largest priority, is served second."""
    rows = [(0.01 * i, "short_chat", [build.call(100, 20)]) for i in range(4)]
    ranked, one = build.stream(rows, priorities=[0, -1, 0, 3]), build.engine(max_num_seqs=1)
    _, by_rank = action("priority_scheduling").apply(ranked, Fleet(engine=one), context)
    calls = simulate(Scenario(ranked, by_rank)).tables.calls.sort_by("scheduled_s")
    assert calls["request_id"].to_pylist() == ["r00000", "r00003", "r00002", "r00001"]
    same = build.stream(rows)
    assert "one priority" in action("priority_scheduling").apply(same, fleet, context).reason
    assert isinstance(action("priority_scheduling").apply(ranked, by_rank, context), Excuse)


def test_the_least_loaded_replica_is_chosen_where_there_are_several(build, fleet, context):
    """In turn, the third call meets the long one; with the fewest, the short one's replica."""
    c = build.call
    rows = [(t, "short_chat", [step]) for t, step in ((0, c(50, 400)), (1, c(50, 2)), (2, c(9, 2)))]
    stream, two = build.stream(rows), Fleet(engine=build.engine(replicas=2))
    router = action("least_loaded_router")
    _, changed = router.apply(stream, two, context)

    def replicas(which):
        calls = simulate(Scenario(stream, which)).tables.calls
        return calls.sort_by("arrival_s")["replica"].to_pylist()

    assert replicas(two) == ["0", "1", "0"]
    assert replicas(changed) == ["0", "1", "1"]
    assert isinstance(router.apply(stream, changed, context), Excuse)
    assert "one replica" in router.apply(stream, fleet, context).reason


def test_a_retry_budget_bounds_what_retries_add(build, stream, fleet, context):
    """Every attempt times out: nothing is earned, and the ten retries held at first are spent."""
    rows = [(float(i), "tool_agent", [build.visit("tool", "web", 9.0)]) for i in range(40)]
    slow = build.stream(rows)
    _, bounded = action("retry_budget").apply(slow, fleet, context)
    tries = [
        sum(simulate(Scenario(slow, f)).tables.requests["attempts"].to_pylist())
        for f in (fleet.model_copy(update={"stations": {}}),
                  bounded.model_copy(update={"stations": {}}))
    ]  # fmt: skip
    assert tries == [120, 50]
    assert isinstance(action("retry_budget").apply(slow, bounded, context), Excuse)
    _, off = action("no_blind_retries").apply(stream, fleet, context)
    assert "Nothing is retried" in action("retry_budget").apply(stream, off, context).reason


def test_shedding_allows_the_slack_of_the_tightest_target(build, fleet, context):
    rows = [(0.05 * i, "short_chat", [build.call(100, 200)]) for i in range(300)]
    stream, engine = build.stream(rows), Fleet(engine=build.engine(max_num_seqs=8))
    shed = action("shed_hopeless")
    assert "No target" in shed.apply(stream, engine, context).reason

    def under(**slo):
        config = Config.from_dict({"slo": {"default": slo}})
        return shed.apply(stream, engine, replace(context, config=config))

    alone = float(unloaded_s(stream, engine)[0])
    assert under(e2e_s=alone + 1.5)[1].admission.wait_s == pytest.approx(1.5)
    assert under(e2e_s=alone + 1.5, ttft_s=0.5)[1].admission.wait_s == pytest.approx(0.5)
    assert "alone" in under(e2e_s=alone / 2).reason
    _, gated = under(e2e_s=alone + 3.0, ttft_s=2.0)
    open_run, run = simulate(Scenario(stream, engine)), simulate(Scenario(stream, gated))
    assert run.counts["shed"] > 0
    served = run.tables.requests.filter(pc.equal(run.tables.requests["status"], "ok"))
    stay = np.max(served["end_s"].to_numpy() - served["arrival_s"].to_numpy())
    every = open_run.tables.requests
    assert stay < np.max(every["end_s"].to_numpy() - every["arrival_s"].to_numpy()) / 2
    assert isinstance(shed.apply(stream, gated, context), Excuse)
