"""Reads a Hugging Face config.json into a `ModelSpec`: dense, GQA, MoE, latent attention,
sliding windows, hybrids with linear-attention layers, and vision models with a nested text part.

A field that is needed and absent is an `InputError` that names it; nothing is guessed that
changes a size. The rules follow the model classes of the transformers library.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sojourn.capacity.audio import audio_parameters, audio_tokens_per_s
from sojourn.capacity.model_fields import Fields, depth
from sojourn.capacity.model_layers import attention_layers
from sojourn.capacity.model_mlp import mlp_layers
from sojourn.capacity.model_quantisation import stored
from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers, ModelSpec
from sojourn.capacity.model_types import KNOWN
from sojourn.capacity.vision_config import read_vision
from sojourn.errors import InputError
from sojourn.interval import Sourced
from sojourn.text_file import read_object

_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")


def read_config(path: Path | str) -> ModelSpec:
    """A config.json on disk (or the folder that holds it).

    Raises:
        InputError: not readable, not JSON, no object, an unknown architecture, a field missing.
    """
    where = Path(path)
    if where.is_dir():
        where = where / "config.json"
    raw = _object(where)
    beside = where.with_name("hf_quant_config.json")
    if not raw.get("quantization_config") and beside.is_file():
        raw = {**raw, "quantization_config": _object(beside)}
    name = str(raw.get("_name_or_path") or where.parent.name or where.stem)
    return parse_config(raw, name=name, source=f"config.json at {where}", path=str(where))


def _object(where: Path) -> dict[str, Any]:
    return read_object(where, what="a config.json", todo="Check the path of config.json")


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
    try:
        return _parsed(raw, name=name, source=source, path=path, facts=facts or {})
    except _MISSHAPEN as error:
        raise InputError(
            f"a field holds what such a config has not ({type(error).__name__}:"
            f" {str(error).splitlines()[0][:120]})",
            path=path or "model config",
            todo="Pass the model's config.json as it was published",
        ) from error


_MISSHAPEN: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError,
)  # fmt: skip
"""What reading a config raises where a list, a mapping or a number stands in the place of another:
any of some two hundred fields may. Errors of ours are none of these."""


def _parsed(
    raw: Mapping[str, Any],
    *,
    name: str,
    source: str,
    path: str | None,
    facts: Mapping[str, Sourced],
) -> ModelSpec:
    text = Fields(_text_part(raw), path)
    hidden = text.whole("hidden_size", "n_embd", "d_model", "n_embed")
    vocab = text.whole("vocab_size", "padded_vocab_size")
    attention, norms = attention_layers(text)
    mlp = mlp_layers(text)
    embedding = head = vocab * hidden
    model_type = _known_type(text)
    weights = stored(raw, text)
    vision = read_vision(raw, hidden, path)
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
        norm_parameters=norms + hidden + _lookup_parameters(text),
        vision=vision,
        vision_parameters=(vision.parameters if vision else 0) + audio_parameters(raw, hidden),
        audio_tokens_per_s=audio_tokens_per_s(raw),
        mtp_parameters=_mtp_parameters(text, attention, mlp, vocab * hidden),
        checkpoint_dtype=weights.dtype,
        part_dtypes=weights.parts,
        source=source,
        facts=dict(facts),
    )


def _lookup_parameters(text: Fields) -> int:
    """Tables looked up per token beside the embedding: Gemma 4's embeddings per layer."""
    width = text.maybe("hidden_size_per_layer_input") or 0
    return width and width * depth(text) * text.whole("vocab_size_per_layer_input")


def _known_type(text: Fields) -> str:
    """The architecture, if its layers are known.

    Raises:
        InputError: it is not named, or not known: counting it as another would be a guess.
    """
    name = text.words("model_type")
    if name in KNOWN:
        return name
    near = difflib.get_close_matches(name, sorted(KNOWN), n=3, cutoff=0.5)
    like = f" (near ones: {', '.join(near)})" if near else ""
    raise text.wrong(
        "model_type",
        f"architecture {name!r} is not known{like}" if name else "is missing",
        "If its layers are those of a known one (llama: attention and a gated feed-forward;"
        " mixtral or qwen3_moe: with routed experts; deepseek_v3: latent attention), put that name"
        " into a copy of the file and pass the copy",
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
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gpt2", "opt", "bloom"}
    | {"cohere", "cohere2", "falcon", "gpt_bigcode", "starcoder2", "mpt"}
)
"""Model classes whose config leaves tie_word_embeddings out when it is true."""


def _tied(raw: Mapping[str, Any], text: Fields) -> bool:
    own = raw.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    if own is None:
        return text.words("model_type") in _TIED_BY_DEFAULT
    return bool(own)
