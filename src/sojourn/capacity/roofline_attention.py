"""Attention: what a decode reads of its context, and what a prompt token computes over its own."""

from __future__ import annotations

from sojourn.capacity.memory import kv_replication
from sojourn.capacity.model_records import AttentionKind, AttentionLayers
from sojourn.capacity.roofline_families import Kernel
from sojourn.capacity.roofline_setting import Setting

LATENT_COMPUTE = 0.55
"""Share of the 16-bit peak of latent decode kernels (one latent, all heads): measured shapes as in
`roofline_families`."""
STATE_PASSES = 2
"""A linear layer reads and writes its state."""
FLOPS_PER_STATE_VALUE = 8
"""Of chunked linear attention, per prompt token: within the chunk, and to and from the state."""


def closed(s: Setting, layer: AttentionLayers) -> bool:
    """Whether the window is full at the mean context, so that looking back costs a constant."""
    return layer.window is not None and layer.window <= s.context


def kv_bytes(s: Setting, layer: AttentionLayers) -> float:
    """Bytes of one cached token of these layers on one GPU."""
    copies = kv_replication(layer, s.tp)
    return layer.layers * layer.kv_values_per_token * s.value_bytes * copies / s.tp


def _kernel(s: Setting, layer: AttentionLayers) -> Kernel:
    kernel = s.family.attention["8" if s.value_bytes == 1 else "16"]
    compute = LATENT_COMPUTE if layer.kind is AttentionKind.LATENT else kernel.compute
    launch = kernel.launch_s * s.constants.launch
    return Kernel(launch, kernel.memory * s.constants.kv, compute, kernel.blend)


def token_s(s: Setting, layer: AttentionLayers) -> float:
    """One decode looking at one cached token of these layers."""
    flops = 2 * layer.layers * layer.score_decode / s.tp
    return _kernel(s, layer).work_s(s.read_s(kv_bytes(s, layer)), s.compute_s(flops, "bf16"))


def slope_s(s: Setting) -> float:
    """Seconds per context token of a decode: layers that look back all the way."""
    return sum(token_s(s, a) for a in s.model.attention if not closed(s, a))


def sequence_s(s: Setting) -> float:
    """What a decode reads per step whatever its context: closed windows, states in and out."""
    total = 0.0
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR:
            moved = STATE_PASSES * a.layers * a.state_bytes_per_request / s.tp
            total += s.read_s(moved) / s.constants.state
        elif closed(s, a) and a.window is not None:
            total += a.window * token_s(s, a)
    return total


def launches_s(s: Setting) -> float:
    """Fixed time of the attention kernels of a decode step."""
    return sum(a.layers * _kernel(s, a).launch_s for a in s.model.attention)


def _score_s(s: Setting, layer: AttentionLayers) -> float:
    flops = 2 * layer.layers * layer.score_prefill / s.tp
    share = s.family.prefill_attention * s.constants.prefill_attention
    return s.compute_s(flops, "bf16") / share


def prefill_token_s(s: Setting) -> float:
    """Per prompt token whatever its context: closed windows, linear layers."""
    total = 0.0
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR:
            flops = FLOPS_PER_STATE_VALUE * a.layers * a.state_bytes_per_request / 2 / s.tp
            total += s.compute_s(flops, "bf16") / s.constants.linear_flops
        elif closed(s, a) and a.window is not None:
            total += a.window * _score_s(s, a)
    return total


def prefill_context_s(s: Setting) -> float:
    """Per prompt token and token of its context."""
    return sum(_score_s(s, a) for a in s.model.attention if not closed(s, a))
