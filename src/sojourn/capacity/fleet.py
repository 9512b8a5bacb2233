"""`Fleet`: engine, stations and retries, each from the best source there is."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from sojourn.capacity import calibration, retries, stations
from sojourn.capacity.calibration import FitSweep
from sojourn.capacity.flags import flag, resolve
from sojourn.capacity.records import EngineModel, Fleet, Memory, StepModel
from sojourn.config import Config, Deployment
from sojourn.errors import UsageError
from sojourn.interval import Excuse, Provenance
from sojourn.trace.arrays import Floats, floats
from sojourn.trace.tables import Tables


def build(tables: Tables, config: Config, *, fit_sweep: FitSweep | None = None) -> Fleet | Excuse:
    """The fleet behind these tables.

    Step time: fitted to the telemetry (`calibration.fit`), else that of the hardware where
    sojourn.yaml names model and accelerator. Flags: sojourn.yaml, else its launch, else what the
    engine printed, else defaults. KV blocks: those, else memory, else enough for every slot at the
    longest context seen (assumed).
    Stations and retries: from the spans, corrected by sojourn.yaml.

    Raises:
        UsageError: sojourn.yaml names a model or accelerator that is unknown, or (without a
            fit) a model that does not fit into it.
    """
    deployment, _ = resolve(config, tables)
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
    held = (context, _lengths(tables.calls))
    memory = _memory(deployment, held, fitted=fitted) if theirs is not None else None
    blocks, provenance = _kv_blocks(tables, config, deployment, memory)
    engine = _engine(step, deployment, blocks).model_copy(
        update={"kv_blocks_provenance": provenance, "memory": memory}
    )
    _, models = stations.infer(tables, config)
    return Fleet(engine=engine, stations=models, retry=retries.detect(tables, config))


def _engine(step: StepModel, deployment: Deployment, blocks: int) -> EngineModel:
    """The engines behind the router. Step times of hardware are those of one data-parallel rank and
    one of the batches in a pipeline: each is an engine of its own here, with its part of slots, KV
    blocks and price. A fit has seen whole replicas, as the telemetry names them."""
    depth = 1 if step.provenance is Provenance.FITTED else deployment.pipeline_parallel
    ranks = 1 if step.provenance is Provenance.FITTED else deployment.data_parallel
    slots = max(1, deployment.max_num_seqs // depth)
    price = deployment.usd_per_replica_hour
    return EngineModel(
        step=step,
        replicas=deployment.replicas * depth * ranks,
        max_num_seqs=slots,
        max_num_batched_tokens=max(deployment.max_num_batched_tokens, slots),
        block_size=deployment.block_size,
        kv_blocks=max(1, blocks // depth),
        usd_per_replica_hour=None if price is None else price / (depth * ranks),
    )


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


def _memory(
    deployment: Deployment, held: tuple[float | None, tuple[Floats, Floats]], *, fitted: bool
) -> Memory | None:
    """Memory of a replica of the hardware named. `held`: mean final context, and lengths."""
    from sojourn.capacity import catalogue  # noqa: PLC0415 -- only where hardware is named
    from sojourn.capacity.memory import memory  # noqa: PLC0415 -- only where hardware is named

    model = catalogue.model(str(deployment.model))
    gpu = catalogue.gpu(str(deployment.accelerator))
    try:
        return memory(model, gpu, deployment, mean_context=held[0], lengths=held[1])
    except UsageError:
        if fitted:  # it runs, so our own account of its memory is what is wrong
            return None
        raise


def _kv_blocks(
    tables: Tables, config: Config, deployment: Deployment, memory: Memory | None
) -> tuple[int, Provenance]:
    """KV blocks of a rank and where the figure comes from.

    Memory knows how windows and states share the engine's own blocks: its tokens are those of
    whole contexts, as the simulator counts them.
    """
    blocks, provenance = flag("kv_blocks", tables, config)
    if memory is not None and memory.kv_tokens >= deployment.block_size:
        known = provenance if blocks else Provenance.CATALOGUE
        return memory.kv_tokens // deployment.block_size, known
    if blocks:
        return blocks, provenance
    context = _contexts(tables.calls)
    longest = float(context.max()) if context.size else float(deployment.max_model_len or 4096)
    return deployment.max_num_seqs * math.ceil(longest / deployment.block_size), Provenance.ASSUMED


def _lengths(calls: pa.Table) -> tuple[Floats, Floats]:
    """Input and output tokens of each call with known tokens."""
    inputs, outputs = floats(calls["input_tokens"]), floats(calls["output_tokens"])
    known = np.isfinite(inputs) & np.isfinite(outputs)
    return inputs[known], outputs[known]


def _contexts(calls: pa.Table) -> Floats:
    """Final context of each call with known tokens."""
    total = floats(calls["input_tokens"]) + floats(calls["output_tokens"])
    return total[np.isfinite(total)]
