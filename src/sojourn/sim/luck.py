"""Random draws that depend on their key alone, not on the order in which they are asked for.

A draw keyed by (seed, request, attempt, step) is the same in two scenarios that differ in one
policy: common random numbers. Source: variance reduction, Law & Kelton, Simulation Modeling and
Analysis, ch. 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def uniform(*key: int | str) -> float:
    """A number in [0, 1), equal for equal keys."""
    text = "\x1f".join(map(str, key)).encode()
    return (int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def choice(samples: Sequence[float], *key: int | str) -> float:
    """One of the samples, each as likely."""
    return samples[int(uniform(*key) * len(samples))]
