"""Columns of Arrow tables as arrays, nulls made plain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.plan.estimates import Floats


def floats(table: pa.Table, name: str) -> Floats:
    """A numeric column, nulls as NaN."""
    column = pc.cast(table.column(name).combine_chunks(), pa.float64())
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=float)


def texts(table: pa.Table, name: str, default: str) -> npt.NDArray[np.object_]:
    """A text column, nulls as `default`."""
    column = pc.fill_null(table.column(name).combine_chunks(), default)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
