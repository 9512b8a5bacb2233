"""Layers of a model from its config: which kind each is, how many parameters, what it caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from sojourn.capacity.model_records import AttentionKind, AttentionLayers, MlpLayers
from sojourn.errors import InputError

_TWO_MATRICES: Final = frozenset(
    {"gpt2", "opt", "bloom", "falcon", "gpt_neox", "gptj", "gpt_bigcode", "phi", "starcoder2"}
    | {"mpt", "nemotron", "nemotron_h", "codegen"}
)
"""Model types whose feed-forward has no gate: two matrices where the others have three."""
_QKV_BIAS: Final = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"})
_STATE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


class Fields:
    """A config mapping that knows its aliases and says which field is missing."""

    def __init__(self, raw: Mapping[str, Any], path: str | None) -> None:
        self.raw = raw
        self.path = path

    def get(self, *names: str) -> Any:  # noqa: ANN401  a JSON value has no narrower type
        """The first of the names that is set, or None."""
        for name in names:
            if self.raw.get(name) is not None:
                return self.raw[name]
        return None

    def maybe(self, *names: str) -> int | None:
        """A whole number, or None where no name is set.

        Raises:
            InputError: it is set to something else.
        """
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise self.wrong(name, f"expected a number >= 0, found {value!r}")
            return int(value)
        return None

    def whole(self, *names: str) -> int:
        """A whole number that must be there.

        Raises:
            InputError: none of the names is set, or to no positive number.
        """
        value = self.maybe(*names)
        if value is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.wrong(names[0], f"is missing{also}", "Pass the model's whole config.json")
        if value == 0:
            raise self.wrong(names[0], "must be positive, found 0")
        return value

    def words(self, name: str) -> str:
        """A string, empty where it is not set."""
        return str(self.raw.get(name) or "")

    def wrong(self, field: str, problem: str, todo: str = "") -> InputError:
        """The error that names the field and the file."""
        return InputError(problem, path=self.path or "model config", field=field, todo=todo)


def depth(fields: Fields) -> int:
    """Number of layers."""
    return fields.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _hidden(fields: Fields) -> int:
    return fields.whole("hidden_size", "n_embd", "d_model", "n_embed")


def attention_layers(fields: Fields) -> tuple[tuple[AttentionLayers, ...], int]:
    """Attention layers, equal ones together, and the parameters of all norms.

    Raises:
        InputError: a field is missing or a layer type unknown.
    """
    kinds = _kinds(fields)
    kv_heads = fields.get("num_key_value_heads_per_layer") or [None] * len(kinds)
    groups: list[AttentionLayers] = []
    for (kind, window, heads), count in Counter(
        (*kind, heads) for kind, heads in zip(kinds, kv_heads, strict=False)
    ).items():
        if kind == "none":
            continue
        if kind in ("linear", "mamba"):
            group = _gated_delta(fields) if kind == "linear" else _mamba(fields)
        elif fields.get("kv_lora_rank") is not None:
            group = _latent(fields)
        else:
            own = {} if heads is None else {"num_key_value_heads": heads}
            group = _softmax(Fields({**fields.raw, **own}, fields.path), window)
        groups.append(group.model_copy(update={"layers": count}))
    norms = 2 * _hidden(fields) * depth(fields)
    return tuple(groups), norms


def _kinds(fields: Fields) -> list[tuple[str, int | None]]:
    """Per layer: full, sliding, linear, mamba or none; and the window."""
    layers = depth(fields)
    window = fields.maybe("sliding_window", "attention_chunk_size")
    named = fields.get("layer_types", "layers_block_type")
    if isinstance(named, list):
        return [_named_kind(fields, str(kind), window) for kind in named[:layers]]
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        signs = {"M": "mamba", "*": "full", "-": "none", "E": "none"}
        return [(signs.get(sign, "none"), None) for sign in pattern if sign != "|"]
    hybrid = _hybrid_by_period(fields, layers)
    if hybrid is not None:
        return [(kind, None) for kind in hybrid]
    if window is None or fields.get("use_sliding_window") is False:
        return [("full", None)] * layers
    return [("sliding", window) if slides else ("full", None) for slides in _slides(fields, layers)]


def _hybrid_by_period(fields: Fields, layers: int) -> list[str] | None:
    """Hybrids that say by a period or by indices which layers attend, or None."""
    if fields.get("linear_num_value_heads") is not None:
        every = fields.maybe("full_attention_interval") or 4
        return ["full" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    if fields.get("attn_layer_period") is not None:
        period, offset = fields.whole("attn_layer_period"), fields.maybe("attn_layer_offset") or 0
        return ["full" if i % period == offset else "mamba" for i in range(layers)]
    if fields.get("attn_layer_indices") is not None:
        full = set(fields.get("attn_layer_indices"))
        return ["full" if i in full else "mamba" for i in range(layers)]
    return None


def _named_kind(fields: Fields, kind: str, window: int | None) -> tuple[str, int | None]:
    if kind in ("full_attention", "attention", "hybrid", "global"):
        return ("full", None)
    if kind in ("sliding_attention", "chunked_attention", "local"):
        if window is None:
            raise fields.wrong("sliding_window", "is missing, but layer_types has sliding layers")
        return ("sliding", window)
    if kind == "linear_attention":
        return ("linear", None)
    if kind in ("mamba", "mamba2"):
        return ("mamba", None)
    if kind in ("mlp", "moe"):
        return ("none", None)
    raise fields.wrong(
        "layer_types", f"layer type {kind!r} is not known", "Known: full, sliding, linear, mamba"
    )


def _slides(fields: Fields, layers: int) -> list[bool]:
    """Which layers slide where no layer_types says so, by model type."""
    kind = fields.words("model_type")
    if kind in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in range(layers)]
    if kind in ("gemma3", "gemma3_text", "cohere2"):
        default = 4 if kind == "cohere2" else 6
        period = fields.maybe("sliding_window_pattern", "_sliding_window_pattern") or default
        return [(i + 1) % period != 0 for i in range(layers)]
    if kind.startswith("llama4"):
        rope = fields.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
        return [bool(flag) for flag in rope]
    if kind.startswith("qwen"):
        if not fields.get("use_sliding_window"):
            return [False] * layers
        first = fields.maybe("max_window_layers") or 0
        return [i >= first for i in range(layers)]
    return [True] * layers


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads, head size."""
    heads = fields.whole("num_attention_heads", "n_head", "n_heads")
    nested = fields.get("attn_config")
    kv = fields.maybe("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    if kv is None and isinstance(nested, dict):
        kv = Fields(nested, fields.path).maybe("kv_n_heads")
    if fields.words("model_type") == "falcon" and not fields.get("new_decoder_architecture"):
        kv = 1 if fields.get("multi_query") else heads
    size = fields.maybe("head_dim", "kv_channels") or _hidden(fields) // heads
    return heads, kv or heads, size


def _of_kind(fields: Fields, window: int | None) -> Fields:
    """The fields as they hold for sliding or for full layers, where a config tells them apart."""
    if window is not None:
        names = {k[4:]: v for k, v in fields.raw.items() if k.startswith("swa_") and v is not None}
    else:
        wide = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        names = {k: fields.raw[v] for k, v in wide.items() if fields.raw.get(v) is not None}
    return Fields({**fields.raw, **names}, fields.path) if names else fields


def _softmax(fields: Fields, window: int | None) -> AttentionLayers:
    hidden = _hidden(fields)
    fields = _of_kind(fields, window)
    heads, kv, size = _heads(fields)
    value_size = fields.maybe("v_head_dim") or size
    query = heads * size * (2 if fields.get("attn_output_gate") or _gated(fields) else 1)
    key_is_value = window is None and bool(fields.get("attention_k_eq_v"))
    kv_width = kv * (size if key_is_value else size + value_size)
    parameters = hidden * (query + kv_width) + heads * value_size * hidden
    if fields.get("attention_bias") or fields.words("model_type") in _QKV_BIAS:
        parameters += query + kv * (size + value_size)
    score = heads * (size + value_size)
    return AttentionLayers(
        kind=AttentionKind.FULL if window is None else AttentionKind.SLIDING,
        layers=0,
        parameters=parameters,
        kv_values_per_token=kv * (size + value_size),
        kv_heads=kv,
        window=window,
        score_prefill=score,
        score_decode=score,
    )


def _gated(fields: Fields) -> bool:
    """Qwen3-Next and Qwen3.5 gate their attention output: twice the query projection."""
    return fields.words("model_type").startswith(("qwen3_next", "qwen3_5"))


def _latent(fields: Fields) -> AttentionLayers:
    """Multi-head latent attention: one latent and one rotary key per token, whatever the heads."""
    hidden = _hidden(fields)
    heads = fields.whole("num_attention_heads")
    latent, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim")
    nope, value = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    low = fields.maybe("q_lora_rank")
    query = heads * (nope + rope)
    parameters = (hidden * low + low * query) if low else hidden * query
    parameters += (
        hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    )
    return AttentionLayers(
        kind=AttentionKind.LATENT,
        layers=0,
        parameters=parameters,
        kv_values_per_token=latent + rope,
        kv_heads=1,
        score_prefill=heads * (nope + rope + value),
        score_decode=heads * (2 * latent + rope),
    )


def _gated_delta(fields: Fields) -> AttentionLayers:
    """Gated delta-net layer (Qwen3-Next, Qwen3.5): a matrix of state per value head."""
    hidden = _hidden(fields)
    k_heads, v_heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
    k_size, v_size = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    kernel = fields.maybe("linear_conv_kernel_dim") or 4
    keys, values = k_heads * k_size, v_heads * v_size
    parameters = hidden * (2 * keys + 2 * values + 2 * v_heads) + values * hidden
    parameters += (2 * keys + values) * kernel + 2 * v_heads + v_size
    bytes_each = _STATE_BYTES.get(fields.words("mamba_ssm_dtype"), 2)
    state = v_heads * k_size * v_size * bytes_each + (2 * keys + values) * (kernel - 1) * 2
    return AttentionLayers(
        kind=AttentionKind.LINEAR, layers=0, parameters=parameters, state_bytes_per_request=state
    )


def _mamba(fields: Fields) -> AttentionLayers:
    """Mamba layer, first or second kind by the fields that are there."""
    hidden = _hidden(fields)
    kernel = fields.maybe("mamba_d_conv", "conv_kernel") or 4
    bytes_each = _STATE_BYTES.get(fields.words("mamba_ssm_cache_dtype"), 2)
    heads = fields.maybe("mamba_num_heads", "mamba_n_heads")
    if heads is None:
        inner = hidden * fields.whole("mamba_expand")
        size = fields.whole("mamba_d_state")
        rank = fields.maybe("mamba_dt_rank") or -(-hidden // 16)
        parameters = 2 * hidden * inner + inner * (kernel + rank + 2 * size + rank + size)
        parameters += inner * hidden
        state = inner * size * bytes_each + inner * (kernel - 1) * 2
    else:
        inner = heads * fields.whole("mamba_head_dim", "mamba_d_head")
        size = fields.whole("ssm_state_size", "mamba_d_state")
        mixed = inner + 2 * (fields.maybe("n_groups", "mamba_n_groups") or 1) * size
        parameters = hidden * (inner + mixed + heads) + mixed * kernel + inner * hidden
        state = inner * size * bytes_each + mixed * (kernel - 1) * 2
    return AttentionLayers(
        kind=AttentionKind.LINEAR, layers=0, parameters=parameters, state_bytes_per_request=state
    )


def mlp_layers(fields: Fields) -> tuple[MlpLayers, ...]:
    """Feed-forward layers, equal ones together.

    Raises:
        InputError: a field is missing.
    """
    hidden, layers = _hidden(fields), depth(fields)
    matrices = 2 if fields.words("model_type") in _TWO_MATRICES else 3
    experts = _expert_fields(fields).maybe(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"
    )
    routed = _routed_layers(fields, layers) if experts else [False] * layers
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        dense = pattern.count("-")
        moe = pattern.count("E")
    else:
        moe = sum(routed)
        dense = layers - moe
    groups = []
    if dense:
        width = fields.maybe("intermediate_size_mlp") or fields.maybe(
            "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"
        )
        if width is None:
            width = _default_width(fields, hidden)
        groups.append(MlpLayers(layers=dense, dense_parameters=matrices * hidden * width))
    if moe and experts:
        groups.append(_moe(fields, hidden, layers=moe, experts=experts, matrices=matrices))
    return tuple(groups)


def _default_width(fields: Fields, hidden: int) -> int:
    if fields.words("model_type") in ("gpt2", "bloom", "falcon", "mpt", "gpt_bigcode", "gptj"):
        return 4 * hidden
    raise fields.wrong("intermediate_size", "is missing", "Pass the model's whole config.json")


def _expert_fields(fields: Fields) -> Fields:
    nested = fields.get("ffn_config")
    return Fields({**nested, **fields.raw}, fields.path) if isinstance(nested, dict) else fields


def _routed_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers have routed experts."""
    named = fields.get("moe_layers")
    if isinstance(named, list) and named:
        return [i in set(named) for i in range(layers)]
    period = fields.maybe("expert_layer_period")
    if period:
        offset = fields.maybe("expert_layer_offset") or 0
        return [i % period == offset for i in range(layers)]
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(flag) for flag in frequency[:layers]]
    every = fields.maybe("interleave_moe_layer_step", "decoder_sparse_step") or 1
    dense = set(fields.get("mlp_only_layers") or ())
    first = fields.maybe("first_k_dense_replace", "moe_layer_start_index") or 0
    return [i >= first and i not in dense and (i + 1) % every == 0 for i in range(layers)]


def _moe(fields: Fields, hidden: int, *, layers: int, experts: int, matrices: int) -> MlpLayers:
    source = _expert_fields(fields)
    top = source.whole(
        "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k",
        "top_k_experts",
    )  # fmt: skip
    width = source.whole("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
    shared = source.maybe("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if shared is None:
        names = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        shared = (source.maybe(*names) or 0) * width
        if fields.words("model_type").startswith("llama4"):
            shared = width
    if fields.get("enable_moe_block"):  # Gemma 4: a dense block beside the routed one
        shared = fields.whole("intermediate_size")
    gate = hidden if fields.words("model_type").startswith(("qwen2_moe", "qwen3_next")) else 0
    return MlpLayers(
        layers=layers,
        dense_parameters=matrices * hidden * shared + hidden * experts + gate,
        experts=experts,
        experts_per_token=top,
        expert_parameters=matrices * hidden * width,
    )
