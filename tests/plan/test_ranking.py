"""Plans of labelled small cases: outside the engine, inside it, and no evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sojourn.attribution.records import Diagnosis, Verdict
from sojourn.config import Config
from sojourn.errors import UsageError
from sojourn.interval import Excuse, Interval
from sojourn.plan import scoring
from sojourn.plan.action import Action
from sojourn.plan.actions import ACTIONS, action
from sojourn.plan.effect import Effect, effect
from sojourn.plan.ranking import rank
from sojourn.plan.records import Plan, Price
from sojourn.plan.trial import try_all
from sojourn.records import Bottleneck, Layer
from sojourn.sim.scenario import Scenario
from sojourn.workload.stream import Stream


@pytest.fixture(scope="module")
def outside_plan(outside):
    return rank(outside)


@pytest.fixture(scope="module")
def inside_plan(inside):
    return rank(inside)


def test_every_action_is_ranked_or_refused_once(outside_plan, inside_plan):
    for plan in (outside_plan, inside_plan):
        names = [r.name for r in (*plan.ranked, *plan.refused)]
        assert sorted(names) == sorted(a.name for a in ACTIONS)


def test_outside_the_engine_retries_come_first(outside_plan):
    retries = {"no_blind_retries", "degrade_on_timeout"}
    assert {r.name for r in outside_plan.ranked[:2]} == retries
    assert all(r.worth_it and r.source and r.calls_for for r in outside_plan.ranked)
    assert all(r.p99_change_s.high <= 0 for r in outside_plan.ranked[:2])
    assert "retry amplification" in outside_plan.ranked[0].calls_for


def test_outside_the_engine_gpus_are_refused_with_their_numbers(outside_plan):
    refused = next(r for r in outside_plan.refused if r.name == "scale_out")
    assert refused is outside_plan.refused[0]
    assert refused.outcome is not None
    assert refused.outcome.usd_per_success > outside_plan.baseline.usd_per_success
    assert refused.price.usd_per_hour == pytest.approx(2.0)
    for part in ("P99", "per hour", "successful request", "retrieval"):
        assert part in refused.excuse.reason


def test_inside_the_engine_gpus_are_recommended(inside_plan):
    found = {r.name: r for r in inside_plan.ranked}
    assert "scale_out" in found
    scaled = found["scale_out"]
    assert scaled.p99_change_s.high < 0
    assert scaled.outcome.attainment["all"].mid > inside_plan.baseline.attainment["all"].mid
    assert "per hour" in scaled.why
    refused = {r.name: r.excuse.reason for r in inside_plan.refused}
    assert "Not called for" in refused["no_blind_retries"]
    assert "saturated" in refused["speculative_decoding"]
    assert "worse" in refused["fewer_slots"]


def test_a_refused_diagnosis_buys_nothing_though_the_engine_looks_bound(inside, build):
    thin = build.diagnosis(Bottleneck.INSUFFICIENT_EVIDENCE, engine_bound=True)
    chosen = (action("scale_out"), action("more_slots"))
    case = replace(inside, diagnosis=thin, actions=chosen, holding=Excuse(reason="not asked"))
    plan = rank(case)
    assert plan.ranked == ()
    assert "not known" in plan.refused[0].excuse.reason


def test_cheap_settings_that_bring_as_much_come_before_gpus(inside_plan):
    scaled = next(r for r in inside_plan.ranked if r.name == "scale_out")
    effect_of = Effect(
        outcome=scaled.outcome, p99_change_s=scaled.p99_change_s, p99_reduction=0.9,
        attainment_change=Interval(low=0.5, mid=0.6, high=0.7), misses_removed=0.9,
        error_change=0.0, degraded_change=0.0, usd_per_success_change=0.0, cost_ratio=1.0,
        worse=(),
    )  # fmt: skip
    free, costly = Price(), Price(unpriced=True)
    diagnosis = Diagnosis(
        verdicts=(Verdict(bottleneck=Bottleneck.QUEUE_ADMISSION, layer=None, bucket="all",
                          confidence=0.9, evidence=()),),
        engine_bound=True,
    )  # fmt: skip

    def verdict(rivals):
        return scoring.scale_out_refusal(
            effect_of, inside_plan.baseline, diagnosis, price=scaled.price, rivals=rivals
        )

    assert verdict([]) is None
    assert verdict([("Bigger pool", effect_of, costly)]) is None
    assert "Larger batch brings as much" in verdict([("Larger batch", effect_of, free)]).reason


def test_the_same_numbers_without_an_engine_verdict_do_not_buy_gpus(inside, build):
    unknown = build.diagnosis(Bottleneck.INSUFFICIENT_EVIDENCE, engine_bound=None)
    plan = rank(replace(inside, diagnosis=unknown, holding=Excuse(reason="not asked")))
    assert plan.ranked == ()
    assert plan.bundle is None
    refused = {r.name: r for r in plan.refused}
    assert "not known" in refused["scale_out"].excuse.reason
    assert refused["scale_out"].excuse.collect == ("record an hour",)
    assert refused["more_slots"].excuse.collect == ("record an hour",)


def test_nothing_is_bundled_where_one_action_holds_the_slo_alone(outside, outside_plan):
    wanted = outside.config.slo["default"].percentile
    alone = [r.name for r in outside_plan.ranked if r.outcome.attainment["all"].low >= wanted]
    assert "degrade_on_timeout" in alone  # it takes the place of the retries it implies
    assert outside_plan.bundle is None


def test_the_bundle_is_better_than_its_parts_and_ends_where_the_slo_is_held(outside):
    """With a searcher more and a ranker less both are over their capacity at the peak: each of
    two actions helps, and neither holds the SLO alone."""
    slo = {"default": {"e2e_s": 6.0, "percentile": 0.98, "max_error_share": 0.1}}
    config = outside.config.model_copy(update={"slo": Config.from_dict({"slo": slo}).slo})
    workers = {"kb": 5, "second rank": 1}
    stations = {
        name: outside.fleet.stations[name].model_copy(update={"servers": servers})
        for name, servers in workers.items()
    }
    fleet = outside.fleet.model_copy(update={"stations": stations})
    capacity = outside.capacity.model_copy(update={"fleet": fleet})
    parts = (action("no_blind_retries"), action("more_slots"), action("fewer_attempts"))
    actions = (*parts, action("no_second_rerank_at_peak"))
    plan = rank(replace(outside, config=config, capacity=capacity, actions=actions))
    bundle = plan.bundle
    assert bundle is not None
    assert bundle.name == "no_blind_retries+no_second_rerank_at_peak"
    best = max(r.outcome.attainment["all"].mid for r in plan.ranked)
    assert bundle.outcome.attainment["all"].mid >= best


def test_model_error_is_said(outside_plan):
    assert any("simulated baseline" in note for note in outside_plan.notes)


def test_a_plan_can_be_saved_and_loaded(outside_plan, tmp_path):
    outside_plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == outside_plan


def test_an_action_that_changes_nothing_changes_nothing(outside):
    idle = Action(
        name="idle", title="Change nothing", layer=Layer.REQUEST,
        opens_for=frozenset({Bottleneck.RETRIEVAL}),
        apply=lambda stream, fleet, _context: (stream, fleet),
        source="none", wrong_when="never",
    )  # fmt: skip
    case = replace(outside, actions=(idle,), holding=Excuse(reason="not asked"))
    plan = rank(case)
    assert plan.ranked == ()
    (refused,) = plan.refused
    assert "within the noise" in refused.excuse.reason
    change = refused.p99_change_s
    assert (change.low, change.mid, change.high) == (0, 0, 0)


def test_common_random_numbers_make_effects_exact(outside):
    trial = try_all([Scenario(outside.stream, outside.fleet, seed=1)], outside.config)
    again = try_all([Scenario(outside.stream, outside.fleet, seed=1)], outside.config)
    found = effect(trial, again, outside.config)
    assert found.p99_change_s.width == 0
    assert found.attainment_change.mid == 0
    assert not found.attains
    assert not found.loses
    assert found.worse == ()


def test_a_loss_in_one_bucket_is_said(inside, build):
    """Slots for eight become two: every bucket is told where it loses."""
    context_free = action("fewer_slots")
    starved = inside.fleet.model_copy(
        update={"engine": inside.fleet.engine.model_copy(update={"max_num_seqs": 2})}
    )
    assert context_free.live is False
    before = try_all([Scenario(inside.stream, inside.fleet)], inside.config)
    after = try_all([Scenario(inside.stream, starved)], inside.config)
    found = effect(before, after, inside.config)
    assert found.loses
    assert any("short_chat" in text for text in found.worse)


def test_without_an_slo_p99_decides(outside):
    config = Config.from_dict({"analysis": {"replications": 1, "peak_window_s": 20}})
    chosen = tuple(action(n) for n in ("no_blind_retries", "station_workers", "scale_out"))
    plan = rank(replace(outside, config=config, actions=chosen))
    assert isinstance(plan.holding, Excuse)
    assert plan.ranked
    assert all(r.attainment_change is None for r in plan.ranked)
    assert any("Without an SLO" in note for note in plan.notes)


def test_the_same_case_gives_the_same_plan_side_by_side(outside):
    chosen = tuple(action(n) for n in ("no_blind_retries", "scale_out"))
    small = replace(outside, actions=chosen, holding=Excuse(reason="not asked"))
    assert rank(small) == rank(small)


def test_progress_runs_to_the_end(outside):
    told = []
    chosen = tuple(action(n) for n in ("no_blind_retries", "scale_out"))
    rank(replace(outside, actions=chosen), progress=lambda text, part: told.append((text, part)))
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_nothing_to_plan_for_is_a_clear_message(outside):
    empty = Stream(outside.stream.requests.slice(0, 0), outside.stream.steps.slice(0, 0))
    with pytest.raises(UsageError, match="no requests"):
        rank(replace(outside, stream=empty))
