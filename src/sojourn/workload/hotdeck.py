"""Hot deck: fill what a request lacks from a donor that is like it, drawn among its likes.

Source: Andridge and Little, A review of hot deck imputation for survey non-response, 2010.
Wrong when: what is missing depends on more than the classes hold equal (long requests time out
more often; classes keep what was seen of them equal, not what was not).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.workload.hashing import Hashes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_DONORS: Final = 3
"""Below this a class is passed over for a wider one: one donor copied over and over would carry
its oddities everywhere. The last class that has any donor is taken as it is."""


@dataclass(frozen=True)
class Level:
    """Classes of likeness: the key and number of each donor, and the key each recipient wants."""

    donor_keys: Hashes
    donors: Ints
    wanted: Hashes


def pick(levels: Sequence[Level], luck: Floats) -> Ints:
    """A donor per recipient from the first level whose class has enough; -1 where none has any.

    `luck` is uniform in [0, 1), one per recipient.
    """
    chosen = np.full(luck.size, -1, dtype=np.int64)
    spare = np.full(luck.size, -1, dtype=np.int64)
    for level in levels:
        order = np.argsort(level.donor_keys, kind="stable")
        keys = level.donor_keys[order]
        first = np.searchsorted(keys, level.wanted, side="left")
        count = np.searchsorted(keys, level.wanted, side="right") - first
        place = np.minimum(first + (luck * count).astype(np.int64), max(keys.size - 1, 0))
        found = level.donors[order][place] if keys.size else np.full(luck.size, -1)
        take = (chosen < 0) & (count >= MIN_DONORS)
        chosen[take] = found[take]
        keep = (spare < 0) & (count > 0)
        spare[keep] = found[keep]
    return np.where(chosen >= 0, chosen, spare)


def draw_above(samples: Floats, floor: Floats, luck: Floats) -> Floats:
    """For each floor, one of the samples greater than it; the floor itself where there is none.

    The classic repair of a right-censored time: what was cut short at c is replaced by a draw
    from the times seen to be longer than c.
    Wrong when: many were cut, for then even the longest seen are too short.
    """
    ordered = np.sort(samples)
    first = np.searchsorted(ordered, floor, side="right")
    count = ordered.size - first
    place = np.minimum(first + (luck * count).astype(np.int64), max(ordered.size - 1, 0))
    return np.where(count > 0, ordered[place] if ordered.size else floor, floor)
