"""`VisionSpec`: what an image encoder is made of, and the rule that cuts an image into patches."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sojourn.records import Record


class ImageRule(StrEnum):
    """How an image's size becomes patches and tokens; `vision_tokens` has the formula of each."""

    SMART = "smart"  # Qwen2-VL and its kin: sides rounded to a factor, area within limits
    TILES = "tiles"  # InternVL: tiles by the nearest aspect ratio, and a thumbnail
    CANVAS = "canvas"  # Llama-4 and Llama-3.2-Vision: the canvas of tiles that scales least
    ANYRES = "anyres"  # LLaVA-NeXT, LLaVA-OneVision, DeepSeek-VL2: a list of resolutions
    FIXED = "fixed"  # LLaVA-1.5, Gemma 3: always the same
    BUDGET = "budget"  # Gemma 4: the largest size within a number of tokens
    ROWS = "rows"  # Pixtral, Mistral Small: patches, and a token at the end of each row
    CROPS = "crops"  # Phi-3-vision: square crops, line ends, a global view
    PADDED = "padded"  # MoonViT: shrunk under a limit, padded to whole patches
    UNKNOWN = "unknown"  # the encoder's size is known, its images are not


class VisionSpec(Record):
    """An image encoder. `factor` is the side of the square one token stands for, in patches."""

    architecture: str
    rule: ImageRule
    layers: int
    width: int
    heads: int
    mlp_width: int
    mlp_matrices: int = Field(2, description="3 where the feed-forward is gated.")
    patch: int = Field(description="Side of a patch, pixels.")
    factor: int = Field(1, description="Patches per side that are merged into one token.")
    window_patches: int | None = Field(None, description="Patches per attention window; None: all.")
    full_layers: int = Field(0, description="Layers that look at all patches beside the windows.")
    tile: int | None = Field(None, description="Side of a tile or of the fixed image, pixels.")
    max_tiles: int = 1
    resolutions: tuple[tuple[int, int], ...] = Field((), description="Height and width, pixels.")
    min_pixels: int = 0
    max_pixels: int | None = None
    max_tokens: int | None = None
    extra_patches: int = Field(0, description="Class token per sequence.")
    cross_attention: bool = Field(
        False, description="The decoder reads the image by cross-attention, not in its prompt."
    )
    feature_taps: int = Field(0, description="Layers whose features are handed on beside the last.")
    frames_per_patch: int = Field(1, description="Video frames that share a patch.")
    block_parameters: int = Field(description="Of the encoder's blocks.")
    other_parameters: int = Field(description="Patch and position embedding, projector.")

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.block_parameters + self.other_parameters
