"""Figures of question 5: what the engine's samples (or its calls) show, before and after."""

from __future__ import annotations

import math
from typing import Final

from sojourn.attribution.records import EngineUse
from sojourn.interval import Interval
from sojourn.verify.compare import shown
from sojourn.verify.records import Figure, Finding

MIN_POINTS: Final = 0.05
"""A share that one run of an engine gives without an interval moves by a few points from run to
run (its peak window holds a few dozen samples): less than five points are the same."""
COUNT_NOISE: Final = 1.163
"""z sqrt(1/2) at 90%: the root of a Poisson count has variance 1/4. Source: Bartlett 1936."""

SHOWN: Final = (
    ("KV in use, P95", "share", "kv_usage_p95"),
    ("requests in the batch, mean", "", "running_mean"),
    ("requests in the batch, most", "", "running_max"),
    ("engine busy", "share", "busy_share"),
)
SHARES: Final = (
    ("prefix tokens found in cache", "prefix_hit_share", True),
    ("time with requests waiting", "waiting_share", False),
)


def engine_figures(before: EngineUse, after: EngineUse) -> list[Figure]:
    """Judged: cache hits, waiting, preemptions. Shown: KV use, batch, how busy."""
    figures = [
        _share(name, getattr(before, field), getattr(after, field), better)
        for name, field, better in SHARES
        if getattr(before, field) is not None or getattr(after, field) is not None
    ]
    if before.preemptions is not None or after.preemptions is not None:
        figures.append(_count("preemptions", before.preemptions, after.preemptions))
    figures += [
        shown(name, unit, getattr(before, field), getattr(after, field))
        for name, unit, field in SHOWN
        if getattr(before, field) is not None or getattr(after, field) is not None
    ]
    return figures


def _share(name: str, before: float | None, after: float | None, higher_is_better: bool) -> Figure:
    found = Finding.UNKNOWN
    if before is not None and after is not None:
        gap = after - before
        found = Finding.SAME
        if abs(gap) >= MIN_POINTS:
            found = Finding.BETTER if (gap > 0) == higher_is_better else Finding.WORSE
    return shown(name, "share", before, after).model_copy(update={"finding": found, "judged": True})


def _count(name: str, before: float | None, after: float | None) -> Figure:
    """Events counted in windows of one length: a difference of roots beyond Poisson noise.

    Wrong when: the windows differ in length, or events come in bursts (then it is too sure).
    """
    found = Finding.UNKNOWN
    if before is not None and after is not None:
        gap = math.sqrt(max(after, 0.0)) - math.sqrt(max(before, 0.0))
        found = Finding.SAME
        if abs(gap) > COUNT_NOISE:
            found = Finding.BETTER if gap < 0 else Finding.WORSE
    return Figure(
        name=name,
        unit="",
        before=None if before is None else Interval.exact(before),
        after=None if after is None else Interval.exact(after),
        finding=found,
    )
