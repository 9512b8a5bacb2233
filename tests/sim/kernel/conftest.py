"""Both engines run every test of this directory: the rules are one."""

from __future__ import annotations

import pytest

from sojourn.sim.kernel.run import kernel
from sojourn.sim.reference.run import reference


@pytest.fixture(params=[reference, kernel], ids=["reference", "kernel"])
def run(request):
    """From `Lowered` to `Log`."""
    return request.param
