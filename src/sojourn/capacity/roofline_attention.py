"""Attention: what a decode reads of its context, and what a prompt token computes over its own."""

from __future__ import annotations

from sojourn.capacity.memory_kv import kv_replication
from sojourn.capacity.model_records import AttentionKind, AttentionLayers
from sojourn.capacity.roofline_families import Kernel
from sojourn.capacity.roofline_setting import Setting

LATENT_COMPUTE = 0.55
"""Share of the 16-bit peak of latent decode kernels (one latent, all heads): measured shapes as in
`roofline_families`."""
SPARSE_HEADS = 64
"""Query heads a sparse latent kernel works on at least (FlashMLA; 7,700 prompt tokens per second of
GLM-5 on eight H200 at any length, vLLM and SGLang alike, are told by it)."""
ROTARY = 64
"""Values of the rotary key of latent attention (all published configs)."""
STATE_PASSES = 2
"""A linear layer reads and writes its state."""
FLOPS_PER_STATE_VALUE = 8
"""Of chunked linear attention, per prompt token: within the chunk, and to and from the state."""


def reach(layer: AttentionLayers) -> int | None:
    """Tokens that one token looks at, at most; None: all."""
    return layer.window if layer.window is not None else layer.top_k


def closed(s: Setting, layer: AttentionLayers) -> bool:
    """Whether the reach is used up at the mean context, so that looking back costs a constant."""
    back = reach(layer)
    return back is not None and back <= s.context


def kv_bytes(s: Setting, layer: AttentionLayers) -> float:
    """Bytes of one cached token of these layers on one GPU."""
    copies = kv_replication(layer, s.tp)
    return layer.layers * layer.kv_values_per_token * s.value_bytes * copies / s.tp


def _kernel(s: Setting, layer: AttentionLayers) -> Kernel:
    kernel = s.family.attention["8" if s.value_bytes == 1 else "16"]
    compute = LATENT_COMPUTE if layer.kind is AttentionKind.LATENT else kernel.compute
    launch = kernel.launch_s * s.constants.launch
    return Kernel(launch, kernel.memory * s.constants.kv, compute, kernel.blend)


def latent_score(s: Setting, layer: AttentionLayers) -> float:
    """Multiply-adds of one token on one cached one in decode form, on one GPU: kernels for chosen
    tokens fill up to `SPARSE_HEADS` heads, however few tensor parallelism leaves."""
    if layer.top_k is None or layer.kind is not AttentionKind.LATENT:
        return layer.score_decode / s.tp
    head = 2 * layer.kv_values_per_token - ROTARY
    return max(layer.score_decode / s.tp, min(layer.score_decode, SPARSE_HEADS * head))


def token_s(s: Setting, layer: AttentionLayers) -> float:
    """One decode looking at one cached token of these layers."""
    flops = 2 * layer.layers * latent_score(s, layer)
    read = kv_bytes(s, layer)
    if s.untuned.cache and layer.kv_values_per_token:
        read *= max(1.0, layer.score_decode / layer.kv_values_per_token)
    return _kernel(s, layer).work_s(s.read_s(read), s.compute_s(flops, "bf16"))


def index_s(s: Setting, layer: AttentionLayers) -> float:
    """One decode choosing among cached tokens: per token that the indexer scores (every rank)."""
    kernel = s.family.attention["8"]
    flops = 2 * layer.layers * layer.index_score
    return kernel.work_s(
        s.read_s(layer.layers * layer.index_bytes_per_token), s.compute_s(flops, "fp8")
    )


def slope_s(s: Setting) -> float:
    """Seconds per context token of a decode: layers that look back all the way, and indexers."""
    return sum(index_s(s, a) + (0.0 if closed(s, a) else token_s(s, a)) for a in s.model.attention)


def sequence_s(s: Setting) -> float:
    """What a decode reads per step whatever its context: closed windows, states in and out."""
    total = 0.0
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR:
            moved = STATE_PASSES * a.layers * a.state_bytes_per_request / s.tp
            total += s.read_s(moved) / s.constants.state
        elif closed(s, a):
            total += (reach(a) or 0) * token_s(s, a)
    return total


def launches_s(s: Setting) -> float:
    """Fixed time of the attention kernels of a decode step."""
    return sum(a.layers * _kernel(s, a).launch_s for a in s.model.attention)


def _score_s(s: Setting, layer: AttentionLayers) -> float:
    sparse = layer.top_k is not None and closed(s, layer)  # gathered tokens: the decode form
    score = latent_score(s, layer) if sparse else layer.score_prefill / s.tp
    flops = 2 * layer.layers * score
    share = s.family.prefill_attention * s.constants.prefill_attention
    return s.compute_s(flops, "bf16") / share


def prefill_token_s(s: Setting) -> float:
    """Per prompt token whatever its context: closed windows, linear layers."""
    total = 0.0
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR:
            flops = FLOPS_PER_STATE_VALUE * a.layers * a.state_bytes_per_request / 2 / s.tp
            total += s.compute_s(flops, "bf16") / s.constants.linear_flops
        elif closed(s, a):
            total += (reach(a) or 0) * _score_s(s, a)
    return total


def prefill_context_s(s: Setting) -> float:
    """Per prompt token and token of its context."""
    share = s.family.prefill_attention * s.constants.prefill_attention
    indexed = sum(2 * a.layers * a.index_score for a in s.model.attention)
    looked = sum(_score_s(s, a) for a in s.model.attention if not closed(s, a))
    return looked + s.compute_s(indexed, "fp8") / share
