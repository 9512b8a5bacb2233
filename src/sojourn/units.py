"""Units: the sizes of the larger ones, and how figures and names are written.

Inside the library a duration is seconds as float, memory is bytes as int or GiB as float with
the unit in the name (`kv_gib`), money is US dollars. Conversion happens at the edge.
"""

from __future__ import annotations

import math
from typing import Final

S_PER_HOUR: Final = 3_600.0
GIB: Final = 1024**3
GB: Final = 10**9
TERA: Final = 10**12


def format_seconds(value: float | None) -> str:
    """A duration as people read it: `820 µs`, `41 ms`, `3.20 s`, `12.4 min`, `3.1 h`."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    size = abs(value)
    for limit, factor, unit in (
        (1e-3, 1e6, "µs"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if size < limit:
            scaled = value * factor
            digits = 2 if unit == "s" and abs(scaled) < 10 else 1 if unit in ("s", "min") else 0
            return f"{scaled:.{digits}f} {unit}"
    return f"{value / S_PER_HOUR:.1f} h"


def format_share(value: float | None) -> str:
    """A share as a percentage: `12%`, `0.4%`."""
    if value is None or math.isnan(value):
        return "–"
    percent = value * 100
    return f"{percent:.1f}%" if 0 < abs(percent) < 10 else f"{percent:.0f}%"


def format_usd(value: float | None) -> str:
    """Money with three significant digits: `$0.00123`, `$4.56`, `$1,230`."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "$0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"${value:,.{min(digits, 8)}f}"
