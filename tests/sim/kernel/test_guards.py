"""Compiled functions look at no index: what lies behind an array must be as it was after a run."""

import ctypes

import numpy as np
import pytest
from tests.sim.scenarios import random_scenario

from sojourn.sim.kernel import packing, run
from sojourn.sim.kernel.packing import _COUNTS, Run
from sojourn.sim.kernel.state import ARRAYS
from sojourn.sim.lowering import lower

GUARD_BYTES = 4096
PATTERN = 0xA5


class Guarded:
    """Memory with a pattern before and behind every array that a `Run` is told of."""

    def __init__(self, patch, room=None):
        self.held = []  # freed at the end: a late write would otherwise hit something else
        self.growths = 0
        self.room = room
        patch.setattr(Run, "put", self.put)
        patch.setattr(Run, "make_room", self.make_room)
        patch.setattr(Run, "make", self.make)

    def fresh(self, array):
        """A copy of it between two guards."""
        raw = np.full(2 * GUARD_BYTES + array.nbytes, PATTERN, np.uint8)
        inner = raw[GUARD_BYTES : GUARD_BYTES + array.nbytes].view(array.dtype)
        inner[:] = array
        self.held.append((raw, array.nbytes))
        return inner

    @property
    def put(self):
        def put(this, name, array):
            array = self.fresh(np.ascontiguousarray(array, ARRAYS[name]))
            this.arrays[name] = array
            this.world[f"{name}_at"] = array.ctypes.data
            this.world[f"{name}_room"] = len(array)

        return put

    @property
    def make(self):
        def make(this, name, rows):
            if self.room is not None and name in _COUNTS:
                first = rows if name == "events" else int(this.world[0]["margin"])
                rows = first + self.room
            this.put(name, np.zeros(rows, ARRAYS[name]))
            return this.arrays[name]

        return make

    @property
    def make_room(self):
        def make_room(this, name):
            old, margin = this.arrays[name], int(this.world[0]["margin"])
            if this.world[0][_COUNTS[name]] + margin <= len(old):
                return
            self.growths += 1
            # What is full moves on, and where it was nothing may be written any more.
            new = np.zeros(len(old) + max(1, self.room or 1), old.dtype)
            new[: len(old)] = old
            this.put(name, new)
            old.view(np.uint8)[:] = PATTERN

        return make_room

    def intact(self):
        """Every guard holds its pattern."""
        return all(
            (raw[:GUARD_BYTES] == PATTERN).all() and (raw[GUARD_BYTES + size :] == PATTERN).all()
            for raw, size in self.held
        )


@pytest.mark.parametrize("part", range(5))
def test_nothing_is_written_beyond_an_array(part, monkeypatch):
    for seed in range(part * 100, part * 100 + 100):
        lowered = lower(random_scenario(seed))
        expected = run.kernel(lowered)
        with monkeypatch.context() as patch:
            guarded = Guarded(patch)
            found = run.kernel(lowered)
            assert guarded.held, seed
            assert guarded.intact(), seed
        assert found.same(expected), seed


def test_arrays_that_are_full_at_once_and_grow_by_one_row_give_the_same_run(monkeypatch):
    growths = 0
    for seed in range(1000, 1150):
        lowered = lower(random_scenario(seed))
        expected = run.kernel(lowered)
        with monkeypatch.context() as patch:
            guarded = Guarded(patch, room=1)
            found = run.kernel(lowered)
            assert guarded.intact(), seed
            growths += guarded.growths
        assert found.same(expected), seed
    assert growths > 3000


@pytest.mark.parametrize("seed", range(2000, 2060))
def test_no_event_needs_more_rows_than_the_margin_says(seed, monkeypatch):
    """Event by event: what it added to any array is within the margin."""
    lowered = lower(random_scenario(seed))
    state = packing.pack(lowered)
    world = state.world
    run.begin(world)
    margin = int(world[0]["margin"])
    code = run.PAUSE
    while code != run.DONE:
        before = {name: int(world[0][count]) for name, count in _COUNTS.items()}
        code = run.go(world, 1)
        if code == run.ROOM:
            for name in packing.GROWING:
                state.make_room(name)
        added = {name: int(world[0][count]) - before[name] for name, count in _COUNTS.items()}
        assert max(added.values()) <= margin, (added, margin)


def test_a_guard_that_is_written_over_is_seen(monkeypatch):
    with monkeypatch.context() as patch:
        guarded = Guarded(patch)
        state = packing.pack(lower(random_scenario(3)))
        behind = int(state.world[0]["ends_at"]) + state.arrays["ends"].nbytes
        assert guarded.intact()
        ctypes.c_uint8.from_address(behind).value = 0
        assert not guarded.intact()
