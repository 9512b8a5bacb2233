"""Figures of a sample: `Summary`, shares by name."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.trace.arrays import Floats
from sojourn.workload.profile_records import Summary

MAX_NAMES: Final = 200
"""Names listed one by one in a share; the rest is `(other)`. A record is read by people."""
OTHER: Final = "(other)"
UNKNOWN: Final = "(unknown)"


def summarize(values: Floats) -> Summary:
    """Figures of a sample; NaN entries are unknown and left out. All NaN when nothing is known."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        nan = float("nan")
        return Summary(count=0, mean=nan, p50=nan, p90=nan, p95=nan, p99=nan, max=nan, cv2=nan)
    p50, p90, p95, p99 = (float(v) for v in np.percentile(known, [50, 90, 95, 99]))
    mean = float(known.mean())
    return Summary(
        count=int(known.size),
        mean=mean,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(known.max()),
        cv2=float(known.var()) / mean**2 if mean else 0.0,
    )


def shares(column: pa.ChunkedArray) -> dict[str, float]:
    """Share of rows by value, largest first. Empty where the source names none at all."""
    if len(column) == column.null_count:
        return {}
    counted = pc.value_counts(column.fill_null(UNKNOWN).combine_chunks())
    pairs = sorted(
        zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    result = {str(name): count / len(column) for name, count in pairs[:MAX_NAMES]}
    rest = sum(count for _, count in pairs[MAX_NAMES:])
    if rest:
        result[OTHER] = rest / len(column)
    return result
