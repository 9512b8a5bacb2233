"""What to look up in the operator tables for a model, a card and a deployment.

A model is found by its shape among the configs the package carries, or written as a config.json of
a family whose layers it knows; the number formats are tried in the order engines choose them.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from sojourn.capacity import silicon_tables
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.memory import kv_value_bytes, weight_dtype
from sojourn.capacity.model_config import parse_config
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, ModelSpec
from sojourn.capacity.silicon_tables import KnownModel, Query, Refused
from sojourn.config import Deployment
from sojourn.errors import InputError

SYSTEMS: Final = {
    "h100sxm": "h100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "a10080gbsxm": "a100_sxm",
    "l40s": "l40s",
    "rtxpro6000": "rtx_pro_6000_server",
}
"""Cards with tables, by catalogue name in small letters and digits."""
BLACKWELL: Final = ("b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000_server")
BANDWIDTH_TOLERANCE: Final = 0.2
"""A card whose bandwidth differs more from the tables' card is another one of that name."""
BACKENDS: Final = ("vllm", "sglang", "trtllm")
ENGINES: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt": "trtllm"}


@dataclass(frozen=True)
class Asked:
    """The queries to try, in order, and what is said of them."""

    queries: tuple[Query, ...]
    system: str
    backend: str
    like: str


def asked(model: ModelSpec, gpu: Gpu, deployment: Deployment) -> Asked:
    """The queries for a deployment.

    Raises:
        Refused: the card, the engine or the model's family has no tables.
    """
    system = _system(gpu)
    backend = _backend(deployment)
    dtype = weight_dtype(model, deployment)
    found = _known(model, dtype)
    if found is None:
        path, like = _written(model), f"a config of its shape ({model.architecture})"
        inferred = False
    else:
        path, like = found.name, found.name
        inferred = _dtype(found) == dtype
    formats = _formats(dtype, system, inferred=inferred)
    experts = any(m.experts for m in model.mlp)
    dp = deployment.data_parallel if experts else 1
    width = deployment.tensor_parallel * dp if experts else 1
    ep = width if deployment.expert_parallel else 1
    kv = "fp8" if kv_value_bytes(deployment) == 1 else "bfloat16"
    queries = tuple(
        Query(
            model=path, system=system, backend=backend, tp=deployment.tensor_parallel,
            pp=deployment.pipeline_parallel, dp=dp, moe_tp=width // ep, moe_ep=ep,
            gemm=gemm, moe=moe, kv=cache_format, fmha=fmha,
        )
        for cache_format in (kv, "bfloat16" if kv == "fp8" else "fp8")
        for gemm, moe in formats
        for fmha in (("fp8", "bfloat16") if dtype != "bf16" and cache_format == "fp8" else
                     ("bfloat16",))
    )  # fmt: skip
    return Asked(queries=queries, system=system, backend=backend, like=like)


def _key(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _system(gpu: Gpu) -> str:
    names = (gpu.name, *gpu.aliases)
    found = next((SYSTEMS[key] for name in names if (key := _key(name)) in SYSTEMS), None)
    if found is None:
        raise Refused(f"no operator tables for {gpu.name}")
    listed = silicon_tables.system_bandwidth(found)
    if abs(gpu.bandwidth_bytes_per_s / listed - 1) > BANDWIDTH_TOLERANCE:
        raise Refused(
            f"the tables' {found} has {listed / 1e12:.2f} TB/s, {gpu.name}"
            f" {gpu.bandwidth_bytes_per_s / 1e12:.2f} TB/s: another card"
        )
    return found


def _backend(deployment: Deployment) -> str:
    words = deployment.engine.casefold().replace("-", "").replace("_", "").split()
    name = words[0] if words else ""
    found = next((own for key, own in ENGINES.items() if name.startswith(key)), None)
    if found is None:
        raise Refused(f"no operator tables for engine {deployment.engine!r}")
    return found


@dataclass(frozen=True)
class _Shape:
    known: KnownModel
    spec: ModelSpec


@cache
def _shapes() -> tuple[_Shape, ...]:
    """Configs the package carries that we can read, as ours."""
    found = []
    for known in silicon_tables.known_models():
        try:
            spec = parse_config(known.config, name=known.name, source="operator tables")
        except InputError:
            continue
        found.append(_Shape(known, spec))
    return tuple(found)


def _dtype(shape: KnownModel) -> str:
    """Format of its weights: what the second file says wins over config.json."""
    named = {"FP8": "fp8", "NVFP4": "nvfp4", "MIXED_PRECISION": "nvfp4"}
    if shape.quantised is not None:
        return named.get(shape.quantised.upper(), "")
    return next(s.spec.checkpoint_dtype for s in _shapes() if s.known.name == shape.name)


def _known(model: ModelSpec, dtype: str) -> KnownModel | None:
    """A config with the same layers, best one with the same weight format; None without one."""
    same = [
        s.known
        for s in _shapes()
        if s.spec.attention == model.attention
        and s.spec.mlp == model.mlp
        and s.spec.vocab_size == model.vocab_size
        and s.spec.architecture == model.architecture
    ]
    return min(same, key=lambda k: (_dtype(k) != dtype, k.name), default=None)


_FAMILIES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
}
"""Model types whose layers the package can build from a config.json, and the class it builds."""


def _written(model: ModelSpec) -> str:
    """Folder with a config.json of the model's shape.

    Raises:
        Refused: the family is none the package can build from a shape.
    """
    family = _FAMILIES.get(model.architecture)
    if family is None:
        raise Refused(f"the operator tables know no model of the shape of {model.name}"
                      f" ({model.architecture})")  # fmt: skip
    config = {"architectures": [family], **_config(model)}
    text = json.dumps(config, sort_keys=True)
    folder = _scratch() / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sojourn-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _config(model: ModelSpec) -> dict[str, Any]:
    """The fields of config.json that the package reads, from the shape.

    Raises:
        Refused: the layers are not all of one kind of softmax attention.
    """
    full = [a for a in model.attention if a.kind is AttentionKind.FULL]
    if len(full) != 1 or len(model.attention) != 1:
        kinds = ", ".join(sorted({a.kind.value for a in model.attention}))
        raise Refused(
            f"the operator tables know no model of the shape of {model.name} (attention: {kinds})"
        )
    heads = _heads(full[0])
    routed = [m for m in model.mlp if m.experts]
    dense = [m for m in model.mlp if not m.experts]
    if len(model.mlp) != 1:
        raise Refused(f"the operator tables know no model of the shape of {model.name}"
                      " (layers with and without experts)")  # fmt: skip
    config: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "num_hidden_layers": full[0].layers,
        "max_position_embeddings": model.max_model_len or 131_072,
        **heads,
    }
    if dense:
        config["intermediate_size"] = dense[0].dense_parameters // (3 * model.hidden_size)
    if routed:
        wide = routed[0].expert_parameters // (3 * model.hidden_size)
        config |= {
            "num_experts": routed[0].experts,
            "num_experts_per_tok": routed[0].experts_per_token,
            "moe_intermediate_size": wide,
            "intermediate_size": wide,
        }
    return config


def _heads(layer: AttentionLayers) -> dict[str, int]:
    """Query heads, KV heads and head size of a softmax layer, from what it caches and computes:
    2 x KV heads x size values per token, 2 x heads x size multiply-adds per score."""
    size = layer.kv_values_per_token // (2 * layer.kv_heads)
    return {
        "num_attention_heads": layer.score_prefill // (2 * size),
        "num_key_value_heads": layer.kv_heads,
        "head_dim": size,
    }


def _formats(
    dtype: str, system: str, *, inferred: bool
) -> tuple[tuple[str | None, str | None], ...]:
    """(dense, experts) formats in the package's words, in the order to try.

    Raises:
        Refused: it has no tables of the format.
    """
    fp4 = system in BLACKWELL
    explicit: dict[str, tuple[tuple[str | None, str | None], ...]] = {
        "bf16": (("bfloat16", "bfloat16"),),
        "fp16": (("bfloat16", "bfloat16"),),
        "fp8": (
            ("fp8", "fp8"),
            ("fp8_static", "fp8"),
            ("fp8_block", "fp8_block"),
            ("fp8", "fp8_block"),
        ),
        "int8": (("int8_wo", "bfloat16"),),
        "int4": (("int4_wo", "int4_wo"), ("bfloat16", "int4_wo")),
        "nvfp4": (("nvfp4", "nvfp4"),) if fp4 else (("nvfp4_wo", "nvfp4_wo"),),
        "mxfp4": (("bfloat16", "w4a8_mxfp4_mxfp8"), ("bfloat16", "w4a16_mxfp4"))
        if fp4
        else (("bfloat16", "w4a16_mxfp4"),),
    }
    if dtype not in explicit:
        raise Refused(f"no operator tables for weights in {dtype}")
    own = explicit[dtype]
    first: tuple[tuple[str | None, str | None], ...] = ()
    if inferred and dtype not in ("mxfp4",):
        first = ((None, None),)
    return (*first, *own)
