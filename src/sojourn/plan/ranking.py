"""What to fix first: called-for actions, simulated on this workload, priced, ranked, combined.

1. The measured requests are replayed through the fleet's model as they came: the baseline. What
   it misses of the measured run is the model's error and stands beside it.
2. Every action that a verdict calls for is simulated on the same requests with the same luck
   (common random numbers) and its effect is a paired difference with a bootstrap interval. The
   first seed screens; actions that gain there are run under every seed.
3. The rest is refused with the verdict that is missing. Adding GPUs is simulated whatever the
   verdicts say, because it is what teams buy first (`sojourn.plan.scoring` has the rule).
4. The best actions are combined, best first, each kept only if it still helps beside the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from sojourn.attribution.records import ALL, Diagnosis, Verdict
from sojourn.capacity.records import CapacityModel, Fleet
from sojourn.config import Config
from sojourn.errors import UsageError
from sojourn.interval import Excuse
from sojourn.plan import scoring
from sojourn.plan.action import Action, Changed, Context, engine_load
from sojourn.plan.actions import ACTIONS
from sojourn.plan.effect import Effect, effect, outcome_of
from sojourn.plan.holding import holding
from sojourn.plan.ladder import ladder
from sojourn.plan.notes import notes_on
from sojourn.plan.records import NOT_CALLED_FOR, Holding, Outcome, Plan, Price, Ranked, Refused
from sojourn.plan.slo import outcome, standings
from sojourn.plan.trial import Trial, try_all, with_dropped
from sojourn.progress import Progress, silent
from sojourn.records import Layer, words
from sojourn.sim.scenario import Scenario
from sojourn.trace.tables import Tables
from sojourn.units import format_share
from sojourn.workload.profile_records import Profile
from sojourn.workload.stream import Stream

MAX_BUNDLE: Final = 4
"""More changes at once could not be told apart when they are verified."""


@dataclass(frozen=True)
class Case:
    """All that a plan rests on. `jobs` runs go side by side; a `holding` already known is kept."""

    tables: Tables
    stream: Stream
    capacity: CapacityModel
    diagnosis: Diagnosis
    profile: Profile
    config: Config
    jobs: int = 1
    holding: Holding | Excuse | None = None
    actions: tuple[Action, ...] = field(default=ACTIONS, repr=False)

    @property
    def fleet(self) -> Fleet:
        """What serves the workload today."""
        return self.capacity.fleet

    @property
    def seeds(self) -> list[int]:
        """One per replication."""
        first = self.config.analysis.seed
        return list(range(first, first + self.config.analysis.replications))


@dataclass(frozen=True)
class _Tried:
    """An action that was simulated."""

    action: Action
    verdicts: tuple[Verdict, ...]
    changed: Changed
    price: Price
    trials: list[Trial]
    effect: Effect


def rank(case: Case, *, progress: Progress | None = None) -> Plan:
    """Rank the actions for a case. `progress` is told what is done and how far it is, 0 to 1.

    Raises:
        UsageError: the case has no requests, or none of them ends in the simulation.
    """
    tell = progress or silent
    if not case.stream.requests.num_rows:
        raise UsageError("There are no requests to plan for; read telemetry that holds some")
    tell("simulating today", 0.0)
    seeds, baseline = case.seeds, _baseline(case)
    if _same(baseline):
        analysis = case.config.analysis.model_copy(update={"replications": 1})
        config = case.config.model_copy(update={"analysis": analysis})
        case, baseline = replace(case, config=config), baseline[:1]
    before = outcome_of(baseline, case.config)
    load = replace(baseline[0].load, gpu_share=engine_load(case.tables).gpu_share)
    if ALL not in before.e2e_s:
        raise UsageError("No request ends in the simulation of today: check the fleet's numbers")
    context = Context(case.config, case.profile, case.diagnosis, load)
    opened, refused = _opened(case, context)
    tried = _try_all(case, context, opened, baseline=baseline, tell=tell)
    ranked, not_worth = _decide(case, tried, before)
    worth = [t for t in tried if t.action.name in {r.name for r in ranked}]
    worth.sort(key=lambda t: -scoring.score(t.effect, t.price))
    tell("combining the best", 0.6)
    bundle = _bundle(case, context, worth, baseline=baseline, before=before)
    found = case.holding
    if found is None:
        found = holding(
            case.stream,
            case.fleet,
            case.config,
            progress=lambda text, part: tell(text, 0.7 + 0.3 * part),
            seeds=seeds,
        )
    measured = outcome(case.tables, case.config, case.fleet)
    tell("planned", 1.0)
    return Plan(
        baseline=before,
        measured=measured,
        holding=found,
        ranked=tuple(ranked),
        refused=(*not_worth, *refused),
        bundle=bundle,
        ladder=ladder(ranked, case.capacity, found, case.actions),
        notes=notes_on(before, measured),
    )


def _baseline(case: Case) -> list[Trial]:
    """Today under each seed."""
    scenarios = [Scenario(case.stream, case.fleet, seed) for seed in case.seeds]
    return try_all(scenarios, case.config, jobs=case.jobs)


def _same(trials: Sequence[Trial]) -> bool:
    """Whether the seed makes no difference (no retries, no draws): one run then serves."""
    first = trials[0].judged
    return all(np.array_equal(first.e2e_s, t.judged.e2e_s, equal_nan=True) for t in trials[1:])


def _opened(
    case: Case, context: Context
) -> tuple[list[tuple[Action, list[Verdict], Changed]], list[Refused]]:
    """Actions to simulate, and those refused before any simulation."""
    opened: list[tuple[Action, list[Verdict], Changed]] = []
    refused: list[Refused] = []
    for action in case.actions:
        verdicts = action.called_for(context)
        if not verdicts and not action.always:
            refused.append(
                _refused(action, _missing_verdict(action, case.diagnosis), context, case)
            )
            continue
        changed = action.apply(case.stream, case.fleet, context)
        if isinstance(changed, Excuse):
            refused.append(_refused(action, changed, context, case))
        else:
            opened.append((action, verdicts, changed))
    return opened, refused


def _missing_verdict(action: Action, diagnosis: Diagnosis) -> Excuse:
    wanted = ", ".join(sorted(words(b.value) for b in action.opens_for))
    if diagnosis.excuse is not None:
        return Excuse(
            reason=f"No bottleneck is established, and it takes one of: {wanted}",
            collect=diagnosis.excuse.collect,
        )
    return Excuse(reason=f"{NOT_CALLED_FOR}: no verdict names {wanted}")


def _refused(action: Action, excuse: Excuse, context: Context, case: Case) -> Refused:
    return Refused(
        name=action.name,
        title=action.title,
        layer=action.layer,
        excuse=excuse,
        price=action.price(case.fleet, context),
        source=action.source,
    )


def _try_all(
    case: Case,
    context: Context,
    opened: Sequence[tuple[Action, list[Verdict], Changed]],
    *,
    baseline: list[Trial],
    tell: Progress,
) -> list[_Tried]:
    """Every opened action under the first seed; under the others too where that shows a gain."""
    runs = len(opened) * len(case.seeds)
    done = 0

    def told(count: int) -> None:
        tell("simulating actions", 0.1 + 0.5 * (done + count) / max(runs, 1))

    scenarios = [Scenario(*changed, case.seeds[0]) for _, _, changed in opened]
    first = try_all(scenarios, case.config, jobs=case.jobs, tell=told)
    done = len(opened)
    screened = [
        [with_dropped(trial, case.stream, changed[0])]
        for trial, (_, _, changed) in zip(first, opened, strict=True)
    ]
    keep = [
        i
        for i, trials in enumerate(screened)
        if opened[i][0].always or _promising(baseline[:1], trials, case.config)
    ]
    more = [Scenario(*opened[i][2], seed) for i in keep for seed in case.seeds[1:]]
    rest = iter(try_all(more, case.config, jobs=case.jobs, tell=told) if more else ())
    for i in keep:
        screened[i] += [
            with_dropped(next(rest), case.stream, opened[i][2][0]) for _ in case.seeds[1:]
        ]
    found = []
    for (action, verdicts, changed), trials in zip(opened, screened, strict=True):
        seen = effect(baseline[: len(trials)], trials, case.config)
        if seen is not None:
            price = action.price(case.fleet, context)
            found.append(_Tried(action, tuple(verdicts), changed, price, trials, seen))
    return found


def _promising(before: list[Trial], after: list[Trial], config: Config) -> bool:
    seen = effect(before, after, config)
    return seen is not None and (seen.attains or seen.shortens)


def _decide(
    case: Case, tried: Sequence[_Tried], before: Outcome
) -> tuple[list[Ranked], list[Refused]]:
    """Ranked best first, and refused with their simulated outcome."""
    rivals = [
        (t.action.title, t.effect, t.price)
        for t in tried
        if not t.action.always and scoring.refusal(t.effect, before) is None
    ]
    ranked, refused = [], []
    for t in tried:
        if t.action.always:
            excuse = scoring.scale_out_refusal(
                t.effect, before, case.diagnosis, price=t.price, rivals=rivals
            )
        else:
            excuse = scoring.refusal(t.effect, before)
        if excuse is None:
            ranked.append(_ranked(t, before))
        else:
            refused.append(
                Refused(
                    name=t.action.name,
                    title=t.action.title,
                    layer=t.action.layer,
                    excuse=excuse,
                    outcome=t.effect.outcome,
                    p99_change_s=t.effect.p99_change_s,
                    price=t.price,
                    source=t.action.source,
                )
            )
    ranked.sort(key=lambda r: -r.score)
    refused.sort(key=lambda r: r.name != "scale_out")
    return ranked, refused


def _ranked(t: _Tried, before: Outcome) -> Ranked:
    why = scoring.in_words(t.effect, before)
    if t.action.always:
        why = f"{scoring.scale_out_figures(t.effect, before, t.price)}; {why}"
    if t.effect.worse:
        why += f". Makes worse: {'; '.join(t.effect.worse)}"
    why += f". Wrong when {t.action.wrong_when}"
    return _record(t.effect, t.price, why=why, calls_for=_calls_for(t.verdicts)).model_copy(
        update={
            "name": t.action.name,
            "title": t.action.title,
            "layer": t.action.layer,
            "source": t.action.source,
        }
    )


def _calls_for(verdicts: Sequence[Verdict]) -> str:
    said = []
    for v in verdicts:
        share = "" if v.share_of_p99 is None else f", {format_share(v.share_of_p99)} of P99"
        where = "" if v.bucket == ALL else f" of {v.bucket}"
        said.append(
            f"{v.bottleneck.value.replace('_', ' ')}{where}"
            f" (confidence {format_share(v.confidence)}{share})"
        )
    return "; ".join(said[:3]) or "nothing: simulated because it is what is bought first"


def _record(found: Effect, price: Price, *, why: str, calls_for: str) -> Ranked:
    change = found.attainment_change
    return Ranked(
        name="",
        title="",
        layer=Layer.SYSTEM,
        calls_for=calls_for,
        outcome=found.outcome,
        p99_change_s=found.p99_change_s,
        attainment_change=None if change is None else change.mid,
        usd_per_success_change=found.usd_per_success_change,
        price=price,
        score=scoring.score(found, price),
        worth_it=True,
        source="",
        why=why,
    )


def _bundle(
    case: Case,
    context: Context,
    worth: Sequence[_Tried],
    *,
    baseline: list[Trial],
    before: Outcome,
) -> Ranked | None:
    """The best actions together: each next one is kept if it helps beside those before it, until
    the SLO is held; what would come after that is bought for nothing."""
    if len(worth) < 2:
        return None
    kept, trials = [worth[0]], _full(case, worth[0])
    current = worth[0].changed
    for candidate in worth[1:]:
        if len(kept) == MAX_BUNDLE or _held(trials, case.config):
            break
        if any(candidate.action.name in t.action.implies for t in kept):
            continue
        changed = candidate.action.apply(*current, context)
        if isinstance(changed, Excuse):
            continue
        scenarios = [Scenario(*changed, seed) for seed in case.seeds]
        runs = try_all(scenarios, case.config, jobs=case.jobs)
        after = [with_dropped(trial, case.stream, changed[0]) for trial in runs]
        step = effect(trials, after, case.config)
        if step is not None and step.helps:
            kept = [t for t in kept if t.action.name not in candidate.action.implies]
            kept, trials, current = [*kept, candidate], after, changed
    total = effect(baseline, trials, case.config)
    if len(kept) < 2 or total is None:
        return None
    price = _prices(kept)
    why = scoring.in_words(total, before)
    if total.worse:
        why += f". Makes worse: {'; '.join(total.worse)}"
    verdicts = list({v.bottleneck: v for t in kept for v in t.verdicts}.values())
    return _record(total, price, why=why, calls_for=_calls_for(verdicts)).model_copy(
        update={
            "name": "+".join(t.action.name for t in kept),
            "title": "; ".join(t.action.title for t in kept),
            "layer": kept[0].action.layer,
            "source": "the sources of its actions",
        }
    )


def _held(trials: Sequence[Trial], config: Config) -> bool:
    """Whether every bucket that has an SLO holds it under every seed."""
    found = [standings(trial.judged, config) for trial in trials]
    return all(each and all(item.held for item in each.values()) for each in found)


def _full(case: Case, t: _Tried) -> list[Trial]:
    """The trials of every seed (an action worth it was run under all of them)."""
    if len(t.trials) == len(case.seeds):
        return t.trials
    rest = [Scenario(*t.changed, seed) for seed in case.seeds[len(t.trials) :]]
    runs = try_all(rest, case.config, jobs=case.jobs)
    return [*t.trials, *(with_dropped(run, case.stream, t.changed[0]) for run in runs)]


def _prices(kept: Sequence[_Tried]) -> Price:
    """Money adds; marks are the worst of the parts."""

    def worst(scale: dict[str, float], name: str) -> str:
        return max((str(getattr(t.price, name)) for t in kept), key=lambda mark: scale[mark])

    return Price(
        usd_per_hour=sum(t.price.usd_per_hour for t in kept),
        quality=worst(scoring.QUALITY, "quality"),
        risk=worst(scoring.RISK, "risk"),
        effort=worst(scoring.EFFORT, "effort"),
        note="; ".join(dict.fromkeys(t.price.note for t in kept if t.price.note)),
        unpriced=any(t.price.unpriced for t in kept),
    )
