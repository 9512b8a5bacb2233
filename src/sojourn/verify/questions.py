"""The eight questions of acceptance, each a function from two windows to an `Answer`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from sojourn.attribution.records import ALL
from sojourn.interval import Excuse
from sojourn.records import Bottleneck, words
from sojourn.trace.arrays import Floats
from sojourn.units import format_usd
from sojourn.verify import compare
from sojourn.verify.compare import Estimate, share_figure, shown, time_figure, worst
from sojourn.verify.engine_figures import engine_figures
from sojourn.verify.records import Answer, Figure, Finding
from sojourn.verify.same_mix import SLO
from sojourn.verify.window import Window

LOAD_TOLERANCE: Final = 0.10
"""Rates that differ by more make the comparison one of loads, not of the change."""
COST: Final = "cost per success"
TOO_SHORT: Final = Excuse(
    reason="The windows are too short to tell", collect=("longer windows, at one load",)
)


def load_change(old: float | None, new: float | None, sizes: tuple[int, int]) -> float:
    """after/before - 1 of two rates; 0 where they differ by no more than tolerance or chance.

    Chance: two standard errors of the ratio of two Poisson counts, 2 sqrt(1/n1 + 1/n2).
    """
    if not old or not new or min(sizes) < 1:
        return 0.0
    chance = 2 * math.sqrt(1 / sizes[0] + 1 / sizes[1])
    beyond = abs(math.log(new / old)) > max(math.log1p(LOAD_TOLERANCE), chance)
    return new / old - 1 if beyond else 0.0


def _answer(
    question: str, figures: Iterable[Figure | None], *, collect: str, note: str = ""
) -> Answer:
    """From figures: the worst finding, what got better and worse, and what is missing."""
    kept = tuple(figure for figure in figures if figure is not None)
    if not any(figure.judged for figure in kept):
        return Answer(
            question=question,
            finding=Finding.UNKNOWN,
            text=f"Not recorded in both windows.{note}",
            figures=kept,
            excuse=Excuse(reason="There is nothing to compare", collect=(collect,)),
        )
    excuse = TOO_SHORT if worst(kept) is Finding.UNKNOWN else None
    text = f"{_sentence(kept)}{note}"
    return Answer(question=question, finding=worst(kept), text=text, figures=kept, excuse=excuse)


def _sentence(figures: tuple[Figure, ...]) -> str:
    """Which figures got better and worse, in words."""
    parts = []
    for state in (Finding.BETTER, Finding.WORSE, Finding.UNKNOWN):
        names = [figure.name for figure in figures if figure.judged and figure.finding is state]
        if names:
            if state is Finding.UNKNOWN:
                parts.append(f"{len(names)} of {len(figures)} figures not decidable")
            else:
                parts.append(f"{', '.join(names)} {state.value}")
    return ("; ".join(parts) or "no difference beyond the noise") + "."


def bottleneck(old: Window, new: Window) -> Answer:
    """1. Which bottleneck, before and after."""
    first, second = old.diagnosis.top.bottleneck, new.diagnosis.top.bottleneck
    unknown = Bottleneck.INSUFFICIENT_EVIDENCE
    gone = first not in (Bottleneck.NONE, unknown) and second is Bottleneck.NONE
    came = first is Bottleneck.NONE and second not in (Bottleneck.NONE, unknown)
    if first is not second:
        text = f"{words(first.value)} before; {words(second.value)} after."
    elif first is unknown:
        text = "The evidence is too thin in both windows."
    elif first is Bottleneck.NONE:
        text = "No bottleneck, neither before nor after."
    else:
        text = f"{words(first.value)}, before and after: the change did not remove it."
    found = Finding.UNKNOWN if unknown in (first, second) else Finding.SAME
    found = Finding.BETTER if gone else Finding.WORSE if came else found
    before, after = _tail_stages(old), _tail_stages(new)
    least = 0.01 * max(sum(before.values()), sum(after.values()))
    figures = [
        shown(
            f"{words(stage)} in the P99",
            "s",
            before.get(stage, 0.0) if before else None,
            after.get(stage, 0.0) if after else None,
        )
        for stage in sorted({*before, *after})
        if max(before.get(stage, 0.0), after.get(stage, 0.0)) > least
    ]
    return Answer(
        question="Which bottleneck: queue, prefill, decode, KV, tool, network or kernel?",
        finding=found,
        text=text,
        figures=tuple(figures),
        excuse=(old.diagnosis.excuse or new.diagnosis.excuse) if found is Finding.UNKNOWN else None,
    )


def _tail_stages(window: Window) -> dict[str, float]:
    tail = window.breakdown.tail(ALL, 0.99)
    return {} if tail is None else tail.stages


def buckets(old: Window, new: Window, seed: int) -> Answer:
    """2. In which buckets the gain holds."""
    confidence = old.config.analysis.confidence
    names = sorted({*old.judged.buckets} & {*new.judged.buckets})
    figures: list[Figure | None] = []
    for name in names:
        mine, later = old.judged.bucket == name, new.judged.bucket == name
        figures += [
            time_figure(
                f"{words(name)} P{q * 100:g}",
                old.judged.e2e_s[mine],
                new.judged.e2e_s[later],
                q,
                seed=seed,
                confidence=confidence,
            )
            for q in (0.5, 0.95, 0.99)
        ]
        figures.append(
            share_figure(
                f"{words(name)} meets its SLO",
                old.judged.good[mine],
                new.judged.good[later],
                higher_is_better=True,
                seed=seed,
                confidence=confidence,
            )
        )
    notes = [
        f" Only {side}: {', '.join(words(name) for name in sorted(alone))}."
        for side, alone in (
            ("before", {*old.judged.buckets} - {*new.judged.buckets}),
            ("after", {*new.judged.buckets} - {*old.judged.buckets}),
        )
        if alone
    ]
    return _answer(
        "In which request buckets does the gain hold?",
        figures,
        collect="windows with requests of the same buckets, each with its end",
        note="".join(notes),
    )


def tails(old: Window, new: Window, seed: int) -> Answer:
    """3. P95 and P99, and whether the time to first token paid for it."""
    confidence = old.config.analysis.confidence
    pairs = (
        ("end to end", old.judged.e2e_s, new.judged.e2e_s),
        ("first token", old.judged.ttft_s, new.judged.ttft_s),
        ("per output token", old.judged.tpot_s, new.judged.tpot_s),
    )
    figures, absent = [], []
    for name, before, after in pairs:
        if not compare.known(before).size or not compare.known(after).size:
            absent.append(name)
        figures += [
            time_figure(f"{name} P{q * 100:g}", before, after, q, seed=seed, confidence=confidence)
            for q in (0.5, 0.95, 0.99)
        ]
    return _answer(
        "Did P95 and P99 improve, and did TTFT pay for it?",
        figures,
        collect="the end of each request, and the first token of each call",
        note=f" Not recorded on both sides: {', '.join(absent)}." if absent else "",
    )


def shares(old: Window, new: Window, seed: int) -> Answer:
    """4. Quality, errors, degraded share."""
    confidence = old.config.analysis.confidence

    def figure(name: str, before: Floats, after: Floats, *, better: bool) -> Figure | None:
        return share_figure(
            name, before, after, higher_is_better=better, seed=seed, confidence=confidence
        )

    judged, later = old.judged, new.judged
    attained = figure(SLO, judged.good, later.good, better=True)
    quality = figure("quality score", old.quality, new.quality, better=True)
    success = judged.succeeded.astype(float), later.succeeded.astype(float)
    degraded = judged.degraded.astype(float), later.degraded.astype(float)
    figures = [
        attained,
        figure("task success", *success, better=True),
        *(
            figure(label, old.status_share(name), new.status_share(name), better=False)
            for label, name in (("errors", "error"), ("timeouts", "timeout"), ("shed", "shed"))
        ),
        figure("degraded", *degraded, better=False),
        quality,
    ]
    notes = []
    if attained is None:
        notes.append(" No attainment: no SLO is set, or its targets were not measured.")
    if quality is None:
        notes.append(" No quality score was recorded on both sides.")
    return _answer(
        "Did quality, errors or the degraded share change?",
        figures,
        collect="the status of each request",
        note="".join(notes),
    )


def engine(old: Window, new: Window) -> Answer:
    """5. Cache hits, KV use, batch shape."""
    return _answer(
        "Did cache hits, KV use or batch shape change?",
        engine_figures(old.breakdown.engine, new.breakdown.engine),
        collect="the engine's stats log lines, or a scrape of its metrics each second",
    )


def peak(old: Window, new: Window, seed: int) -> Answer:
    """6. Whether the gain holds at the peak."""
    confidence = old.config.analysis.confidence
    mine, later = old.in_peak, new.in_peak
    figures = [
        time_figure(
            f"end to end P{q * 100:g} in the peak window",
            old.judged.e2e_s[mine],
            new.judged.e2e_s[later],
            q,
            seed=seed,
            confidence=confidence,
        )
        for q in (0.5, 0.95)
    ]
    attained = share_figure(
        "meets the SLO in the peak window",
        old.judged.good[mine],
        new.judged.good[later],
        higher_is_better=True,
        seed=seed,
        confidence=confidence,
    )
    moved = load_change(old.peak_rate, new.peak_rate, (int(mine.sum()), int(later.sum())))
    note = (
        f" The peaks differ in load by {moved:+.0%}: record both at the same load to be sure."
        if moved
        else ""
    )
    return _answer(
        "Does the gain hold at the peak?",
        [shown("peak load", "requests/s", old.peak_rate, new.peak_rate), *figures, attained],
        collect="both windows with the same peak load",
        note=note,
    )


def way_back(old: Window, back: Window | None, seed: int) -> Answer:
    """7. Whether the way back is sound: neither slower nor failing more than before."""
    question = "Is the way back sound?"
    if back is None:
        return Answer(
            question=question,
            finding=Finding.UNKNOWN,
            text="No window after taking the change back was given.",
            excuse=Excuse(
                reason="The way back was not tried",
                collect=("a recording after the change was taken back (--rollback)",),
            ),
        )
    confidence = old.config.analysis.confidence
    figures = [
        time_figure(
            f"end to end P{q * 100:g}, before against taken back",
            old.judged.e2e_s,
            back.judged.e2e_s,
            q,
            seed=seed,
            confidence=confidence,
        )
        for q in (0.5, 0.95, 0.99)
    ]
    success = share_figure(
        "task success, before against taken back",
        old.judged.succeeded.astype(float),
        back.judged.succeeded.astype(float),
        higher_is_better=True,
        seed=seed,
        confidence=confidence,
    )
    answer = _answer(question, [*figures, success], collect="the end of each request")
    return _taken_back(answer, figures[1])


def _taken_back(answer: Answer, tail: Figure | None) -> Answer:
    """The answer to question 7 in its own words; `tail` is the P95."""
    if answer.finding is Finding.WORSE:
        text = f"Taken back, it is not as it was: {answer.text}"
    elif tail is None or tail.finding is Finding.UNKNOWN:
        return answer.model_copy(
            update={
                "finding": Finding.UNKNOWN,
                "text": f"Whether it is as it was cannot be told: {answer.text}",
                "excuse": Excuse(
                    reason="The P95 is not decidable",
                    collect=("a longer recording after the change was taken back",),
                ),
            }
        )
    else:
        better = answer.finding is Finding.BETTER
        text = f"Taken back, the system is as it was{', or better' if better else ''}."
    return answer.model_copy(update={"text": text, "excuse": None})


def cost(old: Window, new: Window, seed: int) -> Answer:
    """8. Whether the cost per successful request fell, at one and the same load."""
    question = "Did the cost per successful request fall?"
    before, after = old.usd_per_success(old.rate), new.usd_per_success(old.rate)
    own = new.usd_per_success(new.rate)
    if before is None or after is None or own is None:
        return Answer(
            question=question,
            finding=Finding.UNKNOWN,
            text="A price, or a success to share it, is missing on one side.",
            excuse=Excuse(
                reason="The cost per success is not known on both sides",
                collect=("deployment.usd_per_replica_hour in sojourn.yaml",),
            ),
        )
    figures = [
        compare.ratio_figure(
            COST,
            "USD",
            _cost(before, old, seed),
            _cost(after, new, seed),
            confidence=old.config.analysis.confidence,
            decidable=min(len(old.judged), len(new.judged)) >= compare.MIN_SHARED,
        ),
        shown("cost per hour", "USD", old.used.usd_per_hour, new.used.usd_per_hour),
    ]
    text = f"{format_usd(before)} before, {format_usd(after)} after, for each success."
    moved = load_change(old.rate, new.rate, (len(old.judged), len(new.judged)))
    if moved:
        text += (
            f" Both at the load of before: that of after is {moved:+.0%}, where a success costs"
            f" {format_usd(own)}."
        )
    found = figures[0].finding
    return Answer(
        question=question,
        finding=found,
        text=text,
        figures=tuple(figures),
        excuse=TOO_SHORT if found is Finding.UNKNOWN else None,
    )


def _cost(point: float, window: Window, seed: int) -> Estimate:
    """Cost per success with the noise of the share of successes that it is divided by."""
    share = compare.mean_estimate(window.judged.succeeded.astype(float), seed)
    samples = share.samples[share.samples > 0]
    return Estimate(point, point * share.point / samples)
