"""The degrade ladder: what to switch off as load grows, in order, with its triggers.

Order (what costs users least per second won comes first): stop retries, cap outputs, trim
retrieval, drop optional stages, move low priority to later. Rungs are actions that the ranking
found worth it on this workload and that can be switched while serving. The first comes on at 80%
of the load the fleet holds, the last at 95%; each goes off a tenth lower, so that it does not
flap. Load is the arrival rate: a queue or a GPU figure says it too late or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sojourn.capacity.records import CapacityModel
from sojourn.interval import Excuse
from sojourn.plan.action import Action
from sojourn.plan.records import Holding, Ranked, Rung
from sojourn.units import format_share

ORDER: Final = (
    "no_blind_retries",
    "fewer_attempts",
    "output_cap",
    "smaller_images",
    "retrieval_trim",
    "no_second_rerank_at_peak",
    "no_optional_tools_at_peak",
    "stage_limits",
    "stage_budgets",
    "degrade_on_timeout",
    "async_low_priority",
)
FIRST_ON: Final = 0.80
LAST_ON: Final = 0.95
HYSTERESIS: Final = 0.10


def ladder(
    ranked: Sequence[Ranked],
    capacity: CapacityModel,
    held: Holding | Excuse,
    actions: Sequence[Action],
) -> tuple[Rung, ...]:
    """Rungs from the ranked actions; empty where none can be switched while serving."""
    live = {action.name: action for action in actions if action.live and action.name in ORDER}
    steps: list[Ranked] = []
    for step in sorted((r for r in ranked if r.name in live), key=lambda r: ORDER.index(r.name)):
        if not any(step.name in live[earlier.name].implies for earlier in steps):
            steps.append(step)
    if not steps:
        return ()
    binding = capacity.binding if capacity.resources else None
    if isinstance(held, Holding) and held.rate_per_s.mid > 0:
        limit: float | None = held.rate_per_s.mid
        basis = "the load at which the SLO breaks"
    elif binding is not None:
        limit = binding.capacity_per_s.low
        basis = f"the capacity of {binding.name} (no SLO load is known)"
    else:
        limit, basis = None, "an unknown limit"
    shares = np.linspace(FIRST_ON, LAST_ON, len(steps)) if len(steps) > 1 else [FIRST_ON]
    what = binding.name if binding is not None else "the busiest resource"
    return tuple(
        Rung(
            order=i + 1,
            action=step.name,
            title=step.title,
            load_share=float(share),
            on_rate_per_s=None if limit is None else float(limit * share),
            off_rate_per_s=None if limit is None else float(limit * (share - HYSTERESIS)),
            watch=f"arrivals per second; or {what} at {format_share(float(share))} use",
            note=f"shares are of {basis}",
        )
        for i, (step, share) in enumerate(zip(steps, shares, strict=True))
    )
