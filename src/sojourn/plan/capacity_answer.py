"""The whole answer to "how much does it take": pattern, for ever, flags, replicas, traps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.demand import demand
from sojourn.capacity.records import CapacityModel
from sojourn.capacity.step_moves import Hardware
from sojourn.config import Config, Deployment
from sojourn.interval import Excuse
from sojourn.plan.capacity_records import CapacityAnswer, FlagMove, ReplicaPlan
from sojourn.plan.flag_moves import flag_moves
from sojourn.plan.holding import holding
from sojourn.plan.holding_records import Sustained
from sojourn.plan.load_runs import onward
from sojourn.plan.records import Holding
from sojourn.plan.replica_candidates import Today
from sojourn.plan.replica_plan import Target, replica_plan
from sojourn.plan.sustained import sustained
from sojourn.plan.traps import traps
from sojourn.progress import Progress, silent
from sojourn.workload.profile_records import Profile
from sojourn.workload.stream import Stream


@dataclass(frozen=True)
class Asked:
    """What is asked beside the load held: how flags move it, replicas for a target rate (requests
    per second), and of which accelerators (none named: all of the catalogue)."""

    flags: bool = False
    target_per_s: float | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What it is asked of. `deployment`: as sojourn.yaml, its launch and the engine tell it.
    `busy`: measured share of time the engine worked; `warnings`: what is odd about the settings."""

    stream: Stream
    profile: Profile
    config: Config
    deployment: Deployment
    busy: float | None = None
    warnings: tuple[str, ...] = ()


def answer(
    model: CapacityModel, subject: Subject, asked: Asked, progress: Progress = silent
) -> CapacityAnswer:
    """Every part; one that cannot be told is an `Excuse`."""
    say = onward(progress)
    stream, config = subject.stream, subject.config
    share = 0.4 if asked.flags or asked.target_per_s else 0.7
    held = holding(stream, model.fleet, config, progress=lambda text, done: say(text, share * done))
    for_ever = _for_ever(model, subject, held, lambda text, _done: say(text, share + 0.1))
    hardware = hardware_of(subject.profile, subject.deployment)
    moves: tuple[FlagMove, ...] = ()
    if asked.flags and isinstance(held, Holding) and held.load_factor.mid > 0:
        moves = flag_moves(
            stream,
            model.fleet,
            config,
            hardware=hardware,
            held=held,
            progress=lambda text, done: say(text, 0.5 + 0.2 * done),
        )
    replicas: ReplicaPlan | Excuse | None = None
    if asked.target_per_s is not None:
        edge = frozenset(held.on_edge if isinstance(held, Holding) else ())
        target = Target(
            asked.target_per_s,
            stream,
            config,
            model,
            edge,
            lambda text, done: say(text, 0.7 + 0.3 * done),
        )
        replicas = _replicas(target, subject.profile, hardware, asked.gpus)
    return CapacityAnswer(
        model=model,
        holding=held,
        sustained=for_ever,
        flags=moves,
        replicas=replicas,
        traps=traps(model, held, subject.profile, subject.deployment, busy=subject.busy),
        warnings=subject.warnings,
    )


def _for_ever(
    model: CapacityModel, subject: Subject, held: Holding | Excuse, progress: Progress
) -> Sustained | Excuse:
    """The steady rate; refused where no load is held at all, or none could be judged."""
    if isinstance(held, Excuse):
        return held
    if held.load_factor.mid == 0:
        return Excuse(reason="No load is held, so no steady one is")
    return sustained(
        subject.stream,
        model.fleet,
        subject.config,
        start_per_s=held.rate_per_s.mid,
        on_edge=frozenset(held.on_edge),
        progress=progress,
    )


def hardware_of(profile: Profile, deployment: Deployment) -> Hardware | None:
    """The hardware that sojourn.yaml (or its launch) names; None where it names none.

    Raises:
        UsageError: the model or the accelerator is unknown. InputError: its file is no such row.
    """
    if deployment.model is None or deployment.accelerator is None:
        return None
    from sojourn.capacity import catalogue  # noqa: PLC0415 -- only where hardware is named

    asked = demand(profile)
    return Hardware(
        model=catalogue.model(deployment.model),
        gpu=catalogue.gpu(deployment.accelerator),
        deployment=deployment,
        context=asked.context_mean if asked.calls else None,
    )


def _replicas(
    target: Target, profile: Profile, hardware: Hardware | None, gpus: Sequence[Gpu]
) -> ReplicaPlan | Excuse:
    if hardware is None:
        return Excuse(
            reason="The hardware is not named, so replicas of other accelerators cannot be counted",
            collect=("set deployment.model and deployment.accelerator in sojourn.yaml",),
        )
    asked = demand(profile)
    if not asked.calls:
        return Excuse(
            reason="There are no model calls, so no engine is asked for anything",
            collect=("record calls with their tokens",),
        )
    from sojourn.capacity import catalogue  # noqa: PLC0415 -- only where hardware is named

    today = Today(hardware, target.model.fleet, asked)
    return replica_plan(target, today, gpus or tuple(catalogue.gpus().values()))
