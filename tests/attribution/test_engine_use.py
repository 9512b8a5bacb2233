"""Occupancy of the engine: slots, waiting, counters with resets, several replicas."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.attribution.engine_use import engine_use
from sojourn.attribution.infer import phases
from sojourn.attribution.occupancy import Steps
from sojourn.attribution.peak import windows
from sojourn.config import Config
from sojourn.trace.arrays import floats
from sojourn.trace.tables import Tables, from_rows


def use(samples=(), calls=(), *, slots=None, seconds=60):
    requests = [{"request_id": f"r{t}", "arrival_s": float(t)} for t in range(seconds)]
    tables = Tables.of(
        {
            "requests": from_rows("requests", requests),
            "engine_samples": from_rows("engine_samples", samples),
            "calls": from_rows("calls", calls),
        }
    )
    config = Config.from_dict({"deployment": {"max_num_seqs": slots} if slots else {}})
    arrival, end = (floats(tables.requests[name]) for name in ("arrival_s", "end_s"))
    when = windows(arrival, end, window_s=config.analysis.peak_window_s)
    return engine_use(tables, config, when, phases(tables.calls))


def rows(replica="0", **columns):
    length = max(len(v) for v in columns.values())
    return [
        {"t_s": float(t), "replica": replica, **{k: v[t] for k, v in columns.items()}}
        for t in range(length)
    ]


def test_full_slots_are_counted_against_the_configured_number():
    found = use(rows(running=[8] * 15 + [2] * 5, waiting=[3] * 15 + [0] * 5), slots=8)
    assert found.slots == 8
    assert found.slots_full_share == pytest.approx(0.75)
    assert found.waiting_share == pytest.approx(0.75)
    assert found.running_max == 8


def test_a_plateau_with_waiting_requests_shows_the_slots():
    found = use(rows(running=[6] * 12 + [2] * 8, waiting=[4] * 12 + [0] * 8))
    assert found.slots == 6
    assert found.slots_full_share == pytest.approx(0.6)


def test_a_plateau_without_waiting_is_no_slot_limit():
    found = use(rows(running=[6] * 12 + [2] * 8, waiting=[0] * 20))
    assert found.slots is None
    assert found.slots_full_share == 0.0


def test_counters_that_restart_lose_nothing_before_the_restart():
    found = use(
        rows(
            running=[1] * 5,
            preemptions_total=[10, 12, 1, 3, 3],
            prefix_hit_tokens_total=[0, 50, 60, 0, 20],
            prefix_query_tokens_total=[0, 100, 120, 10, 50],
        )
    )
    assert found.preemptions == 5
    assert found.prefix_hit_share == pytest.approx(80 / 170)


def test_replicas_are_averaged_not_summed():
    samples = rows("a", running=[4] * 10, waiting=[2] * 10, gpu_busy=[0.9] * 10)
    samples += rows("b", running=[0] * 10, waiting=[0] * 10, gpu_busy=[0.1] * 10)
    found = use(samples, slots=4)
    assert found.slots_full_share == pytest.approx(0.5)
    assert found.waiting_share == pytest.approx(0.5)
    assert found.running_mean == pytest.approx(2.0)
    assert found.busy_share == pytest.approx(0.5)
    assert found.busy_from == "device"


def test_without_samples_the_calls_tell():
    calls = [
        {
            "call_id": f"c{k}",
            "request_id": f"r{k}",
            "replica": "0",
            "arrival_s": float(k),
            "scheduled_s": k + 0.5,
            "first_token_s": k + 0.6,
            "end_s": k + 1.0,
        }
        for k in range(60)
    ]
    found = use(calls=calls)
    assert found.busy_from == "calls"
    assert found.busy_share == pytest.approx(0.5, abs=0.03)
    assert found.waiting_share == pytest.approx(0.5, abs=0.03)


def test_an_inferred_queue_gives_no_waiting_share():
    calls = [
        {
            "call_id": f"c{k}",
            "request_id": f"r{k}",
            "arrival_s": float(k),
            "input_tokens": 100 + k,
            "first_token_s": k + 0.6,
            "end_s": k + 1.0,
        }
        for k in range(60)
    ]
    assert use(calls=calls).waiting_share is None


def test_nothing_known_is_none():
    found = use()
    assert found.busy_share is None
    assert found.slots_full_share is None
    assert found.prefix_hit_share is None
    assert found.in_flight_max is None


def test_step_functions_count_overlaps_and_integrate():
    steps = Steps.of(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 5.0]))
    assert steps.integral(np.array([1.0, 2.0, 3.0, 9.0])).tolist() == [1.0, 3.0, 4.0, 4.0]
    assert steps.mean(np.array([0.0]), np.array([4.0])).tolist() == [1.0]
    count, seconds = steps.within(-1.0, 4.0)
    assert float((count * seconds).sum()) == pytest.approx(4.0)
    assert seconds.sum() == pytest.approx(5.0)
