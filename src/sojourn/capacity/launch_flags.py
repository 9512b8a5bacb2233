"""Flags of vLLM, SGLang and TensorRT-LLM that memory, time or load depend on, by one name each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Final

Value = str | int | float | bool
_HUMAN: Final = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)")
_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MOST_DIGITS: Final = 30
"""Longer is no count of anything, and may be more than a float holds."""


def human_integer(text: str) -> int:
    """`8192`, `32k` (32,000), `32K` (32,768), `25.6k` (25,600), as vLLM reads them.

    Raises:
        ValueError: something else.
    """
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a whole number such as 8192, 32k (32,000) or 32K (32,768)")
    scale = {**_DECIMAL, **_BINARY}.get(match[2], 1)
    if len(match[1]) > _MOST_DIGITS:
        raise ValueError(f"expected a number of up to {_MOST_DIGITS} digits")
    value = float(match[1]) * scale
    if value != int(value) or ("." in match[1] and match[2] in _BINARY):
        raise ValueError("expected a whole number (decimals take a lower-case k, m or g)")
    return int(value)


def _share(text: str) -> float:
    """`0.9`; a percent sign is taken at its word."""
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%").strip())
    except ValueError:
        raise ValueError("expected a share such as 0.9") from None
    if not math.isfinite(value):
        raise ValueError("expected a share such as 0.9")
    if plain.endswith("%"):
        raise ValueError(f"expected a share: {value:g}% is {value / 100:g}")
    return value


def _size_gb(text: str) -> float:
    try:
        return float(re.sub(r"(?i)\s*gi?b?$", "", text.strip()))
    except ValueError:
        raise ValueError("expected a size in GB such as 4") from None


def _truth(text: str) -> bool:
    low = text.strip().lower()
    if low in ("1", "true", "yes", "on"):
        return True
    if low in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected true or false")


def _word(text: str) -> str:
    return text.strip()


def json_object(text: str) -> dict[str, object]:
    """A JSON object.

    Raises:
        ValueError: no JSON, or no object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a JSON object: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 -- one kind of error per value
    return value


READ: Final[dict[str, Callable[[str], Value]]] = {
    "count": human_integer,
    "share": _share,
    "gb": _size_gb,
    "word": _word,
    "json": _word,
}
"""How a value of each kind is read; `on` and `off` take none."""

VLLM: Final[dict[str, tuple[str, str]]] = {
    "--model": ("model", "word"),
    "--model-tag": ("model", "word"),
    "--config": ("options_file", "word"),
    "--tensor-parallel-size": ("tensor_parallel", "count"),
    "-tp": ("tensor_parallel", "count"),
    "--pipeline-parallel-size": ("pipeline_parallel", "count"),
    "-pp": ("pipeline_parallel", "count"),
    "--data-parallel-size": ("data_parallel", "count"),
    "-dp": ("data_parallel", "count"),
    "--enable-expert-parallel": ("expert_parallel", "on"),
    "-ep": ("expert_parallel", "on"),
    "--no-enable-expert-parallel": ("expert_parallel", "off"),
    "--decode-context-parallel-size": ("decode_context_parallel", "count"),
    "-dcp": ("decode_context_parallel", "count"),
    "--enforce-eager": ("enforce_eager", "on"),
    "--no-enforce-eager": ("enforce_eager", "off"),
    "--dtype": ("dtype", "word"),
    "--quantization": ("quantization", "word"),
    "-q": ("quantization", "word"),
    "--kv-cache-dtype": ("kv_dtype", "word"),
    "--max-num-seqs": ("max_num_seqs", "count"),
    "--max-num-batched-tokens": ("max_num_batched_tokens", "count"),
    "--max-model-len": ("max_model_len", "count"),
    "--block-size": ("block_size", "count"),
    "--num-gpu-blocks-override": ("kv_blocks", "count"),
    "--gpu-memory-utilization": ("gpu_memory_utilization", "share"),
    "--kv-cache-memory-bytes": ("kv_cache_memory_bytes", "count"),
    "--kv-cache-memory": ("kv_cache_memory_bytes", "count"),
    "--swap-space": ("swap_space_gb", "gb"),
    "--cpu-offload-gb": ("cpu_offload_gb", "gb"),
    "--enable-prefix-caching": ("prefix_caching", "on"),
    "--no-enable-prefix-caching": ("prefix_caching", "off"),
    "--enable-chunked-prefill": ("chunked_prefill", "on"),
    "--no-enable-chunked-prefill": ("chunked_prefill", "off"),
    "--disable-hybrid-kv-cache-manager": ("disable_hybrid_blocks", "on"),
    "--no-disable-hybrid-kv-cache-manager": ("disable_hybrid_blocks", "off"),
    "--speculative-config": ("speculative", "json"),
    "-sc": ("speculative", "json"),
    "--speculative-model": ("draft_model", "word"),
    "--num-speculative-tokens": ("draft_tokens", "count"),
    "--skip-mm-profiling": ("skip_encoder", "on"),
    "--language-model-only": ("skip_encoder", "on"),
    "--limit-mm-per-prompt": ("image_limits", "word"),
    "--spec-method": ("speculative_method", "word"),
    "--spec-model": ("draft_model", "word"),
    "--spec-tokens": ("draft_tokens", "count"),
    "--max-cudagraph-capture-size": ("cuda_graph_max_bs", "count"),
    "--max-num-scheduled-tokens": ("max_scheduled_tokens", "count"),
    "--disable-sliding-window": ("disable_sliding_window", "on"),
    "--prefill-context-parallel-size": ("prefill_context_parallel", "count"),
    "-pcp": ("prefill_context_parallel", "count"),
    "--all2all-backend": ("all_to_all", "word"),
    "--kv-offloading-size": ("kv_offload_gb", "gb"),
    "--performance-mode": ("performance_mode", "word"),
    "--nnodes": ("nodes", "count"),
    "-cc": ("compilation", "json"),
    "--max-seq-len-to-capture": ("max_seq_len_to_capture", "count"),
    "--compilation-config": ("compilation", "json"),
    "--kv-transfer-config": ("kv_connector", "json"),
    "--scheduling-policy": ("scheduling_policy", "word"),
    "--long-prefill-token-threshold": ("long_prefill_threshold", "count"),
    "--max-num-partial-prefills": ("max_partial_prefills", "count"),
    "--async-scheduling": ("async_scheduling", "on"),
    "--no-async-scheduling": ("async_scheduling", "off"),
    "--num-scheduler-steps": ("scheduler_steps", "count"),
    "--mamba-ssm-cache-dtype": ("state_dtype", "word"),
    "--data-parallel-size-local": ("data_parallel_local", "count"),
    "-dpl": ("data_parallel_local", "count"),
}
SGLANG: Final[dict[str, tuple[str, str]]] = {
    "--model-path": ("model", "word"),
    "--model": ("model", "word"),
    "--config": ("options_file", "word"),
    "--tp-size": ("tensor_parallel", "count"),
    "--tensor-parallel-size": ("tensor_parallel", "count"),
    "--tp": ("tensor_parallel", "count"),
    "--pp-size": ("pipeline_parallel", "count"),
    "--pipeline-parallel-size": ("pipeline_parallel", "count"),
    "--pp": ("pipeline_parallel", "count"),
    "--dp-size": ("data_parallel", "count"),
    "--data-parallel-size": ("data_parallel", "count"),
    "--dp": ("data_parallel", "count"),
    "--ep-size": ("expert_parallel_size", "count"),
    "--expert-parallel-size": ("expert_parallel_size", "count"),
    "--ep": ("expert_parallel_size", "count"),
    "--enable-ep-moe": ("expert_parallel", "on"),
    "--enable-deepep-moe": ("expert_parallel", "on"),
    "--moe-a2a-backend": ("moe_all_to_all", "word"),
    "--enable-dp-attention": ("dp_attention", "on"),
    "--decode-context-parallel-size": ("decode_context_parallel", "count"),
    "--dcp-size": ("decode_context_parallel", "count"),
    "--disable-cuda-graph": ("enforce_eager", "on"),
    "--dtype": ("dtype", "word"),
    "--quantization": ("quantization", "word"),
    "--kv-cache-dtype": ("kv_dtype", "word"),
    "--mem-fraction-static": ("gpu_memory_utilization", "share"),
    "--max-running-requests": ("max_num_seqs", "count"),
    "--chunked-prefill-size": ("max_num_batched_tokens", "count"),
    "--max-prefill-tokens": ("max_prefill_tokens", "count"),
    "--max-total-tokens": ("kv_tokens", "count"),
    "--context-length": ("max_model_len", "count"),
    "--page-size": ("block_size", "count"),
    "--disable-radix-cache": ("prefix_caching", "off"),
    "--cpu-offload-gb": ("cpu_offload_gb", "gb"),
    "--cuda-graph-max-bs": ("cuda_graph_max_bs", "count"),
    "--swa-full-tokens-ratio": ("swa_full_tokens_ratio", "share"),
    "--mamba-full-memory-ratio": ("mamba_full_memory_ratio", "share"),
    "--disable-hybrid-swa-memory": ("disable_hybrid_blocks", "on"),
    "--speculative-algorithm": ("speculative", "word"),
    "--speculative-algo": ("speculative", "word"),
    "--speculative-draft-model-path": ("draft_model", "word"),
    "--speculative-num-draft-tokens": ("draft_tokens", "count"),
    "--schedule-policy": ("scheduling_policy", "word"),
    "--schedule-conservativeness": ("schedule_conservativeness", "share"),
    "--enable-mixed-chunk": ("mixed_chunk", "on"),
    "--disaggregation-mode": ("disaggregation", "word"),
    "--nnodes": ("nodes", "count"),
}
TRTLLM: Final[dict[str, tuple[str, str]]] = {
    "--model": ("model", "word"),
    "--checkpoint_dir": ("model", "word"),
    "--tp_size": ("tensor_parallel", "count"),
    "--tensor_parallel_size": ("tensor_parallel", "count"),
    "--pp_size": ("pipeline_parallel", "count"),
    "--pipeline_parallel_size": ("pipeline_parallel", "count"),
    "--ep_size": ("expert_parallel_size", "count"),
    "--moe_expert_parallel_size": ("expert_parallel_size", "count"),
    "--cluster_size": ("moe_cluster_size", "count"),
    "--enable_attention_dp": ("dp_attention", "on"),
    "--max_batch_size": ("max_num_seqs", "count"),
    "--max_num_tokens": ("max_num_batched_tokens", "count"),
    "--max_seq_len": ("max_model_len", "count"),
    "--max_input_len": ("max_input_len", "count"),
    "--tokens_per_block": ("block_size", "count"),
    "--kv_cache_free_gpu_memory_fraction": ("gpu_memory_utilization", "share"),
    "--kv_cache_free_gpu_mem_fraction": ("gpu_memory_utilization", "share"),
    "--free_gpu_memory_fraction": ("gpu_memory_utilization", "share"),
    "--kv_cache_dtype": ("kv_dtype", "word"),
    "--dtype": ("dtype", "word"),
    "--enable_chunked_prefill": ("chunked_prefill", "on"),
    "--extra_llm_api_options": ("options_file", "word"),
    "--config": ("options_file", "word"),
    "--kv_cache_config.free_gpu_memory_fraction": ("gpu_memory_utilization", "share"),
    "--kv_cache_config.enable_block_reuse": ("prefix_caching", "truth"),
    "--kv_cache_config.tokens_per_block": ("block_size", "count"),
    "--kv_cache_config.max_tokens": ("kv_tokens", "count"),
    "--kv_cache_config.dtype": ("kv_dtype", "word"),
    "--cuda_graph_config.max_batch_size": ("cuda_graph_max_bs", "count"),
    "--speculative_config.decoding_type": ("speculative", "word"),
    "--speculative_config.max_draft_len": ("draft_tokens", "count"),
    "--speculative_config.speculative_model": ("draft_model", "word"),
    "--speculative_config.speculative_model_dir": ("draft_model", "word"),
    "--backend": ("backend", "word"),
}
TABLES: Final = {"vllm": VLLM, "sglang": SGLANG, "trtllm": TRTLLM}
READ["truth"] = _truth

ENVIRONMENT: Final = {"VLLM_USE_FLASHINFER_SAMPLER": ("flashinfer_sampler", "truth")}
"""Variables that move memory."""

BESIDE: Final = re.compile(
    r"--?(?:no-)?(?:host|port|served|api|trust|token|chat|tool|reason|log|uvicorn|ssl|root-path"
    r"|allow|download|load|config-format|hf|revision|code-revision|seed|disable-log|enable-log"
    r"|enable-request|disable-request|enable-auto-tool|enable-prompt-tokens|enable-server-load"
    r"|otlp|collect|metric|enable-metrics|show-hidden|response|lora|enable-lora|max-lora|max-cpu-lora"
    r"|distributed-executor|worker|generation|override|limit-mm|mm-|media|interleave|disable-mm"
    r"|guided|structured|grammar|watchdog|random-seed|dist-|node|nccl|stream|enable-cache-report"
    r"|decode-log|crash|file-storage|sampling|attention-backend|mamba-backend|moe-runner|num-postprocess"
    r"|reader|tokenizer|gpus-per-node|server-role|metadata|head|data-parallel-(?:address|rpc|rank|start"
    r"|hybrid|external|backend)|skip|json-model|preferred|stat|warm|middleware|return|h11|enable-ssl"
    r"|log-level|disable-uvicorn|enable-sleep|io-processor|language-model-only|model-impl|max-log"
    r"|kv-events|ec-transfer|output|plugin|custom|enable-tokenizer|disable-frontend|device|workers"
    r"|profiler|use-|enable-ssl|shutdown|message|log_|num_postprocess|gpus_per_node|trust_remote"
    r"|enable-p2p|enable-torch|torch-compile|disaggregation-(?:ib|transfer|boot)|gated|dtype-|enable-dp-lm"
    r"|numa|sse|renderer|safetensors|ignore-pat|pt-load|master|cpu-distributed|ray-|jit-|kv-cache-metr"
    r"|cudagraph-metrics|enable-layerwise|enable-mfu|per-request|enable-per-request|fail-on|aggregate"
    r"|dp[nrapbhem]$|n$|r$|help$|h$|prefix-caching-hash|enable-force|fingerprint|runner|task|url|input"
    r"|served_|compilation-config\.|O\d?$)"
)
"""Flags that change neither time nor memory (names, addresses, logs, parsers): left out."""
SWITCHES: Final = re.compile(
    r"--?(?:enable|disable|no|trust|skip|use|return|async|enforce|interleave|allow-cred|stream-output"
    r"|h11-only|language-model-only|headless|crash-on|kv-sharing|kv-cache-metrics|cudagraph-metrics"
    r"|numa-bind|tokens-only|fully-sharded|specialize-active|mm-encoder-only|log-error|data-parallel"
    r"-(?:hybrid|external|multi)|dph|dpe|dpm|h|help|exclude-tools|fail-on|aggregate)(?:[-_][a-z-_]*)?|-O\d"
)
"""Flags that take no value unless one is joined with `=`."""
