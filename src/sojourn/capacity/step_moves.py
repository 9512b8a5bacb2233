"""Step times and KV blocks of a deployment other than the one that was fitted.

A fit knows the team's own engine, a hardware model knows every engine a little. Their product is
better than either: the fit, times what the hardware model says the change does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import EngineModel, Memory, StepModel, StepSpread
from sojourn.config import Deployment
from sojourn.errors import UsageError
from sojourn.interval import Excuse, Provenance

CHUNK: Final = 512
"""Prompt tokens at which prefill costs of two hardware models are compared."""
LEAST: Final = 1e-12


@dataclass(frozen=True)
class Hardware:
    """Model, accelerator and flags that a step time is asked for. `context`: mean tokens of a
    decoding sequence."""

    model: ModelSpec
    gpu: Gpu
    deployment: Deployment
    context: float | None = None

    def changed(self, gpu: Gpu | None = None, **update: Any) -> Hardware:  # noqa: ANN401  (fields)
        """The same with another accelerator or other flags."""
        deployment = self.deployment.model_copy(update=update)
        return replace(self, gpu=gpu or self.gpu, deployment=deployment)

    @property
    def gpus(self) -> int:
        """Accelerators of a replica."""
        d = self.deployment
        return d.tensor_parallel * d.pipeline_parallel * d.data_parallel

    @cached_property
    def step(self) -> StepModel | Excuse:
        """Step times of this hardware, by the best source that covers it."""
        from sojourn.capacity.step_sources import step_model  # noqa: PLC0415 -- only where asked

        return step_model(self.model, self.gpu, self.deployment, mean_context=self.context)

    @cached_property
    def roofline(self) -> StepModel:
        """Step times of the source that covers everything."""
        from sojourn.capacity import roofline  # noqa: PLC0415 -- only where asked

        return roofline.step_model(self.model, self.gpu, self.deployment, mean_context=self.context)

    @cached_property
    def memory(self) -> Memory | Excuse:
        """Memory of a replica whose KV blocks nobody told; an `Excuse` where the model does not
        fit."""
        from sojourn.capacity.memory import memory  # noqa: PLC0415 -- only where asked

        free = self.deployment.model_copy(update={"kv_blocks": None})
        try:
            found = memory(self.model, self.gpu, free, mean_context=self.context)
        except UsageError as error:
            return Excuse(reason=str(error))
        if found.kv_tokens < self.deployment.block_size:
            return Excuse(reason=f"{self.model.name} leaves no KV cache on {self.gpu.name}")
        return found


def moved_step(
    step: StepModel, before: Hardware, after: Hardware, *, quick: bool = False
) -> StepModel | Excuse:
    """The step times after a change of hardware or flags.

    A fit is multiplied, batch by batch, by the ratio of the hardware models after and before:
    decode base, slope and prompt costs each by their own; its spread is then that of the model
    after. Where nothing changes it is the fit itself. What came from a hardware model is asked
    anew. `quick`: of the source that takes a millisecond, not of the best. Wrong when: the fit's
    distance to its hardware model is of the *card* and not of the engine or the model (a throttled
    GPU): the change then carries it along.
    """
    if before == after:
        return step
    then = after.roofline if quick else after.step
    if isinstance(then, Excuse) or step.provenance is not Provenance.FITTED:
        return then
    now = before.roofline if quick else before.step
    if isinstance(now, Excuse):
        return now
    if _kind(now) != _kind(then):  # the ratio of two sources would hold their own distance
        now, then = before.roofline, after.roofline
    batches = step.batches
    base = [_ratio(_base(then, b), _base(now, b)) for b in batches]
    slope = [_ratio(_slope(then, b), _slope(now, b)) for b in batches]
    prompt = _ratio(then.prefill_step_s(CHUNK), now.prefill_step_s(CHUNK))
    attended = _ratio(then.prefill_s_per_token_context, now.prefill_s_per_token_context)
    return step.model_copy(
        update={
            "base_s": tuple(v * r for v, r in zip(step.base_s, base, strict=True)),
            "slope_s_per_token": tuple(
                v * r for v, r in zip(step.slope_s_per_token, slope, strict=True)
            ),
            "prefill_s_per_token": step.prefill_s_per_token * prompt,
            "prefill_s_per_token_context": step.prefill_s_per_token_context * attended,
            "prefill_base_s": tuple(v * prompt for v in step.prefill_base_s),
            "provenance": Provenance.INFERRED,
            "source": f"the fit, times the ratio of {then.source} to {now.source}",
            "held_out_error": None,
            "spread": _spread(then, step.batches),
        }
    )


def moved_blocks(engine: EngineModel, before: Hardware, after: Hardware) -> int | Excuse:
    """KV blocks after a change: today's, times the ratio of the pools that memory says.

    Where today's pool cannot be computed (the engine runs, so our account is off), or an engine
    stands for a part of a replica, that of after.
    """
    then = after.memory
    if isinstance(then, Excuse):
        return then
    now = before.memory
    size = engine.block_size
    apart = before.deployment.pipeline_parallel * before.deployment.data_parallel > 1
    if isinstance(now, Excuse) or apart:
        return max(1, then.kv_tokens // size)
    return max(1, round(engine.kv_blocks * then.kv_tokens / now.kv_tokens))


def moved_engine(
    engine: EngineModel, before: Hardware, after: Hardware, *, quick: bool = False
) -> EngineModel | Excuse:
    """The engine after a change: step times and KV blocks."""
    step = moved_step(engine.step, before, after, quick=quick)
    if isinstance(step, Excuse):
        return step
    blocks = moved_blocks(engine, before, after)
    if isinstance(blocks, Excuse):
        return blocks
    return engine.model_copy(update={"step": step, "kv_blocks": blocks, "memory": None})


def _spread(step: StepModel, batches: tuple[int, ...]) -> StepSpread | None:
    """The spread of a step model at other batches: that of the nearest one it has."""
    if step.spread is None:
        return None
    known = np.asarray(step.batches)
    nearest = [int(np.argmin(np.abs(known - batch))) for batch in batches]
    return step.spread.model_copy(
        update={"decode": tuple(step.spread.decode[place] for place in nearest)}
    )


def _kind(step: StepModel) -> str:
    """The source's own name: what stands before its first colon."""
    return step.source.split(":")[0]


def _base(step: StepModel, batch: int) -> float:
    return step.host_s + step.decode_step_s(batch, 0.0)


def _slope(step: StepModel, batch: int) -> float:
    return step.decode_step_s(batch, 1.0) - step.decode_step_s(batch, 0.0)


def _ratio(after: float, before: float) -> float:
    return float(np.clip(after / before, 1e-3, 1e3)) if before > LEAST else 1.0
