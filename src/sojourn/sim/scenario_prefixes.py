"""Block hashes of drawn calls: what prefix caches know them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.errors import InputError
from sojourn.trace.arrays import Ints
from sojourn.workload.hashing import Hashes, mix

MOST_HASHES: Final = 20_000_000
"""Of all calls together; 160 MB."""

ODD: Final = np.uint64(0xD1B54A32D192ED03)
"""Names are hashes already: places times an odd number tell the units of one name apart."""


@dataclass(frozen=True)
class Unit:
    """Tokens of a hash: a multiple of the block size. `exact`: no other will do."""

    tokens: int
    exact: bool


def block_hashes(
    tokens: Ints, conversation: Hashes, group: Hashes, prefix: Ints, *, unit: Unit
) -> tuple[pa.ListArray, int]:
    """One list per step: hashes of the full units that others can share; and the unit's tokens.

    A unit inside the shared prefix is named by its group and place; any later one by its
    conversation and place, since a conversation only ever grows. Calls without a conversation (0)
    have hashes for the prefix alone: nobody can share the rest. With more hashes than can be held
    a unit that need not be exact is doubled.

    Raises:
        InputError: more hashes than can be held.
    """
    known = np.where(conversation != 0, tokens, prefix)
    size = unit.tokens
    while int((known // size).sum()) > MOST_HASHES:
        if unit.exact:
            raise InputError(
                f"prefixes have {int((known // size).sum()):,} block hashes, at most"
                f" {MOST_HASHES:,} are simulated",
                field="engine.prefix_cache.tokens_per_hash",
                todo="Raise it (a multiple of the block size), or leave it unset",
            )
        size *= 2
    ends = known // size
    offsets = np.concatenate([[0], np.cumsum(ends)])
    owner = np.repeat(np.arange(tokens.size), ends)
    place = np.arange(owner.size) - offsets[owner]
    inside = (place + 1) * size <= prefix[owner]
    name = np.where(inside, group[owner], conversation[owner])
    hashes = mix(name + place.view(np.uint64) * ODD).view(np.int64)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(hashes)), size
