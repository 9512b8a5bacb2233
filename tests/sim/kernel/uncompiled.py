"""The kernel as plain Python, every index checked: compiled functions look at none.

    python -m tests.sim.kernel.uncompiled 0 12

runs random scenarios 0 to 11 and says where the log is not the reference's. It replaces the
decorators of `compiled` and the arrays of `rows` before the other modules are imported, so it needs
a process of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import sys

import numpy as np
from tests.sim.scenarios import random_scenario

from sojourn.sim.kernel import compiled, rows
from sojourn.sim.kernel.state import ARRAYS
from sojourn.sim.lowering import lower
from sojourn.sim.reference.run import reference


def wide(value):
    """Whole numbers with a sign are of 64 bits in compiled functions."""
    return np.int64(value) if isinstance(value, np.signedinteger) else value


class Row:
    """A row by reference: its fields are attributes."""

    __slots__ = ("fields",)

    def __init__(self, fields):
        object.__setattr__(self, "fields", fields)

    def __getattribute__(self, name):
        return wide(object.__getattribute__(self, "fields")[name])

    def __setattr__(self, name, value):
        object.__getattribute__(self, "fields")[name] = value


class Checked:
    """An array that refuses what a compiled function would read or write beyond its ends."""

    def __init__(self, array):
        self.array = array

    def _inside(self, index):
        if not 0 <= index < len(self.array):
            raise IndexError(f"row {index} of {len(self.array)}")
        return index

    def __getitem__(self, index):
        value = self.array[self._inside(index)]
        return Row(value) if isinstance(value, np.void) else wide(value)

    def __setitem__(self, index, value):
        self.array[self._inside(index)] = value


def table(name):
    """`rows.table`: the array is where the World says."""

    def accessor(w):
        address, room = int(getattr(w, f"{name}_at")), int(getattr(w, f"{name}_room"))
        memory = (ctypes.c_char * (room * ARRAYS[name].itemsize)).from_address(address)
        return Checked(np.frombuffer(memory, ARRAYS[name]))

    return accessor


def entrance(function):
    """`compiled.entrance`: the World as a row."""
    return lambda world, *rest: function(Checked(world), *rest)


def main(first, end):
    """The scenarios that differ, each with its number."""
    compiled.compiled, compiled.entrance, rows.table = lambda f: f, entrance, table
    compiled.KEPT.ready = True  # nothing is compiled
    kernel = importlib.import_module("sojourn.sim.kernel.run").kernel
    plans = [lower(random_scenario(seed)) for seed in range(first, end)]
    with np.errstate(over="ignore"):  # draws are modulo 2^64
        return [i for i, p in enumerate(plans, first) if not kernel(p).same(reference(p))]


if __name__ == "__main__":
    different = main(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit(f"scenarios {different} differ" if different else 0)
