"""Memory for the arrays of a run: asked for only where the machine has it."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from sojourn.errors import UsageError
from sojourn.sim.kernel.compiled import Array
from sojourn.sim.kernel.state import ARRAYS

_GIB: Final = float(1 << 30)
_UNDER_WAY: Final = "what is under way and what has happened: requests, their attempts and steps"
_ASKS: Final = {
    "finish": "running calls: replicas x max_num_seqs",
    "phases": "the blocks of decodes: replicas x block_size",
    "levels": "queues: replicas x different priorities",
    "nodes": "prefix caches: replicas x kv_blocks",
    "buckets": "prefix caches: replicas x kv_blocks",
    "images": "image caches: replicas x encoder.cache_images",
    "image_buckets": "image caches: replicas x encoder.cache_images",
}


def machine_bytes() -> float:
    """Memory of this machine; infinite where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not a system that has it
        return float("inf")


def zeros(name: str, rows: int, beside: int = 0) -> Array:
    """A new array of a run, all zero; `beside`: bytes that its others have.

    Raises:
        UsageError: the machine has not got so much memory; says what asks for how much.
    """
    dtype = np.dtype(ARRAYS[name])
    needed = rows * dtype.itemsize
    if needed + beside > machine_bytes():
        raise too_much(name, needed, beside)
    try:
        return np.zeros(rows, dtype)
    except MemoryError as error:
        raise too_much(name, needed, beside) from error


def too_much(name: str, needed: int, beside: int) -> UsageError:
    """The error that says which part of a scenario asks for more memory than there is."""
    return UsageError(
        f"the simulation needs {needed / _GIB:,.1f} GiB for {_ASKS.get(name, _UNDER_WAY)} (and"
        f" {beside / _GIB:,.1f} GiB for the rest); this machine has"
        f" {machine_bytes() / _GIB:,.1f} GiB. Make one of these smaller, or simulate fewer requests"
    )
