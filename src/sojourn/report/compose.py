"""Records to a `Document`: the three answers first, then what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sojourn.attribution.records import Breakdown, Diagnosis
from sojourn.capacity.records import CapacityModel
from sojourn.interval import Excuse
from sojourn.plan.records import Plan
from sojourn.report import answers, capacity_blocks, decisions, pages
from sojourn.report.document import Block, Card, Document, Heading
from sojourn.trace.tables import Quality
from sojourn.verify.records import Acceptance
from sojourn.workload.profile_records import Profile


@dataclass(frozen=True)
class Findings:
    """Everything that one round of the loop found about one recording.

    Parts that could not be had are an `Excuse`; parts not asked for are None.
    """

    name: str
    quality: Quality
    profile: Profile
    breakdown: Breakdown
    diagnosis: Diagnosis
    capacity: CapacityModel | Excuse | None = None
    plan: Plan | Excuse | None = None
    acceptance: Acceptance | None = None
    e2e_target_s: float | None = None


def report(findings: Sequence[Findings], title: str) -> Document:
    """The whole report over one or several recordings.

    Args:
        findings: at least one; the first decides the verdict and the exit code.
        title: of the page.
    """
    blocks: list[Block] = []
    several = len(findings) > 1
    for item in findings:
        if several:
            blocks.append(Heading(text=item.name, level=2))
        blocks += cards(item)
    for item in findings:
        prefix = f"{item.name}: " if several else ""
        blocks += _sections(item, prefix)
    sentence, code = answers.verdict(findings[0])
    if several:
        sentence = " ".join(f"{item.name}: {answers.headline(item)}" for item in findings)
    return Document(
        title=title,
        verdict=sentence,
        exit_code=code,
        blocks=tuple(blocks),
        data={item.name: _data(item) for item in findings},
    )


def cards(item: Findings) -> list[Block]:
    """The three answers (four with an acceptance), one sentence each."""
    out: list[Block] = [
        Card(question="Where does the time go?", answer=answers.where(item)),
        Card(question="How long does it hold?", answer=answers.how_long(item)),
        Card(question="What to fix first?", answer=answers.first_fix(item)),
    ]
    if item.acceptance is not None:
        accepted = item.acceptance.accepted
        tone = "warn" if accepted is None else "good" if accepted else "bad"
        out.append(Card(question="Did the change work?", answer=item.acceptance.reason, tone=tone))
    return out


def _sections(item: Findings, prefix: str) -> list[Block]:
    blocks: list[Block] = [Heading(text=f"{prefix}Where the time goes", level=1)]
    blocks += pages.attribution(item.breakdown, item.diagnosis)
    blocks.append(Heading(text=f"{prefix}What the traffic is", level=1))
    blocks += pages.profile(item.profile)
    if item.capacity is not None or item.plan is not None:
        blocks.append(Heading(text=f"{prefix}How long it holds", level=1))
        blocks += capacity_blocks.closed_form(item.capacity)
        if isinstance(item.plan, Plan):
            blocks += capacity_blocks.holding(item.plan.holding, item.e2e_target_s)
    if item.plan is not None:
        blocks.append(Heading(text=f"{prefix}What to fix first", level=1))
        blocks += decisions.plan(item.plan)
    if item.acceptance is not None:
        blocks.append(Heading(text=f"{prefix}Did the change work?", level=1))
        blocks += decisions.acceptance(item.acceptance)
    blocks.append(Heading(text=f"{prefix}What was read", level=1))
    blocks += pages.quality(item.quality)
    return blocks


def single(
    title: str,
    blocks: Iterable[Block],
    *,
    verdict: tuple[str, int],
    data: dict[str, object] | None = None,
) -> Document:
    """The document of one verb."""
    sentence, code = verdict
    return Document(
        title=title, verdict=sentence, exit_code=code, blocks=tuple(blocks), data=data or {}
    )


def _data(item: Findings) -> dict[str, object]:
    parts = {
        "quality": item.quality,
        "profile": item.profile,
        "breakdown": item.breakdown,
        "diagnosis": item.diagnosis,
        "capacity": item.capacity,
        "plan": item.plan,
        "acceptance": item.acceptance,
    }
    exclude = {"profile": {"buckets": {"__all__": {"templates"}}}}
    return {
        name: part.model_dump(mode="json", exclude=exclude.get(name))
        for name, part in parts.items()
        if part is not None
    }
