"""Attention layers that cache keys and values: softmax, latent, sparse and compressed.

Parameters follow the model classes of transformers and vLLM; figures are per layer.
"""

from __future__ import annotations

from typing import Final

from sojourn.capacity.model_fields import Fields, hidden_size
from sojourn.capacity.model_records import AttentionKind, AttentionLayers

_QKV_BIAS: Final = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"})
INDEX_SCALE_BYTES: Final = 4
"""Scale beside each cached key of an indexer: vLLM and SGLang keep 128 values of 8 bits and one
32-bit scale per token (132 bytes)."""
CROSS_IMAGE_TOKENS: Final = 4 * 1601
"""Image tokens that cross-attention layers keep per request: four tiles of Llama-3.2-Vision."""


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads, head size."""
    heads = fields.whole("num_attention_heads", "n_head", "n_heads")
    nested = fields.get("attn_config")
    kv = fields.maybe(
        "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_groups"
    )
    if kv is None and isinstance(nested, dict):
        kv = Fields(nested, fields.path).maybe("kv_n_heads")
    if fields.words("model_type") == "falcon" and not fields.get("new_decoder_architecture"):
        kv = 1 if fields.get("multi_query") else heads
    size = fields.maybe("head_dim", "kv_channels") or hidden_size(fields) // heads
    if not size:
        raise fields.wrong("head_dim", f"{heads} heads leave no width for one each")
    return heads, kv or heads, size


def _of_kind(fields: Fields, window: int | None) -> Fields:
    """The fields as they hold for sliding or for full layers, where a config tells them apart."""
    if window is not None:
        names = {k[4:]: v for k, v in fields.raw.items() if k.startswith("swa_") and v is not None}
    else:
        wide = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        names = {k: fields.raw[v] for k, v in wide.items() if fields.raw.get(v) is not None}
    return Fields({**fields.raw, **names}, fields.path) if names else fields


def softmax(fields: Fields, window: int | None) -> AttentionLayers:
    """Attention over all tokens, or over a window of them; MHA, GQA and MQA.

    Raises:
        InputError: a field is missing.
    """
    hidden = hidden_size(fields)
    fields = _of_kind(fields, window)
    heads, kv, size = _heads(fields)
    value_size = fields.maybe("v_head_dim") or size
    query = heads * size * (2 if fields.get("attn_output_gate") or _gated(fields) else 1)
    key_is_value = window is None and bool(fields.get("attention_k_eq_v"))
    kv_width = kv * (size if key_is_value else size + value_size)
    low = fields.maybe("share_q_dim")  # Step3: all heads' queries from one small projection
    query_parameters = (hidden * low + low * query) if low else hidden * query
    parameters = query_parameters + hidden * kv_width + heads * value_size * hidden
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
        top_k=_block_sparse(fields),
    )


def borrowing(fields: Fields, layer: AttentionLayers, window: int | None) -> AttentionLayers:
    """The same layer when it attends to the keys and values of an earlier one of its kind.

    Wrong when: time is asked for: it still reads the borrowed cache, which is not counted here.
    """
    heads, kv, size = _heads(_of_kind(fields, window))
    return layer.model_copy(
        update={
            "parameters": 2 * hidden_size(fields) * heads * size,
            "kv_values_per_token": 0,
            "kv_heads": kv,
        }
    )


def _gated(fields: Fields) -> bool:
    """Qwen3-Next and Qwen3.5 gate their attention output: twice the query projection."""
    return fields.words("model_type").startswith(("qwen3_next", "qwen3_5"))


def _block_sparse(fields: Fields) -> int | None:
    """MiniMax-M3: blocks of tokens chosen per query. Its dense first layers are not told apart."""
    nested = fields.get("sparse_attention_config")
    if not isinstance(nested, dict) or not nested.get("use_sparse_attention"):
        return None
    own = Fields(nested, fields.path)
    return own.whole("sparse_topk_blocks") * own.whole("sparse_block_size")


def latent(fields: Fields, *, indexed: bool) -> AttentionLayers:
    """Multi-head latent attention: one latent and one rotary key per token, whatever the heads.

    `indexed`: the layer has its own indexer (DeepSeek sparse attention); a layer without one
    shares the choice of an earlier layer.

    Raises:
        InputError: a field is missing.
    """
    hidden = hidden_size(fields)
    heads = fields.whole("num_attention_heads")
    rank, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim")
    nope, value = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    low = fields.maybe("q_lora_rank")
    query = heads * (nope + rope)
    parameters = (hidden * low + low * query) if low else hidden * query
    parameters += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    if fields.get("mla_use_output_gate"):
        parameters += hidden * heads * value
    extra = _indexer(fields, low or hidden) if indexed else {"parameters": 0}
    return AttentionLayers(
        kind=AttentionKind.LATENT,
        layers=0,
        kv_values_per_token=rank + rope,
        kv_heads=1,
        score_prefill=heads * (nope + rope + value),
        score_decode=heads * (2 * rank + rope),
        top_k=fields.maybe("index_topk"),
        **{**extra, "parameters": parameters + extra["parameters"]},
    )


def _indexer(fields: Fields, query_from: int) -> dict[str, int]:
    """The small attention that chooses the tokens: queries per head, one key per token."""
    heads, size = fields.whole("index_n_heads"), fields.whole("index_head_dim")
    hidden = hidden_size(fields)
    return {
        "parameters": query_from * heads * size + hidden * size + hidden * heads,
        "index_bytes_per_token": size + INDEX_SCALE_BYTES,
        "index_score": heads * size,
    }


def compressed(fields: Fields, ratio: int) -> AttentionLayers:
    """DeepSeek-V4: one cached entry stands for `ratio` tokens, beside a short window.

    `ratio` 0: the window alone. 4 has an indexer too; larger ratios attend to every entry. The
    window's entries are `state_bytes_per_request`.

    Raises:
        InputError: a field is missing.
    """
    hidden, size = hidden_size(fields), fields.whole("head_dim")
    heads, low = fields.whole("num_attention_heads"), fields.whole("q_lora_rank")
    groups, out = fields.whole("o_groups"), fields.whole("o_lora_rank")
    window = fields.whole("sliding_window")
    parameters = hidden * low + low * heads * size + hidden * size
    parameters += heads * size * out + groups * out * hidden
    if ratio == 0:
        return AttentionLayers(
            kind=AttentionKind.SLIDING,
            layers=0,
            parameters=parameters,
            kv_values_per_token=size,
            window=window,
            score_prefill=2 * heads * size,
            score_decode=2 * heads * size,
        )
    overlap = 2 if ratio == 4 else 1
    parameters += 2 * hidden * overlap * size
    extra: dict[str, int] = {}
    if ratio == 4:
        index = _indexer(fields, low)
        parameters += index["parameters"] + 4 * hidden * fields.whole("index_head_dim")
        extra = {
            "top_k": fields.whole("index_topk") * ratio,
            "index_bytes_per_token": index["index_bytes_per_token"] // ratio,
            "index_score": index["index_score"] // ratio,
        }
    return AttentionLayers(
        kind=AttentionKind.LATENT,
        layers=0,
        parameters=parameters,
        kv_values_per_token=size // ratio,
        score_prefill=2 * heads * size // ratio,
        score_decode=2 * heads * size // ratio,
        state_bytes_per_request=window * size * 2,
        **extra,
    )


def cross(fields: Fields) -> AttentionLayers:
    """Llama-3.2-Vision: attends to the image's tokens only, which are kept per request.

    Wrong when: a request has no image, or fewer than four tiles.
    """
    own = softmax(fields, None)
    return AttentionLayers(
        kind=AttentionKind.LINEAR,
        layers=0,
        parameters=own.parameters,
        state_bytes_per_request=own.kv_values_per_token * 2 * CROSS_IMAGE_TOKENS,
    )
