"""Paged KV memory: how layers share one pool of blocks, and how many blocks a request holds.

An engine gives every kind of layer a block table of its own. Layers of one kind are put in groups
of equal size, all groups draw blocks from one pool, and a block has room for one page of every
layer of a group. Source: vLLM's `kv_cache_utils` and `kv_cache_interface` (read at 0.32, checked
against the prints of 0.22 for Qwen3.5-4B: 528 tokens in a block, 137.80 requests of 1,024).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from sojourn.capacity.memory_knobs import Knobs
from sojourn.capacity.memory_weights import stage_share
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, ModelSpec
from sojourn.config import Deployment
from sojourn.errors import UsageError
from sojourn.trace.arrays import Floats

KV_BYTES: Final = {
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16", "auto"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1),
}
STATE_MULTIPLE: Final = 16
"""A hybrid's block is lengthened to a multiple of so many tokens, until it holds a state."""
CHUNKED_IN_GROUPS_SINCE: Final = (0, 20)
"""Layers of chunked attention (Llama 4) keep every token up to here (0.15.1's blocks say so; 0.32
gives them groups). Where between the two it changed is assumed."""
PRINTS_AT_MAX_LEN_SINCE: Final = (0, 20)
"""From about here vLLM prints a hybrid's tokens as concurrency x max_model_len; before, as blocks
over groups (a log of April 2026 does, one of June does not)."""
_POINTS: Final = 8
"""Points at which a request's growth is looked at."""


class Group(NamedTuple):
    """`groups` groups of one kind of layer; `tokens` of context fill a block."""

    groups: int
    tokens: int
    window: int | None = None
    chunk: bool = False
    state: bool = False


class Layout(NamedTuple):
    """The pool of one device: bytes of a block, and the groups that draw blocks."""

    block_bytes: float
    groups: tuple[Group, ...]

    def blocks(self, context: Floats) -> Floats:
        """Blocks that a running request of so many tokens holds, windows closed."""
        total = np.zeros_like(context)
        for g in self.groups:
            full = np.ceil(context / g.tokens)
            if g.state:
                full = np.minimum(full, 1.0)
            elif g.window is not None:
                full = np.minimum(full, math.ceil((g.window - 1) / g.tokens) + 1)
            total += g.groups * full
        return total

    def admission_blocks(self, length: int, budget: int) -> int:
        """Blocks the engine reckons for one request of `length` tokens at start-up."""
        total = 0
        for g in self.groups:
            if g.state:
                own = 1
            elif g.window is None:
                own = math.ceil(length / g.tokens)
            elif g.chunk:
                own = math.ceil(min(g.window + budget, length) / g.tokens)
            else:
                own = math.ceil(min(g.window - 1 + budget, length) / g.tokens) + 1
            total += g.groups * own
        return total

    @property
    def uniform(self) -> bool:
        """Whether every layer keeps every token in one group: then tokens = blocks x block size."""
        return len(self.groups) == 1 and self.groups[0].groups == 1 and not self.groups[0].state


def kv_value_bytes(deployment: Deployment) -> int:
    """Bytes of one cached number.

    Raises:
        UsageError: the deployment names a dtype nobody knows.
    """
    try:
        return KV_BYTES[deployment.kv_dtype]
    except KeyError:
        raise UsageError(
            f"deployment.kv_dtype {deployment.kv_dtype!r} is not known. Known:"
            f" {', '.join(KV_BYTES)}"
        ) from None


def kv_replication(layer: AttentionLayers, tensor_parallel: int) -> float:
    """How often a cached number is held: more ranks than KV heads means copies."""
    return max(1.0, tensor_parallel / layer.kv_heads)


def kv_bytes_per_token(model: ModelSpec, value_bytes: float, tensor_parallel: int = 1) -> float:
    """KV bytes of one token over a tensor-parallel group, while no window has closed.

    Sum over layers of 2 x KV heads x head size x bytes (latent attention: latent + rotary key), and
    of what an indexer caches; copies under tensor parallelism counted. Source: the model classes
    of vLLM; vllm-project/vllm#22291 counts 0.164 GiB for 3,072 tokens of Qwen2.5-7B.
    Wrong when: contexts exceed a sliding window (see `kv_bytes`).
    """
    return sum(
        a.layers
        * (
            a.kv_values_per_token * value_bytes * kv_replication(a, tensor_parallel)
            + a.index_bytes_per_token * tensor_parallel
        )
        for a in model.attention
    )


def state_bytes_per_request(model: ModelSpec) -> float:
    """Constant bytes per request of layers with a state, over the replica (ranks split it).

    Wrong when: the engine pads state to its attention page (vLLM does; `Layout` counts it).
    """
    return float(sum(a.layers * a.state_bytes_per_request for a in model.attention))


def kv_bytes(
    model: ModelSpec, context: float, value_bytes: float, *, tensor_parallel: int = 1,
    slack: int = 0,
) -> float:  # fmt: skip
    """KV bytes a request of `context` tokens needs, blocks aside; a window layer keeps window +
    `slack` at most. `slack`: the token budget when the engine must be sure of a whole step."""
    total = state_bytes_per_request(model)
    for a in model.attention:
        kept = context if a.window is None else min(context, a.window + slack)
        copies = kv_replication(a, tensor_parallel)
        cached = a.kv_values_per_token * value_bytes * copies
        total += a.layers * (cached + a.index_bytes_per_token * tensor_parallel) * kept
    return total


def _page(layer: AttentionLayers, value_bytes: float, deployment: Deployment) -> float:
    """Bytes of one layer's page of `block_size` tokens on one device."""
    shared = min(deployment.tensor_parallel, layer.kv_heads)
    own = layer.kv_values_per_token * value_bytes / shared + layer.index_bytes_per_token
    return own * deployment.block_size


def chunked(model: ModelSpec) -> bool:
    """Whether windows are chunks of fixed borders (Llama 4), not a band that slides."""
    return model.architecture.startswith("llama4")


def layout(model: ModelSpec, deployment: Deployment, engine: Knobs, stage: int = 0) -> Layout:
    """Groups and block of one device of a pipeline stage (0: first).

    Layers that keep every token in equal pages are one group. With windows or states beside
    them, the group size is the fewest layers of a kind (the most, where all are within half of
    it); a hybrid's block is lengthened until one page of attention holds one state; kinds with
    smaller pages put more tokens into one (a whole number of times).
    Wrong when: an engine other than vLLM is asked (see `memory_engines`), or a connector, a draft
    model or a flag turns groups off (the flag is read).
    """
    dcp = engine.context_parallel
    share = stage_share(model, deployment.pipeline_parallel, stage)
    value = kv_value_bytes(deployment)
    linear = [a for a in model.attention if a.kind is AttentionKind.LINEAR]
    paged = [a for a in model.attention if a.kind is not AttentionKind.LINEAR]
    windows = {a.window for a in paged}
    apart = engine.hybrid_blocks is not False and not (
        chunked(model) and (not engine.version or engine.older_than(*CHUNKED_IN_GROUPS_SINCE))
    )
    tokens = deployment.block_size
    if not linear and (len(windows) <= 1 or not apart):
        size = sum(a.layers * _page(a, value, deployment) for a in paged) * share
        window = next(iter(windows)) if len(windows) == 1 else None
        return Layout(size, (Group(1, tokens * dcp, window),))
    page = max((_page(a, value, deployment) for a in paged), default=0.0)
    if linear:
        state = max(a.state_bytes_per_request for a in linear) / deployment.tensor_parallel
        tokens = _lengthened(tokens, page, state) if paged else tokens
        page = max(page * tokens / deployment.block_size, state)
    kinds = linear + paged if apart else linear + _joined(paged)
    size, counts = _grouped([a.layers for a in kinds])
    groups = tuple(
        Group(
            count,
            tokens=tokens * (dcp if a.window is None else 1) * _times(a, paged, value, deployment),
            window=a.window if apart else None,
            chunk=chunked(model),
            state=a.kind is AttentionKind.LINEAR,
        )
        for a, count in zip(kinds, counts, strict=True)
    )
    return Layout(page * math.ceil(size * share), groups)


def _times(
    layer: AttentionLayers, paged: list[AttentionLayers], value: int, deployment: Deployment
) -> int:
    """How many of this layer's own pages the common page holds; 1 where they do not divide."""
    if layer not in paged:
        return 1
    own = _page(layer, value, deployment)
    largest = max(_page(a, value, deployment) for a in paged)
    return round(largest / own) if own and largest % own == 0 else 1


def _joined(paged: list[AttentionLayers]) -> list[AttentionLayers]:
    """Attention layers as one kind: without groups, windows keep every token."""
    layers = sum(a.layers for a in paged)
    return [paged[0].model_copy(update={"layers": layers, "window": None})] if paged else []


def _lengthened(tokens: int, page: float, state: float) -> int:
    """Tokens of a block whose page of attention is at least one state."""
    per_token = page / tokens
    needed = math.ceil(state / per_token / STATE_MULTIPLE) * STATE_MULTIPLE
    return max(tokens, needed)


def _grouped(layers: list[int]) -> tuple[int, list[int]]:
    """Layers in a group, and how many groups each kind has."""
    size = min(layers)
    if max(layers) < size * 1.5:
        size = max(layers)
    return size, [math.ceil(count / size) for count in layers]


def held_tokens(inputs: Floats, outputs: Floats) -> float:
    """Context of a running request on average over its growth, weighted as in `held_blocks`."""
    steps = np.maximum(outputs, 1.0)
    return float(((inputs + steps / 2) * steps).sum() / steps.sum())


def held_blocks(pool: Layout, inputs: Floats, outputs: Floats) -> float:
    """Blocks a *running* request holds on average: over its growth, weighted by how long it runs.

    E = sum over requests and their decode steps of blocks(input + k), over all decode steps: long
    answers are met more often than they arrive. Inputs and outputs: tokens of each call, (n,).
    Time of a step is taken as equal; a prompt's own steps are left out (they are short).
    Wrong when: prefill is a large share of a request's time, or steps slow down with context.
    """
    steps = np.maximum(outputs, 1.0)
    total = np.zeros_like(steps)
    for point in range(_POINTS):
        total += pool.blocks(inputs + steps * (point + 0.5) / _POINTS)
    return float((total * steps).sum() / (_POINTS * steps.sum()))
