"""How an image's size becomes patches for the encoder and tokens for the decoder, by family.

Each rule is the one its publisher's image processor follows (transformers' processors, and vLLM
0.11 to 0.32 where a model's own code is used). Markers around an image (start, end) are not
counted; separators and line ends inside it are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sojourn.capacity.vision_records import ImageRule, VisionSpec

MAX_ASPECT = 200
"""Longest side over shortest; processors of the Qwen family refuse more."""


class ImageLayout(NamedTuple):
    """What one image is cut into.

    `tokens`: that the decoder's prompt grows by. `sequences`: patches of each run of the encoder
    (tiles are runs of their own). `pixels`: that the encoder takes in, after resizing.
    """

    tokens: int
    sequences: tuple[int, ...]
    pixels: int

    @property
    def patches(self) -> int:
        """Patches of all runs."""
        return sum(self.sequences)


def smart_resize(
    height: float, width: float, factor: int, *, min_pixels: float, max_pixels: float
) -> tuple[int, int]:
    """Height and width rounded to multiples of `factor`, their product within the limits.

    Source: Qwen2-VL's smart_resize. Wrong when: limits of the deployment differ
    (--mm-processor-kwargs): pass them.
    """
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = height * scale, width * scale
    tall, wide = (max(factor, round(side / factor) * factor) for side in (height, width))
    if tall * wide > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        tall, wide = (
            max(factor, math.floor(side / beta / factor) * factor) for side in (height, width)
        )
    elif tall * wide < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        tall, wide = (math.ceil(side * beta / factor) * factor for side in (height, width))
    return tall, wide


def layout(spec: VisionSpec, width: int, height: int) -> ImageLayout | None:
    """What an image of `width` x `height` pixels becomes, or None where the rule is not known."""
    rules = {
        ImageRule.SMART: _smart,
        ImageRule.TILES: _tiles,
        ImageRule.CANVAS: _canvas,
        ImageRule.ANYRES: _anyres,
        ImageRule.FIXED: _fixed,
        ImageRule.BUDGET: _budget,
        ImageRule.ROWS: _rows,
        ImageRule.CROPS: _crops,
        ImageRule.PADDED: _padded,
    }
    rule = rules.get(spec.rule)
    return None if rule is None else rule(spec, width, height)


def _whole(spec: VisionSpec, tall: int, wide: int, tokens: int) -> ImageLayout:
    patches = (tall // spec.patch) * (wide // spec.patch)
    return ImageLayout(tokens, (patches + spec.extra_patches,), tall * wide)


def _smart(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """One token per square of patch x factor pixels."""
    side = spec.patch * spec.factor
    tall, wide = smart_resize(
        height, width, side, min_pixels=spec.min_pixels, max_pixels=spec.max_pixels or math.inf
    )
    return _whole(spec, tall, wide, (tall // side) * (wide // side))


def _grids(most: int) -> list[tuple[int, int]]:
    """Rows and columns of at most `most` tiles, fewest tiles first."""
    pairs = [(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most]
    return sorted(pairs, key=lambda pair: pair[0] * pair[1])


def nearest_ratio(width: int, height: int, tile: int, most: int) -> tuple[int, int]:
    """Columns and rows of the grid nearest in aspect ratio; of equal ones the larger if the image
    fills more than half of it. Source: InternVL's dynamic_preprocess."""
    best, best_gap = (1, 1), math.inf
    for columns, rows in _grids(most):
        gap = abs(width / height - columns / rows)
        fills = width * height > 0.5 * tile * tile * columns * rows
        if gap < best_gap or (gap == best_gap and fills):
            best, best_gap = (columns, rows), gap
    return best


def _tiled(spec: VisionSpec, tiles: int) -> tuple[tuple[int, ...], int, int]:
    """Runs, tokens of one tile, pixels of `tiles` tiles."""
    side = spec.tile or spec.patch
    patches = (side // spec.patch) ** 2
    runs = (patches + spec.extra_patches,) * tiles
    return runs, math.ceil(side // spec.patch / spec.factor) ** 2, tiles * side * side


def _tiles(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """InternVL: a fixed number of tokens per tile, one more tile for the whole image."""
    columns, rows = nearest_ratio(width, height, spec.tile or 448, spec.max_tiles)
    tiles = columns * rows
    runs, each, pixels = _tiled(spec, tiles + (1 if tiles > 1 else 0))
    return ImageLayout(each * len(runs), runs, pixels)


def _canvas(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """Llama: the grid that enlarges least, or shrinks least; of equal ones the smallest.

    Llama-4 adds a global tile to more than one, and a separator behind each; Llama-3.2-Vision
    puts one token into the prompt and is read by cross-attention.
    """
    side = spec.tile or spec.patch
    scales = {
        grid: min(grid[0] * side / height, grid[1] * side / width)
        for grid in _grids(spec.max_tiles)
    }
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    rows, columns = min(
        (grid for grid, scale in scales.items() if scale == chosen), key=lambda g: g[0] * g[1]
    )
    tiles = rows * columns
    if spec.cross_attention:
        runs, _, pixels = _tiled(spec, tiles)
        return ImageLayout(1, runs, pixels)
    runs, each, pixels = _tiled(spec, tiles + (1 if tiles > 1 else 0))
    return ImageLayout(each * len(runs) + (tiles if tiles > 1 else 0), runs, pixels)


def _best_resolution(spec: VisionSpec, width: int, height: int) -> tuple[int, int]:
    """Of the listed ones: most of the image kept, then least wasted. Height and width."""
    best, best_kept, least = (spec.tile or 1, spec.tile or 1), -1, math.inf
    for tall, wide in spec.resolutions:
        scale = min(wide / width, tall / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = tall * wide - kept
        if kept > best_kept or (kept == best_kept and wasted < least):
            best, best_kept, least = (tall, wide), kept, wasted
    return best


def _anyres(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """LLaVA-NeXT: the whole image once, and the tiles of the best resolution without their padding,
    a token at the end of each row. OneVision shrinks beyond nine tiles; DeepSeek-VL2 keeps the
    padding and adds a separator."""
    side = spec.tile or spec.patch
    tall, wide = _best_resolution(spec, width, height)
    rows, columns = tall // side, wide // side
    grid = side // spec.patch
    runs, _, pixels = _tiled(spec, rows * columns + 1)
    if spec.factor > 1:  # DeepSeek-VL2
        step = math.ceil(grid / spec.factor)
        tokens = step * (step + 1) + 1 + (rows * step) * (columns * step + 1)
        return ImageLayout(tokens, runs, pixels)
    high, broad = rows * grid, columns * grid
    if width / height > broad / high:
        high -= 2 * ((high - int(round(height * (broad / width), 7))) // 2)
    else:
        broad -= 2 * ((broad - int(round(width * (high / height), 7))) // 2)
    excess = math.sqrt(high * broad / (9 * grid**2))
    if "siglip" in spec.architecture and excess > 1.1:
        high, broad = int(high // excess), int(broad // excess)
    return ImageLayout(grid * grid + high * broad + high, runs, pixels)


def _fixed(spec: VisionSpec, _width: int, _height: int) -> ImageLayout:
    """The image is resized to one square, whatever its size (pan and scan is off by default)."""
    runs, _, pixels = _tiled(spec, 1)
    return ImageLayout(spec.max_tokens or 0, runs, pixels)


def _budget(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """Gemma 4: aspect ratio kept, sides in whole squares of patch x pooling, area within budget."""
    side = spec.patch * spec.factor
    most = spec.max_tokens or 280
    scale = math.sqrt(most * side * side / (width * height))
    high, broad = math.floor(height * scale / side), math.floor(width * scale / side)
    if high == 0:
        high, broad = 1, min(max(1, width // height), most)
    elif broad == 0:
        high, broad = min(max(1, height // width), most), 1
    return _whole(spec, high * side, broad * side, high * broad)


def _rows(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """Pixtral: shrunk to fit the square, then patches and one token per row."""
    side, most = spec.patch * spec.factor, spec.tile or max(width, height)
    ratio = max(width / most, height / most)
    if ratio > 1:
        width, height = (max(1, math.floor(x / ratio)) for x in (width, height))
    high, broad = (height - 1) // side + 1, (width - 1) // side + 1
    return _whole(spec, high * side, broad * side, high * (broad + 1))


def _crops(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """Phi-3-vision: as many crops as fit the aspect ratio, 144 tokens each, line ends, a global."""
    side, ratio = spec.tile or 336, max(width, height) / min(width, height)
    scale = 1
    while (scale + 1) * math.ceil((scale + 1) / ratio) <= spec.max_tiles:
        scale += 1
    long, short = scale, math.ceil(int(scale * side / ratio) / side)
    tiles, lines = long * short, (short if width >= height else long)
    runs, each, pixels = _tiled(spec, tiles + 1)
    step = math.isqrt(each)
    return ImageLayout((tiles + 1) * each + 1 + (lines + 1) * step, runs, pixels)


def _padded(spec: VisionSpec, width: int, height: int) -> ImageLayout:
    """MoonViT: shrunk until its patches are within the limit, padded to whole squares."""
    limit = (spec.max_pixels or math.inf) / spec.patch**2
    patches = max(1, width // spec.patch) * max(1, height // spec.patch)
    if patches > limit:
        scale = math.sqrt(limit / patches)
        width, height = (max(1, int(x * scale)) for x in (width, height))
    side = spec.patch * spec.factor
    high, broad = math.ceil(height / side), math.ceil(width / side)
    return _whole(spec, high * side, broad * side, high * broad)
