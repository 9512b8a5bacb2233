"""The blocks of replicas for a target rate."""

from __future__ import annotations

from sojourn.interval import Excuse
from sojourn.plan.capacity_records import ReplicaOption, ReplicaPlan, Unfit
from sojourn.report.document import Block, TableBlock, Text
from sojourn.units import format_share, format_usd

SHOWN = 12
"""Options, and reasons against others, in the report."""


def replicas(plan: ReplicaPlan | Excuse) -> list[Block]:
    """Options by cost, what does not fit, what else the target needs."""
    if isinstance(plan, Excuse):
        return [Text(text=str(plan), tone="warn")]
    target = f"{plan.target_per_s:.4g} requests/s ({plan.target_per_s * 60:.4g} a minute)"
    blocks: list[Block] = []
    if plan.options:
        caption = f"Replicas that hold {target} within the SLO, {plan.headroom:.0%} headroom added"
        dearer = len(plan.options) - SHOWN
        rest = f" ({dearer} dearer ones are in the JSON)" if dearer > 0 else ""
        blocks.append(_table(plan.options[:SHOWN], f"{caption}; cheapest first{rest}"))
        blocks += [_first(plan.options[0])]
    else:
        blocks.append(Text(text=f"Nothing tried holds {target} within the SLO.", tone="bad"))
    if plan.stations:
        needs = "; ".join(f"{s.name}: {s.needed} workers (now {s.now})" for s in plan.stations)
        text = f"Engines alone do not carry it. Outside them the target needs {needs}."
        blocks.append(Text(text=text, tone="warn"))
    blocks += _unfit(plan.unfit)
    blocks += [Text(text=note, tone="muted") for note in plan.notes]
    return blocks


def _unfit(items: tuple[Unfit, ...]) -> list[Block]:
    """What cannot serve it: those of one reason in a line, others a line each, the first few."""
    by_reason: dict[str, list[str]] = {}
    for item in items:
        name = f"{item.tensor_parallel} x {item.gpu}"
        by_reason.setdefault(str(item.excuse), []).append(name)
    told = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if len(told) > SHOWN:
        told = [*told[:SHOWN], f"{len(told) - SHOWN} more that cannot serve it are in the JSON."]
    return [Text(text=text, tone="muted") for text in told]


def _table(options: tuple[ReplicaOption, ...], caption: str) -> TableBlock:
    return TableBlock(
        caption=caption,
        columns=(
            "replica",
            "holds",
            "replicas",
            "GPUs",
            "headroom",
            "an hour",
            "per 1M tokens",
            "per success",
            "how known",
        ),
        rows=tuple(
            (
                f"{o.tensor_parallel} x {o.gpu}",
                f"{o.per_replica_per_s.format('{:.3g}'.format)}/s",
                _count(o),
                str(o.replicas * o.gpus_per_replica),
                format_share(o.headroom),
                format_usd(o.usd_per_hour),
                format_usd(o.usd_per_million_tokens),
                format_usd(o.usd_per_success),
                _known(o),
            )
            for o in options
        ),
        align="lrrrrrrrl",
    )


def _count(option: ReplicaOption) -> str:
    low, high = option.replicas_low, option.replicas_high
    return str(option.replicas) if low == high else f"{option.replicas} [{low}, {high}]"


def _known(option: ReplicaOption) -> str:
    if option.confirmed is not None:
        return "run together"
    return "one simulated" if option.simulated else "closed form, scaled"


def _first(option: ReplicaOption) -> Text:
    """How the cheapest was confirmed, and where its step times are from."""
    seen = (
        ""
        if option.confirmed is None
        else f" Together at the target: {option.confirmed.describe()}."
    )
    note = f" {option.note}." if option.note else ""
    name = f"{option.replicas} x ({option.tensor_parallel} x {option.gpu})"
    return Text(text=f"{name}: step times from {option.source}.{seen}{note}")
