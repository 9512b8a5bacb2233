"""The kernel's functions never reach beyond an array (the compiled ones would not notice)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from tests.sim.kernel.uncompiled import Checked


def test_as_plain_python_the_kernel_stays_inside_its_arrays():
    """Every index is checked, and the log is still the reference's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.kernel.uncompiled", "0", "12"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_beyond_the_ends_is_seen(index):
    rows = Checked(np.zeros(2, [("n", "i4")]))
    rows[1].n = 3
    assert [rows[i].n for i in range(2)] == [0, 3]
    with pytest.raises(IndexError, match=f"row {index} of 2"):
        rows[index]
