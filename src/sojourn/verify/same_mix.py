"""Before and after under one mix: before reweighted to after's mix, both resampled together.

The verdict rests on these figures: a P99 that fell because requests became lighter is no gain.
It reads several at once, so each has an interval of confidence 1 - (1 - c) / `READ`: then chance
moves *any* of them in at most 1 - c of pairs in which nothing changed (Bonferroni). With plain
intervals one verdict in six on two equal systems was a gain or a regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sojourn.plan.estimates import block_indices
from sojourn.trace.arrays import Floats
from sojourn.verify import compare, mix
from sojourn.verify.compare import Estimate
from sojourn.verify.records import Figure, Finding
from sojourn.verify.window import Window

P95, P99 = "end to end P95", "end to end P99"
SLO = "meets every target of the SLO"
READ: Final = 3
"""Figures that decide a verdict: P95, P99, SLO. Errors and the rest move with the last."""
SHIFT = "P99 of before under its own mix, and under that of after"


@dataclass(frozen=True)
class SameMix:
    """Figures by name, the shift that the mix explains, and how comparable the windows are."""

    figures: dict[str, Figure]
    shift: Figure
    unseen: float
    overlap: float
    """Effective size of before under the mix of after, over its size: 1 for equal mixes."""

    def beyond(self, repeats: Sequence[SameMix]) -> SameMix:
        """The same, with no finding that a repeat of before differs by as much as well.

        Resampling one recording shows how far its requests differ, not how far two recordings of
        one system do (other neighbours on the machine, a backlog that adds up every per cent).
        """
        if not repeats:
            return self
        figures = {}
        for name, figure in self.figures.items():
            others = [r.figures[name] for r in repeats if name in r.figures]
            floor = max((abs(_moved(other)) for other in others), default=0.0)
            clear = figure.finding in (Finding.BETTER, Finding.WORSE)
            noise = clear and abs(_moved(figure)) <= floor
            figures[name] = figure.model_copy(update={"finding": Finding.SAME}) if noise else figure
        return replace(self, figures=figures)


def _moved(figure: Figure) -> float:
    """How far a figure moved: times by the logarithm of their ratio, shares by difference."""
    if figure.before is None or figure.after is None:
        return 0.0
    old, new = figure.before.mid, figure.after.mid
    if figure.unit != "s":
        return new - old
    return math.log(new / old) if old > 0 and new > 0 else 0.0


@dataclass(frozen=True)
class _Wanted:
    """One statistic of both windows: values, and how weighted values become a figure."""

    name: str
    old: Floats
    new: Floats
    q: float | None = None
    higher_is_better: bool = False

    def of(self, values: Floats, weights: Floats) -> float:
        if self.q is None:
            return mix.weighted_mean(values, weights)
        return mix.weighted_quantile(values, weights, self.q)


def _wanted(old: Window, new: Window) -> list[_Wanted]:
    def share(name: str, of: Callable[[Window], Floats], *, better: bool = False) -> _Wanted:
        return _Wanted(name, of(old), of(new), None, better)

    return [
        _Wanted(P95, old.judged.e2e_s, new.judged.e2e_s, 0.95),
        _Wanted(P99, old.judged.e2e_s, new.judged.e2e_s, 0.99),
        share(SLO, lambda w: w.judged.good, better=True),
        share("task success", lambda w: w.judged.succeeded.astype(float), better=True),
        share("errors", lambda w: w.status_share("error")),
        share("timeouts", lambda w: w.status_share("timeout")),
        share("shed", lambda w: w.status_share("shed")),
        share("quality score", lambda w: w.quality, better=True),
    ]


def compare_under_one_mix(old: Window, new: Window, seed: int) -> SameMix:
    """Every figure that a change is judged by, with the mix of after on both sides."""
    kinds = mix.kinds(old.tables, old.judged, new.tables, new.judged)
    found = kinds.mix()
    wanted = _wanted(old, new)
    own, draws = _resampled(old, new, kinds, wanted, seed)
    confidence = old.config.analysis.confidence
    overlap = found.effective / max(len(old.judged), 1)
    joint = 1 - (1 - confidence) / READ
    figures = {}
    for item in wanted:
        pair = draws[item.name]
        figure = _figure(item, found, pair, joint)
        if figure is not None:
            figures[item.name] = figure
    before = Estimate(mix.weighted_quantile(old.judged.e2e_s, np.ones(len(old.judged)), 0.99), own)
    moved = Estimate(
        mix.weighted_quantile(old.judged.e2e_s, found.weights, 0.99),
        np.array([value for value, _ in draws[P99]]),
    )
    return SameMix(figures, _shift(before, moved, found, confidence), found.unseen, overlap)


def _resampled(
    old: Window, new: Window, kinds: mix.Kinds, wanted: list[_Wanted], seed: int
) -> tuple[Floats, dict[str, list[tuple[float, float]]]]:
    """P99 of before under its own mix, and (before, after) of each statistic, per resample."""
    first = block_indices(len(old.judged), compare.salted(old.judged.arrival_s, seed))
    second = block_indices(len(new.judged), compare.salted(new.judged.arrival_s, seed + 1))
    own: list[float] = []
    draws: dict[str, list[tuple[float, float]]] = {item.name: [] for item in wanted}
    e2e = old.judged.e2e_s
    for rows, later in zip(first, second, strict=False):
        drawn = kinds.mix(rows, later)
        own.append(mix.weighted_quantile(e2e[rows], np.ones(rows.size), 0.99))
        for item in wanted:
            pair = (
                item.of(item.old[rows], drawn.weights),
                item.of(item.new[later], drawn.seen.astype(float)),
            )
            draws[item.name].append(pair)
    return np.array(own), draws


def _figure(
    item: _Wanted, found: mix.Mix, pairs: list[tuple[float, float]], confidence: float
) -> Figure | None:
    seen = found.seen.astype(float)
    points = item.of(item.old, found.weights), item.of(item.new, seen)
    samples = np.array(pairs)
    samples = samples[~np.isnan(samples).any(axis=1)]
    if np.isnan(points).any() or not len(samples):
        return None
    old, new = Estimate(points[0], samples[:, 0]), Estimate(points[1], samples[:, 1])
    sizes = (
        mix.effective_size(found.weights[~np.isnan(item.old)]),
        mix.effective_size(seen[~np.isnan(item.new)]),
    )
    if item.q is not None:
        sure = compare.enough(min(sizes), item.q)
        return compare.ratio_figure(item.name, "s", old, new, confidence=confidence, decidable=sure)
    first, second = (
        compare.share_bounds(side, size, confidence)
        for side, size in zip((old, new), sizes, strict=True)
    )
    return compare.shares_compared(
        item.name, first, second, higher_is_better=item.higher_is_better, size=min(sizes)
    )


def _shift(before: Estimate, moved: Estimate, found: mix.Mix, confidence: float) -> Figure:
    """The P99 change that the mix alone explains: both samples come from the same resamples."""
    good = ~(np.isnan(before.samples) | np.isnan(moved.samples))
    if np.isnan(before.point) or np.isnan(moved.point) or not good.any():
        return Figure(name=SHIFT, unit="s", before=None, after=None, finding=Finding.UNKNOWN)
    return compare.ratio_figure(
        SHIFT,
        "s",
        Estimate(before.point, before.samples[good]),
        Estimate(moved.point, moved.samples[good]),
        confidence=confidence,
        decidable=compare.enough(found.effective, 0.99),
    )
