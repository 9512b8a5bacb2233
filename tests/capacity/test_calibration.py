"""Calibration gives back the step model that made the calls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capacity.engine_loop import Load, Loop, calls_table, poisson_load, tables_of, truth

from sojourn.capacity import calibration
from sojourn.capacity.records import StepModel
from sojourn.config import Config
from sojourn.interval import Excuse, Provenance
from sojourn.trace.tables import Tables

CONFIG = Config.from_dict({"deployment": {"max_num_batched_tokens": 2048}})
LIGHT, MIDDLE, HEAVY, OVERLOAD = 0.3, 4.0, 8.0, 20.0


def _close(fitted, real, *, share, batch=20, context=800):
    """Decode steps at the smallest batch seen and at `batch`, and a prompt of 1,000 tokens."""
    assert isinstance(fitted, StepModel), fitted
    for size in (fitted.valid_batch[0], batch):
        told = fitted.decode_step_s(size, size * context)
        assert told == pytest.approx(real.decode_step_s(size, size * context), rel=share)
    prompt = (0, 0.0, 1000, 1000**2 / 2)
    assert fitted.step_s(*prompt) == pytest.approx(real.step_s(*prompt), rel=share)


@pytest.mark.parametrize("rate", [LIGHT, MIDDLE, HEAVY, OVERLOAD])
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_recovers_the_model_from_light_load_to_overload(rate, noise):
    real, load = truth(), poisson_load(rate, 250)
    ran = Loop(load, real, noise=noise)
    fitted = calibration.fit(tables_of(calls_table(load, ran)), CONFIG)
    # an overloaded engine is hardly ever seen at the small batch that is checked first
    share = 0.08 if rate == OVERLOAD else 0.05
    _close(fitted, real, share=share, batch=2 if rate == LIGHT else 20)
    assert fitted.provenance is Provenance.FITTED
    assert fitted.held_out_error < 0.03


def test_recovers_each_coefficient_where_load_and_lengths_vary():
    real = truth()
    parts = []
    for index, rate in enumerate((LIGHT, MIDDLE, HEAVY)):
        load = poisson_load(rate, 150, seed=index)
        parts.append(
            calls_table(load, Loop(load, real, noise=0.05, seed=index), replica=f"{index}")
        )
    fitted = calibration.fit(tables_of(*parts), CONFIG)
    assert fitted.base_s[0] == pytest.approx(real.base_s[0], rel=0.05)
    assert fitted.slope_s_per_token[0] == pytest.approx(real.slope_s_per_token[0], rel=0.05)
    assert fitted.prefill_s_per_token == pytest.approx(real.prefill_s_per_token, rel=0.05)
    attended = fitted.prefill_s_per_token_context
    assert attended == pytest.approx(real.prefill_s_per_token_context, rel=0.15)
    assert fitted.front_s == pytest.approx(real.front_s, abs=0.002)
    assert fitted.valid_batch[0] <= 3
    assert fitted.valid_batch[1] >= 20


def test_cancelled_calls_are_part_of_the_state():
    real, load = truth(), poisson_load(MIDDLE, 400, seed=3)
    rng = np.random.default_rng(1)
    gone = rng.random(400) < 0.3
    load.cancel = np.where(gone, load.arrival + rng.uniform(0.5, 5, 400), np.inf)
    ran = Loop(load, real, noise=0.03)
    table = calls_table(load, ran)
    assert table.column("output_tokens").null_count > 60
    _close(calibration.fit(tables_of(table), CONFIG), real, share=0.06, batch=10)
    kept = table.filter(pa.compute.equal(table.column("status"), "ok"))
    ignorant = calibration.fit(tables_of(kept), CONFIG)
    seen = calibration.fit(tables_of(table), CONFIG)
    miss = [
        abs(m.decode_step_s(10, 8000) / real.decode_step_s(10, 8000) - 1) for m in (seen, ignorant)
    ]
    assert miss[0] < miss[1]


@pytest.mark.parametrize("rate", [LIGHT, MIDDLE, HEAVY])
def test_without_scheduled_times_the_first_tokens_serve(rate):
    real, load = truth(), poisson_load(rate, 300, seed=5)
    ran = Loop(load, real, noise=0.05)
    fitted = calibration.fit(tables_of(calls_table(load, ran, scheduled=False)), CONFIG)
    _close(fitted, real, share=0.1, batch=2 if rate == LIGHT else 15)
    assert "first token alone" in fitted.source


@pytest.mark.parametrize("rate", [LIGHT, MIDDLE])
def test_a_step_scheduled_ahead_is_recognised(rate):
    real, load = truth(), poisson_load(rate, 250, seed=7)
    ran = Loop(load, real, noise=0.03, ahead=True)
    fitted = calibration.fit(tables_of(calls_table(load, ran)), CONFIG)
    _close(fitted, real, share=0.06, batch=2 if rate == LIGHT else 15)
    assert "one ahead" in fitted.source
    assert fitted.front_s > real.front_s
    plain = calibration.fit(tables_of(calls_table(load, Loop(load, real, noise=0.03))), CONFIG)
    assert "one ahead" not in plain.source


def test_a_replay_with_the_fitted_model_gives_the_run_back():
    real, load = truth(), poisson_load(MIDDLE, 250, seed=9)
    ran = Loop(load, real, noise=0.05)
    fitted = calibration.fit(tables_of(calls_table(load, ran)), CONFIG)
    other = poisson_load(1.5 * MIDDLE, 250, seed=10)
    told, seen = Loop(other, fitted), Loop(other, real)
    for q in (0.5, 0.99):
        ends = [np.quantile(r.end - other.arrival, q) for r in (told, seen)]
        firsts = [np.quantile(r.first - other.arrival, q) for r in (told, seen)]
        assert ends[0] == pytest.approx(ends[1], rel=0.05)
        assert firsts[0] == pytest.approx(firsts[1], rel=0.1)


def test_a_curved_base_is_followed():
    base = (0.01, 0.012, 0.024, 0.03)
    real = truth(batches=(0, 4, 16, 64), base_s=base, slope_s_per_token=(2.5e-7,) * 4)
    parts = []
    for index, rate in enumerate((LIGHT, 1.0, 3.0, 6.0)):
        load = poisson_load(rate, 250, seed=index)
        parts.append(calls_table(load, Loop(load, real, seed=index), replica=f"{index}"))
    fitted = calibration.fit(tables_of(*parts), CONFIG)
    for batch in (1, 4, 16, 40):
        told = fitted.decode_step_s(batch, 800.0 * batch)
        assert told == pytest.approx(real.decode_step_s(batch, 800.0 * batch), rel=0.06)


def test_replicas_are_swept_apart_and_unnamed_ones_share_the_load():
    real = truth()
    loads = [poisson_load(MIDDLE, 250, seed=20 + i) for i in range(2)]
    tables = [calls_table(load, Loop(load, real), replica=f"{i}") for i, load in enumerate(loads)]
    _close(calibration.fit(tables_of(*tables), CONFIG), real, share=0.05)
    nameless = [t.set_column(2, "replica", pa.nulls(t.num_rows, pa.string())) for t in tables]
    two = Config.from_dict({"deployment": {"max_num_batched_tokens": 2048, "replicas": 2}})
    _close(calibration.fit(tables_of(*nameless), two), real, share=0.2)


def test_preempted_calls_and_cached_prompts():
    real, load = truth(), poisson_load(MIDDLE, 250, seed=30)
    load.cached = np.floor(load.input * np.random.default_rng(0).choice([0, 0.5, 0.9], 250))
    table = calls_table(load, Loop(load, real))
    _close(calibration.fit(tables_of(table), CONFIG), real, share=0.05)


def test_long_recordings_are_read_in_stretches(monkeypatch):
    from sojourn.capacity import engine_calls

    monkeypatch.setattr(engine_calls, "WINDOW_CALLS", 100)
    monkeypatch.setattr(engine_calls, "WINDOWS", 3)
    real, load = truth(), poisson_load(MIDDLE, 600, seed=31)
    _close(
        calibration.fit(tables_of(calls_table(load, Loop(load, real))), CONFIG), real, share=0.05
    )


class TestRefusals:
    def test_nothing_to_fit(self):
        for tables in (Tables(), tables_of(calls_table(*_run(10)))):
            refusal = calibration.fit(tables, CONFIG)
            assert isinstance(refusal, Excuse)
            assert refusal.collect

    def test_lengths_alone_are_no_timings(self):
        load, ran = _run(100)
        table = calls_table(load, ran).drop_columns(["scheduled_s", "first_token_s", "end_s"])
        refusal = calibration.fit(tables_of(table), CONFIG)
        assert isinstance(refusal, Excuse)
        assert "first-token" in " ".join(refusal.collect)

    def test_times_that_do_not_follow_from_the_load(self):
        load, ran = _run(200)
        rng = np.random.default_rng(0)
        ran.end = ran.first + np.exp(rng.normal(0, 2, 200))
        refusal = calibration.fit(tables_of(calls_table(load, ran)), CONFIG)
        assert isinstance(refusal, Excuse)
        assert "do not follow" in refusal.reason

    def test_one_state_alone_tells_no_costs(self):
        n = 60
        load = Load(np.arange(n) * 3.0, np.full(n, 500.0), np.full(n, 50.0))
        refusal = calibration.fit(tables_of(calls_table(load, Loop(load, truth()))), CONFIG)
        assert isinstance(refusal, Excuse)
        assert "load" in " ".join(refusal.collect)


def _run(calls):
    load = poisson_load(MIDDLE, calls)
    return load, Loop(load, truth())


def test_order_of_rows_does_not_matter():
    load, ran = _run(120)
    table = calls_table(load, ran)
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(120)))
    one, two = (calibration.fit(tables_of(t), CONFIG) for t in (table, shuffled))
    assert one.base_s == pytest.approx(two.base_s)
    assert one.prefill_s_per_token == pytest.approx(two.prefill_s_per_token)


def test_time_scale_scales_every_cost():
    load, ran = _run(150)
    table = calls_table(load, ran)
    slow = table
    for name in ("arrival_s", "scheduled_s", "first_token_s", "end_s"):
        column = pa.compute.multiply(table.column(name), 3.0)
        slow = slow.set_column(slow.column_names.index(name), name, column)
    one, three = (calibration.fit(tables_of(t), CONFIG) for t in (table, slow))
    assert three.decode_step_s(10, 8000) == pytest.approx(3 * one.decode_step_s(10, 8000), rel=0.01)
    assert three.front_s == pytest.approx(3 * one.front_s, rel=0.05)


COSTS = {
    "rise": st.floats(0.0, 2e-4),
    "base": st.floats(0.004, 0.03),
    "slope": st.floats(1e-8, 4e-7),
    "token": st.floats(1e-5, 1e-4),
    "attended": st.floats(0.0, 5e-9),
    "mixed": st.sampled_from([0.0, 0.012]),
    "seed": st.integers(0, 9),
}


def _model(base, rise, slope, token, attended, mixed):
    return truth(
        base_s=(base, base + 100 * rise),
        slope_s_per_token=(slope, slope),
        prefill_s_per_token=token,
        prefill_s_per_token_context=attended,
        prefill_tokens=(0, 1, 2) if mixed else (),
        prefill_base_s=(0.0, mixed, mixed) if mixed else (),
    )


@settings(max_examples=8, deadline=None)
@given(scheduled=st.booleans(), **COSTS)
def test_any_model_is_fitted_back_within_its_held_out_error(scheduled, seed, **costs):
    """Two loads of a random engine; what is fitted tells a third load's calls as well as the
    held-out error says, and the steps within the range it calls valid."""
    real = _model(**costs)
    step = real.decode_step_s(10, 8000)
    rate = 0.04 / step
    parts = []
    for index, share in enumerate((0.3, 1.0)):
        load = poisson_load(share * rate, 200, seed=seed + index, longest=2500)
        ran = Loop(load, real, noise=0.03, seed=seed + index)
        parts.append(calls_table(load, ran, scheduled=scheduled, replica=f"{index}"))
    fitted = calibration.fit(tables_of(*parts), CONFIG)
    assert isinstance(fitted, StepModel), fitted
    share = 0.05 if scheduled else 0.1
    for batch in np.unique(np.linspace(*fitted.valid_batch, 4).round()).astype(int).tolist():
        told, said = (m.decode_step_s(batch, 800.0 * batch) for m in (real, fitted))
        assert said == pytest.approx(told, rel=share)
    other = poisson_load(0.7 * rate, 150, seed=seed + 7, longest=2500)
    runs = [Loop(other, model) for model in (fitted, real)]
    told, said = (run.end - other.arrival for run in reversed(runs))
    assert np.median(np.abs(said / told - 1)) < 2 * fitted.held_out_error + 0.02


def test_what_a_step_with_a_prompt_costs_more_is_found():
    real = _model(0.012, 2e-5, 5e-8, 2e-5, 0.0, 0.015)
    parts = []
    for index, rate in enumerate((1.0, 5.0)):
        load = poisson_load(rate, 250, seed=index)
        parts.append(calls_table(load, Loop(load, real, seed=index), replica=f"{index}"))
    fitted = calibration.fit(tables_of(*parts), CONFIG)
    assert fitted.prefill_step_s(1) == pytest.approx(0.015, rel=0.15)
    assert fitted.prefill_step_s(1000) == pytest.approx(real.prefill_step_s(1000), rel=0.05)
    plain = calibration.fit(tables_of(calls_table(*_run(250))), CONFIG)
    assert plain.prefill_step_s(1) < 0.002


@pytest.mark.parametrize("scheduled", [True, False])
def test_the_front_ends_times_are_a_distribution(scheduled):
    """Times of 5 ms and, for every tenth call, of 60: the samples have that mean and that tail,
    although every call also waits for the end of a step."""
    real, load = truth(front_s=0.0), poisson_load(1.0, 400, seed=3)
    front = np.where(np.random.default_rng(0).random(400) < 0.1, 0.060, 0.005)
    ran = Loop(load, real, front=front)
    fitted = calibration.fit(tables_of(calls_table(load, ran, scheduled=scheduled)), CONFIG)
    samples = np.array(fitted.front_samples_s)
    assert samples.mean() == pytest.approx(front.mean(), abs=0.003)
    assert samples.mean() == pytest.approx(fitted.front_s, rel=1e-6)
    assert np.quantile(samples, 0.97) == pytest.approx(0.060, abs=0.012)
    assert np.quantile(samples, 0.5) == pytest.approx(0.005, abs=0.004)
