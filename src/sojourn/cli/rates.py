"""Rates on the command line: `2/s`, `120/min`, `7200/h`. Requests a minute are not a second's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from sojourn.errors import UsageError

UNITS: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("min", "m", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}
SHORT: Final = {"rps": "s", "qps": "s", "rpm": "min", "qpm": "min", "rph": "h"}
MOST_PER_S: Final = 1e6
_FORM: Final = re.compile(
    r"\s*(?P<number>[-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?)\s*(?:(?:req(?:uest)?s?)?\s*/\s*(?P<unit>[a-z]+)"
    r"|(?P<short>[a-z]+))?\s*",
    re.IGNORECASE,
)
_EXPECTED: Final = "Write a rate with its unit, as 2/s, 120/min or 7200/h"


@dataclass(frozen=True)
class Rate:
    """Requests per second, and whether the unit was written."""

    per_s: float
    unit_given: bool

    def describe(self) -> str:
        """In both units, so that a wrong one shows."""
        return f"{self.per_s:.4g} requests/s, {self.per_s * 60:.4g} a minute"


def parse(text: str) -> Rate:
    """A rate as it was written; without a unit it is per second.

    Raises:
        UsageError: no number, an unknown unit, or a rate that is no rate.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"--target-rate {text[:40]!r} is no rate. {_EXPECTED}")
    unit = (found["unit"] or "").lower()
    if found["short"]:
        unit = SHORT.get(found["short"].lower(), "?")
    if unit and unit not in UNITS:
        raise UsageError(f"--target-rate {text[:40]!r} has no unit that is known. {_EXPECTED}")
    number = float(found["number"].replace("_", ""))
    per_s = number / UNITS[unit] if unit else number
    if not math.isfinite(per_s) or per_s <= 0:
        raise UsageError(f"--target-rate {text[:40]!r} is no load to carry: it must be above 0")
    if per_s > MOST_PER_S:
        raise UsageError(
            f"--target-rate {text[:40]!r} is {per_s:.3g} requests a second, more than any fleet"
            f" that is simulated here. {_EXPECTED}"
        )
    return Rate(per_s, bool(unit))


def doubt(rate: Rate, today_per_s: float) -> str | None:
    """A sentence where the rate, beside today's, is likely of another unit."""
    from sojourn.capacity.plausible import check_rate

    found = check_rate(rate.per_s, option="--target-rate", measured_per_s=today_per_s)
    if found is None:
        return None
    how = "" if rate.unit_given else " (it was written without a unit and read as per second)"
    return f"{str(found).rstrip('.')}{how}"
