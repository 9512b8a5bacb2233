"""Reads a Hugging Face config.json into a `ModelSpec`: dense, GQA, MoE, latent attention,
sliding windows, hybrids with linear-attention layers, and vision models with a nested text part.

A field that is needed and absent is an `InputError` that names it; nothing is guessed that
changes a size. The rules follow the model classes of the transformers library.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sojourn.capacity.model_layers import Fields, attention_layers, mlp_layers
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers, ModelSpec
from sojourn.errors import InputError
from sojourn.interval import Sourced

_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_DTYPES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}


def read_config(path: Path | str) -> ModelSpec:
    """A config.json on disk (or the folder that holds it).

    Raises:
        InputError: not readable, not JSON, no object, an unknown architecture, a field missing.
    """
    where = Path(path)
    if where.is_dir():
        where = where / "config.json"
    try:
        raw = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read ({error})", path=where, todo="Check the path of config.json"
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg}", path=where, row=error.lineno, todo="Pass a config.json"
        ) from error
    if not isinstance(raw, dict):
        raise InputError("holds no JSON object", path=where, todo="Pass a config.json")
    name = str(raw.get("_name_or_path") or where.parent.name or where.stem)
    return parse_config(raw, name=name, source=f"config.json at {where}", path=str(where))


def parse_config(
    raw: Mapping[str, Any],
    *,
    name: str,
    source: str,
    path: str | None = None,
    facts: Mapping[str, Sourced] | None = None,
) -> ModelSpec:
    """A config as a mapping.

    Raises:
        InputError: as `read_config`.
    """
    text = Fields(_text_part(raw), path)
    hidden = text.whole("hidden_size", "n_embd", "d_model", "n_embed")
    vocab = text.whole("vocab_size", "padded_vocab_size")
    attention, norms = attention_layers(text)
    mlp = mlp_layers(text)
    embedding = head = vocab * hidden
    model_type = text.words("model_type")
    positions = text.maybe("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if model_type in ("gpt2", "gpt_bigcode", "opt"):  # these learn an embedding per position
        embedding += text.whole("n_positions", "max_position_embeddings") * hidden
    return ModelSpec(
        name=name,
        architecture=model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        intermediate_size=_widest(mlp, hidden),
        max_model_len=positions,
        attention=attention,
        mlp=mlp,
        embedding_parameters=embedding,
        head_parameters=0 if _tied(raw, text) else head,
        norm_parameters=norms + hidden,
        vision_parameters=_vision_parameters(raw, hidden),
        mtp_parameters=_mtp_parameters(text, attention, mlp, vocab * hidden),
        checkpoint_dtype=_checkpoint_dtype(raw, text),
        source=source,
        facts=dict(facts or {}),
    )


def _widest(mlp: tuple[MlpLayers, ...], hidden: int) -> int:
    """Widest feed-forward one token passes: its experts and the shared part together."""
    return max(
        (m.dense_parameters + m.experts_per_token * m.expert_parameters) // (3 * hidden)
        for m in mlp
    )


def _mtp_parameters(
    text: Fields,
    attention: tuple[AttentionLayers, ...],
    mlp: tuple[MlpLayers, ...],
    vocab_parameters: int,
) -> int:
    """Layers for multi-token prediction: each a block like the widest one, a projection of two
    hidden states to one and, where the checkpoint keeps its own, an embedding and a head.

    Source: totals of GLM-4.5 and DeepSeek-V3 checkpoints. Wrong when: a config counts modules that
    its checkpoint left out (MiniMax-M2).
    """
    own_vocab = text.maybe("num_nextn_predict_layers")
    count = own_vocab or text.maybe("mtp_num_hidden_layers") or 0
    softmax = [a.parameters for a in attention if a.kind is not AttentionKind.LINEAR]
    block = max(softmax, default=0) + max(
        m.dense_parameters + m.experts * m.expert_parameters for m in mlp
    )
    own = 2 * vocab_parameters if own_vocab else 0
    return count * (block + 2 * text.whole("hidden_size", "n_embd", "d_model") ** 2 + own)


def _text_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part; keys it leaves out are looked for one level up."""
    for key in _TEXT_PARTS:
        part = raw.get(key)
        if isinstance(part, dict):
            inner = _text_part(part)
            return {**{k: v for k, v in raw.items() if not isinstance(v, dict)}, **inner}
    return dict(raw)


_TIED_BY_DEFAULT: Final = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "opt", "bloom", "cohere", "cohere2"}
    | {"falcon", "gpt_bigcode", "starcoder2", "mpt"}
)
"""Model classes whose config leaves tie_word_embeddings out when it is true."""


def _tied(raw: Mapping[str, Any], text: Fields) -> bool:
    own = raw.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    if own is None:
        return text.words("model_type") in _TIED_BY_DEFAULT
    return bool(own)


def _checkpoint_dtype(raw: Mapping[str, Any], text: Fields) -> str:
    quant = raw.get("quantization_config") or text.get("quantization_config")
    if isinstance(quant, dict):
        return _quantised_dtype(quant, text)
    named = raw.get("torch_dtype") or raw.get("dtype") or text.get("torch_dtype", "dtype")
    return _DTYPES.get(str(named), "bf16")


_METHODS: Final = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}


def _quantised_dtype(quant: Mapping[str, Any], text: Fields) -> str:
    method = str(quant.get("quant_method", "")).lower()
    found = _METHODS.get(method)
    if method in ("awq", "gptq", "auto-round"):
        found = "int8" if quant.get("bits", quant.get("w_bit", 4)) == 8 else "int4"
    elif method == "bitsandbytes":
        found = "int4" if quant.get("load_in_4bit") else "int8"
    elif method == "modelopt":
        found = "nvfp4" if "FP4" in str(quant.get("quant_algo", "")).upper() else "fp8"
    elif method == "compressed-tensors":
        found = _compressed_dtype(quant)
    if found is not None:
        return found
    raise text.wrong(
        "quantization_config.quant_method",
        f"quantisation {method!r} is not known",
        "Remove quantization_config and name the weight dtype in sojourn.yaml"
        " (deployment.weight_dtype: bf16, fp8, int8, int4, mxfp4, nvfp4)",
    )


def _compressed_dtype(quant: Mapping[str, Any]) -> str | None:
    """The commonest weight format of a compressed-tensors checkpoint."""
    groups = quant.get("config_groups") or {}
    formats = Counter(
        (str(w.get("type", "int")), int(w.get("num_bits", 8)))
        for g in groups.values()
        if isinstance(g, dict) and isinstance(w := g.get("weights"), dict)
    )
    names = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
    return names.get(formats.most_common(1)[0][0]) if formats else None


def _vision_parameters(raw: Mapping[str, Any], text_hidden: int) -> int:
    """Vision encoder, counted as transformer blocks of its own config; projector left out.

    Wrong when: the encoder is no plain transformer; by up to a tenth for projectors.
    """
    vision = raw.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    fields = Fields(vision, None)
    width = fields.maybe("embed_dim", "hidden_size", "width")
    depth = fields.maybe("num_hidden_layers", "depth", "layers")
    if width is None or depth is None:
        return 0
    if vision.get("embed_dim") is None and vision.get("out_hidden_size") == width != text_hidden:
        return 0
    inner = fields.maybe("intermediate_size") or round(width * (vision.get("mlp_ratio") or 4))
    matrices = 3 if str(vision.get("hidden_act", "")) in ("silu", "swiglu") else 2
    return depth * (4 * width * width + matrices * width * inner)
