"""The blocks of what follows: fleet, plan, acceptance."""

from __future__ import annotations

from sojourn.attribution.records import ALL
from sojourn.interval import Excuse, Interval
from sojourn.plan.records import NOT_CALLED_FOR, Outcome, Plan, Refused, Rung
from sojourn.records import words
from sojourn.report import charts
from sojourn.report.answers import places
from sojourn.report.capacity_blocks import rate
from sojourn.report.document import Block, Chart, Heading, TableBlock, Text
from sojourn.report.pages import seconds
from sojourn.units import format_share, format_usd
from sojourn.verify.records import Acceptance, Figure, Finding


def share(value: Interval | None) -> str:
    """A share with its range."""
    return "–" if value is None else value.format(format_share)


def attainment(outcome: Outcome) -> TableBlock:
    """Share of requests that meet every target, per bucket."""
    return TableBlock(
        caption="Requests that meet every target of their bucket (failed ones count as misses)",
        columns=("bucket", "meets all", "P50", "P95", "P99"),
        rows=tuple(
            (
                words(bucket),
                share(outcome.attainment.get(bucket)),
                *(seconds(figures.get(key)) for key in ("p50", "p95", "p99")),
            )
            for bucket, figures in outcome.e2e_s.items()
        ),
        align="lrrrr",
    )


def plan(record: Plan | Excuse) -> list[Block]:
    """Ranked actions, the bundle, and why not the others."""
    if isinstance(record, Excuse):
        return [Text(text=str(record), tone="warn")]
    blocks: list[Block] = []
    spec = charts.actions(record)
    if spec is not None:
        caption = "Predicted P99 of each action; the dashed line is today's, simulated alike."
        blocks.append(Chart(caption=caption, spec=spec))
    blocks.append(compared(record.measured, record.baseline))
    chosen = [*record.ranked, *([record.bundle] if record.bundle is not None else [])]
    if chosen:
        blocks.append(_ranked_table(record))
        blocks += [
            Text(
                text=f"{item.title} ({item.layer.value} layer): {item.why}. Source: {item.source}."
            )
            for item in chosen
        ]
    blocks += _refused(record.refused, record.baseline)
    if record.ladder:
        blocks.append(_ladder_table(record.ladder))
    blocks += [Text(text=note, tone="muted") for note in record.notes]
    return blocks


def _ladder_table(rungs: tuple[Rung, ...]) -> TableBlock:
    def pace(value: float | None) -> str:
        return "–" if value is None else f"{rate(value)}/s"

    return TableBlock(
        caption=f"Degrade ladder: what to switch, in order, as load grows ({rungs[0].note})",
        columns=("", "step", "on at", "off at", "watch"),
        rows=tuple(
            (
                str(rung.order),
                rung.title,
                pace(rung.on_rate_per_s),
                pace(rung.off_rate_per_s),
                rung.watch,
            )
            for rung in rungs
        ),
        align="rlrrl",
    )


def compared(measured: Outcome, simulated: Outcome, *, changed: bool = False) -> TableBlock:
    """A recording beside a simulated run: P50, P95, P99, attempts, errors. `changed`: the run is of
    another load or size, so that what differs is the change and not the model's error."""
    rows = []
    for key in ("p50", "p95", "p99"):
        seen = measured.e2e_s.get(ALL, {}).get(key)
        made = simulated.e2e_s.get(ALL, {}).get(key)
        if seen is not None and made is not None:
            off = made.mid / seen.mid - 1 if seen.mid else float("nan")
            rows.append((f"end to end {key.upper()}", seconds(seen), seconds(made), f"{off:+.0%}"))
    rows += [
        (
            "attempts per request",
            f"{measured.attempts_per_request:.2f}",
            f"{simulated.attempts_per_request:.2f}",
            f"{simulated.attempts_per_request / measured.attempts_per_request - 1:+.0%}",
        ),
        ("errors and timeouts", share(measured.error_share), share(simulated.error_share), ""),
    ]
    return TableBlock(
        caption=(
            "Recorded, and simulated with the change"
            if changed
            else "The model against the recording: how far a simulated figure can be trusted"
        ),
        columns=("figure", "measured", "simulated", "change" if changed else "off by"),
        rows=tuple(rows),
        align="lrrr",
    )


def _outcome_cells(outcome: Outcome | None, baseline: Outcome) -> tuple[str, str, str]:
    if outcome is None:
        return "–", "–", "–"
    met = share(outcome.attainment.get(ALL))
    cost = "–"
    if outcome.usd_per_success is not None:
        cost = format_usd(outcome.usd_per_success)
        if baseline.usd_per_success:
            cost += f" ({outcome.usd_per_success / baseline.usd_per_success - 1:+.0%})"
    return seconds(outcome.e2e_s.get(ALL, {}).get("p99")), met, cost


def _ranked_table(record: Plan) -> TableBlock:
    placed = [(str(order), item) for order, item in enumerate(record.ranked, 1)]
    if record.bundle is not None:
        placed.append((places(record, record.bundle), record.bundle))
    rows = []
    for place, item in placed:
        p99, met, cost = _outcome_cells(item.outcome, record.baseline)
        price = item.price
        paid = (
            f"{format_usd(price.usd_per_hour)}/h; quality {price.quality};"
            f" risk {price.risk}; {price.effort}"
        )
        rows.append((place, item.title, p99, met, cost, paid))
    return TableBlock(
        caption="Worth doing, best first; each simulated alone, so some exclude each other",
        columns=("", "action", "P99 after", "meets SLO", "per success", "price"),
        rows=tuple(rows),
        align="rlrrrl",
    )


def _refused(items: tuple[Refused, ...], baseline: Outcome) -> list[Block]:
    """Why not the others: those simulated in a table, the rest in a line each or one for all."""
    tried = [item for item in items if item.outcome is not None]
    rest = [item for item in items if item.outcome is None]
    idle = [item.title for item in rest if item.excuse.reason.startswith(NOT_CALLED_FOR)]
    blocks: list[Block] = []
    if tried:
        rows = [(i.title, *_outcome_cells(i.outcome, baseline), str(i.excuse)) for i in tried]
        blocks.append(
            TableBlock(
                caption="Why not the others that were simulated",
                columns=("action", "P99 after", "meets SLO", "per success", "why not"),
                rows=tuple(rows),
                align="lrrrl",
            )
        )
    blocks += [
        Text(text=f"{item.title}: {item.excuse}", tone="muted")
        for item in rest
        if item.title not in idle
    ]
    if idle:
        text = f"Not tried, since no verdict calls for them: {'; '.join(idle)}."
        blocks.append(Text(text=text, tone="muted"))
    return blocks


def acceptance(record: Acceptance) -> list[Block]:
    """The eight answers."""
    tones = {Finding.BETTER: "good", Finding.WORSE: "bad", Finding.UNKNOWN: "warn"}
    blocks: list[Block] = [Text(text=record.reason)]
    spec = charts.before_after(record)
    if spec is not None:
        blocks.append(Chart(caption="Before and after, with intervals.", spec=spec))
    for number, answer in enumerate(record.answers, 1):
        blocks.append(Heading(text=f"{number}. {answer.question}", level=2))
        text = f"{answer.finding.value}: {answer.text}"
        if answer.excuse is not None:
            text += f" {answer.excuse}"
        blocks.append(Text(text=text, tone=tones.get(answer.finding, "plain")))
        if answer.figures:
            blocks.append(_figures(answer.figures))
    blocks.append(Heading(text="Change of mix", level=2))
    blocks.append(_figures((record.mix_shift,)))
    if record.same_mix:
        blocks.append(Heading(text="Under one mix: what the verdict rests on", level=2))
        blocks.append(_figures(record.same_mix))
    return blocks


def _figures(figures: tuple[Figure, ...]) -> TableBlock:
    rows = []
    for figure in figures:
        before, after = (
            "–" if value is None else _in_unit(value, figure.unit)
            for value in (figure.before, figure.after)
        )
        state = figure.finding.value if figure.judged else "–"
        rows.append((figure.name, before, after, _change(figure), state))
    return TableBlock(
        caption="",
        columns=("figure", "before", "after", "change", "finding"),
        rows=tuple(rows),
        align="lrrrl",
    )


def _change(figure: Figure) -> str:
    """The relative change, or for shares the difference in points."""
    if figure.change is not None:
        return figure.change.format("{:+.1%}".format)
    if figure.unit != "share" or figure.before is None or figure.after is None:
        return "–"
    return f"{(figure.after.mid - figure.before.mid) * 100:+.1f} points"


def _in_unit(value: Interval, unit: str) -> str:
    match unit:
        case "s":
            return seconds(value)
        case "share" | "0..1":
            return share(value)
        case "USD" | "usd":
            return value.format(format_usd)
        case _:
            return f"{value.format('{:.3g}'.format)} {unit}".strip()
