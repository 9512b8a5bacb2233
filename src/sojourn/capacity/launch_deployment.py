"""A `Launch` in the words of `Deployment`: what each engine means by its flags."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sojourn.capacity.launch_flags import Value
from sojourn.capacity.launch_records import Launch

_QUANTISATION: Final = (
    (r"nvfp4|modelopt_fp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8|modelopt$|w8a8_fp8|fbgemm", "fp8"),
    (r"int8|experts_int8|w8a8", "int8"),
    (r"awq|gptq|int4|bitsandbytes|w4a16|auto-round|autoround|hqq|torchao", "int4"),
)
_DTYPES: Final = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32",
                  "float32": "fp32"}  # fmt: skip
_KV: Final = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "fp8_inc": "fp8",
              "fp8_ds_mla": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}  # fmt: skip
SAME: Final = (
    "model", "pipeline_parallel", "enforce_eager", "max_num_seqs", "max_num_batched_tokens",
    "max_model_len", "block_size", "gpu_memory_utilization", "prefix_caching",
)  # fmt: skip
"""Names that mean the same in both."""


class Said(NamedTuple):
    """A value of `Deployment`, and the flag it comes from."""

    value: Value
    source: str


def quantised_dtype(method: str) -> str | None:
    """The weight format of a `--quantization` value; None where the checkpoint tells."""
    low = method.lower()
    return next((dtype for form, dtype in _QUANTISATION if re.search(form, low)), None)


def weights_dtype(asked: str) -> str | None:
    """The weight format of a `--dtype` value; None where the checkpoint tells."""
    return _DTYPES.get(asked.lower())


def said(launch: Launch) -> dict[str, Said]:
    """Keys of `Deployment` that the launch sets. `kv_tokens` is left to be cut into blocks."""
    found: dict[str, Said] = {}
    for name in (*SAME, "kv_blocks", "kv_tokens"):
        flag = launch.flag(name)
        if flag is not None and not (name == "max_model_len" and flag.value == -1):
            found[name] = Said(flag.value, f"launch: {flag.spelled} ({flag.where})")
    found |= _dtypes(launch)
    found |= _layout(launch)
    if launch.replicas is not None:
        found["replicas"] = Said(launch.replicas, f"launch: replicas of {launch.name}")
    if launch.accelerator is not None:
        found["accelerator"] = Said(launch.accelerator, f"launch: node selector of {launch.name}")
    if launch.engine is not None:
        version = f" {launch.version}" if launch.version else ""
        place = f"image {launch.image}" if launch.image else "command"
        found["engine"] = Said(f"{launch.engine}{version}", f"launch: {place}")
    budget = found.get("max_num_batched_tokens")
    if launch.engine == "sglang" and budget is not None and int(budget.value) < 1:
        prefill = launch.number("max_prefill_tokens") or 16_384
        found["max_num_batched_tokens"] = Said(
            int(prefill), f"{budget.source}: off, so max-prefill-tokens"
        )
    if launch.engine == "sglang" and launch.truth("dp_attention"):
        found |= _by_rank(found)
    return found


def _by_rank(found: dict[str, Said]) -> dict[str, Said]:
    """SGLang's DP attention divides slots and chunk of the whole server by its ranks."""
    ranks = int(found["data_parallel"].value) if "data_parallel" in found else 1
    names = [name for name in ("max_num_seqs", "max_num_batched_tokens") if name in found]
    return {
        name: Said(
            max(1, int(found[name].value) // max(1, ranks)), f"{found[name].source} / {ranks} ranks"
        )
        for name in names
    }


def _dtypes(launch: Launch) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for name in ("dtype", "quantization"):
        flag = launch.flag(name)
        if flag is None:
            continue
        text = str(flag.value).lower()
        own = weights_dtype(text) if name == "dtype" else quantised_dtype(text)
        if own is not None:
            found["weight_dtype"] = Said(own, f"launch: {flag.spelled} ({flag.where})")
    flag = launch.flag("kv_dtype")
    if flag is not None:
        text = str(flag.value).lower()
        found["kv_dtype"] = Said(_KV.get(text, text), f"launch: {flag.spelled} ({flag.where})")
    return found


def _layout(launch: Launch) -> dict[str, Said]:
    """Tensor, data and expert parallelism.

    SGLang's DP attention cuts its `--tp` devices into `--dp` ranks; TensorRT-LLM's makes each
    device a rank. vLLM counts data-parallel ranks beside tensor-parallel ones.
    """
    tensor, data = launch.flag("tensor_parallel"), launch.flag("data_parallel")
    found: dict[str, Said] = {}
    if tensor is not None:
        found["tensor_parallel"] = Said(tensor.value, f"launch: {tensor.spelled} ({tensor.where})")
    if data is not None:
        found["data_parallel"] = Said(data.value, f"launch: {data.spelled} ({data.where})")
    width = int(launch.number("tensor_parallel") or 1)
    attention = launch.flag("dp_attention")
    if attention is not None and attention.value and launch.engine in ("sglang", "trtllm"):
        ranks = width if launch.engine == "trtllm" else int(launch.number("data_parallel") or 1)
        source = f"launch: {attention.spelled} ({attention.where}) over {width} devices"
        if ranks >= 1 and width % ranks == 0:
            found["tensor_parallel"] = Said(width // ranks, source)
            found["data_parallel"] = Said(ranks, source)
    for name in ("expert_parallel", "expert_parallel_size", "moe_all_to_all"):
        flag = launch.flag(name)
        if flag is None:
            continue
        value = flag.value
        on = value if isinstance(value, bool) else value not in (1, "none")
        found["expert_parallel"] = Said(on, f"launch: {flag.spelled} ({flag.where})")
    return found
