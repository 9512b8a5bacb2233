"""Images: tokens as the processors count them, encoder sizes as the checkpoints have them, time."""

from __future__ import annotations

import pytest

from sojourn.capacity import catalogue, vision
from sojourn.capacity.model_config import parse_config
from sojourn.capacity.vision_records import ImageRule
from sojourn.config import Deployment
from sojourn.interval import Excuse, Provenance

SIZES = (
    (1920, 1080),
    (1280, 720),
    (640, 480),
    (1024, 1024),
    (336, 336),
    (300, 2000),
    (2480, 3508),
    (50, 60),
    (768, 1024),
    (4000, 3000),
    (1000, 667),
)
"""Width and height: screens, pages, portraits, a strip, a stamp, a photo."""

TOKENS = {
    "Qwen2-VL-7B": (2691, 1196, 391, 1369, 144, 781, 11125, 4, 999, 15301, 864),
    "Qwen3-VL-8B": (2040, 880, 300, 1024, 100, 558, 8580, 72, 768, 11750, 651),
    "GLM-4.5V": (2691, 1196, 391, 1369, 144, 781, 6045, 12, 999, 6030, 864),
    "MiniMax-M3": (576, 576, 391, 576, 144, 549, 560, 4, 540, 540, 551),
    "Kimi-K2.5": (2691, 1196, 414, 1369, 144, 792, 4158, 6, 1036, 4200, 864),
    "Llama-4-Scout": (2319, 1884, 724, 2464, 144, 1014, 2319, 144, 1884, 1884, 1014),
    "Gemma-4-31B": (264, 264, 266, 256, 256, 258, 266, 270, 266, 266, 260),
    "Mistral-Small-3.2-24B": (1736, 1222, 432, 1406, 156, 550, 2200, 9, 1073, 2352, 888),
    "Pixtral-12B": (2340, 2340, 1230, 4160, 462, 704, 3008, 20, 3136, 3120, 2688),
    "LLaVA-NeXT-7B": (1948, 1948, 2340, 2928, 1176, 1368, 2256, 1080, 2352, 2340, 2144),
    "LLaVA-OneVision-7B": (7269, 5967, 2929, 7371, 1485, 4941, 7353, 1377, 4744, 7309, 5157),
    "InternVL3-8B": (2304, 2304, 3328, 2560, 256, 2048, 1792, 3328, 3328, 3328, 1792),
}
"""Per size. Counted by the image processors of transformers 5.19 (LLaVA, Qwen, GLM, MiniMax, Kimi,
Llama-4, Gemma, Pixtral) and by vLLM 0.32's processor of InternVL, limits as the checkpoints'
preprocessor_config.json has them."""

TILES = (4, 4, 2, 4, 1, 4, 4, 1, 4, 4, 4)
"""Llama-3.2-Vision: tiles per size, by the same."""

ENCODERS = {
    "Llama-4-Scout": 871_932_416,
    "Qwen3.5-27B": 460_730_096,
    "Qwen2-VL-7B": 675_759_104,
    "Qwen2.5-VL-7B": 676_550_144,
    "Qwen2.5-VL-72B": 704_573_696,
    "Qwen3-VL-2B": 406_957_056,
    "Qwen3-VL-8B": 576_388_336,
    "Mistral-Small-3.2-24B": 438_958_080,
    "Pixtral-12B": 434_957_312,
    "Gemma-4-31B": 575_741_232,
    "Kimi-K2.5": 471_143_920,
    "GLM-4.5V": 858_681_856,
    "GLM-4.1V-9B": 892_498_432,
    "LLaVA-1.5-7B": 324_487_168,
    "LLaVA-NeXT-34B": 362_249_216,
}
"""Parameters of encoder and projector that transformers 5.19 builds from the same configs."""


@pytest.mark.parametrize("name", sorted(TOKENS))
def test_tokens_are_those_of_the_image_processor(name):
    model = catalogue.model(name)
    counted = tuple(vision.image_tokens(model, *size) for size in SIZES)
    assert counted == TOKENS[name]


def test_tokens_as_published():
    """LLaVA-1.5: 576; Gemma 3: 256; InternVL: 256 per tile and a thumbnail; Phi-3.5 with four
    crops: 757; DeepSeek-VL2: 421 for one tile; Qwen2-VL: a token per 28 x 28 pixels."""
    for size in SIZES:
        assert vision.image_tokens(catalogue.model("LLaVA-1.5-7B"), *size) == 576
        assert vision.image_tokens(catalogue.model("Gemma-3-27B"), *size) == 256
    assert vision.image_tokens(catalogue.model("InternVL3-8B"), 448, 448) == 256
    assert vision.image_tokens(catalogue.model("InternVL3-8B"), 896, 448) == 3 * 256
    assert vision.image_tokens(catalogue.model("Phi-3.5-vision"), 1000, 1000) == 757
    assert vision.image_tokens(catalogue.model("DeepSeek-VL2-Tiny"), 384, 384) == 421
    found = vision.image_tokens(catalogue.model("Qwen2-VL-7B"), 1920, 1080)
    assert found == pytest.approx(1920 * 1080 / 784, rel=0.02)


def test_cross_attention_reads_tiles_beside_the_prompt():
    model = catalogue.model("Llama-3.2-11B-Vision")
    for size, tiles in zip(SIZES, TILES, strict=True):
        found = vision.image_layout(model, *size)
        assert found.tokens == 1
        assert found.sequences == (40 * 40 + 1,) * tiles


def test_a_pixel_limit_of_the_deployment_is_kept():
    model = catalogue.model("Qwen2.5-VL-7B")
    free, kept = (vision.image_tokens(model, 4000, 3000, max_pixels=limit)
                  for limit in (None, 1280 * 784))  # fmt: skip
    assert kept <= 1280 < free


@pytest.mark.parametrize(
    ("name", "width", "height", "says"),
    [("Qwen3-8B", 100, 100, "no image encoder"), ("Qwen2-VL-7B", 0, 5, "no pixels"),
     ("Qwen2-VL-7B", 5000, 10, "longer than 200")],
)  # fmt: skip
def test_what_cannot_be_counted_is_excused(name, width, height, says):
    model, gpu = catalogue.model(name), catalogue.gpu("H100")
    images = {"width": max(width, 1), "height": max(height, 1), "per_s": 1}
    answers = [
        vision.image_tokens(model, width, height),
        vision.encode_s(model, gpu, Deployment(), width, height),
        vision.preprocess_s(model, width, height),
    ]
    if width:
        answers.append(vision.headroom(model, gpu, Deployment(), vision.Images(**images)))
    for answer in answers:
        assert isinstance(answer, Excuse)
        assert says in answer.reason


def test_an_encoder_of_an_unknown_family_has_a_size_but_no_rule():
    text = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 10,
        "num_attention_heads": 4, "intermediate_size": 128, "tie_word_embeddings": False,
    }  # fmt: skip
    encoder = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64}
    raw = {"model_type": "new_vl", "text_config": text, "vision_config": encoder}
    model = parse_config(raw, name="new", source="test")
    assert model.vision.rule is ImageRule.UNKNOWN
    assert model.vision.block_parameters == 3 * (4 * 32 * 32 + 2 * 32 * 64)
    found = vision.image_tokens(model, 100, 100)
    assert isinstance(found, Excuse)
    assert "not known" in found.reason


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_encoders_have_the_parameters_their_classes_build(name):
    """To 0.2%: biases and norms are left out."""
    assert catalogue.model(name).vision_parameters == pytest.approx(ENCODERS[name], rel=2e-3)


def test_video_frames_go_in_pairs():
    two, three = catalogue.model("Qwen2.5-VL-7B"), catalogue.model("Qwen3-VL-8B")
    assert vision.video_tokens(two, 640, 360, 30) == 15 * vision.image_tokens(two, 640, 360)
    assert vision.video_tokens(two, 640, 360, 31) == 16 * vision.image_tokens(two, 640, 360)
    short, long = (vision.video_tokens(three, 1920, 1080, n) for n in (4, 64))
    assert short == 2 * 34 * 60
    assert long < 32 * 34 * 60
    assert long * 2 * 32 * 32 <= vision.VIDEO_PIXELS
    assert isinstance(vision.video_tokens(catalogue.model("Gemma-3-27B"), 9, 9, 4), Excuse)


def test_flops_of_an_encoder_by_hand():
    """LLaVA-1.5: 24 blocks of 12 x 1024^2 on 576 patches, attention over 576 squared."""
    model = catalogue.model("LLaVA-1.5-7B")
    products, attention = vision.encoder_flops(model.vision, vision.image_layout(model, 336, 336))
    blocks = 2 * 24 * 12 * 1024**2 * 576
    assert products == blocks + 2 * model.vision.other_parameters * 576
    assert attention == 4 * 1024 * 24 * 576**2


def test_windows_save_attention_but_for_four_layers():
    model = catalogue.model("Qwen2.5-VL-7B")
    image = vision.image_layout(model, 1920, 1080)
    _, attention = vision.encoder_flops(model.vision, image)
    n = image.patches
    assert n == 4 * image.tokens
    assert attention == 4 * 1280 * (4 * n * n + 28 * n * 64)


def test_encoding_takes_longer_for_larger_images_and_slower_cards():
    model = catalogue.model("Qwen3-VL-8B")
    h100, a100 = catalogue.gpu("H100"), catalogue.gpu("A100")
    small = vision.encode_s(model, h100, Deployment(), 640, 480)
    large = vision.encode_s(model, h100, Deployment(), 1920, 1080)
    slow = vision.encode_s(model, a100, Deployment(), 1920, 1080)
    split = vision.encode_s(model, h100, Deployment(tensor_parallel=2), 1920, 1080)
    assert small.value < split.value < large.value < slow.value
    for found in (small, large, slow, split):
        assert found.interval.low < found.value < found.interval.high
        assert found.provenance is Provenance.CATALOGUE
    assert 0.02 < large.value < 0.06  # 8,160 patches: 6.7 TFLOP of products, 8.3 of attention


@pytest.mark.parametrize("name", ["Qwen3-VL-8B", "InternVL3-8B"])
def test_the_encoder_as_a_station_of_the_simulator(name):
    """Exact at 1920 x 1080; a small image is never told too fast."""
    model, gpu = catalogue.model(name), catalogue.gpu("H100")
    station = vision.encoder_station(model, gpu, Deployment())
    ratios = [
        (station.base_s + station.s_per_token * vision.image_tokens(model, *size))
        / vision.encode_s(model, gpu, Deployment(), *size).value
        for size in ((1920, 1080), (640, 480))
    ]
    assert ratios[0] == pytest.approx(1)
    assert 0.999 < ratios[1] < 3
    assert station.base_s >= 0


def test_a_station_of_images_of_one_size_is_flat():
    gpu = catalogue.gpu("H100")
    fixed = vision.encoder_station(catalogue.model("Gemma-3-27B"), gpu, Deployment())
    assert fixed.s_per_token == 0
    assert isinstance(
        vision.encoder_station(catalogue.model("Qwen3-8B"), gpu, Deployment()), Excuse
    )


def test_a_small_image_takes_the_launches():
    model, gpu = catalogue.model("LLaVA-1.5-7B"), catalogue.gpu("H100")
    found = vision.encode_s(model, gpu, Deployment(), 336, 336)
    assert found.value >= 24 * vision.LAYER_S.mid


def test_the_host_is_full_before_the_encoder_and_workers_help():
    """Cases 69 and 72: the encoder waits for decode and resize on the host."""
    model, gpu = catalogue.model("Qwen2.5-VL-7B"), catalogue.gpu("H100")
    one = vision.headroom(model, gpu, Deployment(), vision.Images(width=1920, height=1080, per_s=5))
    assert one.first_full == "host"
    assert one.host_busy.mid == pytest.approx(5 * one.preprocess.value)
    assert one.max_per_s.mid == pytest.approx(1 / one.preprocess.value)
    assert one.max_per_s.low < one.max_per_s.mid < one.max_per_s.high
    many = vision.headroom(
        model, gpu, Deployment(), vision.Images(width=1920, height=1080, per_s=5, workers=8)
    )
    assert many.first_full == "encoder"
    assert many.max_per_s.mid == pytest.approx(1 / many.encode.value)
    assert one.preprocess.provenance is Provenance.ASSUMED


def test_host_time_of_a_published_image():
    """Qwen2.5-VL's processor takes 10.3 ms for 448 x 448 pixels (Qwen2.5-VL-Batched, README)."""
    found = vision.preprocess_s(catalogue.model("Qwen2.5-VL-7B"), 448, 448)
    assert found.value == pytest.approx(10.3e-3, rel=0.1)


def test_memory_of_the_encoder():
    model, deployment = catalogue.model("Qwen3-VL-8B"), Deployment(max_num_batched_tokens=16384)
    activations, cache = vision.encoder_bytes(model, deployment)
    assert cache == 2 * 16384 * 4096 * 4  # three layers of features beside the last
    assert activations == 2 * 4 * 16384 * (4 * 1152 + 4304)
    assert vision.encoder_bytes(catalogue.model("Qwen3-8B"), deployment) == (0, 0)
