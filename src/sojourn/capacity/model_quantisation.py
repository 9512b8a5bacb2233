"""How a checkpoint stores its weights, from the quantization_config of its config.json.

One format is the checkpoint's (that of its experts where it has any); parts that are left out, or
stored otherwise, are listed beside it: attention, dense (dense and shared feed-forward), experts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sojourn.capacity.model_fields import Fields, depth

_DTYPES: Final = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16",
    "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32",
}  # fmt: skip
_WORDS: Final = (
    # First match wins: a format by the words its producers write it with.
    ("nvfp4", ("nvfp4", "fp4_e2m1_16")),
    ("mxfp4", ("mxfp4", "fp4")),
    ("int4", ("w4a16", "w4a8", "int4", "uint4", "4bit")),
    ("fp8", ("mxfp8", "fp8", "float8", "e4m3")),
    ("int8", ("int8", "w8a8", "w8a16", "8bit")),
)
_BITS: Final = {4: "int4", 8: "int8"}
_BITS_METHODS: Final = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "autoround", "hqq", "moe_wna16"}
)
_FP8_METHODS: Final = frozenset({"fp8", "fbgemm_fp8", "ptpc_fp8"})
_PARTS: Final = {
    "attention": re.compile(r"attn|attention"),
    "dense": re.compile(
        r"shared_expert|mlp\.(?:down|up|gate_up)_proj|_proj.*mlp|mlp.*down\)?_proj"
    ),
    "experts": re.compile(r"(?<!shared_)experts"),
}
_LAYER: Final = re.compile(r"layers\\?\.(\d+)")
_KNOWN: Final = (
    "fp8, compressed-tensors, awq, gptq, modelopt, mxfp4, bitsandbytes, quark, torchao, auto-round"
)


class Stored(NamedTuple):
    """The format of a checkpoint, and of the parts that differ from it."""

    dtype: str
    parts: dict[str, str]


def stored(raw: Mapping[str, Any], text: Fields) -> Stored:
    """How the weights of a checkpoint are stored.

    Raises:
        InputError: a quantisation method nobody knows.
    """
    quant = raw.get("quantization_config") or text.get("quantization_config")
    named = raw.get("torch_dtype") or raw.get("dtype") or text.get("torch_dtype", "dtype")
    plain = _DTYPES.get(str(named), "bf16")
    if not isinstance(quant, dict) or not quant:
        return Stored(plain, {})
    inner = quant.get("quantization")  # a whole hf_quant_config.json
    if isinstance(inner, dict):
        quant = {"quant_method": "modelopt", **inner}
    by_layer = quant.get("quantized_layers")
    if isinstance(by_layer, dict) and by_layer:
        return _mixed(by_layer, plain if plain != "fp32" else "bf16")
    dtype = _format(quant, text)
    left_out = _left_out(_excluded(quant), layers=depth(text))
    parts = dict.fromkeys(left_out, "bf16")
    if dtype == "mxfp4" and quant.get("quant_method") == "mxfp4":
        parts |= {"attention": "bf16", "dense": "bf16"}  # the method covers experts only
    if text.get("expert_dtype") == "fp4" and dtype == "fp8":  # DeepSeek-V4: blocks of 32
        return Stored("mxfp4", {"attention": "fp8", "dense": "fp8"})
    return Stored(dtype, {**parts, **_grouped(quant, dtype)})


def _format(quant: Mapping[str, Any], text: Fields) -> str:
    method = str(quant.get("quant_method") or "").lower().replace("_", "-").replace("-", "_")
    method = {"auto_round": "auto-round", "compressed_tensors": "compressed-tensors"}.get(
        method, method
    )
    found: str | None = None
    if method in _FP8_METHODS:
        found = "fp8"
    elif method == "mxfp4":
        found = "mxfp4"
    elif method in _BITS_METHODS:
        found = _BITS.get(int(quant.get("bits") or quant.get("w_bit") or quant.get("nbits") or 4))
    elif method == "bitsandbytes":
        found = "int4" if quant.get("load_in_4bit") or quant.get("_load_in_4bit") else "int8"
    elif method == "compressed-tensors":
        found = _compressed(quant)
    elif method.startswith("modelopt") or (not method and quant.get("quant_algo")):
        found = _by_words(f"{quant.get('quant_algo')} {method}") or "fp8"
        found = "nvfp4" if found == "mxfp4" and "MX" not in str(quant.get("quant_algo")) else found
    elif method == "quark":
        weight = (quant.get("global_quant_config") or {}).get("weight") or {}
        found = _by_words(str(weight.get("dtype") if isinstance(weight, dict) else weight))
    elif method == "torchao":
        found = _by_words(str(quant.get("quant_type")))
    if found is not None:
        return found
    raise text.wrong(
        "quantization_config.quant_method",
        f"quantisation {method or 'of no name'!r} is not known",
        f"Known: {_KNOWN}. Or remove quantization_config and name the weight dtype in sojourn.yaml"
        " (deployment.weight_dtype: bf16, fp8, int8, int4, mxfp4, nvfp4)",
    )


def _by_words(text: str) -> str | None:
    plain = text.lower().replace("_", "").replace("-", "")
    for dtype, words in _WORDS:
        if any(word.replace("_", "") in plain for word in words):
            return dtype
    return None


def _group_format(group: Mapping[str, Any], quant: Mapping[str, Any]) -> str | None:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        return None
    bits, kind = int(weights.get("num_bits", 8)), str(weights.get("type", "int"))
    if kind == "float" and bits == 4:
        said = str(group.get("format") or quant.get("format") or "").lower()
        return "mxfp4" if "mxfp4" in said or weights.get("group_size") == 32 else "nvfp4"
    return "fp8" if kind == "float" else _BITS.get(bits)


def _groups(quant: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = quant.get("config_groups") or {}
    return [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []


def _compressed(quant: Mapping[str, Any]) -> str | None:
    """The format of a compressed-tensors checkpoint: of its experts, else the commonest one."""
    formats: Counter[str] = Counter()
    for group in _groups(quant):
        found = _group_format(group, quant)
        if found is None:
            continue
        if any(_PARTS["experts"].search(str(target)) for target in group.get("targets") or ()):
            return found
        formats[found] += 1
    return formats.most_common(1)[0][0] if formats else None


def _grouped(quant: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Parts that a group of their own stores in another format."""
    parts = {}
    for group in _groups(quant):
        found = _group_format(group, quant)
        for part, pattern in _PARTS.items():
            if (
                found not in (None, dtype)
                and any(pattern.search(str(target)) for target in group.get("targets") or ())
            ):  # fmt: skip
                parts[part] = str(found)
    return parts


def _excluded(quant: Mapping[str, Any]) -> list[str]:
    for name in ("ignore", "exclude_modules", "modules_to_not_convert", "exclude",
                 "llm_int8_skip_modules"):  # fmt: skip
        if isinstance(quant.get(name), list):
            return [str(pattern) for pattern in quant[name]]
    return []


def _left_out(patterns: Iterable[str], *, layers: int) -> list[str]:
    """Parts whose modules are excluded in more than half of the layers.

    A pattern without a layer's number speaks of all of them. Of attention, the output projection
    decides: producers that keep it quantised keep the larger half.
    """
    seen: dict[str, set[int]] = {part: set() for part in _PARTS}
    for pattern in patterns:
        for part, words in _PARTS.items():
            if not words.search(pattern) or _is_detail(part, pattern):
                continue
            where = _LAYER.search(pattern)
            seen[part] |= {int(where[1])} if where else set(range(layers))
    return [part for part, found in seen.items() if 2 * len(found) > layers]


def _is_detail(part: str, pattern: str) -> bool:
    """A pattern that names a small module of the part only (an indexer, one projection of many)."""
    if re.search(r"vision|visual|mtp|norm|indexer", pattern):
        return True
    if part != "attention":
        return False
    named = re.search(r"attn\\?\.([a-z_0-9]+)", pattern)
    return named is not None and named[1] not in (
        "o_proj",
        "out_proj",
        "dense",
        "q_proj",
        "qkv_proj",
    )


def _mixed(by_layer: Mapping[str, Any], rest: str) -> Stored:
    """Formats listed layer by layer; a part that is not listed stays in 16 bits."""
    found: dict[str, Counter[str]] = {part: Counter() for part in _PARTS}
    for name, own in by_layer.items():
        said = str(own.get("quant_algo") if isinstance(own, dict) else own)
        dtype = _by_words(said)
        for part, words in _PARTS.items():
            if dtype is not None and words.search(name):
                found[part][dtype] += 1
    formats = {part: counts.most_common(1)[0][0] for part, counts in found.items() if counts}
    if not formats:
        return Stored(rest, {})
    main = formats.get("experts") or Counter(formats.values()).most_common(1)[0][0]
    parts = {part: formats.get(part, rest) for part in _PARTS if part != "experts"}
    return Stored(main, {part: dtype for part, dtype in parts.items() if dtype != main})
