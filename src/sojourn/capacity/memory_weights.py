"""Bytes of weights: by dtype, and as tensor, pipeline, data and expert parallelism lay them out."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers, ModelSpec
from sojourn.config import Deployment
from sojourn.errors import UsageError

BYTES_PER_PARAMETER: Final = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": (4 + 16 / 128 + 4 / 128) / 8,  # scale (16 bit) and zero point per group of 128
    "mxfp4": (4 + 8 / 32) / 8,  # scale of 8 bits per block of 32
    "nvfp4": (4 + 8 / 16) / 8,  # scale of 8 bits per block of 16
}
UNQUANTISED_BYTES: Final = 2
"""Embedding, head, norms and vision encoder stay in 16 bits in every quantised checkpoint read."""
VOCABULARY_MULTIPLE: Final = 64
"""Rows of embedding and head are padded to a multiple of this (vLLM, SGLang)."""
MXFP4_MULTIPLE: Final = 256
"""The values (not the scales) of routed mxfp4 experts are padded to rows of a multiple of this:
gpt-oss, 2,880 wide, takes 6.3% more. vLLM 0.11.0 prints 13.47 and 64.38 GiB for its two models;
without padding they would take 12.82 and 60.8."""


def weight_dtype(model: ModelSpec, deployment: Deployment) -> str:
    """The dtype weights are held in: the deployment's when it quantises, else the checkpoint's.

    An engine loads a quantised checkpoint as it is, whatever 16-bit dtype is asked for.

    Raises:
        UsageError: the deployment names a dtype nobody knows.
    """
    asked = deployment.weight_dtype
    if asked not in BYTES_PER_PARAMETER:
        raise UsageError(
            f"deployment.weight_dtype {asked!r} is not known. Known:"
            f" {', '.join(BYTES_PER_PARAMETER)}"
        )
    if asked in ("bf16", "fp16") and model.checkpoint_dtype not in ("bf16", "fp16", "fp32"):
        return model.checkpoint_dtype
    return asked


def held_dtypes(model: ModelSpec, dtype: str) -> tuple[str, str]:
    """Formats of attention and of dense matrices when the model's weights are held in `dtype`.

    As the checkpoint's own record says where it is held as it is stored. Else: mxfp4 covers
    routed experts only; published 8- and 4-bit checkpoints of Llama 4 leave attention in 16 bits
    (RedHatAI and NVIDIA cards: self_attn is ignored), and so do NVFP4 checkpoints of models with
    latent attention (nvidia/DeepSeek-R1-FP4: MoE blocks only).
    Wrong when: an engine quantises such a model by itself on load (then all of it is).
    """
    attention, dense = model.part_dtype("attention", dtype), model.part_dtype("dense", dtype)
    if dtype == "mxfp4":
        dense = "bf16" if dense == dtype else dense
        return "bf16" if attention == dtype else attention, dense
    narrow = attention not in ("bf16", "fp16", "fp32")
    latent = any(a.kind is AttentionKind.LATENT for a in model.attention)
    if narrow and (model.architecture.startswith("llama4") or (attention == "nvfp4" and latent)):
        attention = "bf16"
    return attention, dense


def _expert_bytes(layers: MlpLayers, model: ModelSpec, dtype: str) -> float:
    """Of one layer's routed experts; padding of mxfp4 values and gpt-oss's biases counted."""
    own = model.part_dtype("experts", dtype)
    total = layers.expert_parameters * BYTES_PER_PARAMETER[own]
    if own == "mxfp4":
        padded = math.ceil(model.hidden_size / MXFP4_MULTIPLE) * MXFP4_MULTIPLE
        total += layers.expert_parameters * 0.5 * (padded / model.hidden_size - 1)
    if model.architecture == "gpt_oss":
        width = layers.expert_parameters // (3 * model.hidden_size)
        total += (2 * width + model.hidden_size) * UNQUANTISED_BYTES
    return layers.experts * total


def _vocabulary(model: ModelSpec) -> float:
    """By how much padding lengthens the vocabulary."""
    padded = math.ceil(model.vocab_size / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return padded / model.vocab_size


def weight_bytes(model: ModelSpec, dtype: str) -> float:
    """Bytes of all weights on one device: blocks in `dtype`, the rest in 16 bits.

    Source: layouts of published checkpoints (compressed-tensors, fp8, AWQ/GPTQ, mxfp4, nvfp4).
    Wrong when: a checkpoint leaves single layers in 16 bits (`held_dtypes` knows families).
    """
    wide = 4 if dtype == "fp32" else UNQUANTISED_BYTES
    attention, dense = (BYTES_PER_PARAMETER[own] for own in held_dtypes(model, dtype))
    return (
        model.attention_parameters * attention
        + model.dense_mlp_parameters * dense
        + sum(m.layers * _expert_bytes(m, model, dtype) for m in model.mlp)
        + (model.embedding_parameters + model.head_parameters) * wide * _vocabulary(model)
        + (model.norm_parameters + model.vision_parameters) * wide
    )


def key_value_copies(layer: AttentionLayers, model: ModelSpec, tensor_parallel: int) -> float:
    """Parameters of one layer that tensor-parallel ranks hold more than once, per rank.

    Ranks beyond the KV heads hold copies of key and value matrices; every rank holds the whole
    down-projection to the latent. Wrong when: queries are compressed too (their down-projection
    is copied as well; a config's `q_lora_rank` is not kept in the model's record).
    """
    if layer.kind is AttentionKind.LINEAR or tensor_parallel == 1:
        return 0.0
    own = model.hidden_size * layer.kv_values_per_token
    if layer.kind is AttentionKind.LATENT:
        return own * (1 - 1 / tensor_parallel)
    copies = max(1.0, tensor_parallel / layer.kv_heads)
    return own * (copies - 1) / tensor_parallel


def rope_table_bytes(model: ModelSpec, *, positions: int | None = None) -> float:
    """Bytes of the table of rotary cosines and sines that every device holds.

    positions x rotary size x 2 bytes, positions as the *model* states them, whatever
    max_model_len is: 2.5 GiB for Llama 4 Scout (10 million positions). Source: vLLM's
    RotaryEmbedding, and vllm-project/vllm#44738, which would cut it.
    Wrong when: only a part of a head rotates, or kinds of layers have a table each.
    """
    length = model.max_model_len if positions is None else positions
    size = max(
        (
            64 if a.kind is AttentionKind.LATENT else a.kv_values_per_token // (2 * a.kv_heads)
            for a in model.attention
            if a.kind is not AttentionKind.LINEAR
        ),
        default=0,
    )
    return float((length or 0) * size * 2)


def device_weight_bytes(model: ModelSpec, deployment: Deployment, stage: int = 0) -> float:
    """Bytes of weights on one device of pipeline stage `stage` (0: first).

    Attention, dense and shared matrices are cut by tensor parallelism and repeated on each
    data-parallel rank; routed experts are cut over all tensor x data ranks, by width or (expert
    parallel) whole. The first stage has the embedding, the last the head (a tied one again).
    Source: vLLM's parallel layers, its data-parallel deployment page; SGLang's DP attention.
    Wrong when: SGLang keeps dense layers cut over all devices under DP attention (it does unless
    told otherwise: less than counted), or redundant experts are set.
    """
    tp, pp = deployment.tensor_parallel, deployment.pipeline_parallel
    dtype = weight_dtype(model, deployment)
    wide = 4 if dtype == "fp32" else UNQUANTISED_BYTES
    attention, dense = (BYTES_PER_PARAMETER[own] for own in held_dtypes(model, dtype))
    ranks = tp * deployment.data_parallel
    blocks = 0.0
    for a in model.attention:
        own = a.parameters / tp + key_value_copies(a, model, tp)
        blocks += a.layers * own * attention
    for m in model.mlp:
        spread = _spread_experts(m, deployment, ranks)
        blocks += m.layers * (m.dense_parameters * dense / tp)
        blocks += m.layers * _expert_bytes(m, model, dtype) * spread
    total = blocks * stage_share(model, pp, stage) + model.norm_parameters * wide / pp
    outer = wide * _vocabulary(model) / tp
    if stage == 0:
        total += model.embedding_parameters * outer + model.vision_parameters * wide / tp
    if stage == pp - 1:
        tied = model.embedding_parameters if pp > 1 else 0
        total += (model.head_parameters or tied) * outer
    return total + rope_table_bytes(model)


def _spread_experts(layers: MlpLayers, deployment: Deployment, ranks: int) -> float:
    """Share of a layer's experts on one device; whole experts leave some devices one more."""
    if deployment.expert_parallel and layers.experts:
        return math.ceil(layers.experts / ranks) / layers.experts
    return 1 / ranks


def stage_share(model: ModelSpec, pipeline_parallel: int, stage: int) -> float:
    """Share of the layers in a stage: the remainder goes to the last stages but the very last.

    Source: vLLM's `get_pp_indices`.
    """
    layers = max(1, sum(a.layers for a in model.attention))
    whole, rest = divmod(layers, pipeline_parallel)
    longer = pipeline_parallel - 1 - rest <= stage < pipeline_parallel - 1
    return (whole + longer) / layers
