"""What an engine takes where no flag is set, by engine, version and card.

vLLM: read from its source at 0.32.0 and, for 0.8 to 0.11, from its optimisation pages and printed
start-up lines (0.11.0 on an H100: 1,024 sequences; 0.22.0 on a 44 GiB card outside a server: 2,048
tokens). SGLang and TensorRT-LLM: from `server_args.py` and `llmapi/llm_args.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from sojourn.capacity.launch_flags import Value

_LARGE_GIB = 70.0
_HUGE_GIB = 160.0


class Default(NamedTuple):
    """A value and the sentence that says why."""

    value: Value
    source: str


def defaults(
    engine: str,
    version: tuple[int, ...],
    *,
    memory_gib: float | None = None,
    card: str = "",
) -> dict[str, Default]:
    """Defaults by sojourn's names; those that depend on an unknown card are left out."""
    if engine == "sglang":
        return _sglang(memory_gib)
    if engine == "trtllm":
        return _trtllm()
    return _vllm(version, memory_gib, card)


def _vllm(version: tuple[int, ...], memory_gib: float | None, card: str) -> dict[str, Default]:
    label = f"vLLM {'.'.join(map(str, version))}" if version else "vLLM (version not named)"
    if version and version < (0, 8):
        source = f"default of {label} (V0 engine)"
        return {
            "max_num_seqs": Default(256, source),
            "max_num_batched_tokens": Default(2048, f"{source}; max_model_len if larger"),
            "block_size": Default(16, source),
            "gpu_memory_utilization": Default(0.9, source),
            "prefix_caching": Default(value=False, source=source),
            "chunked_prefill": Default(value=False, source=source),
        }
    source = f"default of {label}"
    share = 0.92 if version >= (0, 32) else 0.9
    found = {
        "block_size": Default(16, source),
        "gpu_memory_utilization": Default(share, source),
        "prefix_caching": Default(value=True, source=f"{source} (on since V1)"),
        "chunked_prefill": Default(value=True, source=f"{source} (on since V1)"),
    }
    if memory_gib is not None:
        large = memory_gib >= _LARGE_GIB and "a100" not in card.lower()
        budget = 8192 if large else 2048
        if memory_gib >= _HUGE_GIB and (not version or version >= (0, 20)):
            budget = 16_384
        kind = "cards from 70 GiB up, no A100" if large else "smaller cards and the A100"
        found["max_num_seqs"] = Default(1024 if large else 256, f"{source}, server, {kind}")
        found["max_num_batched_tokens"] = Default(budget, f"{source}, server, {kind}")
    return found


def _sglang(memory_gib: float | None) -> dict[str, Default]:
    source = "default of SGLang"
    found = {
        "block_size": Default(1, f"{source} (page size; some attention backends take more)"),
        "prefix_caching": Default(value=True, source=f"{source} (radix cache)"),
        "chunked_prefill": Default(value=True, source=source),
        "max_num_seqs": Default(2048, f"{source} (its floor; up to 4,096 by pool and context)"),
    }
    if memory_gib is not None:
        bounds = ((35, 2048), (60, 4096), (160, 8192))
        chunk = next((size for bound, size in bounds if memory_gib < bound), 16_384)
        found["max_num_batched_tokens"] = Default(chunk, f"{source} for {memory_gib:.0f} GiB")
    return found


def _trtllm() -> dict[str, Default]:
    source = "default of TensorRT-LLM"
    return {
        "max_num_seqs": Default(2048, f"{source} (max_batch_size)"),
        "max_num_batched_tokens": Default(8192, f"{source} (max_num_tokens)"),
        "block_size": Default(32, f"{source} (tokens_per_block)"),
        "gpu_memory_utilization": Default(0.9, f"{source} (share of what is free)"),
        "prefix_caching": Default(value=True, source=f"{source} (block reuse)"),
    }
