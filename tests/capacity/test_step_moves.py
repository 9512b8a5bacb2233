"""Step times and KV blocks of another deployment: the fit, times what the hardware model says."""

from __future__ import annotations

import pytest
from tests.plan.conftest import make_engine

from sojourn.capacity import catalogue
from sojourn.capacity.records import StepModel, StepSpread
from sojourn.capacity.step_moves import Hardware, moved_blocks, moved_engine, moved_step
from sojourn.config import Deployment
from sojourn.interval import Excuse, Provenance


def hardware(gpu="H100-SXM", model="Llama-3.1-8B", **flags):
    return Hardware(catalogue.model(model), catalogue.gpu(gpu), Deployment(**flags), context=1000.0)


def fitted(before, factor=1.2):
    """The hardware model's own steps, all `factor` times as long, as a fit."""
    told = before.roofline.scaled(factor)
    return told.model_copy(update={"provenance": Provenance.FITTED, "spread": None})


def test_nothing_changed_is_the_fit_itself():
    before = hardware()
    step = fitted(before)
    assert moved_step(step, before, hardware()) is step


def test_a_fit_keeps_its_distance_to_the_hardware_model():
    """A fit 1.2 times the roofline on one card is 1.2 times it on the other."""
    before, after = hardware(), hardware("A100-80GB-SXM")
    moved = moved_step(fitted(before), before, after, quick=True)
    assert isinstance(moved, StepModel)
    for batch in (1, 8, 64, 200):
        told = after.roofline.decode_step_s(batch, 500.0 * batch) + after.roofline.host_s
        got = moved.decode_step_s(batch, 500.0 * batch) + moved.host_s
        assert got == pytest.approx(1.2 * told, rel=0.02)
    assert moved.prefill_step_s(512) == pytest.approx(
        1.2 * after.roofline.prefill_step_s(512), rel=1e-6
    )
    assert moved.provenance is Provenance.INFERRED
    assert "A100-80GB-SXM" in moved.source
    assert "H100-SXM" in moved.source
    assert moved.held_out_error is None


def test_without_a_fit_the_hardware_model_is_asked_anew():
    before, after = hardware(), hardware("A100-80GB-SXM")
    assert moved_step(before.roofline, before, after, quick=True) == after.roofline


def test_a_spread_is_taken_at_the_nearest_batch():
    before, after = hardware(), hardware("A100-80GB-SXM")
    told = after.roofline
    spread = StepSpread(decode=tuple((0.9, 1 + b / 1000) for b in told.batches), prefill=(0.8, 1.3))
    after.__dict__["roofline"] = told.model_copy(update={"spread": spread})
    step = fitted(before).model_copy(
        update={"batches": (0, 7, 130), "base_s": (0.001,) * 3, "slope_s_per_token": (1e-9,) * 3}
    )
    moved = moved_step(step, before, after, quick=True)
    assert isinstance(moved, StepModel)
    assert moved.spread is not None
    nearest = [min(told.batches, key=lambda b: abs(b - batch)) for batch in (0, 7, 130)]
    assert [high for _, high in moved.spread.decode] == [1 + b / 1000 for b in nearest]


def test_blocks_follow_the_pool_that_memory_says():
    before = hardware(gpu_memory_utilization=0.9)
    engine = make_engine(kv_blocks=10_000, block_size=16)
    same = moved_blocks(engine, before, hardware(gpu_memory_utilization=0.9))
    assert same == 10_000
    more = moved_blocks(engine, before, hardware(gpu_memory_utilization=0.95))
    less = moved_blocks(engine, before, hardware(gpu_memory_utilization=0.7))
    assert less < 10_000 < more
    half = moved_blocks(engine, before, hardware(kv_dtype="fp8"))
    assert half == pytest.approx(20_000, rel=0.02)


def test_a_model_that_does_not_fit_is_an_excuse():
    before = hardware()
    after = before.changed(catalogue.gpu("T4"))
    found = moved_engine(make_engine(step=fitted(before)), before, after, quick=True)
    assert isinstance(found, Excuse)
    assert "does not fit" in found.reason or "KV" in found.reason
