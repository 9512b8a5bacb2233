"""The fleet of a scenario: pools from tables, fits or the catalogue; stations; policies."""

from __future__ import annotations

from pathlib import Path
from typing import Final, get_args

from sojourn.capacity.policies import PrefixCache
from sojourn.capacity.records import EngineModel, Fleet, Memory, StationModel, StepModel
from sojourn.config import MAX_REPLICAS, Deployment
from sojourn.errors import InputError, UsageError
from sojourn.interval import Provenance
from sojourn.records import Stage
from sojourn.sim.check_sizes import MOST_BLOCKS, MOST_BUDGET, MOST_SEQS
from sojourn.sim.scenario_chain import known
from sojourn.sim.scenario_records import (
    DEFAULT_POOL,
    PoolSpec,
    ScenarioFile,
    StationSpec,
    StationStage,
)
from sojourn.workload.distributions import summarize
from sojourn.workload.variates import STRATA

LONGEST_STEP_S: Final = 3_600.0
"""A step of an hour is a wrong unit."""
FINE: Final = 20_000
"""Strata from which the figures of a distribution are computed."""


def fleet_of(
    scenario: ScenarioFile,
    folder: Path,
    *,
    unit: int | None = None,
    mean_context: float | None = None,
    base: Fleet | None = None,
) -> Fleet:
    """What serves a scenario. `unit`: tokens of a block hash, where prefixes are shared; `base`:
    the fleet fitted to a replayed recording, which the file corrects.

    Raises:
        InputError: a pool cannot be built: unknown model or accelerator, no room for KV, a token
            budget below the batch; says which key and what to do.
    """
    pools = {}
    for name, spec in scenario.all_pools.items():
        at = "engine" if name == DEFAULT_POOL else f"pools.{name}"
        pools[name] = _pool(spec, at, scenario, folder, unit=unit, mean_context=mean_context)
    engine = pools.pop(DEFAULT_POOL, None) or (base.engine if base is not None else None)
    assert engine is not None  # the record's own rule
    stations = {name: _station(name, spec) for name, spec in scenario.stations.items()}
    before = {} if base is None else base.stations
    retry = scenario.retry
    if base is not None and "retry" not in scenario.model_fields_set:
        retry = base.retry
    return Fleet(
        engine=engine,
        stations=before | stations,
        retry=retry,
        pools=pools,
        client=scenario.client.sampled(),
        admission=scenario.admission,
        ladder=scenario.ladder,
    )


def _station(name: str, spec: StationSpec) -> StationModel:
    return StationModel(
        name=name,
        stage=_stage(name, spec).value,
        service_s=summarize(spec.service_s.strata(FINE)),
        service_samples_s=tuple(spec.service_s.strata(STRATA).tolist()),
        provenance=Provenance.ASSUMED,
        note="scenario file",
        drift=spec.levels,
        **spec.model_dump(exclude={"service_s", "stage", "drift"}),
    )


def _stage(name: str, spec: StationSpec) -> Stage:
    stages = [stage.value for stage in get_args(StationStage)]
    if spec.stage is None and name not in stages:
        raise InputError(
            "its name is no stage, so `stage` must say what its time counts as",
            field=f"stations.{name}.stage",
            todo=f"Give one of {', '.join(stages)}",
        )
    return spec.stage or Stage(name)


def check_stations(scenario: ScenarioFile) -> None:
    """Every station has a stage.

    Raises:
        InputError: one has none.
    """
    for name, spec in scenario.stations.items():
        _stage(name, spec)


def _pool(
    spec: PoolSpec,
    at: str,
    scenario: ScenarioFile,
    folder: Path,
    *,
    unit: int | None,
    mean_context: float | None,
) -> EngineModel:
    fitted = None if spec.fitted is None else _fitted(spec.fitted, at, folder)
    step, memory = _step(spec, at, folder, fitted, mean_context)
    blocks, provenance = _blocks(spec, at, memory, fitted)
    _check_sizes(spec, at, step, blocks)
    _check_prefill(spec, at, scenario)
    cache = spec.prefix_cache
    if cache is None and unit is not None and spec.prefix_caching:
        cache = PrefixCache(tokens_per_hash=unit)
    return EngineModel(
        step=step,
        memory=memory,
        kv_blocks=blocks,
        kv_blocks_provenance=provenance,
        prefix_cache=cache,
        **{
            name: getattr(spec, name)
            for name in (
                "replicas", "max_num_seqs", "max_num_batched_tokens", "block_size",
                "usd_per_replica_hour", "scheduler", "speculative", "router", "prefill", "encoder",
                "autoscaler", "abort_on_cancel",
            )
        },
    )  # fmt: skip


def _fitted(name: str, at: str, folder: Path) -> EngineModel:
    try:
        return Fleet.load(folder / name).engine
    except InputError as error:
        raise InputError(
            str(error), field=f"{at}.fitted", todo="Write it with `sojourn calibrate -o`"
        ) from error


def _step(
    spec: PoolSpec,
    at: str,
    folder: Path,
    fitted: EngineModel | None,
    mean_context: float | None,
) -> tuple[StepModel, Memory | None]:
    """Step times from the first source that is given, and memory from the catalogue."""
    hardware = spec.model is not None and spec.accelerator is not None
    given = [spec.step is not None, fitted is not None]
    if sum(given) > 1 or not (any(given) or hardware):
        raise InputError(
            "its step times need one source",
            field=at,
            todo="Give `model` and `accelerator`, or `step`, or `fitted`, and only one of them",
        )
    if fitted is not None:
        return fitted.step, None
    if spec.step is not None:
        return StepModel.model_validate(spec.step.model_dump()), None
    from sojourn.capacity import catalogue, roofline  # noqa: PLC0415  (only where asked for)
    from sojourn.capacity.memory import memory  # noqa: PLC0415  (as above)

    deployment = Deployment.model_validate(spec.model_dump(include=set(Deployment.model_fields)))
    key = f"{at}.model"
    try:
        model = catalogue.model(_beside(spec.model or "", folder))
        key = f"{at}.accelerator"
        gpu = catalogue.gpu(_beside(spec.accelerator or "", folder))
        key = at
        step = roofline.step_model(model, gpu, deployment, mean_context=mean_context)
        return step, memory(model, gpu, deployment, mean_context=mean_context)
    except (UsageError, InputError) as error:
        raise InputError(str(error), field=key) from error


def _beside(name: str, folder: Path) -> str:
    """A file named relative to the scenario is looked for beside it."""
    there = folder / name
    return str(there) if name.endswith((".json", ".yaml", ".yml")) and there.is_file() else name


def _blocks(
    spec: PoolSpec, at: str, memory: Memory | None, fitted: EngineModel | None
) -> tuple[int, Provenance]:
    if spec.kv_blocks is not None:
        return spec.kv_blocks, Provenance.ASSUMED
    if memory is not None:
        blocks = memory.kv_tokens // spec.block_size
        if blocks < 1:
            raise InputError(
                f"no KV block of {spec.block_size} tokens fits into {memory.kv_gib:.2f} GiB",
                field=at,
                todo="Raise gpu_memory_utilization or tensor_parallel, or set kv_blocks",
            )
        return blocks, Provenance.CATALOGUE
    if fitted is not None:
        return max(1, fitted.kv_blocks * fitted.block_size // spec.block_size), Provenance.FITTED
    raise InputError(
        "a step table does not tell how much KV memory there is",
        field=f"{at}.kv_blocks",
        todo="Set it to the number of KV blocks the engine prints at its start",
    )


def _check_sizes(spec: PoolSpec, at: str, step: StepModel, blocks: int) -> None:
    """Sizes that fit each other and the machine that simulates."""
    drafts = 0 if spec.speculative is None else len(spec.speculative.acceptance)
    needed = spec.max_num_seqs * (1 + drafts)
    most = 0 if spec.autoscaler is None else spec.autoscaler.most
    rules = (
        ("max_num_seqs", spec.max_num_seqs, MOST_SEQS),
        ("max_num_batched_tokens", spec.max_num_batched_tokens, MOST_BUDGET),
        ("kv_blocks", blocks, MOST_BLOCKS),
        ("autoscaler.most", most, MAX_REPLICAS),
    )
    for name, value, limit in rules:
        if value > limit:
            raise InputError(
                f"{value:,} is more than can be simulated ({limit:,})",
                field=f"{at}.{name}",
                todo="Lower it",
            )
    if spec.max_num_batched_tokens < needed:
        raise InputError(
            f"a step of {spec.max_num_batched_tokens:,} tokens cannot serve max_num_seqs"
            f" {spec.max_num_seqs:,} decodes of {1 + drafts} tokens each",
            field=f"{at}.max_num_batched_tokens",
            todo=f"Set it to {needed:,} or more, or lower max_num_seqs",
        )
    if spec.autoscaler is not None and spec.autoscaler.least > spec.autoscaler.most:
        raise InputError(
            f"least {spec.autoscaler.least} is more than most {spec.autoscaler.most}",
            field=f"{at}.autoscaler.least",
            todo="Lower it",
        )
    if spec.prefix_cache is not None and spec.prefix_cache.tokens_per_hash % spec.block_size:
        raise InputError(
            f"{spec.prefix_cache.tokens_per_hash} is no multiple of block_size {spec.block_size}",
            field=f"{at}.prefix_cache.tokens_per_hash",
            todo="Use a multiple",
        )
    tokens = blocks * spec.block_size
    budget = spec.max_num_batched_tokens
    longest = step.step_s(spec.max_num_seqs * (1 + drafts), tokens, budget, budget * tokens)
    if longest > LONGEST_STEP_S:
        raise InputError(
            f"a full step would take {longest:,.0f} s",
            field=f"{at}.step",
            todo="Check the units: all times are seconds",
        )


def _check_prefill(spec: PoolSpec, at: str, scenario: ScenarioFile) -> None:
    if spec.prefill is None:
        return
    field = f"{at}.prefill.pool"
    pools = scenario.all_pools
    name = known(spec.prefill.pool, pools, "pool", field)
    if pools[name] is spec:
        raise InputError(
            "a pool cannot compute prompts for itself",
            field=field,
            todo="Name another pool, or take `prefill` out",
        )
    if pools[name].prefill is not None:
        raise InputError(
            f"pool {name!r} has its own prompts computed elsewhere",
            field=field,
            todo="Name a pool without `prefill`",
        )
