"""Acceptance of a change: eight answers, the share of the mix, and one verdict.

The rule of the verdict, in this order:

1. Thin evidence (fewer than `MIN_REQUESTS` on a side, or no figure decidable): None.
2. A regression (tail, SLO, success, errors or cost per success worse, nothing better): False.
3. Something got better, but at a price: the P99 (under the same mix) must shrink by at least
   the factor by which the cost per success grows, or an SLO that was missed must now be held;
   else it is not worth its price: False.
4. Better, and neither the SLO nor the success share nor the errors worse: True.
5. Better here and worse there: False, named.
6. No difference beyond the noise: False when it costs more, else None.
"""

from __future__ import annotations

import numpy as np

from sojourn.config import Config
from sojourn.interval import Interval
from sojourn.plan.estimates import block_indices
from sojourn.plan.slo import slo_held
from sojourn.trace.tables import Tables
from sojourn.units import format_seconds, format_share, format_usd
from sojourn.verify import mix, questions
from sojourn.verify.compare import MIN_EFFECT, bounds, finding, known
from sojourn.verify.records import Acceptance, Answer, Figure, Finding
from sojourn.verify.window import MIN_REQUESTS, Window, open_window

JUDGED = ("end to end P95", "end to end P99", "meets every target of the SLO")
"""Figures that a change is made for."""
GUARDS = ("meets every target of the SLO", "task success", "errors", "timeouts", "shed")
"""Figures that a gain must not be paid with."""


def accept(
    before: Tables,
    after: Tables,
    config: Config,
    *,
    rollback: Tables | None = None,
    after_config: Config | None = None,
) -> Acceptance:
    """Compare two windows.

    Args:
        before: recording before the change.
        after: recording after it.
        config: SLO, prices and seed; `after_config` where the changed fleet has other prices.
        rollback: recording after the change was taken back.
        after_config: configuration of the changed fleet.
    """
    old = open_window(before, config)
    new = open_window(after, after_config or config)
    back = None if rollback is None else open_window(rollback, config)
    seed = config.analysis.seed
    answers = (
        questions.bottleneck(old, new),
        questions.buckets(old, new, seed),
        questions.tails(old, new, seed),
        questions.shares(old, new, seed),
        questions.engine(old, new),
        questions.peak(old, new, seed),
        questions.way_back(old, back, seed),
        questions.cost(old, new),
    )
    shift, net = _mix_shift(old, new, seed)
    accepted, reason = _verdict(old, new, answers, net)
    return Acceptance(answers=answers, accepted=accepted, reason=reason, mix_shift=shift)


def _mix_shift(old: Window, new: Window, seed: int) -> tuple[Figure, Interval | None]:
    """The P99 change that the mix alone explains, and the P99 change under one mix."""
    values, later = old.judged.e2e_s, known(new.judged.e2e_s)
    name = "P99 under the mix of before, and of after"
    if not known(values).size or not later.size:
        empty = Figure(name=name, unit="s", before=None, after=None, finding=Finding.UNKNOWN)
        return empty, None
    found = mix.reweight(old.tables, old.judged, new.tables, new.judged)
    confidence = old.config.analysis.confidence
    rows = block_indices(len(values), seed)
    ones = np.ones(len(values))
    own = np.array([mix.weighted_quantile(values[row], ones, 0.99) for row in rows])
    moved = np.array([mix.weighted_quantile(values[r], found.weights[r], 0.99) for r in rows])
    after = np.quantile(later[block_indices(later.size, seed + 1)], 0.99, axis=1)
    plain = bounds(mix.weighted_quantile(values, ones, 0.99), own, confidence)
    mixed = bounds(mix.weighted_quantile(values, found.weights, 0.99), moved, confidence)
    change = bounds(mixed.mid / plain.mid - 1, moved / own - 1, confidence)
    size = min(after.size, moved.size)
    latest = float(np.quantile(later, 0.99))
    net = bounds(latest / mixed.mid - 1, after[:size] / moved[:size] - 1, confidence)
    state = finding(change, higher_is_better=False, least=MIN_EFFECT, within=0.2)
    figure = Figure(name=name, unit="s", before=plain, after=mixed, change=change, finding=state)
    return figure, net


def _verdict(
    old: Window, new: Window, answers: tuple[Answer, ...], net: Interval | None
) -> tuple[bool | None, str]:
    figures = {figure.name: figure for answer in answers for figure in answer.figures}
    fewest = min(len(old.judged), len(new.judged))
    if fewest < MIN_REQUESTS:
        return None, f"Only {fewest} requests on one side: {MIN_REQUESTS} are the least."
    judged = [figures[name] for name in JUDGED if name in figures]
    better = [figure.name for figure in judged if figure.finding is Finding.BETTER]
    guards = [figures[name] for name in dict.fromkeys((*JUDGED, *GUARDS)) if name in figures]
    worse = [figure.name for figure in guards if figure.finding is Finding.WORSE]
    dearer = _rise(figures.get("cost per success"))
    told = _told(figures, dearer)
    if not better:
        return _without_gain(worse, dearer, told)
    if worse:
        return False, f"{', '.join(better)} better, but {', '.join(worse)} worse. {told}"
    factor = 1.0 if net is None or net.mid <= -1 else 1 / (1 + net.mid)
    if dearer >= MIN_EFFECT and factor < 1 + dearer and not _newly_held(old, new):
        return False, (
            f"Not worth its price: under the same mix the P99 shrinks {factor:.2f}-fold, a"
            f" success costs {1 + dearer:.2f} times as much. {told}"
        )
    return True, f"Worth it: {', '.join(better)} better, nothing that guards it worse. {told}"


def _without_gain(worse: list[str], dearer: float, told: str) -> tuple[bool | None, str]:
    if worse:
        return False, f"A regression: {', '.join(worse)} worse. {told}"
    if dearer >= MIN_EFFECT:
        return False, f"It costs more and gains nothing that can be seen. {told}"
    return None, f"No difference beyond the noise of these recordings. {told}"


def _newly_held(old: Window, new: Window) -> bool:
    """Whether the SLO is held after and was not before."""
    return slo_held(new.tables, new.config) is True and slo_held(old.tables, old.config) is False


def _rise(figure: Figure | None) -> float:
    return 0.0 if figure is None or figure.change is None else figure.change.mid


def _told(figures: dict[str, Figure], dearer: float) -> str:
    parts = []
    tail = figures.get("end to end P99")
    if tail is not None and tail.before is not None and tail.after is not None:
        parts.append(f"P99 {format_seconds(tail.before.mid)} → {format_seconds(tail.after.mid)}")
    slo = figures.get("meets every target of the SLO")
    if slo is not None and slo.before is not None and slo.after is not None:
        parts.append(f"SLO met by {format_share(slo.before.mid)} → {format_share(slo.after.mid)}")
    cost = figures.get("cost per success")
    if cost is not None and cost.before is not None and cost.after is not None:
        parts.append(
            f"{format_usd(cost.before.mid)} → {format_usd(cost.after.mid)} a success"
            f" ({dearer:+.0%})"
        )
    return f"{'; '.join(parts)}." if parts else ""
