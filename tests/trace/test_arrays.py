"""Columns as arrays: nulls made plain, rows found, in chunks or whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sojourn.trace.arrays import floats, rows_of, texts, whole


@pytest.mark.parametrize("chunked", [False, True])
def test_nulls_are_made_plain(chunked):
    def column(values, kind):
        array = pa.array(values, type=kind)
        return pa.chunked_array([array.slice(0, 1), array.slice(1)]) if chunked else array

    np.testing.assert_array_equal(floats(column([1, None, 3], pa.int64())), [1.0, np.nan, 3.0])
    assert whole(column([1, None, 3], pa.int64())).tolist() == [1, 0, 3]
    assert whole(column([1, None, 3], pa.int64()), null=-1).tolist() == [1, -1, 3]
    assert texts(column(["a", None], pa.string())).tolist() == ["a", None]
    assert texts(column(["a", None], pa.string()), "-").tolist() == ["a", "-"]


def test_rows_are_found_or_minus_one():
    among = pa.chunked_array([["a", "b"], ["c"]])
    ids = pa.chunked_array([["c", "x", None, "a"]])
    assert rows_of(ids, among).tolist() == [2, -1, -1, 0]


def test_nothing_is_found_among_nothing():
    none = pa.chunked_array([], type=pa.string())
    assert rows_of(pa.chunked_array([["a"]]), none).tolist() == [-1]
    assert rows_of(none, none).tolist() == []
    assert floats(pa.chunked_array([], type=pa.float64())).size == 0
