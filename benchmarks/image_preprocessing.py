"""Times what a host does to one image before the encoder sees it: decode, resize, normalise, cut.

    python benchmarks/image_preprocessing.py

Needs Pillow and NumPy (Pillow is no dependency of sojourn). Prints CPU time per pixel in and out on
one core; `capacity/vision.py` takes its two figures from it.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

SIDE = 28  # two patches of 14: the square one token of the Qwen family stands for
SIZES = ((448, 448), (1280, 720), (1920, 1080), (2480, 3508))
MEAN, STD = np.float32([0.48, 0.46, 0.41]), np.float32([0.27, 0.26, 0.28])


def main() -> None:
    """One line per size."""
    try:
        from PIL import Image  # noqa: PLC0415  -- not a dependency: asked for when it is run
    except ImportError:
        sys.exit("Pillow is not installed: pip install pillow")
    rng = np.random.default_rng(0)
    for width, height in SIZES:
        coarse = rng.integers(0, 255, (height // 24 + 1, width // 24 + 1, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC))
        grain = rng.integers(-12, 12, smooth.shape)
        photo = Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))
        stored = io.BytesIO()
        photo.save(stored, "JPEG", quality=88)
        size = (round(width / SIDE) * SIDE, round(height / SIDE) * SIDE)

        def read(stored: io.BytesIO = stored, size: tuple[int, int] = size) -> Image.Image:
            stored.seek(0)
            return Image.open(stored).convert("RGB").resize(size, Image.BICUBIC)

        resized = read()
        into, out = milliseconds(read), milliseconds(lambda image=resized: patches(image))
        print(
            f"{width} x {height}: decode and resize {into:.1f} ms"
            f" ({into * 1e6 / (width * height):.0f} ns/pixel in), normalise and cut {out:.1f} ms"
            f" ({out * 1e6 / (size[0] * size[1]):.0f} ns/pixel out)"
        )


def patches(image: object) -> np.ndarray:
    """Normalised patches of two equal frames, as Qwen2-VL's processor lays them out."""
    values = (np.asarray(image).astype(np.float32) * np.float32(1 / 255) - MEAN) / STD
    rows, columns = values.shape[0] // SIDE, values.shape[1] // SIDE
    frames = np.stack([values.transpose(2, 0, 1)] * 2)
    cut = frames.reshape(2, 3, rows, 2, 14, columns, 2, 14).transpose(2, 5, 3, 6, 1, 0, 4, 7)
    return np.ascontiguousarray(cut.reshape(rows * columns * 4, -1))


def milliseconds(work: Callable[[], object], repeats: int = 9) -> float:
    """Median CPU time of `work`."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3


if __name__ == "__main__":
    main()
