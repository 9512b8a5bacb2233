"""Time between accelerators: all-reduces, exchanges for experts and DP attention, pipeline hops."""

from __future__ import annotations

import math
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.roofline_families import CDNA, Family, family_of
from sojourn.capacity.roofline_setting import Setting

VALUE_BYTES: Final = 2
"""Hidden states travel in 16 bits."""
EXCHANGED_BYTES: Final = 3
"""Per hidden value of a token sent to an expert's rank and back: 8 bits out, 16 bits home."""
MESH_LINKS: Final = 7
SWITCHED_BYTES_PER_S: Final = 100e9
"""Links at least this fast are NVLink or Infinity Fabric; slower ones PCIe."""
BRIDGED: Final = 0.65
"""Of the ring share of two cards, what four or eight PCIe cards reach (RTX PRO 6000: 0.39 against
0.60 of the link; L40S tables tell 0.16 and 0.05, which no served model confirms)."""


def start_s(family: Family, ranks: int) -> float:
    """All-reduce of a small message by direct reads, alone on the cards."""
    return family.reduce_s + family.reduce_step_s * (math.log2(ranks) - 1)


def ring_start_s(family: Family, ranks: int) -> float:
    """The same by NCCL: measured 1.4, 2.2 and 3.5 times as long over 2, 4 and 8 ranks."""
    return float(family.reduce_s * (0.4 + 0.6 * ranks**0.75))


def bandwidth(gpu: Gpu, ranks: int, share: float) -> float:
    """What a rank reaches, bytes per second. Infinity Fabric has a link of its own to each of seven
    others, so a group of n uses n - 1 of them; a switch gives any group the whole; more than two
    cards on PCIe pass through the host bridge."""
    link = gpu.link_bytes_per_s * share
    if family_of(gpu) is CDNA and ranks <= MESH_LINKS:
        return link * (ranks - 1) / MESH_LINKS
    bridged = gpu.link_bytes_per_s < SWITCHED_BYTES_PER_S and ranks > 2
    return link * BRIDGED if bridged else link


def reduce_s(
    gpu: Gpu, ranks: int, values: float, *, start: float = 1.0, link: float = 1.0
) -> float:
    """One all-reduce of `values` 16-bit numbers over `ranks` cards, s: the lesser of direct reads
    and a ring, each start + 2 (n-1)/n bytes / (link x share). `start`, `link`: factors on both, the
    latter of switched links (what prefill on many cards loses beside).

    Source: ring all-reduce (Patarasuk and Yuan 2009); starts and shares measured, see
    `roofline_families`. Wrong when: the group spans machines.
    """
    family = family_of(gpu)
    link = 1.0 if gpu.link_bytes_per_s < SWITCHED_BYTES_PER_S else link
    moved = 2 * (ranks - 1) / ranks * values * VALUE_BYTES
    direct = start * start_s(family, ranks) + moved / bandwidth(gpu, ranks, family.direct * link)
    ring = ring_start_s(family, ranks) + moved / bandwidth(gpu, ranks, family.ring * link)
    return min(direct, ring)


def all_reduce_s(s: Setting, tokens: float) -> float:
    """One all-reduce of the hidden states of `tokens` tokens over the tensor-parallel group."""
    if s.tp == 1:
        return 0.0
    return reduce_s(
        s.gpu, s.tp, tokens * s.model.hidden_size, start=s.engine.reduce, link=s.constants.link
    )


def _moved_s(s: Setting, ranks: int, size: float) -> float:
    """`size` bytes over the link."""
    share = s.family.ring * s.constants.link
    return size / bandwidth(s.gpu, ranks, share)


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
    return 2 * start_s(s.family, s.ranks) * s.engine.reduce + _moved_s(s, s.ranks, moved)


def hops_s(s: Setting, tokens: float) -> float:
    """Hidden states from stage to stage of a pipeline."""
    if s.pp == 1:
        return 0.0
    moved = tokens * s.model.hidden_size * VALUE_BYTES / s.tp
    return (s.pp - 1) * (start_s(s.family, 2) + _moved_s(s, 2, moved))
