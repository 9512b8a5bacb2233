"""From a row to the engine that is simulated: slots, token budget, KV blocks, order of work.

What a row tells wins; the rest is what that engine does by default, and a note says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import memory
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.policies import Order, Router, RouterPolicy, Scheduler
from sojourn.capacity.records import EngineModel, StepModel
from sojourn.config import Deployment
from sojourn.errors import SojournError

from .rows import Arrivals, Floats, Row

PLENTY: Final = 4_000_000
"""KV tokens where neither the row nor the memory account tells them."""
MIXED_CHUNK: Final = "--enable-mixed-chunk"
LEAST_BLOCKS: Final = 2
MOST_OF_MEMORY: Final = 0.97
RESERVING: Final = ("trtllm", "tensorrt")
"""Engines that admit a request only when its whole output will fit (no eviction)."""
V1: Final = (0, 8)
"""vLLM from this version on mixes chunks of prompts with decodes."""


@dataclass(frozen=True)
class Settings:
    """An engine of the simulator but for its step times, and what had to be assumed.

    `engines`: equal virtual engines of the whole deployment (replicas x DP ranks x pipeline
    depth), each with `slots` and `kv_tokens` of its own.
    """

    engines: int
    slots: int
    budget: int
    kv_tokens: int
    block: int
    order: Order
    long_prompt_cap: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def scheduler(self) -> Scheduler:
        """Whose turn it is in a step."""
        return Scheduler(order=self.order, long_prompt_cap=self.long_prompt_cap)

    def engine(self, step: StepModel) -> EngineModel:
        """With these step times."""
        return EngineModel(
            step=step,
            replicas=self.engines,
            max_num_seqs=self.slots,
            max_num_batched_tokens=max(self.budget, self.slots),
            block_size=self.block,
            kv_blocks=max(LEAST_BLOCKS, self.kv_tokens // self.block),
            scheduler=self.scheduler,
            router=Router(policy=RouterPolicy.LEAST_LOADED),
        )


def engine_name(deployment: Deployment) -> tuple[str, tuple[int, ...]]:
    """Engine and version: ("vllm", (0, 8, 5)); no numbers where none are told."""
    name, _, version = deployment.engine.partition(" ")
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    return name.casefold().replace("-", ""), numbers


def order_of(deployment: Deployment) -> tuple[Order, str | None]:
    """Whose turn it is, and what the simulator's order leaves out."""
    name, version = engine_name(deployment)
    if name == "sglang":
        if MIXED_CHUNK in (deployment.launch or ""):
            return Order.FCFS, "SGLang with mixed chunks: as vLLM's mixed steps"
        return Order.PREFILL_FIRST, None
    if name == "vllm" and version and version < V1:
        return Order.PREFILL_FIRST, "vLLM V0: prompts first, never mixed with decodes"
    if name in RESERVING:
        return Order.FCFS, "TensorRT-LLM: in-flight batching as mixed steps, contexts may be cut"
    return Order.FCFS, None


def settings(row: Row, model: ModelSpec, gpu: Gpu) -> Settings:
    """What runs the row."""
    deployment = row.deployment
    order, said = order_of(deployment)
    notes = [said] if said else []
    depth = deployment.pipeline_parallel
    lengths = (row.load.inputs.astype(np.float64), row.load.outputs.astype(np.float64))
    tokens, note = kv_tokens(model, gpu, deployment, lengths)
    if note:
        notes.append(note)
    slots = max(1, deployment.max_num_seqs // depth)
    tokens //= depth
    load = row.load
    longest = int((load.inputs + load.outputs).max()) + deployment.block_size
    if tokens < longest:
        notes.append("the KV pool computed holds less than the longest request: that much assumed")
        tokens = longest
    if engine_name(deployment)[0] in RESERVING:
        mean = float(np.mean(load.inputs + load.outputs))
        slots = max(1, min(slots, int(tokens / mean)))
    return Settings(
        engines=deployment.replicas * deployment.data_parallel * depth,
        slots=min(slots, len(load.inputs)) if load.arrivals is not Arrivals.CLOSED else slots,
        budget=deployment.max_num_batched_tokens,
        kv_tokens=tokens,
        block=deployment.block_size,
        order=order,
        notes=tuple(notes),
    )


def kv_tokens(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, lengths: tuple[Floats, Floats]
) -> tuple[int, str | None]:
    """KV tokens of one rank (with windows or states: tokens of context that fit at these input and
    output lengths), and a note where they are not the engine's own."""
    if deployment.kv_blocks is not None:
        return deployment.kv_blocks * deployment.block_size, None
    try:
        tokens = memory(model, gpu, deployment, lengths=lengths).kv_tokens
    except SojournError:
        return _tight(model, gpu, deployment, lengths)
    return (tokens, None) if tokens else (PLENTY, "no KV cache by the model's layout")


def _tight(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, lengths: tuple[Floats, Floats]
) -> tuple[int, str]:
    """KV tokens where the memory account says that the engine would not start, yet it did.

    It had hardly any room, so what the account reserves for activations is taken as small.
    """
    small = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": None}
    for share in (deployment.gpu_memory_utilization, MOST_OF_MEMORY):
        told = deployment.model_copy(update={**small, "gpu_memory_utilization": share})
        try:
            return memory(model, gpu, told, lengths=lengths).kv_tokens, (
                "by the memory account it does not fit, yet it ran: small activations assumed"
            )
        except SojournError:
            continue
    return 0, "by the memory account the weights do not fit, yet it ran: one request at a time"
