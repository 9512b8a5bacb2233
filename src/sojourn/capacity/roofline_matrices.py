"""Matrix products of a step: dense layers, routed experts, output head."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers
from sojourn.capacity.roofline_families import Kernel
from sojourn.capacity.roofline_links import VALUE_BYTES, exchange_s
from sojourn.capacity.roofline_setting import Setting, parameter_bytes

PRODUCTS: Final = {
    AttentionKind.FULL: 2,
    AttentionKind.SLIDING: 2,
    AttentionKind.LATENT: 5,
    AttentionKind.LINEAR: 5,
}
"""Matrix kernels of an attention layer: QKV and output; latent ones also absorb and expand, linear
ones convolve, update their state and gate."""
ELEMENT_BYTES: Final = 16
"""Moved per token and hidden value of a layer by its two normalisations and residual sums."""
ACTIVATION_BYTES: Final = 6
"""Moved per token and value of a feed-forward's width: gate and up in, product out."""
LOGIT_BYTES: Final = 4
ACTIVATION_SHARE: Final = 0.2
"""Of bandwidth, gathering and scattering rows of routed tokens; measured, as the kernels."""
BLOCKS: Final = {
    AttentionKind.FULL: 1.0,
    AttentionKind.SLIDING: 1.0,
    AttentionKind.LATENT: 2.0,
    AttentionKind.LINEAR: 2.5,
}
"""Kernels a layer launches, in those of a plain attention or feed-forward layer (about six)."""
ROUTED_BLOCKS: Final = 2.5
"""The same of a routed feed-forward layer: gate, sort, gather, two products, sum."""


def distinct_experts(layer: MlpLayers, tokens: float, spread: float = 1.0) -> float:
    """Mean number of experts that at least one of n tokens is sent to: E (1-(1-k/E)^(n^g)).

    Symbols: E experts, k per token, n `tokens`, g `spread`: 1 for independent uniform routing,
    below 1 because tokens of a batch (and popular experts) agree. Source: derived; g fitted.
    Wrong when: experts are balanced by force, or the batch is one text many times.
    """
    if not layer.experts or tokens <= 0:
        return 0.0
    alone = 1 - layer.experts_per_token / layer.experts
    return float(layer.experts * (1 - alone ** (tokens**spread)))


def product_s(
    s: Setting, kernel: Kernel, dtype: str, *, parameters: float, tokens: float, launches: float
) -> float:
    """Kernels that multiply `tokens` tokens with `parameters` matrix entries of one GPU.

    A layer's products take the hidden state in and give it back whole, whatever the shards; what
    lies between is sharded. Wrong when: a layer is not a pair of products (one third of its
    parameters per hidden value is then not the width between them).
    """
    hidden = s.model.hidden_size
    between = parameters / (3 * hidden)
    written = tokens * (hidden + 2 * between) * VALUE_BYTES
    moved = parameters * parameter_bytes(dtype) + written
    work = kernel.work_s(s.read_s(moved), s.compute_s(2 * tokens * parameters, dtype))
    taken = s.read_s(tokens * (hidden + between) * kernel.input_bytes)
    return launches * kernel.launch_s + work + taken


def attention_s(s: Setting, layer: AttentionLayers, tokens: float) -> float:
    """Projections of one attention layer."""
    dtype = s.format("attention")
    return product_s(
        s, s.kernel(dtype), dtype, parameters=layer.parameters / s.tp, tokens=tokens,
        launches=PRODUCTS[layer.kind],
    )  # fmt: skip


def feed_forward_s(s: Setting, layer: MlpLayers, tokens: float) -> float:
    """One feed-forward layer: its dense part, then its experts."""
    total = 0.0
    if layer.dense_parameters:
        dtype = s.format("dense")
        router = layer.experts and layer.dense_parameters <= 2 * s.model.hidden_size * layer.experts
        total += product_s(
            s, s.kernel("bf16" if router else dtype), "bf16" if router else dtype,
            parameters=layer.dense_parameters / s.tp, tokens=tokens,
            launches=1 if router else 2,
        )  # fmt: skip
    if layer.experts:
        total += experts_s(s, layer, tokens) + s.engine.routing_s
        total += exchange_s(s, tokens, layer.experts_per_token)
    return total


def busiest(mean: float, ranks: int, skew: float) -> float:
    """Largest of `ranks` loads whose mean is `mean`: mean + skew sqrt(2 mean ln ranks).

    Source: extreme value of independent Poisson counts (Gumbel), leading term; `skew` fitted.
    """
    return mean + skew * math.sqrt(2 * mean * math.log(ranks)) if ranks > 1 else mean


def experts_s(s: Setting, layer: MlpLayers, tokens: float) -> float:
    """Grouped products of one routed layer on the busiest GPU.

    `tokens` per data-parallel rank; all ranks' tokens meet at the experts. Whole experts per GPU
    under expert parallelism, a slice of each otherwise.
    """
    c = s.constants
    everyone = tokens * s.dp
    seen = distinct_experts(layer, everyone, c.routing)
    pairs = everyone * layer.experts_per_token
    own = float(layer.expert_parameters)
    if s.ep and s.ranks > 1:
        local = max(1.0, layer.experts / s.ranks)
        seen = min(busiest(seen / s.ranks, s.ranks, c.skew), local, pairs)
        pairs = min(busiest(pairs / s.ranks, s.ranks, c.skew), pairs)
    else:
        own /= s.ranks
    dtype = s.format("experts")
    kernel = s.kernel(dtype, experts=True)
    rows = pairs + kernel.padding * seen
    activations = pairs * (2 * s.model.hidden_size + own / s.model.hidden_size) * VALUE_BYTES
    work = kernel.work_s(
        s.read_s(seen * own * parameter_bytes(dtype)), s.compute_s(2 * rows * own, dtype)
    )
    return kernel.launch_s + work + s.read_s(activations) / ACTIVATION_SHARE


def small_s(s: Setting, tokens: float) -> float:
    """Normalisations, rotations, activations of all layers: shortest kernels, or their bytes."""
    width = sum((m.dense_parameters / (3 * s.model.hidden_size)) * m.layers for m in s.model.mlp)
    moved = tokens * (
        ELEMENT_BYTES * s.model.hidden_size * s.model.layers + ACTIVATION_BYTES * width / s.tp
    )
    fixed = s.engine.kernels * s.family.small_s * s.model.layers
    return fixed + s.read_s(moved) / s.constants.memory


def head_s(s: Setting, rows: float) -> float:
    """From hidden states to a token: the output matrix and the sampler, for `rows` sequences."""
    kernel = s.kernel("bf16")
    product = product_s(
        s, kernel, "bf16", parameters=s.model.output_parameters / s.tp, tokens=rows, launches=1
    )
    logits = rows * s.model.vocab_size * LOGIT_BYTES * s.constants.sampler_passes
    return product + s.read_s(logits)


def blocks_s(s: Setting, tokens: float) -> float:
    """All matrix products of the blocks and what lies between them, for `tokens` tokens."""
    return (
        sum(a.layers * attention_s(s, a, tokens) for a in s.model.attention)
        + sum(m.layers * feed_forward_s(s, m, tokens) for m in s.model.mlp)
        + small_s(s, tokens)
    )


def launched(s: Setting) -> float:
    """Plain blocks whose kernels take as long to launch as all of this model's."""
    return sum(a.layers * BLOCKS[a.kind] for a in s.model.attention) + sum(
        m.layers * (ROUTED_BLOCKS if m.experts else 1.0) for m in s.model.mlp
    )
