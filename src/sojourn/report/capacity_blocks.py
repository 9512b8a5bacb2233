"""The blocks of `sojourn capacity`, and of the capacity in a report."""

from __future__ import annotations

from sojourn.capacity.records import CapacityModel, Resource
from sojourn.config import Slo
from sojourn.interval import Excuse, Interval
from sojourn.plan.capacity_records import CapacityAnswer, FlagMove
from sojourn.plan.holding_records import KneePoint, Sustained
from sojourn.plan.records import Holding
from sojourn.records import Bottleneck, words
from sojourn.report import capacity_charts, charts
from sojourn.report.answers import MISSED, OK, THIN
from sojourn.report.document import Block, Card, Chart, Heading, TableBlock, Text
from sojourn.report.replica_blocks import replicas
from sojourn.sim.stability import Trend
from sojourn.units import format_seconds, format_share

NAMED = 3
"""Resources of which the way to scale is said in words; the rest have room."""


def rate(value: float) -> str:
    """A rate with three digits, without exponents."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def answer(found: CapacityAnswer, slo: Slo | None) -> list[Block]:
    """The whole answer: in short, per resource, the knee, flags, replicas, traps."""
    target = None if slo is None else slo.e2e_s
    blocks: list[Block] = [*cards(found)]
    blocks.append(Heading(text="Per resource, closed form", level=1))
    blocks += resources(found.model)
    blocks.append(Heading(text="Within the SLO, simulated", level=1))
    blocks += holding(found.holding, target)
    blocks += for_ever(found.sustained)
    if found.flags:
        blocks.append(Heading(text="How each flag moves it", level=1))
        blocks.append(flags(found.flags))
    if found.replicas is not None:
        blocks.append(Heading(text="Replicas for the target", level=1))
        blocks += replicas(found.replicas)
    if found.traps:
        blocks.append(Heading(text="Easily mistaken", level=1))
        blocks += [Text(text=f"{trap}.") for trap in found.traps]
    return blocks


def cards(found: CapacityAnswer) -> list[Block]:
    """The answers in a sentence each."""
    held, tight = found.holding, found.model.binding
    blocks: list[Block] = [
        Card(question="How much load does it hold?", answer=_how_much(held), tone=_tone(held)),
        Card(question="And for ever?", answer=_how_long(found.sustained)),
    ]
    if tight.bottleneck is not Bottleneck.INSUFFICIENT_EVIDENCE:
        full = (
            f"{tight.name}, full at {tight.capacity_per_s.format(rate)} requests/s:"
            f" {format_share(tight.peak_load)} used in the peak window. More of:"
            f" {tight.scale_by}."
        )
        blocks.append(Card(question="What is full first?", answer=full))
    step = found.model.fleet.engine.step
    source = f"{step.provenance.value}: {step.source}."
    blocks.append(Card(question="Step times from?", answer=source))
    said = (*found.warnings, *found.model.warnings)
    blocks += [Text(text=f"{warning.rstrip('.')}.", tone="warn") for warning in said]
    return blocks


def _how_much(held: Holding | Excuse) -> str:
    if isinstance(held, Excuse):
        return str(held)
    if held.load_factor.mid == 0:
        return f"None: {held.breaks}."
    return (
        f"{held.load_factor.format('{:.3g}'.format)} times today's, at today's pattern:"
        f" {held.rate_per_s.format(rate)} requests/s on average, peaks included"
        f" ({_runs(held.replications, held.load_factor)})."
    )


def _runs(count: int, interval: Interval) -> str:
    if count < 2:
        return "one run, so nothing is known of chance"
    return f"{interval.confidence:.0%} interval of {count} days like today"


def _how_long(found: Sustained | Excuse) -> str:
    if isinstance(found, Excuse):
        return str(found)
    text = f"{found.rate_per_s.format(rate)} requests/s at one steady rate"
    return f"{text}: {found.settled.describe()}." if found.settled else f"{text}."


def _tone(held: Holding | Excuse) -> str:
    if isinstance(held, Excuse) or held.load_factor.contains(1.0):
        return "warn"
    return "good" if held.load_factor.low > 1 else "bad"


def verdict(found: CapacityAnswer | Excuse) -> tuple[str, int]:
    """Whether today's load is held, in a sentence, and the exit code.

    0 where the whole interval of the load held lies at or above today's, 3 where it lies below, 4
    where today's lies inside it or nothing can be said.
    """
    held = found if isinstance(found, Excuse) else found.holding
    if isinstance(held, Excuse):
        return str(held), THIN
    factor = held.load_factor
    first = words(held.breaks.split(":")[0])
    if factor.mid == 0:
        sentence = (
            f"At no level of load: {first} misses its targets even when its requests are nearly"
            f" alone ({held.binds})."
        )
        return sentence, MISSED
    tail = (
        f"{held.rate_per_s.format(rate)} requests/s on average. First to break beyond:"
        f" {first}; least room: {words(held.binds)}."
    )
    told = factor.format("{:.3g}".format)
    if factor.high < 1:
        return f"Today's load is past it: the SLO holds to {told} of it, {tail}", MISSED
    if factor.low < 1:
        return f"Too near to tell: the SLO holds to {told} of today's load, {tail}", THIN
    return f"Holds to {told} times today's load, {tail}", OK


def closed_form(model: CapacityModel | Excuse | None) -> list[Block]:
    """`resources`, of what may not be there."""
    if model is None:
        return []
    if isinstance(model, Excuse):
        return [Text(text=str(model), tone="warn")]
    return resources(model)


def resources(model: CapacityModel) -> list[Block]:
    """Resources and their headroom, how to scale the fullest, what the closed form leaves open."""
    limits = [r for r in model.resources if r.bottleneck is not Bottleneck.RETRY_AMPLIFICATION]
    wait = model.engine_wait_s
    closed = (
        str(wait).rstrip(".")
        if isinstance(wait, Excuse)
        else f"mean wait in the engine {format_seconds(wait)}"
    )
    drawn = "Utilisation of each resource; the line is its limit."
    return [
        *([Chart(caption=drawn, spec=charts.headroom(model))] if limits else []),
        TableBlock(
            caption="Capacity per resource, in requests of this mix. Mean and peak are the work"
            " that arrives over the most it can take, by the model: no gauge reads that",
            columns=("resource", "capacity", "mean", "peak", "headroom", "source"),
            rows=tuple(_resource(r) for r in limits),
            align="lrrrrl",
        ),
        *[Text(text=_scale(r)) for r in limits[:NAMED]],
        Text(text=f"Closed form at the peak, a first guess: {closed}.", tone="muted"),
        *_retry_budget(model),
        *[Text(text=note, tone="muted") for note in model.notes],
    ]


def _resource(resource: Resource) -> tuple[str, ...]:
    return (
        resource.name,
        f"{resource.capacity_per_s.format(rate)}/s",
        format_share(resource.mean_load),
        format_share(resource.peak_load),
        format_share(resource.headroom),
        resource.provenance.value,
    )


def _scale(resource: Resource) -> str:
    note = f" ({resource.note})" if resource.note else ""
    return f"To give {resource.name} more room: {resource.scale_by}{note}."


def _retry_budget(model: CapacityModel) -> list[Block]:
    """The load up to which recovery from an overload is certain, where attempts are repeated."""
    attempts = model.fleet.retry.max_attempts
    found = [r for r in model.resources if r.bottleneck is Bottleneck.RETRY_AMPLIFICATION]
    if attempts < 2 or not found:
        return []
    text = (
        f"With up to {attempts} attempts a request, recovery from an overload is certain only below"
        f" {found[0].capacity_per_s.format(rate)} requests/s; at the peak {found[0].peak_load:.2g}"
        f" times as many arrive. To widen it: {found[0].scale_by}."
    )
    return [Text(text=text)]


def holding(held: Holding | Excuse, e2e_target_s: float | None) -> list[Block]:
    """The knee, what ends beside what is offered, and the load at which the SLO breaks."""
    if isinstance(held, Excuse):
        return [Text(text=str(held), tone="warn")]
    blocks: list[Block] = []
    if held.points:
        blocks += [
            Chart(
                caption="Latency against load, simulated on this workload; past the knee load only"
                " queues.",
                spec=capacity_charts.latency(held, e2e_target_s),
                plain=capacity_charts.latency_text(held, e2e_target_s),
            ),
            Chart(
                caption="What ends while requests arrive, and what of it in time, against what is"
                " offered.",
                spec=capacity_charts.throughput(held),
                plain=capacity_charts.throughput_text(held),
            ),
            _points(held.points),
        ]
    elif held.curve:
        caption = "P99 against load, simulated on this workload; past the knee load only queues."
        blocks.append(Chart(caption=caption, spec=charts.knee(held, e2e_target_s)))
    if held.note:
        blocks.append(Text(text=f"{held.note}.", tone="warn"))
    blocks.append(Text(text=_held(held)))
    if held.settled is not None:
        text = f"Run longer at that load: {held.settled.describe()}."
        tone = "plain" if held.settled.trend is Trend.STABLE else "warn"
        blocks.append(Text(text=text, tone=tone))
    return blocks


def _points(points: tuple[KneePoint, ...]) -> TableBlock:
    return TableBlock(
        caption="The knee: the recording at several loads (one run each)",
        columns=(
            "load",
            "offered",
            "ends",
            "in time",
            "P50",
            "P99",
            "first token P99",
            "meets all",
        ),
        rows=tuple(
            (
                f"{p.load_factor:.3g}",
                f"{rate(p.offered_per_s)}/s",
                f"{rate(p.throughput_per_s)}/s",
                f"{rate(p.good_per_s)}/s",
                format_seconds(p.p50_s),
                format_seconds(p.p99_s),
                format_seconds(p.ttft_p99_s),
                format_share(p.attainment),
            )
            for p in points
        ),
        align="rrrrrrrr",
    )


def _held(held: Holding) -> str:
    if held.load_factor.mid == 0:
        return f"At no level of load is the SLO held: {held.breaks}."
    factor, pace = held.load_factor.format("{:.3g}".format), held.rate_per_s.format(rate)
    return (
        f"At today's pattern of arrivals, its peaks included, the SLO holds, jointly, to {factor}"
        f" of today's load ({pace} requests/s on average). First to break: {held.breaks}. Least"
        f" headroom there: {words(held.binds)}."
    )


def for_ever(found: Sustained | Excuse) -> list[Block]:
    """The steady rate, beside the pattern's."""
    if isinstance(found, Excuse):
        return [Text(text=f"At one steady rate: {found}", tone="warn")]
    settled = "" if found.settled is None else f"; there {found.settled.describe()}"
    lowered = " Shorter runs held more; longer ones did not." if found.lowered else ""
    return [
        Text(
            text=f"At one steady rate, this mix, for as long as anyone likes:"
            f" {found.rate_per_s.format(rate)} requests/s{settled}.{lowered}"
        )
    ]


def flags(moves: tuple[FlagMove, ...]) -> TableBlock:
    """What each flag does to the load held."""
    return TableBlock(
        caption="Change of the load held at today's pattern, one flag at a time (simulated in pairs"
        " under equal luck; a range that holds 0 is no change that the runs can tell)",
        columns=("flag", "now", "then", "load held", "note"),
        rows=tuple((m.flag, m.now, m.then, *_moved(m)) for m in moves),
        align="lrrrl",
    )


def _moved(move: FlagMove) -> tuple[str, str]:
    if isinstance(move.change, Excuse):
        return "–", str(move.change)
    text = move.change.format("{:+.1%}".format)
    return (f"no change {text.partition(' ')[2]}" if move.none else text), move.note
