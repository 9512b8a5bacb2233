"""The eight questions of acceptance, each a function from two windows to an `Answer`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sojourn.interval import Excuse
from sojourn.records import Bottleneck
from sojourn.units import format_usd
from sojourn.verify.compare import Floats, plain_figure, share_figure, time_figure, worst
from sojourn.verify.records import Answer, Figure, Finding
from sojourn.verify.window import Window

PEAK_LOAD_TOLERANCE = 0.10
"""Peak rates that differ by more make the peak comparison one of loads, not of the change."""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _answer(question: str, figures: Iterable[Figure | None], text: str = "") -> Answer:
    shown = tuple(figure for figure in figures if figure is not None)
    found = worst([figure.finding for figure in shown])
    return Answer(question=question, finding=found, text=text or _sentence(shown), figures=shown)


def _sentence(figures: tuple[Figure, ...]) -> str:
    """Which figures got better and worse, in words."""
    parts = []
    for state in (Finding.BETTER, Finding.WORSE, Finding.UNKNOWN):
        names = [figure.name for figure in figures if figure.finding is state]
        if names:
            verb = "not decidable" if state is Finding.UNKNOWN else state.value
            parts.append(f"{', '.join(names)} {verb}")
    return ("; ".join(parts) or "no difference beyond the noise") + "."


def bottleneck(old: Window, new: Window) -> Answer:
    """1. Which bottleneck, before and after."""
    first, second = old.diagnosis.top.bottleneck, new.diagnosis.top.bottleneck
    moved = first is not second
    thin = Bottleneck.INSUFFICIENT_EVIDENCE in (first, second)
    gone = moved and second is Bottleneck.NONE
    text = (
        f"{_words(first.value)} before; {_words(second.value)} after."
        if moved
        else f"{_words(first.value)}, before and after: the change did not remove it."
    )
    found = Finding.UNKNOWN if thin else Finding.BETTER if gone else Finding.SAME
    shares = []
    for stage in sorted({*_tail_stages(old), *_tail_stages(new)}):
        before, after = _tail_stages(old).get(stage, 0.0), _tail_stages(new).get(stage, 0.0)
        if max(before, after) > 0.01 * max(1e-9, sum(_tail_stages(old).values())):
            shares.append(
                plain_figure(
                    f"{_words(stage)} in the P99", "s", before, after, higher_is_better=None
                )
            )
    return Answer(
        question="Which bottleneck: queue, prefill, decode, KV, tool, network or kernel?",
        finding=found,
        text=text,
        figures=tuple(shares),
        excuse=new.diagnosis.excuse or old.diagnosis.excuse,
    )


def _tail_stages(window: Window) -> dict[str, float]:
    tail = window.breakdown.tail("all", 0.99)
    return {} if tail is None else tail.stages


def buckets(old: Window, new: Window, seed: int) -> Answer:
    """2. In which buckets the gain holds."""
    confidence = old.config.analysis.confidence
    names = sorted({*old.judged.buckets, *new.judged.buckets})
    figures = [
        time_figure(
            f"{_words(name)} P95",
            old.judged.e2e_s[old.judged.bucket == name],
            new.judged.e2e_s[new.judged.bucket == name],
            0.95,
            seed=seed,
            confidence=confidence,
        )
        for name in names
    ]
    return _answer("In which request buckets does the gain hold?", figures)


def tails(old: Window, new: Window, seed: int) -> Answer:
    """3. P95 and P99, and whether the time to first token paid for it."""
    confidence = old.config.analysis.confidence
    pairs = (
        ("end to end", old.judged.e2e_s, new.judged.e2e_s),
        ("first token", old.judged.ttft_s, new.judged.ttft_s),
        ("per output token", old.judged.tpot_s, new.judged.tpot_s),
    )
    figures = [
        time_figure(f"{name} P{q * 100:g}", before, after, q, seed=seed, confidence=confidence)
        for name, before, after in pairs
        for q in (0.5, 0.95, 0.99)
    ]
    return _answer("Did P95 and P99 improve, and did TTFT pay for it?", figures)


def shares(old: Window, new: Window, seed: int) -> Answer:
    """4. Quality, errors, degraded share."""
    confidence = old.config.analysis.confidence

    def figure(name: str, before: Floats, after: Floats, *, better: bool) -> Figure | None:
        return share_figure(
            name, before, after, higher_is_better=better, seed=seed, confidence=confidence
        )

    figures = [
        figure("meets every target of the SLO", old.judged.good, new.judged.good, better=True),
        figure(
            "task success",
            old.judged.succeeded.astype(float),
            new.judged.succeeded.astype(float),
            better=True,
        ),
        *(
            figure(label, old.status_share(*names), new.status_share(*names), better=False)
            for label, names in (
                ("errors", ("error",)),
                ("timeouts", ("timeout",)),
                ("shed", ("shed",)),
            )
        ),
        figure(
            "degraded",
            old.judged.degraded.astype(float),
            new.judged.degraded.astype(float),
            better=False,
        ),
        figure("quality score", _quality(old), _quality(new), better=True),
    ]
    answer = _answer("Did quality, errors or the degraded share change?", figures)
    if figures[-1] is None:
        note = f"{answer.text} No quality score was recorded on both sides."
        return answer.model_copy(update={"text": note})
    return answer


def _quality(window: Window) -> Floats:
    column = window.tables.requests.column("quality").to_numpy(zero_copy_only=False)
    return np.asarray(column, dtype=float)


def engine(old: Window, new: Window) -> Answer:
    """5. Cache hits, KV use, batch shape."""
    before, after = old.breakdown.engine, new.breakdown.engine
    rows = (
        ("prefix tokens found in cache", "share", "prefix_hit_share", True),
        ("KV in use, P95", "share", "kv_usage_p95", None),
        ("requests in the batch, mean", "", "running_mean", None),
        ("requests in the batch, most", "", "running_max", None),
        ("time with requests waiting", "share", "waiting_share", False),
        ("engine busy", "share", "busy_share", None),
        ("preemptions", "", "preemptions", False),
    )
    figures = [
        plain_figure(
            label, unit, getattr(before, name), getattr(after, name), higher_is_better=better
        )
        for label, unit, name, better in rows
        if getattr(before, name) is not None or getattr(after, name) is not None
    ]
    question = "Did cache hits, KV use or batch shape change?"
    if not figures:
        return Answer(
            question=question,
            finding=Finding.UNKNOWN,
            text="Neither window has engine samples.",
            excuse=Excuse(
                reason="The engine was not sampled",
                collect=("the engine's stats log lines, or a scrape of its metrics each second",),
            ),
        )
    return _answer(question, figures)


def peak(old: Window, new: Window, seed: int) -> Answer:
    """6. Whether the gain holds at the peak."""
    confidence = old.config.analysis.confidence
    load = plain_figure(
        "peak load", "requests/s", old.peak_rate, new.peak_rate, higher_is_better=None
    )
    figures = [
        time_figure(
            f"end to end P{q * 100:g} in the peak window",
            old.judged.e2e_s[old.in_peak],
            new.judged.e2e_s[new.in_peak],
            q,
            seed=seed,
            confidence=confidence,
        )
        for q in (0.5, 0.95)
    ]
    attained = share_figure(
        "meets the SLO in the peak window",
        old.judged.good[old.in_peak],
        new.judged.good[new.in_peak],
        higher_is_better=True,
        seed=seed,
        confidence=confidence,
    )
    answer = _answer("Does the gain hold at the peak?", [load, *figures, attained])
    if load.change is not None and abs(load.change.mid) > PEAK_LOAD_TOLERANCE:
        text = (
            f"{answer.text} The peaks differ in load by {load.change.mid:+.0%}: record both at"
            " the same load to be sure."
        )
        return answer.model_copy(update={"text": text})
    return answer


def way_back(old: Window, back: Window | None, seed: int) -> Answer:
    """7. Whether the way back is sound."""
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
    answer = _answer(question, figures)
    sound = answer.finding in (Finding.SAME, Finding.BETTER)
    text = (
        "Taken back, the system is as it was."
        if sound
        else f"Taken back, it is not as it was: {answer.text}"
    )
    return answer.model_copy(update={"text": text})


def cost(old: Window, new: Window) -> Answer:
    """8. Whether the cost per successful request fell."""
    question = "Did the cost per successful request fall?"
    before, after = old.usd_per_success, new.usd_per_success
    if before is None or after is None:
        return Answer(
            question=question,
            finding=Finding.UNKNOWN,
            text="No price is known.",
            excuse=Excuse(
                reason="No price is known",
                collect=("deployment.usd_per_replica_hour in sojourn.yaml",),
            ),
        )
    figure = plain_figure("cost per success", "USD", before, after, higher_is_better=False)
    hourly = plain_figure(
        "cost per hour",
        "USD",
        old.used.usd_per_hour,
        new.used.usd_per_hour,
        higher_is_better=None,
    )
    text = f"{format_usd(before)} before, {format_usd(after)} after, for each success."
    return Answer(question=question, finding=figure.finding, text=text, figures=(figure, hourly))
