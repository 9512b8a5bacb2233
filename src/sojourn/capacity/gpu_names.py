"""Reads the chip, the form and the memory out of the many names one accelerator goes by.

Publishers write "NVIDIA H100-SXM-80GB", "8 × NVIDIA H200 SXM GPUs on a single node", "gb200" or
"XE9680_H100_SXM_80GBx8_TRT". What is left after chip, form, memory and count must be filler, or
the name is refused: a typing mistake must not become another card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_FORMS: Final = {
    "sxm": "sxm", "sxm2": "sxm", "sxm3": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm",
    "hgx": "sxm", "dgx": "sxm", "pcie": "pcie", "pci": "pcie", "nvl": "nvl", "server": "server",
    "workstation": "workstation", "ws": "workstation",
}  # fmt: skip
_FILLER: Final = frozenset(
    {"nvidia", "amd", "intel", "google", "aws", "huawei", "instinct", "tesla", "geforce", "rtx"}
    | {"tensor", "core", "data", "center", "gpu", "gpus", "tpu", "npu", "hpu", "accelerator"}
    | {"a", "an", "single", "node", "the", "on", "each", "with", "of", "per", "card", "cards"}
    | {"grace", "gracehopper", "hopper", "blackwell", "ampere", "ada", "superchip", "ascend"}
    | {"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr7", "oam", "cts", "nvl72", "nvl36", "nvl4"}
    | {"nps1", "spx", "aarch64", "trt", "triton", "jetson", "agx", "redhat", "openshift"}
    | {"depthpruned", "sparse", "maxq", "edition", "generation", "prefill", "decode"}
    | {"habana", "corporation", "vf", "x", "accelerators"}
)
_WATTS: Final = re.compile(r"\d{2,4}w")
_MEMORY: Final = re.compile(r"(\d{2,3})(?:g|gb|gib)?")
_COUNT: Final = re.compile(
    r"(?<![a-z0-9])\d{1,3}\s*x\s*(?=[a-z])|(?<=[a-z0-9])x\d{1,3}(?![a-z0-9])"
)
_COUNT_WORD: Final = re.compile(r"\d{1,3}x?|x\d{1,3}")


class Card(NamedTuple):
    """What tells one row of a chip from another."""

    name: str
    chip: str
    form: str | None
    box_gb: tuple[int, ...]


def find_card(text: str, cards: Iterable[Card]) -> str | None:
    """Name of the row that `text` means, or None.

    The chip's first row where neither form nor memory says which. A text with a count in it
    ("x8") may hold any other words: it is the description of a system.
    """
    plain = text.casefold().replace("×", "x")
    counted = _COUNT.search(plain) is not None
    plain = _COUNT.sub(" ", plain)
    rows = list(cards)
    for chip in sorted({c.chip for c in rows}, key=len, reverse=True):
        pattern = _chip_pattern(chip)
        if pattern.search(plain):
            same = [c for c in rows if c.chip == chip]
            return _row(same, pattern.sub(" ", plain), counted=counted)
    return None


def _chip_pattern(chip: str) -> re.Pattern[str]:
    inner = r"[^a-z0-9]*".join(re.escape(word) for word in chip.split())
    return re.compile(rf"(?<![a-z0-9]){inner}(?![a-z0-9])")


def _row(rows: list[Card], rest: str, *, counted: bool) -> str | None:
    form: str | None = None
    memory: int | None = None
    sizes = {size for row in rows for size in row.box_gb}
    for word in re.findall(r"[a-z0-9]+", rest):
        size = _MEMORY.fullmatch(word)
        if word in _FORMS:
            form = form or _FORMS[word]
        elif size and (word[-1] in "bg" or int(size[1]) in sizes):
            memory = int(size[1])
        elif not (
            counted or word in _FILLER or _WATTS.fullmatch(word) or _COUNT_WORD.fullmatch(word)
        ):
            return None
    fits = [
        row.name
        for row in rows
        if (form is None or row.form in (form, None))
        and (memory is None or any(abs(memory - size) <= 1 for size in row.box_gb))
    ]
    return fits[0] if fits else None
