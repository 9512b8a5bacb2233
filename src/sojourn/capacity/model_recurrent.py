"""Layers that keep a constant state per request: delta nets, Mamba, lightning, convolutions."""

from __future__ import annotations

from typing import Final

from sojourn.capacity.model_fields import Fields, hidden_size
from sojourn.capacity.model_records import AttentionKind, AttentionLayers

_STATE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


def _linear(parameters: int, state: int) -> AttentionLayers:
    return AttentionLayers(
        kind=AttentionKind.LINEAR, layers=0, parameters=parameters, state_bytes_per_request=state
    )


def gated_delta(fields: Fields) -> AttentionLayers:
    """Gated delta-net layer (Qwen3-Next, Qwen3.5): a matrix of state per value head.

    Raises:
        InputError: a field is missing.
    """
    hidden = hidden_size(fields)
    k_heads, v_heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
    k_size, v_size = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
    kernel = fields.maybe("linear_conv_kernel_dim") or 4
    keys, values = k_heads * k_size, v_heads * v_size
    parameters = hidden * (2 * keys + 2 * values + 2 * v_heads) + values * hidden
    parameters += (2 * keys + values) * kernel + 2 * v_heads + v_size
    bytes_each = _STATE_BYTES.get(fields.words("mamba_ssm_dtype"), 2)
    state = v_heads * k_size * v_size * bytes_each + (2 * keys + values) * (kernel - 1) * 2
    return _linear(parameters, state)


def kimi_delta(fields: Fields) -> AttentionLayers:
    """Kimi delta attention: a 32-bit matrix of state per head, its gate from a small projection.

    Raises:
        InputError: a field is missing.
    """
    hidden = hidden_size(fields)
    own = Fields(fields.get("linear_attn_config") or {}, fields.path)
    heads, size = own.whole("num_heads"), own.whole("head_dim")
    kernel = own.maybe("short_conv_kernel_size") or 4
    width = heads * size
    small = hidden * size + size * width
    gate = hidden * width if own.get("use_full_rank_gate") else small
    parameters = 4 * hidden * width + 3 * width * kernel + small + gate + hidden * heads
    return _linear(parameters, heads * size * size * 4 + 3 * width * (kernel - 1) * 2)


def lightning(fields: Fields) -> AttentionLayers:
    """Lightning attention (MiniMax-01, M1): a 32-bit matrix of state per head, gated output.

    Raises:
        InputError: a field is missing.
    """
    hidden, heads = hidden_size(fields), fields.whole("num_attention_heads")
    size = fields.whole("head_dim")
    return _linear(5 * hidden * heads * size, heads * size * size * 4)


def short_conv(fields: Fields) -> AttentionLayers:
    """Gated short convolution (LFM2).

    Raises:
        InputError: a field is missing.
    """
    hidden, kernel = hidden_size(fields), fields.whole("conv_L_cache")
    return _linear(4 * hidden * hidden + hidden * kernel, hidden * (kernel - 1) * 2)


def mamba(fields: Fields) -> AttentionLayers:
    """Mamba layer, first or second kind by the fields that are there.

    Raises:
        InputError: a field is missing.
    """
    hidden = hidden_size(fields)
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
    return _linear(parameters, state)
