"""Steps beyond the batches that were seen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.capacity.engine_loop import truth

from sojourn.capacity.extrapolation import beyond_valid, extended
from sojourn.capacity.records import StepSpread
from sojourn.capacity.step_turning import Turns, parts, refined, turned

BENT = truth(batches=(0, 32, 256), base_s=(0.01, 0.012, 0.05), slope_s_per_token=(2e-7,) * 3)
SEEN = truth(
    batches=(0, 16),
    base_s=(0.012, 0.0132),
    slope_s_per_token=(2.4e-7,) * 2,
    valid_batch=(1, 16),
    spread=StepSpread(decode=((0.98, 1.02),) * 2, prefill=(0.9, 1.1)),
)
"""1.2 times `BENT`, known up to 16 decodes."""


def test_the_hardwares_shape_goes_on_at_the_edges_ratio():
    found = extended(SEEN, BENT, context=500.0, upto=256)
    for batch in (1, 8, 16, 64, 256):
        told = found.decode_step_s(batch, 500.0 * batch)
        assert told == pytest.approx(1.2 * BENT.decode_step_s(batch, 500.0 * batch), rel=0.01)
    assert "by the shape of" in found.source


def test_without_hardware_the_last_slope_goes_on_and_says_so():
    found = extended(SEEN, None, context=500.0, upto=256)
    assert found.decode_step_s(128, 0.0) == pytest.approx(SEEN.decode_step_s(128, 0.0))
    assert "last slope" in found.source


@pytest.mark.parametrize("hardware", [BENT, None])
def test_ranges_widen_with_every_doubling(hardware):
    found = extended(SEEN, hardware, context=500.0, upto=256)
    widths = [
        high / low
        for batch, (low, high) in zip(found.batches, found.spread.decode, strict=True)
        if batch >= 16
    ]
    assert len(widths) >= 4
    assert all(a < b for a, b in pairwise(widths))


def test_below_the_smallest_batch_seen_too():
    high = SEEN.model_copy(
        update={
            "batches": (0, 64, 128),
            "base_s": (0.02, 0.0216, 0.0383),
            "slope_s_per_token": (2.4e-7,) * 3,
            "valid_batch": (64, 128),
            "spread": None,
        }
    )
    found = extended(high, BENT, context=500.0, upto=256)
    low = found.decode_step_s(4, 2000.0)
    assert low == pytest.approx(1.2 * BENT.decode_step_s(4, 2000.0), rel=0.15)
    assert "below 64" in found.source


def test_share_of_steps_outside():
    assert beyond_valid(SEEN, np.array([0, 1, 16, 17, 40])) == pytest.approx(0.4)
    assert beyond_valid(SEEN, np.array([8, 32]), np.array([3.0, 1.0])) == pytest.approx(0.25)
    assert beyond_valid(truth(), np.array([1000])) == 0.0


def test_parts_add_up_and_factors_turn_them():
    table = refined(BENT, (8,), 128)
    batches = np.array(table.batches, dtype=float)
    split = parts(table, (0, 8), batches)
    assert split.sum(axis=1) == pytest.approx(np.array(table.base_s) + table.host_s)
    twice = turned(table, Turns((0, 8), np.log(2), (np.log(2),) * 2, context=np.log(3)))
    assert np.array(twice.base_s) == pytest.approx(2 * np.array(table.base_s))
    assert twice.slope_s_per_token[0] == pytest.approx(3 * table.slope_s_per_token[0])
    assert all(np.diff(table.base_s) > 0)
