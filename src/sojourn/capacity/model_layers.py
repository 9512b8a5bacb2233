"""Layers of a model from its config: which kind each is, how many parameters, what it caches."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sojourn.capacity.model_attention import borrowing, compressed, cross, latent, softmax
from sojourn.capacity.model_fields import Fields, depth, hidden_size
from sojourn.capacity.model_records import AttentionLayers
from sojourn.capacity.model_recurrent import gated_delta, kimi_delta, lightning, mamba, short_conv


class Kind(NamedTuple):
    """What one layer's mixing of tokens is."""

    name: str
    window: int | None = None
    kv_heads: int | None = None
    ratio: int = 0
    indexed: bool = False
    borrows: bool = False


def attention_layers(fields: Fields) -> tuple[tuple[AttentionLayers, ...], int]:
    """Attention layers, equal ones together, and the parameters of all norms.

    Raises:
        InputError: a field is missing or a layer type unknown.
    """
    groups = [
        _layer(fields, kind).model_copy(update={"layers": count})
        for kind, count in Counter(kinds(fields)).items()
        if kind.name != "none"
    ]
    return tuple(groups), 2 * hidden_size(fields) * depth(fields)


def _layer(fields: Fields, kind: Kind) -> AttentionLayers:
    recurrent = {
        "linear": gated_delta,
        "mamba": mamba,
        "conv": short_conv,
        "kda": kimi_delta,
        "lightning": lightning,
        "cross": cross,
    }
    if kind.name in recurrent:
        return recurrent[kind.name](fields)
    if kind.name == "matrix":
        return AttentionLayers.matrix(hidden_size(fields) ** 2)
    if fields.get("compress_ratios") is not None:
        return compressed(fields, kind.ratio)
    if fields.get("kv_lora_rank") is not None:
        return latent(fields, indexed=kind.indexed)
    own = {} if kind.kv_heads is None else {"num_key_value_heads": kind.kv_heads}
    layer = softmax(Fields({**fields.raw, **own}, fields.path), kind.window)
    return borrowing(fields, layer, kind.window) if kind.borrows else layer


def kinds(fields: Fields) -> list[Kind]:
    """Kind of every layer, in order.

    Raises:
        InputError: a layer type is unknown, or a field it needs is missing.
    """
    layers = depth(fields)
    found = _kinds(fields, layers)
    borrowing = fields.maybe("num_kv_shared_layers") or 0  # Gemma 4: the last ones keep no cache
    own = len(found) - borrowing
    return [*found[:own], *(kind._replace(borrows=True) for kind in found[own:])]


def _kinds(fields: Fields, layers: int) -> list[Kind]:
    for read in (_by_block, _by_ratio, _by_name, _by_sign, _by_flag, _by_period):
        found = read(fields, layers)
        if found is not None:
            return found
    window = fields.maybe("sliding_window", "attention_chunk_size")
    if window is None or fields.get("use_sliding_window") is False:
        return _full_layers(fields, layers)
    slides = _slides(fields, layers)
    return [Kind("sliding", window) if flag else Kind("full") for flag in slides]


def _full_layers(fields: Fields, layers: int) -> list[Kind]:
    """Layers that all look back over everything, but differ in heads, indexer or source."""
    heads = fields.get("num_key_value_heads_per_layer") or [None] * layers
    types = fields.get("indexer_types") or ["full"] * layers
    indexed = fields.get("index_topk") is not None
    crossing = set(fields.get("cross_attention_layers") or ())
    return [
        Kind("cross")
        if i in crossing
        else Kind("full", kv_heads=heads[i], indexed=indexed and types[i] == "full")
        for i in range(layers)
    ]


def _by_block(fields: Fields, layers: int) -> list[Kind] | None:
    """Architectures found by search (Nemotron-NAS): one entry per layer, KV heads by group size."""
    blocks = fields.get("block_configs")
    if not isinstance(blocks, list):
        return None
    heads = fields.whole("num_attention_heads")
    result = []
    for block in blocks[:layers]:
        own = block.get("attention") or {}
        if own.get("no_op"):
            result.append(Kind("none"))
        elif own.get("replace_with_linear"):
            result.append(Kind("matrix"))
        else:
            group = own.get("n_heads_in_group")
            if not group:
                raise fields.wrong("block_configs", "an attention block has no n_heads_in_group")
            result.append(Kind("full", own.get("window_length"), heads // group))
    return result


def _by_ratio(fields: Fields, layers: int) -> list[Kind] | None:
    """DeepSeek-V4: how many tokens one cached entry of a layer stands for; 0: a window only."""
    ratios = fields.get("compress_ratios")
    if not isinstance(ratios, list):
        return None
    return [Kind("compressed", ratio=int(ratio)) for ratio in ratios[:layers]]


def _by_name(fields: Fields, layers: int) -> list[Kind] | None:
    named = fields.get("layer_types", "layers_block_type")
    if not isinstance(named, list) or fields.get("index_topk") is not None:
        return None  # sparse attention: every layer looks back over everything
    window = fields.maybe("sliding_window", "attention_chunk_size")
    return [_named_kind(fields, str(kind), window) for kind in named[:layers]]


def _named_kind(fields: Fields, kind: str, window: int | None) -> Kind:
    if kind in ("sliding_attention", "chunked_attention", "local"):
        if window is None:
            raise fields.wrong("sliding_window", "is missing, but layer_types has sliding layers")
        return Kind("sliding", window)
    names = {
        "full": ("full_attention", "attention", "hybrid", "global", "full"),
        "linear": ("linear_attention",),
        "mamba": ("mamba", "mamba2"),
        "conv": ("conv",),
        "none": ("mlp", "moe"),
    }
    for name, words in names.items():
        if kind in words:
            return Kind(name)
    raise fields.wrong(
        "layer_types",
        f"layer type {kind!r} is not known",
        "Known: full, sliding and chunked attention, linear attention, mamba, conv, mlp, moe",
    )


def _by_sign(fields: Fields, layers: int) -> list[Kind] | None:
    """Nemotron-H: one sign per block; `|` separates stages."""
    pattern = fields.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        return None
    signs = {"M": "mamba", "*": "full", "-": "none", "E": "none"}
    blocks = pattern.replace("|", "")
    unknown = set(blocks) - set(signs)
    if unknown:
        raise fields.wrong(
            "hybrid_override_pattern", f"sign {min(unknown)!r} is not known", "Known: M * - E"
        )
    if len(blocks) != layers:
        raise fields.wrong("hybrid_override_pattern", f"has {len(blocks)} blocks, not {layers}")
    return [Kind(signs[sign]) for sign in blocks]


def _by_flag(fields: Fields, layers: int) -> list[Kind] | None:
    """A list of flags or of indices that says which layers are of the cheaper kind."""
    flags = fields.get("hybrid_layer_pattern")  # MiMo-V2: 1 slides
    if isinstance(flags, list):
        window = fields.whole("sliding_window", "sliding_window_size")
        return [Kind("sliding", window) if flag else Kind("full") for flag in flags[:layers]]
    types = fields.get("attn_type_list")  # MiniMax-01: 0 is lightning attention
    if isinstance(types, list):
        return [Kind("full" if kind else "lightning") for kind in types[:layers]]
    nested = fields.get("linear_attn_config")  # Kimi-Linear: counted from 1
    if isinstance(nested, dict):
        full = set(nested.get("full_attn_layers") or ())
        return [Kind("full" if i + 1 in full else "kda") for i in range(layers)]
    return None


def _by_period(fields: Fields, layers: int) -> list[Kind] | None:
    """Hybrids that say by a period or by indices which layers attend."""
    if fields.get("linear_num_value_heads") is not None:
        every = fields.maybe("full_attention_interval") or 4
        return [Kind("full" if (i + 1) % every == 0 else "linear") for i in range(layers)]
    if fields.get("attn_layer_period") is not None:
        period, offset = fields.whole("attn_layer_period"), fields.maybe("attn_layer_offset") or 0
        return [Kind("full" if i % period == offset else "mamba") for i in range(layers)]
    if fields.get("attn_layer_indices") is not None:
        full = set(fields.get("attn_layer_indices"))
        return [Kind("full" if i in full else "mamba") for i in range(layers)]
    return None


def _slides(fields: Fields, layers: int) -> list[bool]:
    """Which layers slide where no list says so, by model type."""
    kind = fields.words("model_type")
    if kind in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in range(layers)]
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: L slides, G does not
        return [pattern[i % len(pattern)] == "L" for i in range(layers)]
    if kind in ("gemma3", "gemma3_text", "cohere2", "exaone4", "olmo3"):
        default = 6 if kind.startswith("gemma3") else 4
        period = fields.maybe("sliding_window_pattern", "_sliding_window_pattern") or default
        return [(i + 1) % period != 0 for i in range(layers)]
    if kind.startswith("llama4"):
        rope = fields.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
        return [bool(flag) for flag in rope]
    if kind.startswith("qwen"):
        first = fields.maybe("max_window_layers") or 0
        return [bool(fields.get("use_sliding_window")) and i >= first for i in range(layers)]
    return [True] * layers
