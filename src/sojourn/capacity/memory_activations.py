"""What an engine holds beside weights and cache: activations at their peak, captured graphs, and
memory outside the framework's pool. Bytes of one device."""

from __future__ import annotations

from typing import Final

from sojourn.capacity.memory_knobs import Knobs
from sojourn.capacity.memory_weights import rope_table_bytes
from sojourn.capacity.model_records import AttentionKind, ModelSpec
from sojourn.capacity.vision import encoder_bytes
from sojourn.config import Deployment
from sojourn.units import GIB

SORTING_BYTES_PER_LOGIT: Final = 38.35
"""Peak memory of sampling one (sequence, vocabulary entry) by sorting: fp32 logits, their sort
(values and int64 indices), probabilities, cumulative sum, masks. Fitted: the activation peaks
vLLM 0.11.0 printed for Llama-3.1-8B, Qwen3-0.6B and gpt-oss-20b with its default of 1,024
sequences on an 80 GB card give 38.3 to 38.4 (Llama-3.3-70B is scored, not fitted).
Wrong when: the engine samples with fused kernels, or profiles fewer sequences."""
FUSED_BYTES_PER_LOGIT: Final = 15.7
"""The same by a fused kernel (FlashInfer, Triton): logits in 16 and 32 bits, probabilities, noise.
One printed peak: Mistral-Small-3.2-24B on vLLM 0.11.0 (2.12 GiB at 1,024 sequences)."""
FUSED_SINCE: Final = (0, 16)
"""vLLM up to 0.15 sorts unless VLLM_USE_FLASHINFER_SAMPLER is set (0.15.1's pools fit sorting);
0.22 prints `Using FlashInfer for top-p & top-k sampling`. Where it changed is assumed."""

COMBO_KERNELS_SINCE: Final = (0, 14)
"""From about here vLLM compiles with `benchmark_combo_kernel`: kernels are timed on a full-size
copy of what they read, so the peak holds one copy of the largest table they gather from (embedding,
or rotary table). Seen in nine pools of 0.15.1 (with it they close to 0.4% of device memory, without
it Llama-4-Scout misses 2.5 GiB) and in a log of 0.22.0; not in the peaks of 0.11.0, where sampling
is larger. Wrong when: the compiled graph came from its cache (a warm start holds no copy)."""

NON_TORCH_GIB: Final = 0.13
"""CUDA context and libraries outside PyTorch's pool, per GPU; as vLLM 0.11.0 prints at TP 1."""
NON_TORCH_PARALLEL_GIB: Final = 0.45
"""More of it when GPUs talk to each other (NCCL and custom all-reduce buffers): vLLM 0.11.0 prints
0.55 GiB in all at TP 2; pools of 0.15.1 leave 0.57 to 0.61 at TP 2 and 4."""

GATED_DELTA_GIB: Final = 1.2
"""More of it where gated-delta layers run (Triton kernels): logs leave about 0.7 (vLLM 0.22.0,
Qwen3.5-4B), 1.3 (0.10.2, Qwen3-Next-80B at TP 4) and 3.7 GiB (0.18.0, a 4B model): a middle."""

GRAPH_GIB: Final = 7.5e6 / GIB
"""Memory of one captured graph: vLLM 0.22.0 estimates 0.37 GiB for 54 (Qwen2.5-7B) and 0.64 for 86
(Qwen3.5-4B). Wrong when: large MoE models (0.61 GiB for 9 graphs seen) or fused all-reduces (1.97
GiB at TP 2 seen)."""
GRAPHS_INSIDE_SINCE: Final = (0, 21)
"""From here vLLM takes its estimate of graph memory from the pool; before, graphs lie outside the
memory share (its own start-up line says so: default since v0.21.0)."""


def forward_bytes(model: ModelSpec, deployment: Deployment) -> float:
    """Peak inside a layer: tokens x (4 hidden + 3 MLP/tp) x 2 bytes.

    Four tensors of hidden size live at once around the MLP (residual, input, output and its
    reduction), with gate, up and their product. Source: counting; pools of Llama-3.1-70B TP 4 on
    vLLM 0.15.1 at 8,192 tokens allow no more than 4.5 hidden. Wrong when: MoE kernels hold sorted
    copies (per routed token), or attention needs workspace of its own.
    """
    per_token = 4 * model.hidden_size + 3 * model.intermediate_size / deployment.tensor_parallel
    return deployment.max_num_batched_tokens * per_token * 2


def sampler_bytes(model: ModelSpec, deployment: Deployment, engine: Knobs) -> float:
    """Peak of sampling: sequences x vocabulary x bytes per logit (see the constants)."""
    fused = engine.flashinfer_sampler
    if fused is None:
        fused = not engine.older_than(*FUSED_SINCE)
    per_logit = FUSED_BYTES_PER_LOGIT if fused else SORTING_BYTES_PER_LOGIT
    sequences = min(deployment.max_num_seqs, deployment.max_num_batched_tokens)
    return sequences * model.vocab_size * per_logit


def table_copy_bytes(model: ModelSpec, deployment: Deployment, engine: Knobs) -> float:
    """The largest table that compiled kernels gather from, once (see `COMBO_KERNELS_SINCE`)."""
    if deployment.enforce_eager or engine.older_than(*COMBO_KERNELS_SINCE):
        return 0.0
    embedding = model.vocab_size * model.hidden_size * 2 / deployment.tensor_parallel
    return max(embedding, rope_table_bytes(model))


def activation_bytes(
    model: ModelSpec, deployment: Deployment, engine: Knobs | None = None
) -> float:
    """Peak of activations of one GPU in vLLM's profiling run, bytes.

    An image encoder runs first; what it returns is kept while the model runs. Of the model: the
    largest of forward pass, sampler and the compiler's copy, with hidden states of the whole
    budget kept (twice from 0.12 on: pools of Qwen2.5-7B at 1,024 and 2,048 tokens differ by
    2 x hidden x 2 bytes a token). Sampling happens on the last pipeline stage only.
    Wrong when: `vision.encoder_bytes` is.
    """
    engine = engine or Knobs()
    copies = 1 if engine.older_than(0, 12) else 2
    kept = deployment.max_num_batched_tokens * model.hidden_size * 2 * copies
    beside = max(
        sampler_bytes(model, deployment, engine), table_copy_bytes(model, deployment, engine)
    )
    encoder, encoded = (0.0, 0.0) if engine.text_only else encoder_bytes(model, deployment)
    return encoded + max(encoder, forward_bytes(model, deployment), beside + kept)


def non_torch_gib(model: ModelSpec, deployment: Deployment) -> float:
    """Memory outside the framework's pool on one device, GiB."""
    devices = deployment.tensor_parallel * deployment.pipeline_parallel * deployment.data_parallel
    linear = any(a.kind is AttentionKind.LINEAR for a in model.attention)
    kernels = GATED_DELTA_GIB if linear and model.architecture.startswith(_GATED_DELTA) else 0.0
    return NON_TORCH_GIB + (NON_TORCH_PARALLEL_GIB if devices > 1 else 0.0) + kernels


_GATED_DELTA: Final = ("qwen3_next", "qwen3_5", "kimi_linear")
"""Model types whose linear layers are gated-delta."""


def graph_sizes(largest: int) -> int:
    """How many batch sizes are captured up to `largest`: 1, 2, 4, then by 8, from 256 by 16."""
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + max(0, min(largest, 255) // 8) + max(0, (largest - 256) // 16 + 1)


def graphs_gib(deployment: Deployment, engine: Knobs) -> float:
    """Captured graphs on one device, GiB: mixed batches to twice max_num_seqs (at most 512), pure
    decodes to max_num_seqs. Source: the sizes in vLLM's start-up configuration."""
    if deployment.enforce_eager:
        return 0.0
    mixed = min(2 * deployment.max_num_seqs, 512, deployment.max_num_batched_tokens)
    if engine.graph_batch is not None:
        mixed = engine.graph_batch
    decode = min(deployment.max_num_seqs, mixed)
    return (graph_sizes(mixed) + graph_sizes(decode)) * GRAPH_GIB
