"""Step models fitted from step logs: known ones come back, curves are found, thin logs refused."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity import step_log
from sojourn.capacity.records import StepModel
from sojourn.capacity.regression import relative_nnls
from sojourn.capacity.step_log import StepLog
from sojourn.interval import Excuse


def log_of(step, *, steps=6000, noise=0.08, seed=0, most=24):
    """Steps of a load that wanders, timed by a step model, with skewed noise of mean 1."""
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(steps) / 300) + 1.2
    decodes = np.minimum(rng.poisson(wave * most / 3), most).astype(float)
    context = np.round(decodes * rng.uniform(100, 900, steps))
    prompt = np.where(rng.random(steps) < 0.2, rng.integers(8, 512, steps), 0).astype(float)
    prompt = np.where((decodes == 0) & (prompt == 0), 64.0, prompt)
    before = np.where(rng.random(steps) < 0.5, rng.integers(0, 1500, steps), 0)
    attended = prompt * before + prompt * (prompt + 1) / 2
    clean = np.array(
        [
            step.step_s(int(b), c, int(n), a)
            for b, c, n, a in zip(decodes, context, prompt, attended, strict=True)
        ]
    )
    luck = np.exp(noise * rng.standard_normal(steps) - noise**2 / 2)
    return StepLog(clean * luck, decodes, context, prompt, attended), clean


def truth(**change):
    values = {
        "batches": (0, 24),
        "base_s": (0.0035, 0.0071),
        "slope_s_per_token": (3.5e-7, 3.5e-7),
        "prefill_s_per_token": 5e-5,
        "prefill_s_per_token_context": 6e-8,
        "prefill_tokens": (0, 1, 2),
        "prefill_base_s": (0.0, 0.002, 0.002),
        "provenance": "assumed",
        "source": "test",
    }
    return StepModel(**{**values, **change})


def told(step, log):
    rows = zip(log.decodes, log.context, log.prompt, log.attended, strict=True)
    return np.array([step.step_s(int(b), c, int(n), a) for b, c, n, a in rows])


def test_a_known_model_comes_back():
    log, clean = log_of(truth())
    found = step_log.fit(log)
    assert isinstance(found, StepModel), found
    assert found.slope_s_per_token[0] == pytest.approx(3.5e-7, rel=0.1)
    assert found.prefill_s_per_token_context == pytest.approx(6e-8, rel=0.1)
    assert found.step_s(0, 0, 256, 0) == pytest.approx(truth().step_s(0, 0, 256, 0), rel=0.03)
    assert told(found, log) == pytest.approx(clean, rel=0.05)
    assert found.held_out_error == pytest.approx(0.6745 * 0.08, rel=0.15)
    assert found.valid_batch == (1, 24)


@pytest.mark.parametrize("base", [(0.003, 0.004, 0.012), (0.003, 0.009, 0.010)])
def test_a_base_that_bends_either_way_is_found(base):
    bent = truth(batches=(0, 8, 24), base_s=base, slope_s_per_token=(3e-7,) * 3)
    log, clean = log_of(bent, noise=0.05)
    found = step_log.fit(log)
    assert len(found.batches) > 2
    assert told(found, log) == pytest.approx(clean, rel=0.05)


def test_a_straight_base_gets_no_borders():
    assert len(step_log.fit(log_of(truth())[0]).batches) == 2


def test_a_stall_moves_nothing():
    log, clean = log_of(truth())
    log.period_s[1234] += 60.0
    assert told(step_log.fit(log), log) == pytest.approx(clean, rel=0.05)


def test_the_mean_of_skewed_noise_is_kept():
    rng = np.random.default_rng(3)
    rows = np.column_stack([np.ones(20_000), rng.uniform(0, 10, 20_000)])
    noise = 0.9 + rng.exponential(0.1, 20_000)
    found = relative_nnls(rows, rows @ [1.0, 0.3] * noise)
    assert found == pytest.approx([1.0, 0.3], rel=0.01)


def test_thin_logs_are_refused():
    log, _ = log_of(truth(), steps=150)
    assert isinstance(step_log.fit(log), Excuse)
    log, _ = log_of(truth(), steps=3000)
    assert isinstance(step_log.fit(log.take(log.prompt == 0)), Excuse)
