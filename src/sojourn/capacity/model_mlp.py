"""Feed-forward layers from a config: dense, routed, and both in one block."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sojourn.capacity.model_fields import Fields, depth, hidden_size
from sojourn.capacity.model_records import MlpLayers

_TWO_MATRICES: Final = frozenset(
    {"gpt2", "opt", "bloom", "falcon", "gpt_neox", "gptj", "gpt_bigcode", "phi", "starcoder2"}
    | {"mpt", "nemotron", "nemotron_h", "codegen", "apertus"}
)
"""Model types whose feed-forward has no gate: two matrices where the others have three."""
_FOUR_WIDE: Final = frozenset({"gpt2", "bloom", "falcon", "mpt", "gpt_bigcode", "gptj", "codegen"})
"""Model types whose feed-forward is four times the width where the config names none."""


def mlp_layers(fields: Fields) -> tuple[MlpLayers, ...]:
    """Feed-forward layers, equal ones together.

    Raises:
        InputError: a field is missing.
    """
    if isinstance(fields.get("block_configs"), list):
        return _searched(fields)
    hidden, layers = hidden_size(fields), depth(fields)
    matrices = 2 if fields.words("model_type") in _TWO_MATRICES else 3
    experts = _expert_fields(fields).maybe(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
    )
    routed = _routed_layers(fields, layers) if experts else [False] * layers
    moe = sum(routed)
    dense = layers - moe
    signs = _signs(fields)
    if signs is not None:
        dense, moe = signs.count("-"), signs.count("E")
    groups = []
    extra = _per_layer_input(fields, hidden)
    wide = (fields.maybe("num_kv_shared_layers") or 0) if fields.get("use_double_wide_mlp") else 0
    if dense:
        parameters = matrices * hidden * _dense_width(fields, hidden)
        if dense > wide:
            groups.append(MlpLayers(layers=dense - wide, dense_parameters=parameters + extra))
        if wide:
            groups.append(MlpLayers(layers=wide, dense_parameters=2 * parameters + extra))
    if moe and experts:
        groups.append(_moe(fields, hidden, layers=moe, experts=experts, matrices=matrices))
    return tuple(groups)


def _per_layer_input(fields: Fields, hidden: int) -> int:
    """Gemma 4's small models: a gate and two projections of each layer's own token embedding."""
    return 3 * hidden * (fields.maybe("hidden_size_per_layer_input") or 0)


def _signs(fields: Fields) -> str | None:
    """Blocks that are one thing each: attention, Mamba, a dense or a routed feed-forward."""
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern
    named = fields.get("layers_block_type")
    if isinstance(named, list) and ("moe" in named or "mlp" in named):
        return "".join({"moe": "E", "mlp": "-"}.get(str(kind), "*") for kind in named)
    return None


def _dense_width(fields: Fields, hidden: int) -> int:
    width = fields.maybe("intermediate_size_mlp", "dense_intermediate_size") or fields.maybe(
        "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"
    )
    if width is None and fields.words("model_type") in _FOUR_WIDE:
        return 4 * hidden
    if width is None:
        raise fields.wrong("intermediate_size", "is missing", "Pass the model's whole config.json")
    if fields.get("block_auto_adjust_ff_dim"):  # LFM2 shrinks and rounds what it is given
        factor = fields.get("block_ffn_dim_multiplier") or 1
        multiple = fields.maybe("block_multiple_of") or 256
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    return width


def _searched(fields: Fields) -> tuple[MlpLayers, ...]:
    """Nemotron-NAS: each layer has its own multiple of the width, or none.

    width = 2/3 x multiple x hidden, rounded up to 256 (the model class's rule).
    """
    hidden = hidden_size(fields)
    counts: Counter[int] = Counter()
    for block in fields.get("block_configs")[: depth(fields)]:
        own = block.get("ffn") or {}
        if own.get("no_op"):
            continue
        if own.get("replace_with_linear"):
            counts[hidden * hidden] += 1
            continue
        multiple, width = own.get("ffn_mult"), own.get("intermediate_size")
        if multiple is None and width is None:
            raise fields.wrong("block_configs", "an ffn block has neither width nor ffn_mult")
        if width is None:
            width = -(-int(2 * float(multiple or 0) * hidden / 3) // 256) * 256
        counts[3 * hidden * width] += 1
    return tuple(MlpLayers(layers=n, dense_parameters=p) for p, n in counts.items())


def _expert_fields(fields: Fields) -> Fields:
    nested = fields.get("ffn_config")
    return Fields({**nested, **fields.raw}, fields.path) if isinstance(nested, dict) else fields


def _routed_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers have routed experts."""
    listed = _listed_layers(fields, layers)
    if listed is not None:
        return listed
    period = fields.maybe("expert_layer_period")
    if period:
        offset = fields.maybe("expert_layer_offset") or 0
        return [i % period == offset for i in range(layers)]
    every = (
        fields.maybe("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval") or 1
    )
    dense = set(fields.get("mlp_only_layers") or ())
    first = fields.maybe("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers") or 0
    return [i >= first and i not in dense and (i + 1) % every == 0 for i in range(layers)]


def _listed_layers(fields: Fields, layers: int) -> list[bool] | None:
    """A config that lists its routed layers, by index or by flag, or None."""
    named = fields.get("moe_layers")
    if isinstance(named, list) and named:
        return [i in set(named) for i in range(layers)]
    words = fields.get("moe_layers_enum")
    if isinstance(words, str):
        indices = {int(word) for word in words.split(",") if word.strip().isdigit()}
        return [i in indices for i in range(layers)]
    types = fields.get("mlp_layer_types")
    if isinstance(types, list):
        return [kind == "sparse" for kind in types[:layers]]
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(flag) for flag in frequency[:layers]]
    return None


def _moe(fields: Fields, hidden: int, *, layers: int, experts: int, matrices: int) -> MlpLayers:
    source = _expert_fields(fields)
    top = source.whole(
        "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k",
        "top_k_experts",
    )  # fmt: skip
    if top > experts:
        raise source.wrong("num_experts_per_tok", f"{top} experts per token, of {experts}")
    width = source.whole("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
    inner = source.maybe("moe_latent_size", "routed_expert_hidden_size") or hidden
    around = 2 * hidden * inner if inner != hidden else 0  # into and out of the experts' own width
    gate = hidden if fields.words("model_type").startswith(("qwen2_moe", "qwen3_next")) else 0
    shared = matrices * hidden * _shared_width(source, width)
    return MlpLayers(
        layers=layers,
        dense_parameters=shared + hidden * experts + gate + around,
        experts=experts,
        experts_per_token=top,
        expert_parameters=matrices * inner * width,
    )


def _shared_width(fields: Fields, width: int) -> int:
    """Width of the feed-forward that every token passes beside its experts."""
    if fields.get("enable_moe_block"):  # Gemma 4: a dense block beside the routed one
        return fields.whole("intermediate_size")
    own = fields.maybe(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "share_expert_dim", "shared_intermediate_size",
    )  # fmt: skip
    if own is not None:
        return own
    if fields.words("model_type").startswith("llama4"):
        return width
    names = (
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    )
    return (fields.maybe(*names) or 0) * width
