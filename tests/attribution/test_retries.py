"""Retry arithmetic, timeouts seen in durations, peak and calm windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.attribution import spikes
from sojourn.attribution.attempts import attempts
from sojourn.attribution.decompose import decompose
from sojourn.attribution.peak import windows
from sojourn.attribution.retries import report
from sojourn.config import Config
from sojourn.trace.arrays import floats
from sojourn.trace.tables import Tables, from_rows


def retried(count: int = 60, retry_every: int = 3, timeout: float = 5.0) -> Tables:
    """Requests one second apart; each `retry_every`-th times out once, then takes 2 s."""
    requests, spans, calls = [], [], []
    for k in range(count):
        name, now = f"r{k}", float(k)
        again = k % retry_every == 0
        for attempt in range(1 + again):
            cut = again and attempt == 0
            length = timeout if cut else 2.0
            box = f"{name} a{attempt}"
            spans.append(
                {
                    "span_id": box,
                    "request_id": name,
                    "attempt": attempt,
                    "name": "attempt",
                    "parent": name,
                    "start_s": now,
                    "end_s": now + length,
                    "status": "timeout" if cut else "ok",
                }
            )
            reached = now + (4.0 if cut else 1.0)
            calls.append(
                {
                    "call_id": f"{box} c",
                    "request_id": name,
                    "attempt": attempt,
                    "arrival_s": reached,
                    "first_token_s": reached + 0.5,
                    "end_s": now + length,
                    "input_tokens": 100,
                    "cached_tokens": 20,
                    "output_tokens": 20,
                    "status": "timeout" if cut else "ok",
                }
            )
            spans.append(
                {
                    "span_id": f"{box} late",
                    "request_id": name,
                    "attempt": attempt,
                    "parent": box,
                    "stage": "tool",
                    "name": "tool web",
                    "start_s": now,
                    "end_s": now + (length + 3 if cut else 1.0),
                    "status": "ok",
                }
            )
            now += length
        spans.append(
            {
                "span_id": name,
                "request_id": name,
                "attempt": 0,
                "name": "POST",
                "start_s": float(k),
                "end_s": now,
            }
        )
        requests.append({"request_id": name, "arrival_s": float(k), "end_s": now, "status": "ok"})
    return Tables.of(
        {
            "requests": from_rows("requests", requests),
            "spans": from_rows("spans", spans),
            "calls": from_rows("calls", calls),
        }
    )


def made(tables: Tables, config: Config | None = None):
    config = config or Config()
    arrival, end = (floats(tables.requests[name]) for name in ("arrival_s", "end_s"))
    when = windows(arrival, end, window_s=config.analysis.peak_window_s)
    found = report(tables, config, when)
    assert found is not None
    return found


def test_attempts_are_counted_and_their_waste_is_summed():
    found = made(retried())
    assert found.attempts_per_request.mid == pytest.approx(80 / 60)
    assert found.retry_share_of_attempts == pytest.approx(20 / 80)
    assert found.wasted_share_of_time == pytest.approx(20 * 5 / (20 * 5 + 60 * 2))
    assert found.wasted_share_of_engine_tokens == pytest.approx(0.25)


def test_an_attempt_ends_when_it_is_given_up_though_its_work_goes_on():
    rows = attempts(retried(3))
    assert rows is not None
    assert rows.duration_s.tolist() == [5.0, 2.0, 2.0, 2.0]
    assert rows.failed.tolist() == [True, False, False, False]


def test_the_timeout_is_found_and_the_budget_left_at_the_engine():
    found = made(retried())
    mark = found.timeouts[0]
    assert (mark.where, mark.value_s, mark.count) == ("attempt", 5.0, 20)
    assert found.timeout_s == 5.0
    assert found.budget_left_at_engine["p50"] == pytest.approx(0.8)
    assert found.budget_left_at_engine["under_half"] == pytest.approx(0.25)


def test_a_configured_timeout_goes_before_the_one_seen():
    found = made(retried(), Config.from_dict({"retry": {"attempt_timeout_s": 10.0}}))
    assert found.budget_left_at_engine["p50"] == pytest.approx(0.9)


def test_no_attempt_numbers_no_report():
    tables = Tables.of(
        {"requests": from_rows("requests", [{"request_id": "r", "arrival_s": 0, "end_s": 1}])}
    )
    when = windows(np.array([0.0]), np.array([1.0]), window_s=60.0)
    assert report(tables, Config(), when) is None


def test_time_of_failed_attempts_is_in_the_stages_too():
    table = decompose(retried(3))
    assert table["total_s"].to_pylist() == [7.0, 2.0, 2.0]
    # attempt 0: the tool until its call decodes at 4.5 s, the tool outlives the attempt; 1: 1 s
    assert table["tool"].to_pylist()[0] == pytest.approx(5.5)
    assert table["decode"].to_pylist()[0] == pytest.approx(1.0)


@given(st.floats(0.5, 100), st.integers(30, 300), st.integers(0, 2**16))
def test_a_timer_is_found_at_any_value(timeout, count, seed):
    rng = np.random.default_rng(seed)
    lost = np.r_[timeout * (1 + rng.uniform(0, 0.005, count)), rng.uniform(0.01, 1, 10) * timeout]
    mark = spikes.find(lost, "attempt", failed=True, served_s=rng.uniform(0.1, 1, 200) * timeout)
    assert mark is not None
    assert mark.value_s == pytest.approx(timeout, rel=0.03)


@given(st.integers(0, 2**16), st.floats(0.25, 1.5), st.integers(40, 3000))
def test_smooth_latencies_show_no_timer(seed, sigma, count):
    values = np.exp(sigma * np.random.default_rng(seed).standard_normal(count))
    assert spikes.find(values, "tool", failed=False) is None


def test_a_service_of_constant_length_is_no_timer():
    values = np.full(500, 0.5) * (1 + np.linspace(0, 0.01, 500))
    assert spikes.find(values, "tool", failed=False) is None


def test_errors_that_come_at_once_are_no_timer():
    served = np.linspace(0.5, 4, 300)
    assert spikes.find(np.full(50, 0.003), "call", failed=True, served_s=served) is None


def test_tool_calls_cut_by_a_timer_are_seen_without_a_status():
    rng = np.random.default_rng(2)
    values = np.minimum(rng.lognormal(1.0, 1.0, 2000), 12.0)
    mark = spikes.find(values, "tool web", failed=False)
    assert mark is not None
    assert mark.value_s == pytest.approx(12.0)


def test_the_peak_is_the_fullest_window_and_calm_is_elsewhere():
    arrivals = np.sort(np.r_[np.arange(0, 600, 2.0), np.arange(300, 360, 0.2)])
    when = windows(arrivals, arrivals + 1, window_s=60.0)
    assert when.varies
    assert 295 <= when.peak_s[0] <= 305
    assert not (when.peak & when.calm).any()
    assert when.calm.sum() > 100


def test_a_steady_load_has_no_peak():
    times = np.arange(0, 600, 1.0)
    assert not windows(times, times + 3, window_s=60.0).varies


@pytest.mark.parametrize("arrivals", [[], [1.0], [1.0, 1.0]])
def test_tiny_recordings_have_windows_too(arrivals):
    when = windows(np.array(arrivals), np.array(arrivals) + 1, window_s=60.0)
    assert len(when.peak) == len(arrivals)


def test_a_backlog_after_the_burst_is_the_peak_not_the_burst_alone():
    arrivals = np.arange(0, 600, 1.0)
    lengths = np.where((arrivals >= 400) & (arrivals < 460), 40.0, 1.0)
    when = windows(arrivals, arrivals + lengths, window_s=60.0)
    assert when.varies
    assert 400 <= when.peak_s[0] <= 440
