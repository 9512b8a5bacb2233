"""Verdicts on scenes whose bottleneck was put there, and on their counter-examples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attribution_scenes import INCIDENT, SATURATED, Scene, config, profile, tables

from sojourn.attribution.breakdown import break_down
from sojourn.attribution.diagnosis import diagnose
from sojourn.attribution.records import ALL, Diagnosis
from sojourn.config import Config
from sojourn.records import LAYER_OF, Bottleneck
from sojourn.trace.tables import Tables, from_rows

B = Bottleneck
OUTSIDE = {B.RETRIEVAL, B.RERANK, B.TOOL, B.GATEWAY, B.NETWORK, B.RETRY_AMPLIFICATION}
ENGINE = {B.QUEUE_ADMISSION, B.BATCH_SLOTS, B.PREFILL_COMPUTE, B.DECODE_BANDWIDTH, B.KV_CAPACITY}
STRESSED = {"running": 16, "waiting": 10, "gpu_busy": 0.95, "kv_usage": 0.6}


def judge(scene: Scene, settings: Config | None = None, prof=None) -> Diagnosis:
    settings = settings or config()
    return diagnose(break_down(tables(scene), settings), prof or profile(), settings)


def ranked(found: Diagnosis) -> list[Bottleneck]:
    return [v.bottleneck for v in found.verdicts if v.bucket == ALL]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strength", [0.6, 1.0, 1.6])
def test_the_incident_is_outside_the_engine(seed, strength):
    factors = {k: 1 + (f - 1) * strength for k, f in INCIDENT.peak_factor.items()}
    found = judge(INCIDENT.but(seed=seed, peak_factor=factors))
    assert found.top.bottleneck in OUTSIDE
    assert set(ranked(found)[:3]) <= OUTSIDE | {B.TIMEOUT_TOO_SHORT}
    assert {B.RETRIEVAL, B.TOOL} & set(ranked(found)[:3])
    assert found.engine_bound is False


def test_the_incident_reaches_the_engine_late_and_says_so():
    verdict = next(v for v in judge(INCIDENT).verdicts if v.bottleneck is B.RETRY_AMPLIFICATION)
    assert any("of their timeout left" in e.statement for e in verdict.evidence)
    assert any("a timer cuts them" in e.statement for e in verdict.evidence)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strength", [0.4, 1.0, 2.0])
def test_the_saturated_counter_example_is_the_engine(seed, strength):
    factors = {**SATURATED.peak_factor, "queue": SATURATED.peak_factor["queue"] * strength}
    found = judge(SATURATED.but(seed=seed, peak_factor=factors))
    assert found.top.bottleneck in ENGINE
    assert found.engine_bound is True


def test_timeouts_and_retries_of_a_saturated_engine_stay_a_symptom():
    found = judge(SATURATED.but(timeout_s=8.0, max_attempts=3))
    assert found.top.bottleneck in ENGINE
    assert found.engine_bound is True


def test_an_engine_that_forgets_the_calls_it_lost_is_still_the_engine():
    scene = replace(SATURATED, timeout_s=12.0, max_attempts=3, forgets_cut_calls=True)
    found = judge(scene)
    assert found.top.bottleneck in ENGINE
    assert found.engine_bound is True
    made = break_down(tables(scene), config())
    assert any("cut off" in note for note in made.notes)
    tail = made.tail(ALL, 0.99)
    assert tail is not None
    assert tail.stages["unexplained"] < 0.05 * tail.e2e_s.mid


@pytest.mark.parametrize("strength", [3, 10, 30])
@pytest.mark.parametrize("stage", ["retrieval", "rerank", "tool"])
def test_one_slow_stage_is_named(stage, strength):
    found = judge(Scene().but(stages={stage: 0.5 * strength}))
    assert found.top.bottleneck is B(stage)
    assert found.top.share_of_p99 is not None
    assert found.engine_bound is False


@pytest.mark.parametrize("strength", [3.0, 10.0])
def test_gateway_and_network(strength):
    assert judge(Scene().but(stages={"front": strength})).top.bottleneck is B.GATEWAY
    assert judge(Scene().but(stages={"net": strength})).top.bottleneck is B.NETWORK


def test_full_slots_on_an_idle_device_are_batch_slots_and_on_a_busy_one_the_load():
    idle = replace(SATURATED, samples={"running": 8, "waiting": 12, "gpu_busy": 0.4})
    idle = idle.but(peak_factor={"decode": 1.0, "prefill": 1.0})
    assert judge(idle, config(max_num_seqs=8)).top.bottleneck is B.BATCH_SLOTS
    busy = replace(SATURATED, samples={"running": 8, "waiting": 12, "gpu_busy": 0.98})
    assert judge(busy, config(max_num_seqs=8)).top.bottleneck is B.QUEUE_ADMISSION


@pytest.mark.parametrize("strength", [4.0, 15.0])
def test_long_prompts_on_a_full_engine_are_prefill(strength):
    scene = replace(SATURATED, peak_factor={"queue": 10}, samples=STRESSED)
    assert judge(scene.but(stages={"prefill": strength})).top.bottleneck is B.PREFILL_COMPUTE


@pytest.mark.parametrize("strength", [5.0, 20.0])
def test_long_outputs_on_a_full_engine_are_decode(strength):
    scene = replace(SATURATED, peak_factor={"queue": 10, "decode": 2}, samples=STRESSED)
    assert judge(scene.but(stages={"decode": strength})).top.bottleneck is B.DECODE_BANDWIDTH


def test_full_kv_with_free_slots_is_kv_capacity():
    samples = {"running": 20, "waiting": 15, "kv_usage": 0.99, "preemptions_total": 0}
    scene = replace(SATURATED, samples=samples)
    settings = config(max_num_seqs=256)
    made = tables(scene)
    count = np.arange(made.engine_samples.num_rows, dtype=float)
    at = made.engine_samples.column_names.index("preemptions_total")
    engine = made.engine_samples.set_column(at, "preemptions_total", [count])
    made = Tables(requests=made.requests, calls=made.calls, spans=made.spans, engine_samples=engine)
    found = diagnose(break_down(made, settings), profile(), settings)
    assert found.top.bottleneck is B.KV_CAPACITY
    room = replace(SATURATED, samples={**samples, "kv_usage": 0.4})
    assert B.KV_CAPACITY not in ranked(judge(room, settings))


def test_prompts_that_recur_and_are_not_found_are_cache_misses():
    scene = replace(SATURATED, peak_factor={"queue": 100}, samples=STRESSED)
    scene = scene.but(stages={"prefill": 4.0})
    assert B.CACHE_MISS in ranked(judge(scene, prof=profile(hit=0.05, ideal=0.8)))[:2]
    assert B.CACHE_MISS not in ranked(judge(scene, prof=profile(hit=0.5, ideal=0.55)))
    assert B.CACHE_MISS not in ranked(judge(scene, prof=profile()))


def test_a_full_core_beside_an_idle_device_is_the_host():
    samples = {"running": 12, "waiting": 0, "gpu_busy": 0.25, "host_cpu": 1.0}
    scene = Scene(samples=samples).but(stages={"decode": 8.0, "retrieval": 0.05, "tool": 0.05})
    assert judge(scene).top.bottleneck is B.HOST_CPU
    room = replace(scene, samples={**samples, "host_cpu": 0.5})
    assert B.HOST_CPU not in ranked(judge(room))


def lane(long_tokens: int) -> Tables:
    """One replica, first come first served; every 20th prompt has `long_tokens`."""
    rng = np.random.default_rng(4)
    requests, calls, free = [], [], 0.0
    for k, arrival in enumerate(np.cumsum(rng.exponential(0.5, 1200))):
        tokens = long_tokens if k % 20 == 0 else int(rng.integers(80, 120))
        scheduled = max(free, arrival)
        first = scheduled + 1e-3 * tokens
        free, end = first, first + 0.2
        requests.append({"request_id": f"r{k}", "arrival_s": arrival, "end_s": end, "status": "ok"})
        calls.append(
            {
                "call_id": f"c{k}",
                "request_id": f"r{k}",
                "replica": "0",
                "arrival_s": arrival,
                "scheduled_s": scheduled,
                "first_token_s": first,
                "end_s": end,
                "output_tokens": 20,
                "input_tokens": tokens,
            }
        )
    return Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)}
    )


@pytest.mark.parametrize("long_tokens", [2000, 3000, 5000])
def test_short_calls_behind_long_prompts_are_head_of_line(long_tokens):
    settings = Config.from_dict({"analysis": {"peak_window_s": 300}})
    found = diagnose(break_down(lane(long_tokens), settings), profile(), settings)
    line = next(v for v in found.verdicts if v.bottleneck is B.HEAD_OF_LINE)
    assert line.confidence > 0.8
    assert B.HEAD_OF_LINE in ranked(found)[:3]
    same = diagnose(break_down(lane(110), settings), profile(), settings)
    assert B.HEAD_OF_LINE not in ranked(same)


def test_retries_explain_no_more_than_what_lies_beyond_one_timeout():
    made = break_down(tables(INCIDENT), config())
    tail = made.tail(ALL, 0.99)
    assert tail is not None
    assert made.retries is not None
    assert made.retries.timeout_s is not None
    for verdict in diagnose(made, profile(), config()).verdicts:
        if verdict.bottleneck in {B.RETRY_AMPLIFICATION, B.TIMEOUT_TOO_SHORT}:
            limit = 1 - made.retries.timeout_s / tail.e2e_s.mid
            assert verdict.share_of_p99 == pytest.approx(min(limit, verdict.share_of_p99 or 0))


def test_a_timeout_below_the_calm_service_time_is_too_short():
    scene = Scene(timeout_s=2.5, max_attempts=3, peak_rate=0.8)
    found = judge(scene)
    assert B.TIMEOUT_TOO_SHORT in ranked(found)[:2]
    assert found.verdicts[0].bottleneck in {B.TIMEOUT_TOO_SHORT, B.RETRY_AMPLIFICATION}
    calm = judge(Scene(timeout_s=60, max_attempts=3))
    assert B.TIMEOUT_TOO_SHORT not in ranked(calm)


def closed_loop(clients: int) -> Tables:
    """Clients that send their next request when the last is answered."""
    rng = np.random.default_rng(9)
    requests, calls = [], []
    for client in range(clients):
        now = float(rng.uniform(0, 0.1))
        while now < 200:
            length = float(rng.uniform(2, 4))
            name = f"r{client}-{len(requests)}"
            requests.append({"request_id": name, "arrival_s": now, "end_s": now + length})
            calls.append(
                {
                    "call_id": name,
                    "request_id": name,
                    "replica": "0",
                    "arrival_s": now,
                    "scheduled_s": now,
                    "first_token_s": now + 0.1,
                    "end_s": now + length,
                    "input_tokens": 100,
                    "output_tokens": 100,
                }
            )
            now += length
    return Tables.of(
        {"requests": from_rows("requests", requests), "calls": from_rows("calls", calls)}
    )


def test_a_plateau_without_waiting_is_the_client():
    found = diagnose(break_down(closed_loop(20), config()), profile(), config())
    assert found.top.bottleneck is B.CLIENT_LIMIT
    assert B.CLIENT_LIMIT not in ranked(judge(Scene()))


@pytest.mark.parametrize("target", [30.0, 300.0])
def test_a_met_target_is_no_bottleneck_and_a_missed_one_is_not_none(target):
    met = Config.from_dict({"slo": {"default": {"e2e_s": target}}})
    assert judge(Scene(), met).top.bottleneck is B.NONE
    missed = Config.from_dict({"slo": {"default": {"e2e_s": 1.0}}})
    assert judge(Scene(), missed).top.bottleneck is not B.NONE


def test_few_requests_are_refused_with_what_to_record():
    found = judge(Scene(rate=0.02, peak_rate=0.1))
    assert found.top.bottleneck is B.INSUFFICIENT_EVIDENCE
    assert found.excuse is not None
    assert "too few" in found.excuse.reason
    assert 1 <= len(found.excuse.collect) <= 2
    assert found.engine_bound is None
    assert found.by_bucket == {"short_chat": B.INSUFFICIENT_EVIDENCE}


def test_no_latency_is_refused():
    requests = [{"request_id": f"r{k}", "arrival_s": float(k)} for k in range(500)]
    made = Tables.of({"requests": from_rows("requests", requests)})
    found = diagnose(break_down(made, config()), profile(), config())
    assert found.top.bottleneck is B.INSUFFICIENT_EVIDENCE
    assert found.excuse is not None
    assert found.excuse.collect
    empty = diagnose(break_down(Tables(), config()), profile(), config())
    assert empty.top.bottleneck is B.INSUFFICIENT_EVIDENCE


def test_ends_alone_are_refused():
    requests = [
        {"request_id": f"r{k}", "arrival_s": float(k), "end_s": k + 5.0} for k in range(500)
    ]
    made = Tables.of({"requests": from_rows("requests", requests)})
    found = diagnose(break_down(made, config()), profile(), config())
    assert found.top.bottleneck is B.INSUFFICIENT_EVIDENCE
    assert found.excuse is not None
    assert "no known stage" in found.excuse.reason
    assert found.engine_bound is None


def test_a_queue_that_is_only_inferred_is_less_sure():
    logs = judge(replace(SATURATED, detail=False, spans=False, samples=None))
    full = judge(SATURATED)
    assert logs.top.bottleneck is full.top.bottleneck is B.QUEUE_ADMISSION
    assert logs.top.confidence < full.top.confidence
    assert logs.engine_bound is None


def test_every_verdict_has_layer_evidence_and_a_place_in_the_order():
    found = judge(INCIDENT)
    mine = [v for v in found.verdicts if v.bucket == ALL]
    rank = [v.confidence * (v.share_of_p99 or 0) for v in mine if v.confidence >= 0.5]
    assert rank == sorted(rank, reverse=True)
    for verdict in found.verdicts:
        assert verdict.layer is LAYER_OF[verdict.bottleneck]
        assert verdict.evidence
        assert 0 < verdict.confidence < 1
        assert all(e.rule and e.statement for e in verdict.evidence)


def test_the_breakdown_and_the_diagnosis_survive_saving(tmp_path):
    made = break_down(tables(INCIDENT), config())
    made.save(tmp_path / "b.json")
    assert type(made).load(tmp_path / "b.json") == made
    found = diagnose(made, profile(), config())
    found.save(tmp_path / "d.json")
    assert Diagnosis.load(tmp_path / "d.json") == found


def test_tails_sum_to_the_percentile_in_every_bucket():
    made = break_down(tables(INCIDENT), config(), percentiles=(0.5, 0.9, 0.99))
    assert {t.bucket for t in made.tails} == {ALL, "short_chat"}
    for tail in (*made.tails, *made.peak_tails):
        assert sum(tail.stages.values()) == pytest.approx(tail.e2e_s.mid, abs=1e-9)
    assert made.stations["tool web"]["visits"] > 0
    assert made.station_stages["tool web"] == "tool"
