"""Seeded luck per request: uniforms that depend on an identity, not on its place in a table.

A draw keyed by (request id, seed, salt) stays the same when other requests come or go, when the
table is sorted otherwise and in another process: streams stay nested and runs comparable.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.trace.arrays import Floats

Hashes = npt.NDArray[np.uint64]

_BASE: Final = np.uint64(0x100000001B3)  # FNV's prime: odd, so powers never vanish modulo 2^64
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): spreads every bit over all bits."""
    z = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_strings(column: pa.ChunkedArray | pa.Array) -> Hashes:
    """A 64-bit hash of each string; null hashes as the empty string. Equal in every process."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint64)
    array = array.fill_null("").cast(pa.large_string())
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[array.offset :][: len(array) + 1]
    size = int(offsets[-1] - offsets[0])
    raw = np.frombuffer(data, dtype=np.uint8)[offsets[0] :][:size] if size else np.zeros(0, "u1")
    starts = offsets - offsets[0]
    lengths = np.diff(starts)
    powers = np.ones(int(lengths.max()) + 1, dtype=np.uint64)
    powers[1:] = _BASE
    powers = np.multiply.accumulate(powers)
    place = np.arange(size) - np.repeat(starts[:-1], lengths)
    terms = (raw.astype(np.uint64) + np.uint64(1)) * powers[place]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return mix(sums[starts[1:]] - sums[starts[:-1]] + lengths.astype(np.uint64))


def combine(*parts: npt.NDArray[np.generic]) -> Hashes:
    """One hash from several columns of equal length (hashes or codes), order matters."""
    result = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in parts:
        result = mix(result * _BASE + part.astype(np.int64, copy=False).view(np.uint64))
    return result


def uniform(identity: Hashes, seed: int, salt: int) -> Floats:
    """Uniform in [0, 1), one per identity; `salt` tells draws of different purpose apart."""
    offset = np.uint64(((seed + 1) * _GOLDEN + salt * 0xD1B54A32D192ED03) & _MASK)
    bits = mix(identity ^ mix(np.array([offset], dtype=np.uint64)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
