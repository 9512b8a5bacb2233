"""Once round the loop: telemetry in, findings out. What the command line and notebooks call.

Each function is one station; `go_round` walks them all. Rooms stay importable on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.config import Config
from sojourn.errors import UsageError
from sojourn.interval import Excuse
from sojourn.progress import Progress, silent

if TYPE_CHECKING:
    from sojourn.attribution.records import Breakdown, Diagnosis
    from sojourn.capacity.fit_drift import Drift
    from sojourn.capacity.records import CapacityModel, Fleet, StationModel, StepModel
    from sojourn.capacity.sweep_runs import SweepRun
    from sojourn.plan.capacity_answer import Asked
    from sojourn.plan.capacity_records import CapacityAnswer
    from sojourn.plan.records import Holding, Plan
    from sojourn.plan.simulated import Result
    from sojourn.report.compose import Findings
    from sojourn.sim.calibrated import Calibrated
    from sojourn.sim.scenario import SimRun
    from sojourn.sim.scenario_records import ScenarioFile
    from sojourn.sim.scenario_replay import Recording
    from sojourn.trace.tables import Tables
    from sojourn.verify.records import Acceptance
    from sojourn.workload.profile_records import Profile


@dataclass(frozen=True)
class Traffic:
    """What came, and what it asks for: enough for every question about capacity."""

    tables: Tables
    profile: Profile
    config: Config


@dataclass(frozen=True)
class Seen(Traffic):
    """What one recording shows, before any model: tables made ready, profile, attribution."""

    stations: dict[str, StationModel]
    breakdown: Breakdown
    diagnosis: Diagnosis


def read(
    paths: Path | str | Sequence[Path | str],
    *,
    format: str | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Tables:
    """Telemetry files or folders as tables. See `sojourn.trace.reading.read`."""
    from sojourn.trace import reading  # noqa: PLC0415  (rooms are loaded by who needs them)

    return reading.read(paths, format=format, config=config, progress=progress)


def look(tables: Tables, config: Config | None = None) -> Seen:
    """Buckets, waits at stations, profile, breakdown and diagnosis of a recording."""
    from sojourn.attribution import breakdown, diagnosis  # noqa: PLC0415  (as above)
    from sojourn.capacity import stations  # noqa: PLC0415  (as above)
    from sojourn.workload import buckets, profile  # noqa: PLC0415  (as above)

    config = _said(config)
    ready, found = stations.infer(buckets.assign(tables, config), config)
    traffic = profile.profile(ready, config)
    where = breakdown.break_down(ready, config)
    return Seen(
        tables=ready,
        profile=traffic,
        config=config,
        stations=found,
        breakdown=where,
        diagnosis=diagnosis.diagnose(where, traffic, config),
    )


def traffic(tables: Tables, config: Config | None = None) -> Traffic:
    """`look` without attribution, which capacity does not ask for."""
    from sojourn.capacity import stations  # noqa: PLC0415  (as above)
    from sojourn.workload import buckets, profile  # noqa: PLC0415  (as above)

    config = _said(config)
    ready, _found = stations.infer(buckets.assign(tables, config), config)
    return Traffic(ready, profile.profile(ready, config), config)


def engine_alone(tables: Tables, config: Config | None = None) -> tuple[Breakdown, Diagnosis]:
    """What engine samples without requests show: how full the engine was, and a refusal of more."""
    from sojourn.attribution import breakdown, diagnosis  # noqa: PLC0415  (as above)

    config = _said(config)
    where = breakdown.break_down(tables, config)
    return where, diagnosis.diagnose(where, None, config)


def reseeded(seen: Seen, seed: int) -> Seen:
    """The same, with another seed for what follows."""
    analysis = seen.config.analysis.model_copy(update={"seed": seed})
    return replace(seen, config=seen.config.model_copy(update={"analysis": analysis}))


def profile(tables: Tables, config: Config | None = None) -> Profile:
    """The request profile."""
    return look(tables, config).profile


def attribute(tables: Tables, config: Config | None = None) -> Diagnosis:
    """Which bottleneck the recording shows."""
    return look(tables, config).diagnosis


def fleet(seen: Traffic) -> Fleet | Excuse:
    """The fleet behind a recording: fitted where the telemetry allows, else from the catalogue."""
    from sojourn.capacity import fleet as fleets  # noqa: PLC0415  (as above)

    return fleets.build(seen.tables, seen.config, fit_sweep=_fit_sweep)


def _fit_sweep(runs: Sequence[SweepRun], start: StepModel | None) -> StepModel | Excuse:
    """Step times from summaries of benchmark runs: the simulator is loaded where there are any."""
    from sojourn.sim import sweep_matching  # noqa: PLC0415  (as above)

    return sweep_matching.fit_sweep(runs, start)


def calibrated(
    tables: Tables, config: Config | None = None, progress: Progress | None = None
) -> Calibrated | Excuse:
    """The fleet behind a recording, its step times turned until a simulation of the recording
    gives its times (where that pays, and is worth the time). Needs no requests: summaries of
    benchmark runs will do."""
    from sojourn.capacity import fleet as fleets  # noqa: PLC0415  (as above)
    from sojourn.sim import calibrated as rounds  # noqa: PLC0415  (as above)

    config, say = _said(config), progress or silent
    ready = _ready(tables, config)
    say("fitting step times", 0.2)
    built = fleets.build(ready, config, fit_sweep=_fit_sweep)
    return built if isinstance(built, Excuse) else rounds.matched(ready, built, config, say)


def drift_of(tables: Tables, saved: Fleet, config: Config | None = None) -> Drift | Excuse:
    """How far the engine of a recording has moved from a fleet that was calibrated before."""
    from sojourn.capacity import fit_drift  # noqa: PLC0415  (as above)

    config = _said(config)
    return fit_drift.drift(_ready(tables, config), saved, config)


def _said(config: Config | None) -> Config:
    """The configuration with what its launch text says, where it names one, and with figures of
    an accelerator's own file that are believed."""
    own = config is not None and str(config.deployment.accelerator).endswith((".yaml", ".yml"))
    if config is None or not (own or config.deployment.launch is not None):
        return config or Config()
    from sojourn.capacity import flags  # noqa: PLC0415  (as above)

    return flags.with_launch(config)


def _ready(tables: Tables, config: Config) -> Tables:
    """Tables with buckets, and with waits at stations told apart from work."""
    from sojourn.capacity import stations  # noqa: PLC0415  (as above)
    from sojourn.workload import buckets  # noqa: PLC0415  (as above)

    return stations.infer(buckets.assign(tables, config), config)[0]


def capacity_of(seen: Traffic) -> CapacityModel | Excuse:
    """Capacity and headroom per resource."""
    from sojourn.capacity import host_limits, resources  # noqa: PLC0415  (as above)

    built = fleet(seen)
    if isinstance(built, Excuse):
        return built
    host = host_limits.host_gauge(seen.tables, seen.profile.arrivals)
    return resources.capacity(seen.profile, built, host=host)


def holding(
    seen: Traffic, model: CapacityModel | Excuse, progress: Progress | None = None
) -> Holding | Excuse:
    """The largest load with the SLO held jointly."""
    from sojourn.plan import holding as holdings  # noqa: PLC0415  (as above)
    from sojourn.workload import replay  # noqa: PLC0415  (as above)

    if isinstance(model, Excuse):
        return model
    stream = replay.replay(seen.tables, seed=seen.config.analysis.seed)
    return holdings.holding(stream, model.fleet, seen.config, progress=progress)


def capacity_answer(
    seen: Traffic,
    model: CapacityModel | Excuse,
    asked: Asked | None = None,
    progress: Progress | None = None,
) -> CapacityAnswer | Excuse:
    """How much the fleet takes, for how long, and what moves it. An excuse of the capacity model
    is passed on."""
    from sojourn.capacity import flags  # noqa: PLC0415  (as above)
    from sojourn.plan import capacity_answer as answers  # noqa: PLC0415  (as above)
    from sojourn.plan import usage  # noqa: PLC0415  (as above)
    from sojourn.workload import replay  # noqa: PLC0415  (as above)

    if isinstance(model, Excuse):
        return model
    subject = answers.Subject(
        stream=replay.replay(seen.tables, seed=seen.config.analysis.seed),
        profile=seen.profile,
        config=seen.config,
        deployment=flags.resolve(seen.config, seen.tables)[0],
        busy=usage.usage(seen.tables, seen.config, model.fleet).engine_busy,
        warnings=tuple(str(found) for found in flags.findings(seen.config, seen.tables)),
    )
    return answers.answer(model, subject, asked or answers.Asked(), progress or silent)


def simulated(
    seen: Seen,
    fleet: Fleet,
    *,
    load: float = 1.0,
    replicas: int | None = None,
    engine: str | None = None,
) -> tuple[SimRun, Fleet]:
    """The recorded requests through the model at `load` times their rate, on `replicas`.

    Raises:
        UsageError: so little load that no request is left.
    """
    from sojourn.sim import simulate  # noqa: PLC0415  (as above)
    from sojourn.sim.scenario import Scenario  # noqa: PLC0415  (as above)
    from sojourn.workload import replay, scaling  # noqa: PLC0415  (as above)

    seed = seen.config.analysis.seed
    stream = scaling.scale(replay.replay(seen.tables, seed=seed), load, seed=seed)
    if not stream.requests.num_rows:
        raise UsageError(f"At {load:g} times the recorded load no request is left. Raise --load")
    if replicas is not None:
        resized = fleet.engine.model_copy(update={"replicas": replicas})
        fleet = fleet.model_copy(update={"engine": resized})
    scenario = Scenario(stream, fleet, seed)
    return simulate.simulate(scenario, engine=engine or simulate.DEFAULT), fleet


def recording(
    path: Path, config: Config | None = None, progress: Progress | None = None
) -> Recording:
    """Telemetry as the workload of a scenario, made ready as `look` makes it."""
    from sojourn.capacity import stations  # noqa: PLC0415  (as above)
    from sojourn.sim.scenario_replay import Recording  # noqa: PLC0415  (as above)
    from sojourn.workload import buckets, replay  # noqa: PLC0415  (as above)

    config = _said(config)
    tables = read(path, config=config, progress=progress)
    ready, _stations = stations.infer(buckets.assign(tables, config), config)
    return Recording(ready, replay.replay(ready, seed=config.analysis.seed), config)


def simulated_scenario(
    file: ScenarioFile,
    path: Path,
    engine: str | None = None,
    *,
    recording: Recording | None = None,
    progress: Progress | None = None,
) -> Result:
    """The replications of a scenario file that lies at `path`; `recording` is what it replays.

    Raises:
        InputError: parts of the scenario do not fit each other.
    """
    from sojourn.plan import simulated as runs  # noqa: PLC0415  (as above)
    from sojourn.sim.simulate import DEFAULT  # noqa: PLC0415  (as above)

    order = runs.Order(file, path, recording, engine or DEFAULT)
    return runs.run_order(order, progress or silent)


def plan_for(
    seen: Seen, model: CapacityModel | Excuse, progress: Progress | None = None
) -> Plan | Excuse:
    """What to fix first. An excuse of the capacity model is passed on."""
    from sojourn.plan import ranking  # noqa: PLC0415  (as above)
    from sojourn.workload import replay  # noqa: PLC0415  (as above)

    if isinstance(model, Excuse):
        return model
    stream = replay.replay(seen.tables, seed=seen.config.analysis.seed)
    case = ranking.Case(
        tables=seen.tables,
        stream=stream,
        capacity=model,
        diagnosis=seen.diagnosis,
        profile=seen.profile,
        config=seen.config,
    )
    return ranking.rank(case, progress=progress)


def accept(
    before: Tables,
    after: Tables,
    config: Config | None = None,
    *,
    rollback: Tables | None = None,
    after_config: Config | None = None,
    controls: Sequence[Tables] = (),
) -> Acceptance:
    """Whether a change was worth it; `after_config` is the changed fleet's, where it differs,
    `controls` are repeats of before."""
    from sojourn.verify import acceptance  # noqa: PLC0415  (as above)

    return acceptance.accept(
        before,
        after,
        _said(config),
        rollback=rollback,
        after_config=None if after_config is None else _said(after_config),
        controls=controls,
    )


def go_round(
    name: str,
    tables: Tables,
    config: Config | None = None,
    *,
    after: tuple[Tables, Config] | None = None,
    progress: Progress | None = None,
) -> Findings:
    """The whole loop on one recording; with `after` (tables, config), acceptance as well."""
    from sojourn.report.compose import Findings  # noqa: PLC0415  (as above)

    say = progress or silent
    config = _said(config)
    say("attributing", 0.05)
    seen = look(tables, config)
    say("fitting the fleet", 0.15)
    model = capacity_of(seen)
    found = plan_for(seen, model, lambda text, done: say(text, 0.2 + 0.7 * done))
    accepted = None
    if after is not None:
        say("comparing before and after", 0.92)
        accepted = accept(tables, after[0], config, after_config=after[1])
    say("done", 1.0)
    target = config.slo_of("default")
    return Findings(
        name=name,
        quality=seen.tables.quality,
        profile=seen.profile,
        breakdown=seen.breakdown,
        diagnosis=seen.diagnosis,
        capacity=model,
        plan=found,
        acceptance=accepted,
        e2e_target_s=None if target is None else target.e2e_s,
    )
