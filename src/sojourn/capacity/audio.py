"""Sound of an audio-language model: tokens per second and the size of its encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sojourn.capacity.model_fields import Fields
from sojourn.interval import Excuse

if TYPE_CHECKING:
    from sojourn.capacity.model_records import ModelSpec

_TOKENS_PER_S: Final = {
    # Mel frames of 10 ms, halved by a convolution and again by pooling (Whisper encoders), or
    # through three strided convolutions: 13 tokens per chunk of 100 frames.
    "qwen2_audio": 25.0,
    "qwen2_5_omni": 25.0,
    "qwen3_omni_moe": 13.0,
    "voxtral": 12.5,
}


def audio_tokens_per_s(raw: Mapping[str, Any]) -> float | None:
    """Tokens per second of sound of a config, or None where its rule is not known.

    Source: the families' processors (Qwen2-Audio, Qwen2.5-Omni, Qwen3-Omni, Voxtral).
    """
    return _TOKENS_PER_S.get(str(raw.get("model_type") or ""))


def audio_parameters(raw: Mapping[str, Any], text_hidden: int) -> int:
    """Of a Whisper-like audio encoder and its projector; 0 where a config has none.

    Per layer 4 d^2 + 2 d x feed-forward; the convolutions before it and the projection behind.
    """
    nested = raw.get("thinker_config")
    audio = (nested if isinstance(nested, dict) else raw).get("audio_config")
    if not isinstance(audio, dict):
        return 0
    own = Fields(audio, None)
    width = own.maybe("d_model", "hidden_size")
    layers = own.maybe("encoder_layers", "num_hidden_layers")
    if width is None or layers is None:
        return 0
    inner = own.maybe("encoder_ffn_dim", "intermediate_size") or 4 * width
    bins = own.maybe("num_mel_bins") or 128
    down = own.maybe("downsample_hidden_size")
    if down is None:
        front = 3 * width * (bins + width) + 1500 * width
        merged = 4 * width if raw.get("model_type") == "voxtral" else width
        behind = merged * text_hidden + (text_hidden**2 if merged > width else 0)
    else:
        front = 9 * (down + 2 * down * down) + down * math.ceil(bins / 8) * width
        behind = width * width + width * (own.maybe("output_dim") or text_hidden)
    return layers * (4 * width * width + 2 * width * inner) + front + behind


def audio_tokens(model: ModelSpec, seconds: float) -> int | Excuse:
    """Tokens of `seconds` of sound in the prompt.

    Wrong when: the engine pads clips (Voxtral: to 30 s).
    """
    if model.audio_tokens_per_s is None:
        return Excuse(
            reason=f"how {model.name} reads sound is not known",
            collect=("prompt tokens of requests with sound",),
        )
    if seconds <= 0:
        return Excuse(reason=f"{seconds} s of sound hold nothing")
    return math.ceil(seconds * model.audio_tokens_per_s)
