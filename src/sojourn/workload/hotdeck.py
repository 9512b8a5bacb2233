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

from sojourn.trace.arrays import Floats, Ints
from sojourn.workload.hashing import Hashes

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


def survival(times: Floats, cut: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], Floats]:
    """Order of times ascending, and the share that lasts beyond each of them.

    `cut`: those times are only known to be longer; of equal times they come last. Kaplan and
    Meier 1958: S(t) = product over ended times <= t of (1 - ended there / still under way there).
    """
    order = np.lexsort((cut, times))
    under_way = np.arange(times.size, 0, -1, dtype=np.float64)
    alive: Floats = np.cumprod(np.where(cut[order], 1.0, 1.0 - 1.0 / under_way), dtype=np.float64)
    return order, alive


def draw_above(times: Floats, cut: npt.NDArray[np.bool_], floor: Floats, luck: Floats) -> Floats:
    """For each floor a draw from what times longer than it turn out to be.

    `times` of which those `cut` are only known to be longer; `luck` uniform in [0, 1). The
    distribution is that of `survival`, so that long times, which are cut more often, keep their
    weight. A draw beyond the last that ended is the longest seen, or the floor.
    Wrong when: what is cut is cut because it would be long, beyond its length so far; or almost
    all is cut: the true tail lies beyond what was seen.
    """
    if times.size == 0:
        return floor
    order, alive = survival(times, cut)
    ordered = times[order]
    at_floor = np.append(1.0, alive)[np.searchsorted(ordered, floor, side="right")]
    place = np.searchsorted(-alive, -at_floor * (1.0 - luck), side="right")
    found = ordered[np.minimum(place, times.size - 1)]
    return np.maximum(found, floor)
