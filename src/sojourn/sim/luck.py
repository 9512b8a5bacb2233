"""Random draws that depend on their key alone, not on the order in which they are asked for.

A draw keyed by (seed, request, attempt, step, purpose) is the same in two scenarios that differ in
one policy: common random numbers. Source: variance reduction, Law & Kelton, Simulation Modeling
and Analysis, ch. 11; the mixing function is splitmix64's finaliser (Steele, Lea, Flood 2014).
The compiled kernel has its own copy of these few lines (`sojourn.sim.kernel.luck`); a test holds
the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15

SERVICE, BACKOFF, FRONT, THINK, SHED, ACCEPT = 1, 2, 3, 4, 5, 6
"""Purposes: what a draw is for."""


def mixed(value: int) -> int:
    """The finaliser of splitmix64: spreads every bit over all bits."""
    z = (value + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draw(seed: int, identity: int, attempt: int, place: int, purpose: int) -> int:
    """A 64-bit number, equal for equal keys. `identity` is the hash of the request's id."""
    key = mixed(seed & MASK) ^ identity
    key = mixed(key) ^ (attempt << 40 | place << 8 | purpose)
    return mixed(key)


def uniform(number: int) -> float:
    """A draw as a number in [0, 1)."""
    return (number >> 11) * 2.0**-53


def index(number: int, count: int) -> int:
    """A draw as an index below `count`, each as likely (count < 2^32)."""
    return ((number >> 32) * count) >> 32


def pick(samples: Sequence[int], number: int) -> int:
    """One of the samples."""
    return samples[index(number, len(samples))]
