"""Runway: when steadily growing demand crosses the load the fleet holds."""

from __future__ import annotations

import math

from sojourn.interval import Excuse
from sojourn.plan.records import Holding, Runway


def runway(
    held: Holding | Excuse, growth_per_week: float, *, lead_weeks: float = 0.0
) -> Runway | Excuse:
    """Weeks until demand meets the load held.

    t = ln(F) / ln(1 + g), F load factor held, g relative growth per week. `lead_weeks` is what a
    purchase or a change takes; the order must be placed that much earlier.
    Wrong when: growth changes the mix (the factor holds for today's mix), or comes in steps.
    """
    if isinstance(held, Excuse):
        return Excuse(reason=f"No load is known to be held: {held.reason}", collect=held.collect)
    if growth_per_week <= 0:
        return Excuse(reason="Demand does not grow, so it crosses nothing")
    pace = math.log1p(growth_per_week)
    weeks = held.load_factor.map(lambda factor: max(0.0, math.log(max(factor, 1e-9)) / pace))
    missed = held.load_factor.mid < 1
    return Runway(
        weeks=weeks,
        growth_per_week=growth_per_week,
        load_factor=held.load_factor,
        order_by_weeks=max(0.0, weeks.low - lead_weeks),
        note="The SLO is missed at today's load already" if missed else held.breaks,
    )
