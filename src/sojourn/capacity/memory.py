"""Memory of one replica by part, the KV pool that is left, and how many requests it holds."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, ModelSpec
from sojourn.capacity.records import Memory
from sojourn.config import Deployment
from sojourn.errors import UsageError
from sojourn.units import GIB

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
KV_BYTES: Final = {"bf16": 2, "fp16": 2, "auto": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
UNQUANTISED_BYTES: Final = 2
"""Embedding, head, norms and vision encoder stay in 16 bits in every quantised checkpoint read."""

SAMPLER_BYTES_PER_LOGIT: Final = 38.4
"""Peak memory of sampling one (sequence, vocabulary entry): fp32 logits, their sort (values and
int64 indices), probabilities, cumulative sum, masks. Fitted: the activation peaks vLLM 0.11.0
printed for Llama-3.1-8B, Qwen3-0.6B and gpt-oss-20b with its default of 1,024 sequences on an
80 GB card give 38.4 to 38.9 (tests/capacity/test_memory.py prints the error; Llama-3.3-70B and
Mistral-Small are scored, not fitted).
Wrong when: the engine samples with fused kernels (no sort), or profiles fewer sequences."""

NON_TORCH_GIB: Final = 0.13
"""CUDA context and libraries outside PyTorch's pool, per GPU; as vLLM 0.11.0 prints at TP 1."""
NON_TORCH_PARALLEL_GIB: Final = 0.42
"""More of it when GPUs talk to each other (NCCL and custom all-reduce buffers); at TP 2 the same
engine prints 0.55 GiB."""
GRAPHS_GIB: Final = 0.5
"""CUDA graph pool per GPU. Assumed: engines print -0.8 to +0.4 GiB (their own difference of two
noisy readings). It lies outside the memory share up to vLLM 0.15, so it does not shrink the pool
while the share leaves that much."""


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


def weight_bytes(model: ModelSpec, dtype: str) -> float:
    """Bytes of all weights: blocks in `dtype`, the rest in 16 bits; mxfp4 covers experts only.

    Source: layouts of published checkpoints (compressed-tensors, fp8, AWQ/GPTQ, mxfp4).
    Wrong when: an engine pads experts (gpt-oss: +5% on Hopper) or skips single layers.
    """
    per = BYTES_PER_PARAMETER[dtype]
    blocks = per if dtype != "mxfp4" else UNQUANTISED_BYTES
    rest = UNQUANTISED_BYTES if dtype != "fp32" else 4
    other = model.parameters - model.block_parameters - model.expert_parameters
    return model.block_parameters * blocks + model.expert_parameters * per + other * rest


def kv_replication(layer: AttentionLayers, tensor_parallel: int) -> float:
    """How often a cached number is held: more ranks than KV heads means copies."""
    return max(1.0, tensor_parallel / layer.kv_heads)


def kv_bytes_per_token(model: ModelSpec, value_bytes: int, tensor_parallel: int = 1) -> float:
    """KV bytes of one token over the replica, while no window has closed.

    Sum over layers of 2 x KV heads x head size x bytes (latent attention: latent + rotary key),
    copies under tensor parallelism counted. Source: vllm-project/vllm#22291 and cases 04 to 06.
    Wrong when: contexts exceed a sliding window (see `kv_bytes`).
    """
    return sum(
        a.layers * a.kv_values_per_token * value_bytes * kv_replication(a, tensor_parallel)
        for a in model.attention
    )


def state_bytes_per_request(model: ModelSpec) -> float:
    """Constant bytes per request of linear-attention layers, over the replica (ranks split it).

    Wrong when: the engine pads state to its attention page (vLLM does; up to twice).
    """
    return float(
        sum(
            a.layers * a.state_bytes_per_request
            for a in model.attention
            if a.kind is AttentionKind.LINEAR
        )
    )


def kv_bytes(
    model: ModelSpec, context: float, value_bytes: int, *, tensor_parallel: int = 1, slack: int = 0
) -> float:
    """KV bytes a request of `context` tokens holds; a window layer keeps window + `slack` at most.

    `slack` is the token budget when the engine must be sure of a whole step (start-up check).
    """
    total = state_bytes_per_request(model)
    for a in model.attention:
        kept = context if a.window is None else min(context, a.window + slack)
        copies = kv_replication(a, tensor_parallel)
        total += a.layers * a.kv_values_per_token * value_bytes * copies * kept
    return total


def activation_bytes(model: ModelSpec, deployment: Deployment) -> float:
    """Peak of activations of one GPU, bytes: the larger of the forward pass and the sampler.

    forward = budget x (2 hidden + 2 MLP/tp) x 2 bytes (residual, input, gate and up together);
    sampler = max_num_seqs x vocabulary x 38.4 bytes. Source: see `SAMPLER_BYTES_PER_LOGIT`.
    Wrong when: a vision encoder is profiled too (add its own peak), or MoE kernels hold buffers.
    """
    per_token = 2 * model.hidden_size + 2 * model.intermediate_size / deployment.tensor_parallel
    forward = deployment.max_num_batched_tokens * per_token * 2
    sampler = deployment.max_num_seqs * model.vocab_size * SAMPLER_BYTES_PER_LOGIT
    kept = deployment.max_num_batched_tokens * model.hidden_size * 2
    return max(forward, sampler + kept)


def memory(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, *, mean_context: float | None = None
) -> Memory:
    """Memory of one replica by part.

    KV pool = share x memory - weights - activations - non-torch; the engine's own count of
    blocks (`deployment.kv_blocks`) wins when it is known. `overhead_gib` holds non-torch memory
    and what the share leaves unused, so that the parts sum to the whole. `kv_tokens` is as the
    engine prints it; `concurrency_at_profile` counts windows and constants at `mean_context`.

    Raises:
        UsageError: weights do not fit, or one request of max_model_len does not.
    """
    tp = deployment.tensor_parallel
    value_bytes = kv_value_bytes(deployment)
    total = gpu.memory_gib * tp
    weights = weight_bytes(model, weight_dtype(model, deployment)) / GIB
    activations = activation_bytes(model, deployment) * tp / GIB
    per_token = kv_bytes_per_token(model, value_bytes, tp)
    room = _room_gib(model, gpu, deployment, weights=weights, activations=activations)
    blocks = deployment.kv_blocks or math.floor(
        room * GIB / (per_token * deployment.block_size) if per_token else 0
    )
    tokens = blocks * deployment.block_size
    kv = tokens * per_token / GIB if per_token else max(room, 0.0)
    if kv > total - weights:
        raise UsageError(
            f"deployment.kv_blocks {blocks} of {deployment.block_size} tokens need {kv:.1f} GiB,"
            f" but {model.name} leaves {max(total - weights, 0):.1f} GiB on {tp} x {gpu.name}."
            " Check kv_blocks, block_size, kv_dtype and tensor_parallel"
        )
    _holds_one(model, deployment, tokens, value_bytes)
    graphs = min(GRAPHS_GIB * tp, total - weights - kv)
    activations = min(activations, total - weights - kv - graphs)
    at_max_len, at_profile = _concurrency(model, deployment, kv * GIB, mean_context)
    return Memory(
        total_gib=total,
        weights_gib=weights,
        activations_gib=activations,
        graphs_gib=graphs,
        overhead_gib=max(0.0, total - weights - activations - graphs - kv),
        kv_gib=kv,
        kv_bytes_per_token=per_token,
        kv_bytes_per_request=state_bytes_per_request(model),
        kv_tokens=tokens,
        concurrency_at_max_len=at_max_len,
        concurrency_at_profile=at_profile,
        source=_source(model, gpu, deployment),
    )


def _room_gib(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, *, weights: float, activations: float
) -> float:
    """What the memory share leaves for KV cache, GiB; graphs must still fit beside the share.

    Raises:
        UsageError: nothing is left and the engine's own count of blocks is not known.
    """
    tp = deployment.tensor_parallel
    non_torch = (NON_TORCH_GIB + (NON_TORCH_PARALLEL_GIB if tp > 1 else 0.0)) * tp
    left = gpu.memory_gib * tp - weights - activations - non_torch
    unused = gpu.memory_gib * tp * (1 - deployment.gpu_memory_utilization)
    room = left - max(unused, GRAPHS_GIB * tp)
    if room <= 0 and deployment.kv_blocks is None:
        raise UsageError(_does_not_fit(model, gpu, deployment, weights))
    return room


def _concurrency(
    model: ModelSpec, deployment: Deployment, pool_bytes: float, mean_context: float | None
) -> tuple[float | None, float | None]:
    """Requests that fit at once: at max_model_len as an engine counts it, and at a mean context
    (half a block lost to rounding)."""
    tp, value_bytes = deployment.tensor_parallel, kv_value_bytes(deployment)
    length = deployment.max_model_len or model.max_model_len
    longest = at_mean = None
    if length is not None:
        whole = -(-length // deployment.block_size) * deployment.block_size
        slack = deployment.max_num_batched_tokens
        longest = pool_bytes / kv_bytes(model, whole, value_bytes, tensor_parallel=tp, slack=slack)
    if mean_context is not None:
        held = mean_context + deployment.block_size / 2
        at_mean = pool_bytes / kv_bytes(model, held, value_bytes, tensor_parallel=tp)
    return longest, at_mean


def _holds_one(model: ModelSpec, deployment: Deployment, tokens: int, value_bytes: int) -> None:
    """An engine refuses to start when one request of max_model_len does not fit."""
    length = deployment.max_model_len
    if length is None:
        return
    tp = deployment.tensor_parallel
    need = kv_bytes(
        model,
        length,
        value_bytes,
        tensor_parallel=tp,
        slack=deployment.max_num_batched_tokens,
    )
    have = tokens * kv_bytes_per_token(model, value_bytes, tp)
    if have < need:
        raise UsageError(
            f"a request of max_model_len {length} tokens needs {need / GIB:.2f} GiB of KV cache,"
            f" the replica has {have / GIB:.2f} GiB ({tokens} tokens): the engine would not start."
            " Lower max_model_len, raise gpu_memory_utilization or tensor_parallel, or use fp8 KV"
        )


def _does_not_fit(model: ModelSpec, gpu: Gpu, deployment: Deployment, weights: float) -> str:
    dtype = weight_dtype(model, deployment)
    share = gpu.memory_gib * deployment.gpu_memory_utilization
    spare = share - activation_bytes(model, deployment) / GIB - NON_TORCH_GIB
    enough = 2 ** math.ceil(math.log2(weights / spare)) if spare > 0 else None
    advice = f"tensor_parallel {enough} or more" if enough else "a smaller token budget"
    return (
        f"{model.name} in {dtype} does not fit: weights {weights:.1f} GiB on"
        f" {deployment.tensor_parallel} x {gpu.name} with"
        f" {share * deployment.tensor_parallel:.1f} GiB usable leave no room for KV cache. Use"
        f" {advice}, a quantised weight_dtype, or a larger accelerator"
    )


def _source(model: ModelSpec, gpu: Gpu, deployment: Deployment) -> str:
    dtype = weight_dtype(model, deployment)
    pool = (
        "KV blocks as given by the engine"
        if deployment.kv_blocks
        else "KV pool computed from memory share, weights and activation model (vLLM rules)"
    )
    loaded = (
        "" if dtype == deployment.weight_dtype else f" (checkpoint is {dtype}, loaded as it is)"
    )
    return f"{pool}; {model.name} in {dtype}{loaded}; {gpu.name} catalogue row"
