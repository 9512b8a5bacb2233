"""How much of a device each engine gives to its KV cache, and how it divides it.

vLLM: share x memory - weights - measured peak - what lies outside the framework.
SGLang: free memory before loading x mem_fraction_static - weights; the rest is for activations and
graphs. Windows get a pool of their own (swa_full_tokens_ratio), states another.
TensorRT-LLM: free_gpu_memory_fraction of what is free after weights and a dry run.
`deployment.gpu_memory_utilization` is the fraction of each.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from sojourn.capacity.memory_activations import (
    GRAPHS_INSIDE_SINCE,
    activation_bytes,
    forward_bytes,
    graphs_gib,
    non_torch_gib,
)
from sojourn.capacity.memory_knobs import Knobs
from sojourn.capacity.memory_kv import Group, Layout, held_blocks, kv_value_bytes, layout
from sojourn.capacity.memory_weights import device_weight_bytes, stage_share
from sojourn.capacity.model_records import AttentionKind, ModelSpec
from sojourn.config import Deployment
from sojourn.trace.arrays import Floats
from sojourn.units import GIB

CONTEXT_GIB: Final = 0.5
"""Taken before an engine measures: logs of H100 and A100 cards (79.2 GiB) begin with 78.57 to 78.84
free (vLLM, SGLang)."""
SGLANG_PARALLEL_GIB: Final = 1.1
"""Taken by communicators before SGLang measures and while it loads. Assumed: vLLM's log at TP 2
begins with 77.64 GiB; Qwen2.5-32B at TP 4 logs 15.54 GiB for a share of weights of 15.26."""
SGLANG_LOADING_GIB: Final = 0.1
"""What loading takes beside the weights: Llama-3.1-8B (14.99 GiB) logs 15.02 to 15.11."""
SGLANG_BY_CARD_SINCE: Final = (0, 4, 7)
"""From about here SGLang's default fraction follows the card; before, the ranks alone."""
SGLANG_BY_BATCH_SINCE: Final = (0, 5, 3)
"""From here it follows chunk and graph batch (sgl-project/sglang#10975, September 2025)."""
_BY_RANKS: Final = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
_BY_CARD: Final = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12.0, 0.5))
"""Card below so many GiB: GiB reserved, and more per rank; 32 GiB on larger cards."""
_MIB: Final = 1024**2
_SGLANG_CHUNK: Final = ((35, 2048), (60, 4096), (160, 8192), (math.inf, 16384))
_SGLANG_GRAPHS: Final = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))
"""Defaults by device memory in GiB; graphs below and from 4 tensor-parallel ranks."""


class Budget(NamedTuple):
    """So many blocks, and how many of them a request holds."""

    blocks: float
    layout: Layout

    def requests(self, held: float) -> float:
        """Requests that fit at once when each holds `held` blocks."""
        return self.blocks / held if held > 0 else math.inf


class Pool(NamedTuple):
    """The cache of one data-parallel rank. `bytes` over all its devices."""

    budgets: tuple[Budget, ...]
    bytes: float

    @property
    def main(self) -> Budget:
        """The budget that holds every token."""
        return self.budgets[0]

    def requests_at(self, context: float) -> float:
        """Requests of about `context` tokens that fit at once; blocks are half full at the end."""
        tokens = max(g.tokens for g in self.main.layout.groups)
        phases = context + tokens * (np.arange(16) + 0.5) / 16 - tokens / 2
        contexts = np.maximum(phases, 1.0)
        return min(b.requests(float(b.layout.blocks(contexts).mean())) for b in self.budgets)


def vllm_room(
    model: ModelSpec, memory_gib: float, deployment: Deployment, engine: Knobs, weights: float
) -> float:
    """Bytes of one device that vLLM leaves for its cache; `weights`: bytes it has loaded.

    Graphs are taken from it since 0.21; before, they need room beside the share.
    """
    if engine.kv_cache_gib is not None:
        return engine.kv_cache_gib * GIB
    total = memory_gib * GIB
    left = total - weights + engine.cpu_offload_gib * GIB
    left -= activation_bytes(model, deployment, engine) + non_torch_gib(model, deployment) * GIB
    unused = total * (1 - deployment.gpu_memory_utilization)
    graphs = graphs_gib(deployment, engine) * GIB
    if engine.older_than(*GRAPHS_INSIDE_SINCE):
        return left - max(unused, graphs)
    return left - unused - graphs


def sglang_fraction(memory_gib: float, deployment: Deployment, engine: Knobs) -> float:
    """mem_fraction_static: as set, else SGLang's own rule of its version.

    By ranks (0.88 for one, 0.81 for eight); then by card; since September 2025
    1 - (512 + 1.5 chunk + 2 graph batch + 128 tp pp, at least 10 GiB from 60 GiB up) / memory, in
    MiB; DP attention adds 3 (4.5 over 300) x graph batch x ranks. Source: SGLang's
    `server_args`. Wrong when: a vision model (less), or speculation (2 to 6 GiB more).
    """
    if "gpu_memory_utilization" in deployment.model_fields_set:
        return deployment.gpu_memory_utilization
    devices = deployment.tensor_parallel * deployment.data_parallel
    if engine.older_than(*SGLANG_BY_CARD_SINCE):
        return next(share for ranks, share in _BY_RANKS if devices >= ranks)
    if engine.older_than(*SGLANG_BY_BATCH_SINCE):
        ranks = devices * deployment.pipeline_parallel
        found = next(((fixed, each) for below, fixed, each in _BY_CARD if memory_gib < below), None)
        taken = 32.0 if found is None else found[0] + found[1] * ranks
        return round(1 - taken / memory_gib, 3)
    chunk = deployment.max_num_batched_tokens
    if "max_num_batched_tokens" not in deployment.model_fields_set:
        chunk = next(size for bound, size in _SGLANG_CHUNK if memory_gib < bound)
    batch = engine.graph_batch or sglang_graph_batch(memory_gib, devices)
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * batch
    reserved += devices * deployment.pipeline_parallel / 8 * 1024
    if deployment.data_parallel > 1:
        reserved += batch * deployment.data_parallel * (4.5 if batch > 300 else 3.0)
    if memory_gib > 60:
        reserved = max(reserved, 10 * 1024.0)
    return round(1 - reserved * _MIB / (memory_gib * GIB), 3)


def sglang_graph_batch(memory_gib: float, devices: int) -> int:
    """Largest batch SGLang captures by default."""
    for bound, few, many in _SGLANG_GRAPHS:
        if memory_gib < bound:
            return few if devices < 4 else many
    return 512


def sglang_room(memory_gib: float, deployment: Deployment, engine: Knobs, weights: float) -> float:
    """Bytes of one device for SGLang's pools."""
    parallel = deployment.tensor_parallel * deployment.data_parallel > 1
    before = memory_gib - CONTEXT_GIB - (SGLANG_PARALLEL_GIB if parallel else 0.0)
    fraction = sglang_fraction(memory_gib, deployment, engine)
    return (before * fraction - SGLANG_LOADING_GIB + engine.cpu_offload_gib) * GIB - weights


def trtllm_room(
    model: ModelSpec, memory_gib: float, deployment: Deployment, weights: float
) -> float:
    """Bytes of one device for TensorRT-LLM's cache: a fraction of what is free after a dry run.

    Source: TensorRT-LLM's KV cache documentation (free_gpu_memory_fraction, default 0.9).
    Wrong when: the engine was built with other limits than it serves with.
    """
    logits = deployment.max_num_seqs * model.vocab_size * 8
    used = weights + forward_bytes(model, deployment) + logits
    used += (CONTEXT_GIB + non_torch_gib(model, deployment)) * GIB
    return (memory_gib * GIB - used) * deployment.gpu_memory_utilization


def room_bytes(
    model: ModelSpec, memory_gib: float, deployment: Deployment, engine: Knobs, stage: int = 0
) -> float:
    """Bytes of one device of a pipeline stage that are left for the cache; may be negative."""
    weights = device_weight_bytes(model, deployment, stage)
    if engine.engine == "sglang":
        return sglang_room(memory_gib, deployment, engine, weights)
    if engine.engine == "trtllm":
        return trtllm_room(model, memory_gib, deployment, weights)
    return vllm_room(model, memory_gib, deployment, engine, weights)


def pool(model: ModelSpec, memory_gib: float, deployment: Deployment, engine: Knobs) -> Pool:
    """The cache of one data-parallel rank: the stage with the least room sets the count.

    `deployment.kv_blocks`, the engine's own count, wins over the account.
    """
    if engine.engine == "sglang":
        return _sglang_pool(model, memory_gib, deployment, engine)
    if engine.engine == "trtllm":  # windows are kept whole: no pool of their own is counted
        engine = engine._replace(hybrid_blocks=False)
    stages = range(deployment.pipeline_parallel)
    layouts = [layout(model, deployment, engine, stage) for stage in stages]
    blocks = deployment.kv_blocks
    if blocks is None:
        blocks = min(
            math.floor(
                max(0.0, room_bytes(model, memory_gib, deployment, engine, s)) / own.block_bytes
            )
            for s, own in zip(stages, layouts, strict=True)
        )
    size = sum(own.block_bytes for own in layouts) * blocks * deployment.tensor_parallel
    return Pool((Budget(blocks, layouts[0]),), size)


def _cell(model: ModelSpec, deployment: Deployment, *, windows: bool, stage: int) -> float:
    """Bytes of one token on one device, of window layers or of the others."""
    value = kv_value_bytes(deployment)
    share = stage_share(model, deployment.pipeline_parallel, stage)
    return share * sum(
        a.layers * a.kv_values_per_token * value / min(deployment.tensor_parallel, a.kv_heads)
        for a in model.attention
        if a.kind is not AttentionKind.LINEAR and (a.window is not None) is windows
    )


def _sglang_pool(
    model: ModelSpec, memory_gib: float, deployment: Deployment, engine: Knobs
) -> Pool:
    """SGLang: tokens of full layers, of window layers (a ratio of those), and slots of states."""
    stages = range(deployment.pipeline_parallel)
    rooms = [max(0.0, room_bytes(model, memory_gib, deployment, engine, s)) for s in stages]
    states = [
        stage_share(model, deployment.pipeline_parallel, s)
        * sum(
            a.layers * a.state_bytes_per_request / deployment.tensor_parallel
            for a in model.attention
            if a.kind is AttentionKind.LINEAR
        )
        for s in stages
    ]
    ratio, page = engine.state_ratio, deployment.block_size
    full = [_cell(model, deployment, windows=False, stage=s) for s in stages]
    window = [_cell(model, deployment, windows=True, stage=s) for s in stages]
    spread = engine.swa_ratio if min(full) > 0 else 1.0
    cells = [f + spread * w for f, w in zip(full, window, strict=True)]
    paged = [r / (1 + ratio) if s else r for r, s in zip(rooms, states, strict=True)]
    tokens = min((r / c for r, c in zip(paged, cells, strict=True) if c), default=0.0)
    pages = deployment.kv_blocks or math.floor(tokens / page)
    budgets = [Budget(pages, Layout(0.0, (Group(1, page),)))]
    widths = [a.window for a in model.attention if a.window is not None]
    if widths:
        group = Group(1, page, max(widths))
        budgets.append(Budget(pages * spread, Layout(0.0, (group,))))
    slots = 0
    if any(states):
        held = zip(rooms, states, strict=True)
        slots = min(math.floor(r * ratio / (1 + ratio) / s) for r, s in held if s)
        budgets.append(Budget(slots, Layout(0.0, (Group(1, page, state=True),))))
    size = (pages * page * sum(cells) + slots * sum(states)) * deployment.tensor_parallel
    return Pool(tuple(budgets), size)


def requests_of(pool_: Pool, inputs: Floats, outputs: Floats) -> float:
    """Requests that fit at once with lengths as given (see `memory_kv.held_blocks`)."""
    return min(b.requests(held_blocks(b.layout, inputs, outputs)) for b in pool_.budgets)
