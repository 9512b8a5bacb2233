"""Time between accelerators: all-reduces, exchanges for experts and DP attention, pipeline hops."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.roofline_setting import Setting

VALUE_BYTES: Final = 2
"""Hidden states travel in 16 bits."""
EXCHANGED_BYTES: Final = 3
"""Per hidden value of a token sent to an expert's rank and back: 8 bits out, 16 bits home."""


def _start_s(s: Setting, ranks: int) -> float:
    steps = math.log2(ranks) - 1
    return (s.family.reduce_s + s.family.reduce_step_s * steps) * s.constants.reduce


def _bandwidth(s: Setting) -> float:
    return s.gpu.link_bytes_per_s * s.constants.link


def all_reduce_s(s: Setting, tokens: float) -> float:
    """One all-reduce of the hidden states of `tokens` tokens over the tensor-parallel group.

    start + 2 (n-1)/n bytes / (link x share), n ranks. Source: ring all-reduce (Patarasuk and Yuan
    2009); start times measured, see `roofline_families`. Wrong when: the group spans machines.
    """
    if s.tp == 1:
        return 0.0
    moved = 2 * (s.tp - 1) / s.tp * tokens * s.model.hidden_size * VALUE_BYTES
    return _start_s(s, s.tp) + moved / _bandwidth(s)


def exchange_s(s: Setting, tokens: float, chosen: int) -> float:
    """To the experts' ranks and back, of a routed layer whose ranks have `tokens` tokens each.

    With one data-parallel rank every GPU has all tokens already, and the closing all-reduce is
    counted there. Else the lesser of sending each token to its `chosen` experts' ranks, and
    gathering all tokens everywhere and scattering the sums.
    """
    if s.dp == 1:
        return 0.0
    copies = min(chosen, s.ranks - 1) if s.ep else s.dp - 1
    own = tokens / s.tp
    moved = (
        min(own * copies * EXCHANGED_BYTES, tokens * (s.dp - 1) * 2 * VALUE_BYTES)
        * s.model.hidden_size
    )
    return 2 * _start_s(s, s.ranks) + moved / _bandwidth(s)


def hops_s(s: Setting, tokens: float) -> float:
    """Hidden states from stage to stage of a pipeline."""
    if s.pp == 1:
        return 0.0
    moved = tokens * s.model.hidden_size * VALUE_BYTES / s.tp
    return (s.pp - 1) * (_start_s(s, 2) + moved / _bandwidth(s))
