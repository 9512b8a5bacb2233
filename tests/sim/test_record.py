"""From a log to the tables of ingestion: what each phase becomes, and laws of every run."""

import contextlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.sim.making import call, delay, engine, fleet, scenario, station, step_model, visit
from tests.sim.scenarios import random_scenario

from sojourn.attribution.decompose import decompose
from sojourn.capacity.policies import (
    Autoscaler,
    Client,
    Encoder,
    Ladder,
    LoadMetric,
    PrefillPool,
    PrefixCache,
    Rung,
)
from sojourn.config import Config
from sojourn.errors import UsageError
from sojourn.plan.slo import judge
from sojourn.records import Stage
from sojourn.sim.legend import Legend
from sojourn.sim.log import ATTEMPTS, CALLS, CHANGES, ENDS, ERROR, NONE, SAMPLES, VISITS, Log
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import SimRun
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import PER_S

SLO = Config.from_dict({"slo": {"default": {"ttft_s": 1.0, "e2e_s": 3.0, "tpot_s": 0.2}}})
BLOCKS = range(0, 240, 40)


def runs(first):
    """Runs of random scenarios with every rule in them; the few that no engine would run, because
    no call fits into a pool, are left out."""
    found = []
    for seed in range(first, first + 40):
        with contextlib.suppress(UsageError):
            found.append(simulate(random_scenario(seed)))
    assert len(found) > 35
    return found


def leaves(run, *stages):
    return [
        (s["name"], s["start_s"], s["end_s"], s["wait_s"], s["status"])
        for s in run.tables.spans.to_pylist()
        if s["stage"] in stages
    ]


@pytest.mark.parametrize("first", BLOCKS)
def test_stages_sum_to_the_time_of_every_request(first):
    for run in runs(first):
        stages = decompose(run.tables)
        total = np.sum([stages[stage.value].to_numpy() for stage in Stage], axis=0)
        requests = run.tables.requests
        spent = requests["end_s"].to_numpy() - requests["arrival_s"].to_numpy()
        np.testing.assert_allclose(total, spent, rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", BLOCKS)
def test_every_span_lies_within_its_parent(first):
    for run in runs(first):
        spans = run.tables.spans.to_pylist()
        by_id = {span["span_id"]: span for span in spans}
        assert len(by_id) == len(spans)
        roots = [span for span in spans if span["parent"] is None]
        assert len(roots) == run.tables.requests.num_rows
        for span in spans:
            assert span["start_s"] <= span["end_s"]
            if span["parent"] is None:
                continue
            parent = by_id[span["parent"]]
            assert parent["stage"] is None
            assert parent["request_id"] == span["request_id"]
            assert parent["start_s"] <= span["start_s"]
            assert span["end_s"] <= parent["end_s"]


@pytest.mark.parametrize("first", BLOCKS)
def test_judging_a_run_and_its_tables_is_the_same(first):
    for run in runs(first):
        short, long = judge(run, SLO), judge(run.tables, SLO)
        assert short.request_id.equals(long.request_id)
        for name in ("bucket", "e2e_s", "ttft_s", "tpot_s", "failed", "succeeded", "degraded",
                     "attempts", "good"):  # fmt: skip
            np.testing.assert_array_equal(getattr(short, name), getattr(long, name), err_msg=name)
        assert short.notes == long.notes


def test_a_disaggregated_call_goes_through_transfer_and_a_second_queue():
    whole = engine(step_model(base=1.0), seqs=1)
    decodes = whole.model_copy(
        update={"prefill": PrefillPool(pool="prompts", transfer_base_s=0.25)}
    )
    the_fleet = fleet(decodes).model_copy(update={"pools": {"prompts": whole}})
    run = simulate(scenario([0.0, 0.0], [[call(5, 4)], [call(5, 3)]], the_fleet))
    marks = [
        (s["stage"], s["name"], s["start_s"], s["end_s"])
        for s in run.tables.spans.to_pylist()
        if s["request_id"] == "r1" and s["call_id"] and s["stage"]
    ]
    assert marks == [
        ("queue", "queue", 0.0, 1.0), ("prefill", "prefill", 1.0, 2.0),
        ("kv_transfer", "kv transfer", 2.0, 2.25), ("queue", "queue", 2.25, 4.25),
        ("decode", "decode", 4.25, 6.25),
    ]  # fmt: skip
    assert run.tables.calls["replica"].to_pylist() == ["default/0"] * 2
    assert set(run.tables.engine_samples["replica"].to_pylist()) == {"default/0", "prompts/0"}


def test_an_image_is_encoded_before_the_queue_and_its_wait_is_told():
    eyes = engine(step_model(base=1.0)).model_copy(update={"encoder": Encoder(base_s=0.5)})
    seen = {**call(5, 1), "image_tokens": 10}
    run = simulate(scenario([0.0, 0.0], [[seen]] * 2, fleet(eyes)))
    assert leaves(run, "encode") == [
        ("encode", 0.0, 0.5, 0.0, "ok"), ("encode", 0.0, 1.0, 0.5, "ok"),
    ]  # fmt: skip


def test_requests_held_back_at_the_client_wait_there():
    one = fleet().model_copy(update={"client": Client(max_in_flight=1)})
    run = simulate(scenario([0.0, 0.5], [[visit("s", 2.0)]] * 2, one))
    assert leaves(run, "gateway") == [("client wait", 0.5, 2.0, None, "ok")]
    assert run.tables.requests["end_s"].to_pylist() == [2.0, 4.0]


def ladder_fleet(**rung):
    """Climbs at 0.5 s, as soon as one request is in flight."""
    rungs = (Rung(above=1.0, below=0.0, **rung),)
    ladder = Ladder(metric=LoadMetric.IN_FLIGHT, every_s=0.5, rungs=rungs)
    return fleet(engine(step_model(base=1.0)), [station("kb", 1)]).model_copy(
        update={"ladder": ladder}
    )


def test_shed_requests_have_an_attempt_of_no_length_and_no_other_span():
    the_fleet = ladder_fleet(shed_priority_to=0)
    run = simulate(scenario([0.0, 1.0], [[visit("kb", 2.0)]] * 2, the_fleet))
    assert run.counts["shed"] == 1
    spans = [s for s in run.tables.spans.to_pylist() if s["request_id"] == "r1"]
    assert [(s["name"], s["status"], s["start_s"], s["end_s"]) for s in spans] == [
        ("request", "shed", 1.0, 1.0), ("attempt", "shed", 1.0, 1.0),
    ]  # fmt: skip
    assert run.changes.to_pylist() == [{"t_s": 0.5, "what": "level", "which": "1"}]


def test_what_a_ladder_leaves_out_is_named():
    the_fleet = ladder_fleet(skip=("kb",), output_most=2)
    program = [visit("kb", 0.75), call(5, 5, group=1)]
    run = simulate(scenario([0.0, 1.0, 1.0], [program, program, [visit("s", 1.0)]], the_fleet))
    assert run.tables.requests["degraded"].to_pylist() == [
        ["short_answer"], ["short_answer", "skip:kb"], [],
    ]  # fmt: skip
    assert run.tables.calls["output_tokens"].to_pylist() == [2, 2]


def test_replicas_that_start_are_told():
    scaler = Autoscaler(target=1.0, every_s=1.0, cold_start_s=0.5, most=2)
    model = engine(step_model(base=1.0)).model_copy(update={"autoscaler": scaler})
    run = simulate(scenario([0.0] * 2, [[call(5, 9)]] * 2, fleet(model)))
    assert run.changes.to_pylist()[:2] == [
        {"t_s": 1.0, "what": "starting", "which": "1"}, {"t_s": 1.5, "what": "ready", "which": "1"},
    ]  # fmt: skip


def test_a_simulated_call_carries_its_hashes_where_the_stream_has_them():
    made = scenario([0.0], [[call(64, 5), delay(1.0, group=1)]])
    steps = made.stream.steps.append_column(
        "block_hashes", pa.array([[7, 8], None], pa.list_(pa.int64()))
    )
    cached = fleet(engine().model_copy(update={"prefix_cache": PrefixCache(tokens_per_hash=32)}))
    stream = replace(made.stream, steps=steps)
    (row,) = simulate(replace(made, stream=stream, fleet=cached)).tables.calls.to_pylist()
    assert (row["block_hashes"], row["block_tokens"]) == ([7, 8], 32)


def by_hand(made, **rows):
    """A run whose log is written by hand; requests and calls not given are absent."""
    kinds = {"ends": ENDS, "calls": CALLS, "visits": VISITS, "attempts": ATTEMPTS,
             "samples": SAMPLES, "changes": CHANGES}  # fmt: skip
    parts = {}
    for name, kind in kinds.items():
        given = rows.get(name, [])
        part = np.zeros(len(given), kind)
        for place, row in enumerate(given):
            for field, value in row.items():
                part[field][place] = value
        parts[name] = part
    return SimRun(made, Log(**parts), Legend.of(lower(made)), "hand")


def test_requests_in_flight_are_counted_and_left_out_of_the_tables():
    made = scenario([0.0, 1.0], [[visit("s", 1.0)], [call(5, 5)]])
    done = {"arrival": 0, "end": PER_S, "attempts": 1}
    run = by_hand(
        made,
        ends=[done, {"arrival": PER_S, "end": NONE, "attempts": 1, "status": NONE}],
        attempts=[{"ended": PER_S, "backoff": NONE}],
        visits=[{"ended": PER_S}],
    )
    assert run.counts["in_flight"] == 1
    assert run.tables.requests["request_id"].to_pylist() == ["r0"]
    assert run.tables.quality.kept == 1
    assert judge(run, SLO).e2e_s.tolist() == [1.0]
    assert run.end_s == 1.0


def test_calls_that_no_replica_can_hold_are_counted_and_have_no_replica():
    made = scenario([0.0], [[call(5, 5)]])
    unset = dict.fromkeys(("encode", "encode_start", "queued", "scheduled", "first", "moved",
                           "resumed", "replica"), NONE)  # fmt: skip
    run = by_hand(
        made,
        ends=[{"status": ERROR, "attempts": 1}],
        attempts=[{"backoff": NONE, "status": ERROR}],
        calls=[{**unset, "status": ERROR}],
    )
    assert run.tables.calls["replica"].to_pylist() == [None]
    assert [issue.count for issue in run.tables.quality.issues] == [1]
    assert [s["name"] for s in run.tables.spans.to_pylist()] == ["request", "attempt", "chat m"]


def test_busy_is_the_share_of_each_interval():
    made = scenario([0.0], [[call(5, 5)]], fleet(engine(replicas=2)))
    busy = [(1, 0, 0.5), (1, 1, 0.0), (2, 0, 1.5), (2, 1, 0.25)]
    rows = [{"t": t * PER_S, "replica": r, "busy": int(b * PER_S)} for t, r, b in busy]
    run = by_hand(made, ends=[{}], samples=rows)
    samples = run.tables.engine_samples.to_pylist()
    assert [(s["replica"], s["gpu_busy"]) for s in samples] == [
        ("0", 0.5), ("1", 0.0), ("0", 1.0), ("1", 0.25),
    ]  # fmt: skip
