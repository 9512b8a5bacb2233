"""Images of a vision-language model: tokens they cost, time on the encoder and on the host, memory.

Tokens follow the family's own rule (`vision_tokens`); encoder time is a roofline with efficiencies
of measured kernels; host time is a linear law of pixels in and out.
"""

from __future__ import annotations

import math
from typing import Final

from pydantic import Field

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.policies import Encoder
from sojourn.capacity.vision_records import ImageRule, VisionSpec
from sojourn.capacity.vision_tokens import MAX_ASPECT, ImageLayout, layout, smart_resize
from sojourn.config import Deployment
from sojourn.interval import Excuse, Interval, Provenance, Sourced
from sojourn.records import Record

MATMUL: Final = Interval(low=0.5, mid=0.68, high=0.8, confidence=0.8)
"""Share of the peak rate that matrix products of an encoder's size reach. Fitted: median, 10th and
90th percentile of the bf16 products with 2,048 to 16,384 rows and 1,024 to 6,144 columns that
aiconfigurator-core 0.12.0 measured with vLLM on A100, H100, H200, B200, GB200, B300, L40S and
RTX PRO 6000 (medians 0.56 to 0.77). Wrong when: an image has fewer than 1,000 patches (0.5)."""

ATTENTION: Final = Interval(low=0.28, mid=0.44, high=0.54, confidence=0.8)
"""The same for full attention without a mask, heads of 64 to 80: encoder attention of the same
tables, 2,304 to 16,384 patches, on H100, H200 and L40S (RTX PRO 6000: 0.38 to 0.75). Wrong when:
sequences are shorter (see `KERNEL_S`)."""

ATTENTION_FAST: Final = Interval(low=0.25, mid=0.34, high=0.5, confidence=0.8)
"""On cards beyond `FAST_FLOPS` (B200, GB200: 0.24 to 0.41; B300, GB300: 0.28 to 0.53): softmax is
not faster there by as much as the products are."""
FAST_FLOPS: Final = 1.5e15

BANDWIDTH: Final = Interval(low=0.55, mid=0.7, high=0.85, confidence=0.8)
"""Share of the memory bandwidth that norms, activations and residuals reach. Assumed."""

KERNEL_S: Final = 20e-6
"""Least time of one attention kernel: the same tables give 15 to 25 us below 1,024 patches."""

LAYER_S: Final = Interval(low=30e-6, mid=70e-6, high=150e-6, confidence=0.8)
"""Host time to launch one encoder layer outside CUDA graphs (a dozen kernels). Assumed."""

DECODE_S_PER_PIXEL: Final = 15e-9
"""CPU time to decode a JPEG and resize it, per pixel of the image that arrives. Measured with
Pillow on one core of an AMD EPYC: `benchmarks/image_preprocessing.py` prints 14 to 15 ns."""
NORMALISE_S_PER_PIXEL: Final = 19e-9
"""CPU time to scale, normalise and cut into patches, per pixel the encoder takes in: 17 to 21 ns
by the same, with NumPy."""
IMAGE_S: Final = 3e-3
"""CPU time per image whatever its size. The published timing of Qwen2.5-VL's own processor, 10.3 ms
for 448 x 448 pixels (Qwen2.5-VL-Batched, README), less what its pixels take; rounded."""
HOST_SPREAD: Final = (0.4, 2.0)
"""Low and high end over the middle: OpenCV or compiled processors take half of Pillow's time
(published: 12.0 ms against 23.7 ms per image); slower cores and busy hosts twice."""

VIDEO_PIXELS: Final = 24 * 1024 * 1024
"""Pixels of all frames that Qwen3-VL's video processor keeps (longest_edge 25,165,824)."""


class Images(Record):
    """The images of a workload, for `headroom`."""

    width: int = Field(gt=0)
    height: int = Field(gt=0)
    per_s: float = Field(ge=0, description="Images per second of one replica.")
    workers: int = Field(1, gt=0, description="Host processes that decode and resize.")


class EncoderHeadroom(Record):
    """How full the encoder and the host's image workers are; 1 is full."""

    tokens: int
    encode: Sourced
    preprocess: Sourced
    encoder_busy: Interval
    host_busy: Interval
    max_per_s: Interval = Field(description="Images per second at which the first of them is full.")
    first_full: str = Field(description="encoder or host.")


def image_layout(
    model: ModelSpec, width: int, height: int, *, max_pixels: int | None = None
) -> ImageLayout | Excuse:
    """Tokens, encoder runs and pixels of one image.

    `max_pixels`: the limit of the deployment's image processor, where it is not the family's.
    """
    spec = model.vision
    if spec is None:
        return Excuse(
            reason=f"{model.name} has no image encoder in its config",
            collect=("the config.json of a vision-language model (vision_config)",),
        )
    if not (0 < width < math.inf and 0 < height < math.inf):
        return Excuse(reason=f"an image of {width} x {height} pixels has no pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        return Excuse(
            reason=f"an image of {width} x {height} pixels is longer than {MAX_ASPECT} times its"
            " width, which image processors refuse"
        )
    if max_pixels is not None:
        spec = spec.model_copy(update={"max_pixels": max_pixels})
    found = layout(spec, width, height)
    if found is None:
        return Excuse(
            reason=f"the image rule of {model.name} ({spec.architecture}) is not known",
            collect=("prompt tokens of requests with and without an image",),
        )
    return found


def image_tokens(
    model: ModelSpec, width: int, height: int, *, max_pixels: int | None = None
) -> int | Excuse:
    """Tokens one image adds to the prompt, separators and line ends included, markers left out.

    Source: see the rules in `vision_tokens`. Wrong when: the engine's image processor is set
    otherwise (pan and scan, crops, pixel limits): pass `max_pixels` or count it in telemetry.
    """
    found = image_layout(model, width, height, max_pixels=max_pixels)
    return found if isinstance(found, Excuse) else found.tokens


def video_tokens(model: ModelSpec, width: int, height: int, frames: int) -> int | Excuse:
    """Tokens of a video of `frames` sampled frames, for encoders that pair frames (Qwen's kin).

    Source: Qwen2-VL (every frame within the image's limits) and Qwen3-VL (all frames within
    `VIDEO_PIXELS`). Wrong when: the sampling rate or limits are set; timestamps are not counted.
    """
    spec = model.vision
    if spec is None or spec.rule is not ImageRule.SMART or spec.frames_per_patch < 2:
        return Excuse(
            reason=f"how {model.name} reads videos is not known",
            collect=("prompt tokens of requests with a video",),
        )
    one = image_layout(model, width, height)
    if isinstance(one, Excuse):
        return one
    if not 0 < frames < math.inf:
        return Excuse(reason=f"a video of {frames} frames has no frames")
    steps = math.ceil(frames / spec.frames_per_patch)
    if spec.patch == 14:
        return steps * one.tokens
    side, each = spec.patch * spec.factor, VIDEO_PIXELS / (steps * spec.frames_per_patch)
    tall, wide = smart_resize(
        height, width, side, min_pixels=4096 / spec.frames_per_patch, max_pixels=each
    )
    return steps * (tall // side) * (wide // side)


def encoder_flops(spec: VisionSpec, image: ImageLayout) -> tuple[float, float]:
    """Floating-point operations of one image: matrix products, attention.

    Products: 2 per block parameter and patch, and 2 per other parameter and token. Attention:
    4 x width x pairs of patches per layer; pairs within a window where the layer has windows.
    """
    products = 2.0 * spec.block_parameters * image.patches + 2.0 * spec.other_parameters * max(
        image.tokens, image.patches // spec.factor**2
    )
    pairs = sum(n * n for n in image.sequences)
    windowed = pairs
    if spec.window_patches is not None:
        windowed = sum(n * min(n, spec.window_patches) for n in image.sequences)
    full = spec.full_layers if spec.window_patches is not None else spec.layers
    attention = 4.0 * spec.width * (full * pairs + (spec.layers - full) * windowed)
    return products, attention


def encode_s(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, width: int, height: int
) -> Sourced | Excuse:
    """Time the encoder takes for one image on one replica, s, with an 80% interval.

    time = layers x launch + products/(peak x eff) + attention/(peak x eff) + activations/bandwidth,
    each over the tensor-parallel ranks. Source: efficiencies of measured kernels (`MATMUL`,
    `ATTENTION`). Wrong when: images are batched (the launches are shared: up to twice as fast),
    the encoder is run data-parallel (--mm-encoder-tp-mode data) or on GPUs of its own, or its
    attention falls back to an unfused kernel.
    """
    image = image_layout(model, width, height)
    if isinstance(image, Excuse):
        return image
    assert model.vision is not None
    fast, mid, slow = (
        _encode_s(model.vision, gpu, deployment, image, end=end) for end in (1, 0, -1)
    )
    interval = Interval(low=fast, mid=mid, high=slow, confidence=0.8)
    return Sourced(
        value=interval.mid,
        unit="s",
        provenance=Provenance.CATALOGUE,
        source=f"roofline of the encoder of {model.name}: {image.patches:,} patches of"
        f" {width} x {height} pixels on {deployment.tensor_parallel} x {gpu.name}; kernel"
        " efficiencies from aiconfigurator-core 0.12.0",
        interval=interval,
    )


def _at(interval: Interval, end: int) -> float:
    """The low (-1), middle (0) or high (1) end."""
    return (interval.low, interval.mid, interval.high)[end + 1]


def kernels_s(spec: VisionSpec, gpu: Gpu, flops: tuple[float, float], *, end: int) -> float:
    """Time of matrix products and attention (`flops`) on one GPU, s.

    `end`: slow (-1), middle (0) or fast (1) end of the efficiencies. Source: see `MATMUL`,
    `ATTENTION`; `benchmarks/encoder_check.py` scores it on sums of measured kernels.
    """
    products, attention = flops
    reached = ATTENTION_FAST if gpu.bf16_flops > FAST_FLOPS else ATTENTION
    return products / (gpu.bf16_flops * _at(MATMUL, end)) + max(
        attention / (gpu.bf16_flops * _at(reached, end)), spec.layers * KERNEL_S
    )


def _encode_s(
    spec: VisionSpec, gpu: Gpu, deployment: Deployment, image: ImageLayout, *, end: int
) -> float:
    """At one end of every efficiency (see `_at`)."""
    ranks = deployment.tensor_parallel
    launches = spec.layers * _at(LAYER_S, -end)
    moved = 2.0 * image.patches * spec.layers * (14 * spec.width + 3 * spec.mlp_width) / ranks
    products, attention = encoder_flops(spec, image)
    device = kernels_s(spec, gpu, (products / ranks, attention / ranks), end=end)
    device += moved / (gpu.bandwidth_bytes_per_s * _at(BANDWIDTH, end))
    if ranks > 1:  # two all-reduces per layer, ring: 2 (p-1)/p of the activations each
        sent = 4.0 * (ranks - 1) / ranks * image.patches * spec.width * 2 * spec.layers
        device += sent / (gpu.link_bytes_per_s * _at(BANDWIDTH, end))
    return max(device, launches) + min(device, launches) / 2


def encoder_station(model: ModelSpec, gpu: Gpu, deployment: Deployment) -> Encoder | Excuse:
    """The encoder as a station of the simulator: a time per image and a time per image token.

    The line through the times of a 640 x 480 and a 1920 x 1080 image; where attention makes it
    meet zero time too late, the line from zero through the larger (small images are told too slow).
    Wrong when: images are much larger still. A fit to an encode stage wins over it.
    """
    points = []
    for width, height in ((640, 480), (1920, 1080)):
        tokens = image_tokens(model, width, height)
        seconds = encode_s(model, gpu, deployment, width, height)
        if isinstance(tokens, Excuse):
            return tokens
        if isinstance(seconds, Excuse):
            return seconds
        points.append((tokens, seconds.value))
    (few, fast), (many, slow) = points
    slope = max(0.0, (slow - fast) / (many - few)) if many != few else 0.0
    base = fast - slope * few
    return (
        Encoder(base_s=base, s_per_token=slope) if base >= 0 else Encoder(s_per_token=slow / many)
    )


def preprocess_s(
    model: ModelSpec, width: int, height: int, *, max_pixels: int | None = None
) -> Sourced | Excuse:
    """Host time of one image on one core, s: decode, resize, normalise, cut into patches.

    time = 3 ms + pixels in x 15 ns + pixels the encoder takes x 19 ns. A replica with W workers
    takes at most W / time images per second (cases 69 and 72: the host is full first).
    Wrong when: the processor runs on the GPU, images are cached, or they arrive as raw pixels.
    """
    image = image_layout(model, width, height, max_pixels=max_pixels)
    if isinstance(image, Excuse):
        return image
    pixels = width * height * DECODE_S_PER_PIXEL + image.pixels * NORMALISE_S_PER_PIXEL
    mid = IMAGE_S + pixels
    low, high = (mid * factor for factor in HOST_SPREAD)
    return Sourced(
        value=mid,
        unit="s",
        provenance=Provenance.ASSUMED,
        source="Pillow and NumPy on one core (benchmarks/image_preprocessing.py); your processor"
        " and host may differ: measure the encode stage to replace it",
        interval=Interval(low=low, mid=mid, high=high, confidence=0.8),
    )


def headroom(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, images: Images
) -> EncoderHeadroom | Excuse:
    """How busy images keep a replica's encoder and its host workers, and where they stop.

    busy = images per second x time each, over the workers on the host. Wrong when: encoder and
    decoder share the GPU (they do unless the encoder has its own): the encoder's share is then
    taken from prefill and decode before it is full.
    """
    tokens = image_tokens(model, images.width, images.height)
    encode = encode_s(model, gpu, deployment, images.width, images.height)
    host = preprocess_s(model, images.width, images.height)
    for found in (tokens, encode, host):
        if isinstance(found, Excuse):
            return found
    assert isinstance(tokens, int)
    assert isinstance(encode, Sourced)
    assert isinstance(host, Sourced)
    one, own = _interval(encode), _interval(host).scale(1 / images.workers)
    slowest = one if one.mid >= own.mid else own
    return EncoderHeadroom(
        tokens=tokens,
        encode=encode,
        preprocess=host,
        encoder_busy=one.scale(images.per_s),
        host_busy=own.scale(images.per_s),
        max_per_s=slowest.map(lambda seconds: 1 / seconds),
        first_full="encoder" if slowest is one else "host",
    )


def _interval(figure: Sourced) -> Interval:
    return figure.interval or Interval.exact(figure.value)


def encoder_bytes(model: ModelSpec, deployment: Deployment) -> tuple[float, float]:
    """Memory of the encoder beside its weights, bytes of one GPU: peak of activations, cache.

    The engine profiles the encoder with as many patches as its token budget holds and keeps as
    many encoded tokens. activations = patches x (4 width + (matrices - 1) x MLP) x 2 bytes;
    cache = budget x hidden x 2 bytes, times the layers of features it taps. Source: vLLM's
    encoder budget (the larger of max_num_batched_tokens and one image). Wrong when: the profile
    is skipped (--skip-mm-profiling), or attention is not fused.
    """
    spec = model.vision
    if spec is None:
        return 0.0, 0.0
    budget = max(deployment.max_num_batched_tokens, _largest_image(spec))
    patches = budget * spec.factor**2
    per_patch = 4 * spec.width + (spec.mlp_matrices - 1) * spec.mlp_width
    taps = 1 + spec.feature_taps
    return (
        2.0 * patches * per_patch / deployment.tensor_parallel,
        2.0 * budget * model.hidden_size * taps,
    )


def _largest_image(spec: VisionSpec) -> int:
    """Tokens of the largest image its processor lets through."""
    if spec.max_pixels is not None:
        return spec.max_pixels // (spec.patch * spec.factor) ** 2
    side = spec.tile or 1024
    found = layout(spec, side * spec.max_tiles, side)
    return found.tokens if found else 0
