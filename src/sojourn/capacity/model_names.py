"""Which known model a checkpoint's name means, and how its weights are stored.

Organisations publish one architecture under many names: with their own prefix, a tuning suffix
(-Instruct, -it, -hf) and a suffix for the weight format (-FP8-dynamic, -NVFP4, -GPTQ-Int4). The
suffixes are taken off one by one until what is left is known; nothing else is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

_FORMATS: Final = (
    (r"nvfp4(?:a16)?(?:[-_]v\d)?", "nvfp4"),
    (r"fp4", "nvfp4"),
    (r"mxfp4(?:[-_](?:a8|a16|moe|preview|w4a4))*", "mxfp4"),
    (r"w4afp8|w4a8|w4a16(?:[-_]g\d+)?|int4(?:[-_](?:autoround|w4a16|bnb))?|4bit|bnb-4bit", "int4"),
    (r"awq(?:[-_](?:int4|4bit|w4a16|marlin))?|gptq(?:[-_](?:int4|4bit|w4a16))?", "int4"),
    (r"w8a8|w8a16|int8|gptq[-_](?:int8|8bit)|awq[-_]8bit|bnb-8bit|8bit", "int8"),
    (
        r"fp8(?:[-_](?:dynamic|block|static|kv|torchao|pertensor|perchannel|per[-_]tensor|v\d))*"
        r"|w8a8[-_]fp8|f8",
        "fp8",
    ),
    (r"bf16", "bf16"),
    (r"fp16|f16", "fp16"),
)
_FORMAT: Final = tuple(
    (re.compile(rf"[-_. ](?:unsloth[-_])?(?:quantized\.)?(?:{inner})$"), dtype)
    for inner, dtype in _FORMATS
)
_TUNING: Final = re.compile(
    r"[-_ ](?:instruct|it|chat|base|hf|pt|thinking|text|preview|original)$", re.IGNORECASE
)


class Found(NamedTuple):
    """A row's name, and the weight format its checkpoint's name carries (None: the row's own)."""

    name: str
    dtype: str | None


def key(name: str) -> str:
    """What is compared: lower case, letters, digits and the point."""
    return "".join(c for c in name.casefold() if c.isalnum() or c == ".")


def without_tuning(name: str) -> str:
    """The name without the suffixes that tuning adds and the architecture does not feel."""
    while match := _TUNING.search(name):
        name = name[: match.start()]
    return name


def find_model(name: str, lookup: Callable[[str], str | None]) -> Found | None:
    """The row a name means, or None. `lookup` maps a key to a row's name."""
    whole = name.strip().casefold()
    exact = lookup(key(whole))
    if exact is not None:
        return Found(exact, None)
    rest, dtype = whole.rsplit("/", 1)[-1], None
    while rest:
        found = lookup(key(rest))
        if found is not None:
            return Found(found, dtype)
        shorter, own = _shorter(rest)
        if shorter is None:
            return None
        rest, dtype = shorter, dtype or own
    return None


def _shorter(name: str) -> tuple[str | None, str | None]:
    """The name without its last known suffix, and the format that suffix names."""
    for pattern, dtype in _FORMAT:
        match = pattern.search(name)
        if match:
            return name[: match.start()], dtype
    match = _TUNING.search(name)
    return (name[: match.start()], None) if match else (None, None)
