"""Guards over the operator tables: each is given the fault it is there for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.capacity import catalogue
from sojourn.capacity.roofline_constants import CONSTANTS
from sojourn.capacity.roofline_links import all_reduce_s
from sojourn.capacity.roofline_setting import Setting, setting_of
from sojourn.capacity.silicon_guards import (
    MENDED_LIMIT,
    REDUCE_LIMIT,
    SUSTAINED,
    Reduces,
    bounded,
    bounds_s,
    monotone,
    sustained,
)
from sojourn.capacity.silicon_tables import Op, Refused
from sojourn.config import Deployment

MODEL = catalogue.model("Llama-3.1-8B")


def setting(gpu: str, tp: int = 1) -> Setting:
    return setting_of(
        MODEL,
        catalogue.gpu(gpu),
        Deployment(tensor_parallel=tp),
        mean_context=None,
        constants=CONSTANTS,
    )


def reduces(gpu: str, tp: int) -> Reduces:
    return Reduces(setting(gpu, tp))


def grid(rows: int, columns: int) -> np.ndarray:
    return np.add.outer(np.arange(rows) * 1e-3, np.arange(columns) * 2e-4) + 5e-3


def test_times_that_rise_are_left_as_they_are() -> None:
    mended, change = monotone(grid(6, 5))
    assert mended == pytest.approx(grid(6, 5))
    assert change == pytest.approx(0, abs=1e-12)


def test_a_dip_is_mended_and_counted() -> None:
    times = grid(6, 5)
    times[3] *= 0.8
    mended, change = monotone(times)
    assert (np.diff(mended, axis=0) >= 0).all()
    assert (np.diff(mended, axis=1) >= 0).all()
    assert 0 < change < MENDED_LIMIT
    assert mended[0] == pytest.approx(grid(6, 5)[0])


def test_times_that_fall_throughout_are_refused() -> None:
    with pytest.raises(Refused, match="fall with batch or context"):
        monotone(grid(6, 5)[::-1].copy() ** 4)


@given(st.lists(st.floats(1e-4, 1.0), min_size=12, max_size=12))
def test_mended_times_never_fall(values: list[float]) -> None:
    times = np.array(values).reshape(4, 3)
    try:
        mended, _ = monotone(times)
    except Refused:
        return
    assert (np.diff(mended, axis=0) >= -1e-12).all()
    assert (np.diff(mended, axis=1) >= -1e-12).all()


def test_times_below_the_floor_are_lifted_and_told() -> None:
    floors = np.full(4, 2e-3)
    lifted, note = bounded(np.array([1e-3, 3e-3, 4e-3, 5e-3]), floors, np.full(4, 1.0))
    assert lifted == pytest.approx([2e-3, 3e-3, 4e-3, 5e-3])
    assert "25%" in note
    assert "100%" in note


def test_times_within_bounds_carry_no_note() -> None:
    times = np.array([3e-3, 4e-3])
    lifted, note = bounded(times, np.full(2, 2e-3), np.full(2, 1.0))
    assert lifted == pytest.approx(times)
    assert note == ""


def test_mostly_faster_than_the_card_is_refused() -> None:
    with pytest.raises(Refused, match="shorter than the card can read"):
        bounded(np.full(4, 1e-3), np.full(4, 2e-3), np.full(4, 1.0))


def test_slower_than_believable_is_refused() -> None:
    with pytest.raises(Refused, match=r"3\.0 times the longest"):
        bounded(np.array([3e-3]), np.array([1e-4]), np.array([1e-3]))


def test_bounds_enclose_the_reading_of_weights_and_cache() -> None:
    gpu = catalogue.gpu("H100")
    floor, limit = bounds_s(setting("H100"), Deployment(), batch=32, context=4096)
    weights = MODEL.parameters * 2 / gpu.bandwidth_bytes_per_s
    assert weights * 0.9 < floor < limit
    longer, _ = bounds_s(setting("H100"), Deployment(), batch=32, context=8192)
    assert longer > floor


def test_an_all_reduce_no_link_explains_is_replaced() -> None:
    guard = reduces("L40S", 4)
    ours = all_reduce_s(guard._setting, 64) * MODEL.layers
    ops = [Op("qkv_gemm", 1e-3, True), Op("generation_ar_1", 9 * ours, True)]
    assert guard.total_s(ops, 64) == pytest.approx(1e-3 * sustained(64) + ours)
    assert guard.replaced == 1
    assert "9.0 times" in guard.note()
    assert "4 x L40S" in guard.note()


def test_a_plausible_all_reduce_stays() -> None:
    guard = reduces("H100", 4)
    ours = all_reduce_s(guard._setting, 64) * MODEL.layers
    told = ours * REDUCE_LIMIT * 0.9
    assert guard.total_s([Op("generation_ar_2", told, True)], 64) == pytest.approx(told)
    assert guard.note() == ""


def test_products_of_long_steps_take_longer_attention_does_not() -> None:
    guard = reduces("H100", 1)
    ops = [Op("context_qkv_gemm", 1.0, True), Op("context_attention", 1.0, True)]
    assert guard.total_s(ops, 8192) == pytest.approx(1.0 + SUSTAINED)
    assert guard.total_s(ops, 1) == pytest.approx(2.0, rel=1e-3)
    assert sustained(256) == pytest.approx((1 + SUSTAINED) / 2)


def test_without_tensor_parallelism_nothing_is_replaced() -> None:
    guard = reduces("H100", 1)
    assert guard.total_s([Op("generation_ar_1", 1.0, True)], 64) == pytest.approx(1.0)
    assert guard.note() == ""
