"""Step time from physics: bytes over bandwidth, FLOPs over peak, each with a fitted efficiency.

The last of three sources (fit from telemetry, measured operator tables, this): it works with
nothing but a config.json and an accelerator row. The efficiencies are constants below, fitted
once; `benchmarks/fit_roofline.py` fits them again and prints the errors by model and card, and
tests/capacity/test_roofline.py holds the errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import (
    BYTES_PER_PARAMETER,
    UNQUANTISED_BYTES,
    kv_replication,
    kv_value_bytes,
    weight_dtype,
)
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers, ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.config import Deployment
from sojourn.interval import Provenance

BATCHES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MEAN_CONTEXT: Final = 1024.0
"""Context at which sliding windows are linearised where the caller names none."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of peak that real kernels reach, and times that no peak explains.

    Shares lie in (0, 1], times are >= 0, so no prediction beats the physical limit. Fitted on
    1,117 public rows (vLLM 0.11 and later, SGLang, TensorRT-LLM; H100, H200, B200): median error
    12.0% and 10.4% on the two sets, 12.0% on groups left out of the fit. Wrong when: the engine
    is older than 2025 (more host time), the card is of another family, or MoE kernels are tuned
    for the shape (up to 40% shorter) or fall back to a generic one (up to 35% longer).
    """

    weights: float = 0.738  # of bandwidth, reading weights of dense matrices
    experts: float = 0.346  # of bandwidth, reading weights of routed experts
    kv: float = 0.757  # of bandwidth, reading the KV cache
    decode_flops: float = 0.35  # of peak, dense matrices at decode batches (bound of the fit)
    expert_flops: float = 0.20  # of peak, grouped expert matrices (bound of the fit)
    prefill_flops: float = 0.544  # of peak, matrices at prefill
    attention_flops: float = 0.50  # of 16-bit peak, prefill attention; assumed
    routing_spread: float = 0.70  # exponent on tokens in `distinct_experts` (bound of the fit)
    link: float = 0.60  # of one direction of the link, all-reduce; assumed
    host_step_s: float = 0.1e-3  # scheduler and launch, per step (bound of the fit)
    host_sequence_s: float = 17.6e-6  # sampling and bookkeeping, per sequence
    layer_s: float = 38.4e-6  # gaps between kernels and host work that grows with depth
    expert_layer_s: float = 1e-6  # routing of a routed layer (bound of the fit)
    all_reduce_s: float = 12.8e-6  # latency of one all-reduce over a fast link
    all_reduce_slow_s: float = 30e-6  # the same over PCIe; assumed
    front_s: float = 5e-3  # HTTP and tokenising before the queue; assumed


EFFICIENCY: Final = Efficiency()
FAST_LINK_BYTES_PER_S: Final = 200e9
"""Links at least this fast (NVLink, Infinity Fabric) have the low all-reduce latency."""


@dataclass(frozen=True)
class _Setting:
    model: ModelSpec
    gpu: Gpu
    tp: int
    dtype: str
    value_bytes: int
    context: float
    eff: Efficiency


def step_model(
    model: ModelSpec,
    gpu: Gpu,
    deployment: Deployment,
    *,
    mean_context: float | None = None,
    efficiency: Efficiency = EFFICIENCY,
) -> StepModel:
    """Step time tables of one replica, seconds.

    base(B) = host + gaps + all-reduces + max(weight bytes/(BW e), B FLOPs/(peak e)) + constants
    per sequence (closed windows, linear states); slope = KV bytes per context token/(BW e), or
    its FLOPs where larger; prefill per token = FLOPs/(peak e) + all-reduce bytes; per token x
    context = attention FLOPs. All divided by the tensor-parallel degree. Windows shorter than
    `mean_context` count as closed (constant), longer ones as open (growing).
    Source: roofline (Williams 2009) with efficiencies fitted on public measurements.
    Wrong when: contexts straddle a window, kernels are not the usual ones for the card, decode
    is speculative, or the engine runs without CUDA graphs (gaps grow several times).
    """
    s = _Setting(
        model=model,
        gpu=gpu,
        tp=deployment.tensor_parallel,
        dtype=weight_dtype(model, deployment),
        value_bytes=kv_value_bytes(deployment),
        context=MEAN_CONTEXT if mean_context is None else mean_context,
        eff=efficiency,
    )
    slope = _context_slope_s(s)
    return StepModel(
        batches=BATCHES,
        base_s=tuple(_base_s(s, batch) for batch in BATCHES),
        slope_s_per_token=tuple(slope for _ in BATCHES),
        prefill_s_per_token=_prefill_s(s),
        prefill_s_per_token_context=_prefill_context_s(s),
        front_s=efficiency.front_s,
        provenance=Provenance.CATALOGUE,
        source=f"roofline: {model.name} in {s.dtype} on {s.tp} x {gpu.name},"
        f" {deployment.engine}, efficiencies fitted on public measurements",
        valid_batch=(0, BATCHES[-1]),
        valid_context=(0, model.max_model_len or 0),
    )


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


def _block_bytes(s: _Setting) -> float:
    per = UNQUANTISED_BYTES if s.dtype == "mxfp4" else BYTES_PER_PARAMETER[s.dtype]
    return s.model.block_parameters * per + s.model.output_parameters * UNQUANTISED_BYTES


def weights_s(s: _Setting, tokens: float) -> float:
    """Time to multiply `tokens` tokens with every matrix they need.

    Dense and expert matrices are kernels of their own: each takes the longer of reading its
    bytes and doing its FLOPs.
    """
    model, eff = s.model, s.eff
    routed = model.active_block_parameters - model.block_parameters
    dense = model.block_parameters + model.output_parameters
    expert_bytes = (
        sum(
            m.layers * distinct_experts(m, tokens, eff.routing_spread) * m.expert_parameters
            for m in model.mlp
        )
        * BYTES_PER_PARAMETER[s.dtype]
    )
    bandwidth = s.gpu.bandwidth_bytes_per_s * s.tp
    peak = s.gpu.flops(s.dtype) * s.tp
    dense_peak = (s.gpu.bf16_flops if s.dtype == "mxfp4" else s.gpu.flops(s.dtype)) * s.tp
    return max(
        _block_bytes(s) / (bandwidth * eff.weights),
        2 * tokens * dense / (dense_peak * eff.decode_flops),
    ) + max(
        expert_bytes / (bandwidth * eff.experts), 2 * tokens * routed / (peak * eff.expert_flops)
    )


def _base_s(s: _Setting, batch: int) -> float:
    routed = sum(m.layers for m in s.model.mlp if m.experts)
    fixed = s.eff.host_step_s + s.eff.layer_s * s.model.layers + s.eff.expert_layer_s * routed
    tokens = max(batch, 1)
    return (
        fixed
        + s.eff.host_sequence_s * batch
        + _all_reduce_fixed_s(s)
        + _all_reduce_token_s(s) * batch
        + weights_s(s, tokens)
        + batch * _constant_read_s(s)
    )


def _all_reduce_fixed_s(s: _Setting) -> float:
    if s.tp == 1:
        return 0.0
    fast = s.gpu.link_bytes_per_s >= FAST_LINK_BYTES_PER_S
    return 2 * s.model.layers * (s.eff.all_reduce_s if fast else s.eff.all_reduce_slow_s)


def _all_reduce_token_s(s: _Setting) -> float:
    """Two ring all-reduces per layer of one token's hidden state: 2 (tp-1)/tp x bytes each."""
    if s.tp == 1:
        return 0.0
    moved = 2 * s.model.layers * 2 * (s.tp - 1) / s.tp * s.model.hidden_size * 2
    return moved / (s.gpu.link_bytes_per_s * s.eff.link)


def _closed(s: _Setting, layer: AttentionLayers) -> bool:
    return layer.window is not None and layer.window <= s.context


def _kv_share(s: _Setting, layer: AttentionLayers) -> float:
    """Bytes of one cached token of these layers on one GPU."""
    copies = kv_replication(layer, s.tp)
    return layer.layers * layer.kv_values_per_token * s.value_bytes * copies / s.tp


def _kv_token_s(s: _Setting, layer: AttentionLayers) -> float:
    """One decode looking at one cached token of these layers: bytes or FLOPs, the longer."""
    read = _kv_share(s, layer) / (s.gpu.bandwidth_bytes_per_s * s.eff.kv)
    flops = 2 * layer.layers * layer.score_decode / s.tp
    return max(read, flops / (s.gpu.bf16_flops * s.eff.decode_flops))


def _context_slope_s(s: _Setting) -> float:
    return sum(_kv_token_s(s, a) for a in s.model.attention if not _closed(s, a))


def _constant_read_s(s: _Setting) -> float:
    """What a sequence reads per step whatever its context: closed windows, states in and out."""
    total = 0.0
    for a in s.model.attention:
        if a.kind is AttentionKind.LINEAR:
            moved = 2 * a.layers * a.state_bytes_per_request / s.tp
            total += moved / (s.gpu.bandwidth_bytes_per_s * s.eff.kv)
        elif _closed(s, a) and a.window is not None:
            total += a.window * _kv_token_s(s, a)
    return total


def _prefill_s(s: _Setting) -> float:
    flops = 2 * s.model.active_block_parameters / s.tp
    linear = flops / (s.gpu.flops(s.dtype) * s.eff.prefill_flops)
    windows = sum(
        a.window * _score_s(s, a) for a in s.model.attention if _closed(s, a) and a.window
    )
    return linear + windows + _all_reduce_token_s(s)


def _score_s(s: _Setting, layer: AttentionLayers) -> float:
    flops = 2 * layer.layers * layer.score_prefill / s.tp
    return flops / (s.gpu.bf16_flops * s.eff.attention_flops)


def _prefill_context_s(s: _Setting) -> float:
    return sum(_score_s(s, a) for a in s.model.attention if not _closed(s, a))


def physical_floor_s(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, *, batch: int, context_sum: float
) -> float:
    """No decode step can be shorter, s: bytes at full bandwidth or FLOPs at peak, the longer.

    Source: definition of the peaks in the catalogue. Wrong when: weights stay in on-chip cache
    (models of a few hundred MB), or a speculative draft skips the model.
    """
    ideal = Efficiency(
        weights=1, experts=1, kv=1, decode_flops=1, expert_flops=1, prefill_flops=1,
        attention_flops=1, link=1, routing_spread=0, host_step_s=0, host_sequence_s=0,
        layer_s=0, expert_layer_s=0, all_reduce_s=0, all_reduce_slow_s=0, front_s=0,
    )  # fmt: skip
    dtype = weight_dtype(model, deployment)
    s = _Setting(
        model=model,
        gpu=gpu,
        tp=deployment.tensor_parallel,
        dtype=dtype,
        value_bytes=kv_value_bytes(deployment),
        context=0.0,
        eff=ideal,
    )
    growing = sum(
        _kv_share(s, a) for a in model.attention if a.window is None
    )  # a closed window reads less; leaving it out keeps this a floor
    return max(weights_s(s, batch), growing * context_sum / gpu.bandwidth_bytes_per_s)
