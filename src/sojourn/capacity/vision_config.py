"""Reads the encoder of a vision-language model from its config.json.

Limits of the image processor are not in config.json: they are those the family's
preprocessor_config.json ships with, listed here by model_type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sojourn.capacity.model_fields import Fields
from sojourn.capacity.vision_records import ImageRule, VisionSpec

_QWEN2: Final = {"min_pixels": 56 * 56, "max_pixels": 16384 * 28 * 28}
_QWEN3: Final = {"min_pixels": 64 * 32 * 32, "max_pixels": 16384 * 32 * 32}
_GLM: Final = {"min_pixels": 112 * 112 // 2, "max_pixels": 6144 * 28 * 28}
_LIMITS: Final[Mapping[str, Mapping[str, int]]] = {
    # preprocessor_config.json of the family's checkpoints; GLM's count two frames per image.
    "qwen2_vl": _QWEN2, "qwen2_5_vl": _QWEN2, "qwen3_vl": _QWEN3, "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3, "qwen3_5_moe": _QWEN3, "qwen3_omni_moe": _QWEN3,
    "glm4v": _GLM, "glm4v_moe": _GLM, "glm46v": _GLM,
    "minimax_m3_vl": {"min_pixels": 4 * 28 * 28, "max_pixels": 451_584},
    "kimi_vl": {"max_pixels": 4096 * 14 * 14},
    "kimi_k25": {"max_pixels": 16384 * 14 * 14},
}  # fmt: skip
_RULES: Final = {
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v",
         "glm4v_moe", "glm46v", "minimax_m3_vl", "qwen3_omni_moe"),
        ImageRule.SMART,
    ),
    "internvl_chat": ImageRule.TILES, "internvl": ImageRule.TILES,
    "llama4": ImageRule.CANVAS, "mllama": ImageRule.CANVAS,
    "llava_next": ImageRule.ANYRES, "llava_onevision": ImageRule.ANYRES,
    "deepseek_vl_v2": ImageRule.ANYRES,
    "llava": ImageRule.FIXED, "gemma3": ImageRule.FIXED, "paligemma": ImageRule.FIXED,
    "gemma4": ImageRule.BUDGET, "mistral3": ImageRule.ROWS,
    "phi3_v": ImageRule.CROPS, "kimi_vl": ImageRule.PADDED, "kimi_k25": ImageRule.PADDED,
}  # fmt: skip
_GATED: Final = frozenset(
    {"qwen2_5_vl", "pixtral", "glm4v", "glm4v_moe", "glm4v_vision", "gemma4_vision"}
)
"""Encoders (vision_config.model_type) whose feed-forward has a gate."""

_MOST: Final = {"tile": 100_000, "max_tiles": 1_000, "factor": 100}
"""Past every encoder known: pixels of a tile's side, tiles of an image, patches merged."""


def read_vision(raw: Mapping[str, Any], text_hidden: int, path: str | None) -> VisionSpec | None:
    """The encoder of a config, or None where it has none that can be counted.

    Raises:
        InputError: a field holds no number.
    """
    nested = raw.get("thinker_config")
    if isinstance(nested, dict) and "vision_config" in nested:
        raw = {**nested, "model_type": raw.get("model_type")}
    vision = raw.get("vision_config")
    if not isinstance(vision, dict):
        return None
    own = Fields(vision, path)
    width = own.maybe("embed_dim", "vt_hidden_size", "hidden_size", "width")
    layers = own.maybe("num_hidden_layers", "depth", "layers", "vt_num_hidden_layers")
    if width is None or layers is None:
        return None
    kind, outer = own.words("model_type"), str(raw.get("model_type") or "")
    layers += own.maybe("num_global_layers") or 0
    mlp = _mlp_width(own, kind, width)
    gated = kind in _GATED or own.words("hidden_act") in ("silu", "swiglu")
    matrices = 3 if gated else 2
    patch = own.maybe("patch_size") or 14
    shape = _shape(raw, own, outer)
    for name in ("tile", "max_tiles", "factor"):
        if not 0 < (shape.get(name) or 1) <= _MOST[name]:
            raise own.wrong(name, f"no image encoder has {shape[name]}")
    attention = own.maybe("qkv_hidden_size") or width
    block = 4 * width * attention + matrices * width * mlp
    frames = own.maybe("temporal_patch_size") or 1
    return VisionSpec(
        architecture=kind or outer,
        layers=layers,
        width=width,
        heads=own.maybe(
            "num_attention_heads", "num_heads", "attention_heads", "vt_num_attention_heads"
        )
        or 16,
        mlp_width=mlp,
        mlp_matrices=matrices,
        patch=patch,
        frames_per_patch=frames,
        feature_taps=len(own.get("deepstack_visual_indexes") or ()),
        block_parameters=layers * block,
        other_parameters=3 * patch * patch * frames * width
        + _positions(own, width)
        + _projector(own, outer, width, text_hidden, shape["factor"]),
        **shape,
    )


def _mlp_width(own: Fields, kind: str, width: int) -> int:
    if kind.startswith("glm4v"):  # its blocks are as wide as its output; the rest is the merger's
        return own.whole("out_hidden_size")
    given = own.maybe("intermediate_size", "vt_intermediate_size")
    return given or round(width * float(own.get("mlp_ratio") or 4))


def _positions(own: Fields, width: int) -> int:
    """Learned position embeddings, where the encoder has a table of them."""
    table = own.maybe("num_position_embeddings")
    if own.maybe("position_embedding_size"):  # Gemma 4: one table per axis
        table = 2 * own.whole("position_embedding_size")
    if own.maybe("init_pos_emb_height"):
        table = own.whole("init_pos_emb_height") * own.whole("init_pos_emb_width")
    side = own.maybe("image_size")
    if table is None and side is not None and own.words("model_type") in _TABLES:
        table = (side // (own.maybe("patch_size") or 14)) ** 2
    if own.words("model_type") == "mllama_vision_model":
        table = (table or 0) * 45 // 4  # per tile and aspect ratio beside the plain one
    return (table or 0) * width


_TABLES: Final = frozenset(
    {"clip_vision_model", "siglip_vision_model", "intern_vit_6b", "vision", "mllama_vision_model"}
    | {"llama4_vision_model", "glm4v", "glm4v_moe"}
)


def _projector(own: Fields, outer: str, width: int, hidden: int, factor: int) -> int:
    """Parameters between encoder and decoder, by family; two layers else."""
    merged = width * factor * factor
    two_layers = merged * hidden + hidden * hidden
    if outer.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3", "kimi")):
        taps = own.get("deepstack_visual_indexes") or ()
        return (1 + len(taps)) * (merged * merged + merged * hidden)
    if outer.startswith("glm4"):
        return two_layers + 3 * hidden * own.whole("intermediate_size")
    projected = own.maybe("projection_dim", "projector_output_dim") or hidden
    return {
        "minimax_m3_vl": width * projected + (2 + factor**2) * projected**2,
        "mistral3": merged * width + width * hidden + hidden * hidden,
        "llama4": merged * projected + projected * projected + projected * hidden,
        "gemma3": width * hidden,
        "gemma4": width * hidden,
        "paligemma": width * hidden,
        "mllama": (own.maybe("vision_output_dim") or 6 * width) * hidden,
    }.get(outer, two_layers)


def _shape(raw: Mapping[str, Any], own: Fields, outer: str) -> dict[str, Any]:
    """The family's rule and its numbers."""
    rule = _RULES.get(outer, ImageRule.UNKNOWN)
    if own.words("model_type") == "pixtral":
        rule = ImageRule.ROWS
    shape: dict[str, Any] = {"rule": rule, "factor": _factor(own), **_LIMITS.get(outer, {})}
    if own.maybe("window_size"):
        patches = own.whole("window_size") // own.whole("patch_size")
        full = own.get("fullatt_block_indexes") or ()
        shape |= {"window_patches": patches * patches, "full_layers": len(full)}
    read = {
        ImageRule.TILES: _tiles,
        ImageRule.CANVAS: _canvas,
        ImageRule.ANYRES: _anyres,
        ImageRule.FIXED: _fixed,
        ImageRule.BUDGET: _budget,
        ImageRule.ROWS: _rows,
        ImageRule.CROPS: _crops,
    }.get(rule)
    return shape if read is None else {**shape, **read(raw, own)}


def _factor(own: Fields) -> int:
    merge = own.get("merge_kernel_size")
    nested = own.get("img_token_compression_config")
    if isinstance(nested, dict) and nested.get("spatial_merge_size"):
        return int(nested["spatial_merge_size"])
    return own.maybe("spatial_merge_size") or (int(merge[0]) if isinstance(merge, list) else 1)


def _tiles(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    outer = Fields(raw, own.path)
    return {
        "tile": outer.maybe("force_image_size") or own.maybe("image_size") or 448,
        "max_tiles": outer.maybe("max_dynamic_patch") or 12,
        "factor": round(1 / outer.share("downsample_ratio", 0.5)),
        "extra_patches": 1,
    }


def _canvas(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    shape = {"tile": own.maybe("image_size"), "extra_patches": 1}
    if raw.get("model_type") == "mllama":
        return {**shape, "max_tiles": own.maybe("max_num_tiles") or 4, "cross_attention": True}
    return {**shape, "max_tiles": 16, "factor": round(1 / own.share("pixel_shuffle_ratio", 0.5))}


def _anyres(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    pins = raw.get("image_grid_pinpoints") or raw.get("candidate_resolutions") or ()
    return {
        "tile": own.maybe("image_size"),
        "resolutions": tuple((int(a), int(b)) for a, b in pins),
        "factor": 2 if raw.get("model_type") == "deepseek_vl_v2" else 1,
    }


def _fixed(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    tile = own.maybe("image_size")
    if tile is None:
        return {"rule": ImageRule.UNKNOWN}
    side = tile // (own.maybe("patch_size") or 14)
    return {
        "tile": tile,
        "max_tokens": Fields(raw, own.path).maybe("mm_tokens_per_image") or side * side,
    }


def _budget(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    return {
        "factor": own.maybe("pooling_kernel_size") or 3,
        "max_tokens": Fields(raw, own.path).maybe("vision_soft_tokens_per_image") or 280,
    }


def _rows(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    return {
        "tile": own.maybe("image_size"),
        "factor": Fields(raw, own.path).maybe("spatial_merge_size") or 1,
    }


def _crops(raw: Mapping[str, Any], own: Fields) -> dict[str, Any]:
    crops = Fields(raw.get("img_processor") or {}, own.path).maybe("num_crops") or 16
    return {"tile": own.maybe("image_size"), "max_tiles": crops, "factor": 2, "extra_patches": 1}
