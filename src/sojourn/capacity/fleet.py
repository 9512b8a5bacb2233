"""`Fleet`: engine, stations and retries, each from the best source there is."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from sojourn.capacity import calibration, retries, stations
from sojourn.capacity.calibration import FitSweep
from sojourn.capacity.engine_calls import main_engine
from sojourn.capacity.flags import flag, set_in
from sojourn.capacity.records import EngineModel, Fleet, Memory, StepModel
from sojourn.config import Config, Deployment
from sojourn.errors import UsageError
from sojourn.interval import Excuse, Provenance
from sojourn.trace.arrays import Floats, floats
from sojourn.trace.tables import Tables


def build(tables: Tables, config: Config, *, fit_sweep: FitSweep | None = None) -> Fleet | Excuse:
    """The fleet behind these tables.

    Step time: fitted to the telemetry (`calibration.fit`), else that of the hardware where
    sojourn.yaml names model and accelerator. Flags: sojourn.yaml, else what the engine printed,
    else the defaults. KV blocks: those, else memory, else enough for every slot at the longest
    context seen (assumed).
    Stations and retries: from the spans, corrected by sojourn.yaml.

    Raises:
        UsageError: sojourn.yaml names a model or accelerator that is unknown, or (without a
            fit) a model that does not fit into it.
    """
    deployment = _resolved(tables, config)
    theirs, context = _hardware(tables, deployment)
    step = calibration.fit(tables, config, hardware=theirs, fit_sweep=fit_sweep)
    if isinstance(step, Excuse):
        if theirs is None:
            return Excuse(
                reason=f"No step time: {step.reason}; and sojourn.yaml names no hardware",
                collect=(
                    *step.collect,
                    "deployment.model and deployment.accelerator, sojourn.yaml",
                ),
            )
        step = theirs.model_copy(update={"source": f"{theirs.source} (no fit: {step})"})
    fitted = step.provenance is Provenance.FITTED
    memory = _memory(deployment, context, fitted=fitted) if theirs is not None else None
    blocks, provenance = _kv_blocks(tables, config, deployment, memory)
    engine = EngineModel(
        step=step,
        replicas=deployment.replicas,
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=max(deployment.max_num_batched_tokens, deployment.max_num_seqs),
        block_size=deployment.block_size,
        kv_blocks=blocks,
        kv_blocks_provenance=provenance,
        usd_per_replica_hour=deployment.usd_per_replica_hour,
        memory=memory,
    )
    _, models = stations.infer(tables, config)
    return Fleet(engine=engine, stations=models, retry=retries.detect(tables, config))


def _resolved(tables: Tables, config: Config) -> Deployment:
    """`deployment` with what the engine printed in place of what sojourn.yaml leaves out."""
    names = ("max_num_seqs", "max_num_batched_tokens", "block_size")
    update: dict[str, int | None] = {name: flag(name, tables, config)[0] for name in names}
    update["kv_blocks"] = flag("kv_blocks", tables, config)[0] or None
    if not set_in(config, "replicas") and tables.calls.num_rows:
        named = main_engine(tables.calls)[0].column("replica")
        update["replicas"] = max(1, len(named.unique().drop_null()))
    return config.deployment.model_copy(update=update)


def _hardware(tables: Tables, deployment: Deployment) -> tuple[StepModel | None, float | None]:
    """Step times of the hardware that sojourn.yaml names, None where it names none; and the mean
    final context of a call, where known."""
    context = _contexts(tables.calls)
    mean = float(context.mean()) if context.size else None
    if deployment.model is None or deployment.accelerator is None:
        return None, mean
    from sojourn.capacity import catalogue, step_sources  # noqa: PLC0415 -- only where hardware is named

    model, gpu = catalogue.model(deployment.model), catalogue.gpu(deployment.accelerator)
    return step_sources.step_model(model, gpu, deployment, mean_context=mean), mean


def _memory(deployment: Deployment, context: float | None, *, fitted: bool) -> Memory | None:
    """Memory of a replica of the hardware named."""
    from sojourn.capacity import catalogue  # noqa: PLC0415 -- only where hardware is named
    from sojourn.capacity.memory import memory  # noqa: PLC0415 -- only where hardware is named

    model = catalogue.model(str(deployment.model))
    gpu = catalogue.gpu(str(deployment.accelerator))
    try:
        return memory(model, gpu, deployment, mean_context=context)
    except UsageError:
        if fitted:  # it runs, so our own account of its memory is what is wrong
            return None
        raise


def _kv_blocks(
    tables: Tables, config: Config, deployment: Deployment, memory: Memory | None
) -> tuple[int, Provenance]:
    """KV blocks of a replica and where the figure comes from."""
    blocks, provenance = flag("kv_blocks", tables, config)
    if blocks:
        return blocks, provenance
    if memory is not None and memory.kv_tokens >= deployment.block_size:
        return memory.kv_tokens // deployment.block_size, Provenance.CATALOGUE
    context = _contexts(tables.calls)
    longest = float(context.max()) if context.size else float(deployment.max_model_len or 4096)
    return deployment.max_num_seqs * math.ceil(longest / deployment.block_size), Provenance.ASSUMED


def _contexts(calls: pa.Table) -> Floats:
    """Final context of each call with known tokens."""
    total = floats(calls["input_tokens"]) + floats(calls["output_tokens"])
    return total[np.isfinite(total)]
