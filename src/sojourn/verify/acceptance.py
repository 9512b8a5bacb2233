"""Acceptance of a change: eight answers, the share of the mix, and one verdict.

The rule of the verdict, in this order. Figures are those under one mix of requests
(`sojourn.verify.same_mix`), so that lighter requests are no gain and heavier ones no regression.

1. Thin evidence: None. Fewer than `MIN_REQUESTS` on a side, more than `MAX_UNSEEN` of after of a
   kind that before never had, or mixes that overlap by less than `MIN_OVERLAP`.
2. Nothing better: False when a guard (tail, SLO, success, errors, quality) is worse, or when the
   cost per success grew and even the favourable end of the P99's interval does not pay for it;
   else None. Where the plain P95 or P99 fell and the mix explains it, the reason says so.
3. Better here and a guard worse there: False, named.
4. Better, at a price: the P99 (the P95 where too few requests show a P99) must shrink by at least
   the factor by which the cost per success grows, or an SLO that was missed must now be held;
   else it is not worth its price: False.
5. Better, and nothing against it: True.

Where repeats of before are given (`controls`), a figure that they move by as much is no finding.
Without them the intervals hold one recording's own spread only: two recordings of one system out
of its capacity may differ by more.

A gain at a clearly lower load, or a loss at a clearly higher one, is None: the load may explain it.
The SLO, the buckets and the analysis are those of before on both sides: a change is not judged by
a target it moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.plan.slo import slo_held
from sojourn.trace.tables import Tables
from sojourn.units import format_seconds, format_share, format_usd
from sojourn.verify import questions
from sojourn.verify.compare import MIN_EFFECT, enough
from sojourn.verify.records import Acceptance, Answer, Figure, Finding
from sojourn.verify.same_mix import P95, P99, SLO, SameMix, compare_under_one_mix
from sojourn.verify.window import MIN_REQUESTS, Window, open_window

JUDGED: Final = (P95, P99, SLO)
"""Figures that a change is made for."""
GUARDS: Final = (*JUDGED, "task success", "errors", "timeouts", "shed", "quality score")
"""Figures that a gain must not be paid with."""
MAX_UNSEEN: Final = 0.20
"""With a fifth of after unlike anything before, the rest is no comparison of the system."""

QUEUED: Final = 0.5
"""Requests waiting in the engine half of the peak: a backlog adds up every difference in speed."""

MIN_OVERLAP: Final = 0.25
"""Below a quarter of its requests, before under after's mix rests on a few heavy weights."""


def accept(
    before: Tables,
    after: Tables,
    config: Config,
    *,
    rollback: Tables | None = None,
    after_config: Config | None = None,
    controls: Sequence[Tables] = (),
) -> Acceptance:
    """Compare two windows.

    Args:
        before: recording before the change.
        after: recording after it.
        config: SLO, prices and seed.
        rollback: recording after the change was taken back.
        after_config: configuration of the changed fleet, where its size or prices differ.
        controls: repeats of before, unchanged: what they differ by is no effect.

    Raises:
        InputError: a window holds no request.
    """
    changed = (after_config or config).model_copy(
        update={"slo": config.slo, "buckets": config.buckets, "analysis": config.analysis}
    )
    old = _open("before the change", before, config)
    new = _open("after the change", after, changed)
    back = None if rollback is None else _open("after taking it back", rollback, config)
    seed = config.analysis.seed
    answers = (
        questions.bottleneck(old, new),
        questions.buckets(old, new, seed),
        questions.tails(old, new, seed),
        questions.shares(old, new, seed),
        questions.engine(old, new),
        questions.peak(old, new, seed),
        questions.way_back(old, back, seed),
        questions.cost(old, new, seed),
    )
    repeats = [
        compare_under_one_mix(old, _open("of a control", control, config), seed)
        for control in controls
    ]
    same = compare_under_one_mix(old, new, seed).beyond(repeats)
    accepted, reason = _verdict(old, new, answers, same)
    if accepted is not None and not controls:
        reason += _unrepeated(old, new)
    return Acceptance(
        answers=answers,
        accepted=accepted,
        reason=reason,
        mix_shift=same.shift,
        same_mix=tuple(same.figures.values()),
        unseen=same.unseen,
    )


def _open(what: str, tables: Tables, config: Config) -> Window:
    if not tables.requests.num_rows:
        raise InputError(f"the window {what} holds no request", todo="Record one with requests")
    return open_window(tables, config)


def _verdict(
    old: Window, new: Window, answers: tuple[Answer, ...], same: SameMix
) -> tuple[bool | None, str]:
    plain = {figure.name: figure for answer in answers for figure in answer.figures}
    price = plain.get(questions.COST)
    dearer = 0.0 if price is None or price.change is None else price.change.mid
    told = _told(plain, price, same)
    better = _with(same, JUDGED, Finding.BETTER)
    worse = _with(same, GUARDS, Finding.WORSE)
    tail = _tail(same, min(len(old.judged), len(new.judged)))
    undecided = _thin(old, new, same) or _load_explains(old, new, better, worse)
    if undecided is not None:
        accepted, reason = None, undecided
    elif not better:
        judged = [same.figures[name] for name in JUDGED if name in same.figures]
        undecidable = all(figure.finding is Finding.UNKNOWN for figure in judged)
        accepted, reason = _without_gain(
            worse, dearer, tail, _moved_by_mix(plain, same), undecidable
        )
    elif worse:
        accepted, reason = False, f"{_list(better)} better, but {_list(worse)} worse."
    else:
        factor = 1.0 if tail is None else _shrinks(tail)
        accepted = dearer < MIN_EFFECT or factor >= 1 + dearer or _newly_held(old, new)
        reason = (
            f"Worth it: {_list(better)} better, nothing that guards it worse."
            if accepted
            else f"Not worth its price: under one mix the {_short(tail)} shrinks {factor:.2f}-fold,"
            f" a success costs {1 + dearer:.2f} times as much."
        )
    return accepted, f"{reason} {told}"


def _unrepeated(old: Window, new: Window) -> str:
    """The caution that belongs to a verdict on a system at its limit that was recorded once."""
    waiting = [window.breakdown.engine.waiting_share or 0.0 for window in (old, new)]
    if max(waiting) < QUEUED:
        return ""
    side = "before" if waiting[0] >= waiting[1] else "after"
    return (
        f" The engine had requests waiting {format_share(max(waiting))} of the peak {side}: at its"
        " limit two takes of one system differ by much, so repeat one and pass it as --control."
    )


def _with(same: SameMix, names: tuple[str, ...], state: Finding) -> list[str]:
    figures = [same.figures[name] for name in names if name in same.figures]
    return [figure.name for figure in figures if figure.finding is state]


def _thin(old: Window, new: Window, same: SameMix) -> str | None:
    """Why nothing can be said, or None where something can."""
    fewest = min(len(old.judged), len(new.judged))
    if fewest < MIN_REQUESTS:
        return f"Only {fewest} requests on one side: {MIN_REQUESTS} are the least."
    if same.unseen > MAX_UNSEEN:
        return (
            f"{format_share(same.unseen)} of the requests after are of a kind that the window"
            " before never had: the two cannot be compared."
        )
    if same.overlap < MIN_OVERLAP:
        return (
            "The mixes overlap too little: under the mix of after, the window before is worth"
            f" {format_share(same.overlap)} of its requests."
        )
    return None


def _load_explains(old: Window, new: Window, better: list[str], worse: list[str]) -> str | None:
    """Why a gain or a loss may be one of load, or None where the load cannot explain it."""
    moved = questions.load_change(old.rate, new.rate, (len(old.judged), len(new.judged)))
    if better and not worse and moved < 0:
        state = f"{_list(better)} better, but at {-moved:.0%} less load"
    elif worse and not better and moved > 0:
        state = f"{_list(worse)} worse, but at {moved:.0%} more load"
    else:
        return None
    return f"{state}, which may explain it. Record both at one load."


def _without_gain(
    worse: list[str],
    dearer: float,
    tail: Figure | None,
    by_mix: str | None,
    undecidable: bool,
) -> tuple[bool | None, str]:
    if worse:
        return False, f"A regression: {_list(worse)} worse."
    if dearer >= MIN_EFFECT and tail is not None and _shrinks(tail, best=True) < 1 + dearer:
        return False, (
            f"It costs {1 + dearer:.2f} times as much for each success and gains nothing that can"
            " be seen."
        )
    if by_mix is not None:
        return None, by_mix
    if undecidable:
        return None, "Too few requests to tell a change from noise."
    return None, "No difference beyond the noise of these recordings."


def _moved_by_mix(plain: dict[str, Figure], same: SameMix) -> str | None:
    """What moved although under one mix nothing did, where the mix moved the P99 as well."""
    shift = 0.0 if same.shift.change is None else same.shift.change.mid
    if abs(shift) < MIN_EFFECT:
        return None
    state, way = (Finding.BETTER, "lighter") if shift < 0 else (Finding.WORSE, "heavier")
    names = [name for name in JUDGED if name in plain and plain[name].finding is state]
    if not names:
        return None
    return (
        f"{_list(names)} {state.value}, but not under one mix: requests became {way}. If the"
        " traffic did that, the change did nothing that can be seen; if the change did (shorter"
        " prompts or outputs), record both windows on the same requests."
    )


def _tail(same: SameMix, fewest: int) -> Figure | None:
    return same.figures.get(P99 if enough(fewest, 0.99) else P95)


def _shrinks(tail: Figure, *, best: bool = False) -> float:
    """before/after of a tail; at the favourable end of its interval with `best`."""
    if tail.change is None:
        return math.inf if best else 1.0
    change = tail.change.low if best else tail.change.mid
    return math.inf if change <= -1 else 1 / (1 + change)


def _short(tail: Figure | None) -> str:
    return "tail" if tail is None else tail.name.removeprefix("end to end ")


def _list(names: list[str]) -> str:
    return ", ".join(names)


def _newly_held(old: Window, new: Window) -> bool:
    """Whether the SLO is held after and was not before."""
    return slo_held(new.tables, new.config) is True and slo_held(old.tables, old.config) is False


def _told(plain: dict[str, Figure], price: Figure | None, same: SameMix) -> str:
    parts = []
    tail = plain.get(P99)
    if tail is not None and tail.before is not None and tail.after is not None:
        text = f"P99 {format_seconds(tail.before.mid)} → {format_seconds(tail.after.mid)}"
        shift = same.shift.change
        if shift is not None and abs(shift.mid) >= MIN_EFFECT:
            text += f" (the mix alone: {shift.mid:+.0%})"
        parts.append(text)
    for name, label in ((SLO, "SLO met by"), ("degraded", "degraded")):
        figure = plain.get(name)
        if figure is None or figure.before is None or figure.after is None:
            continue
        if name == SLO or figure.finding is not Finding.SAME:
            first, second = format_share(figure.before.mid), format_share(figure.after.mid)
            parts.append(f"{label} {first} → {second}")
    if price is None or price.before is None or price.after is None or price.change is None:
        parts.append("no price is known")
    else:
        parts.append(
            f"{format_usd(price.before.mid)} → {format_usd(price.after.mid)} a success"
            f" ({price.change.mid:+.0%})"
        )
    return f"{'; '.join(parts)}."
