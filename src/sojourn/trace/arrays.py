"""Columns of the tables as numpy arrays, nulls made plain: how every later room reads a table."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = pa.ChunkedArray | pa.Array
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def floats(column: Column) -> Floats:
    """A numeric column as float64, null as NaN. May be a view that cannot be written to."""
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)


def whole(column: Column, *, null: int = 0) -> Ints:
    """A whole-number column as int64, null as `null`."""
    values = pc.fill_null(column, null).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.int64)


def texts(column: Column, null: str | None = None) -> npt.NDArray[np.object_]:
    """A text column as Python strings, null as `null`."""
    filled = column if null is None else pc.fill_null(column, null)
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=object)


def rows_of(ids: Column, among: Column) -> Ints:
    """Row in `among` of each id, -1 where it has none."""
    if not len(ids) or not len(among):
        return np.full(len(ids), -1, dtype=np.int64)
    values = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    return whole(pc.index_in(ids, value_set=values), null=-1)
