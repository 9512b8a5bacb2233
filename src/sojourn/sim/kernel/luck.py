"""`sojourn.sim.luck`, compiled: the same numbers for the same keys."""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.sim.kernel.compiled import Number, compiled

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


@compiled
def mixed(value: Number) -> Number:
    """The finaliser of splitmix64."""
    z = np.uint64(value) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def draw(seed: Number, identity: Number, attempt: Number, place: Number, purpose: Number) -> Number:
    """A 64-bit number, equal for equal keys."""
    key = mixed(np.uint64(seed)) ^ np.uint64(identity)
    inner = np.uint64((np.int64(attempt) << 40) | (np.int64(place) << 8) | np.int64(purpose))
    return mixed(mixed(key) ^ inner)


@compiled
def uniform(number: Number) -> Number:
    """A draw as a number in [0, 1)."""
    return np.float64(number >> np.uint64(11)) * 2.0**-53


@compiled
def index(number: Number, count: Number) -> Number:
    """A draw as an index below `count`."""
    return np.int64(((number >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
