"""Sound: tokens per second by family, encoder sizes as the model classes build them."""

from __future__ import annotations

import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.audio import audio_tokens
from sojourn.interval import Excuse


@pytest.mark.parametrize(
    ("name", "seconds", "tokens"),
    [("Qwen2-Audio-7B", 30, 750), ("Qwen3-Omni-30B-A3B", 10, 130), ("Voxtral-Mini-3B", 30, 375)],
)
def test_tokens_of_sound(name, seconds, tokens):
    """Qwen2-Audio: one per 40 ms; Qwen3-Omni: 13 per second; Voxtral: 375 per 30 s."""
    assert audio_tokens(catalogue.model(name), seconds) == tokens


def test_sound_that_cannot_be_counted_is_excused():
    assert isinstance(audio_tokens(catalogue.model("Qwen3-8B"), 3), Excuse)
    assert isinstance(audio_tokens(catalogue.model("Qwen2-Audio-7B"), 0), Excuse)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen2-Audio-7B", 642_215_936), ("Voxtral-Mini-3B", 662_134_784)],
)
def test_audio_encoders_have_the_parameters_their_classes_build(name, parameters):
    """Encoder and projector as transformers 5.19 builds them; biases are left out."""
    assert catalogue.model(name).vision_parameters == pytest.approx(parameters, rel=2e-3)
