"""The readable engine and the compiled one write the same log, row for row, tick for tick."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from tests.sim.scenarios import random_scenario

from sojourn.sim.kernel.run import kernel
from sojourn.sim.log import Log
from sojourn.sim.lowering import lower
from sojourn.sim.reference.run import reference

EACH = 100


def difference(one: Log, other: Log) -> str:
    """The first row in which two logs differ; empty if they are equal."""
    for part in fields(one):
        mine, theirs = getattr(one, part.name), getattr(other, part.name)
        for row in range(min(len(mine), len(theirs))):
            if mine[row] != theirs[row]:
                names = [n for n in mine.dtype.names if mine[n][row] != theirs[n][row]]
                return f"{part.name}[{row}] in {names}: {mine[row]} is not {theirs[row]}"
        if len(mine) != len(theirs):
            return f"{part.name} has {len(mine)} and {len(theirs)} rows"
    return ""


@pytest.mark.parametrize("first", range(0, 2000, EACH))
def test_the_engines_write_the_same_log(first):
    for seed in range(first, first + EACH):
        lowered = lower(random_scenario(seed))
        mine, theirs = kernel(lowered), reference(lowered)
        assert mine.same(theirs), f"seed {seed}: {difference(mine, theirs)}"


def test_a_changed_row_is_seen():
    lowered = lower(random_scenario(0))
    log, other = reference(lowered), reference(lowered)
    assert difference(log, other) == ""
    other.ends["end"][0] += 1
    assert not log.same(other)
    assert difference(log, other).startswith("ends[0] in ['end']")
    assert np.array_equal(log.calls, other.calls)
