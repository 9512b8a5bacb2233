"""How functions of the kernel are compiled, and how they reach the arrays of a run.

All state of a run is in a few structured arrays. They are reached through their addresses in one
record, the `World` (see `sojourn.sim.kernel.state`), so a compiled function takes one pointer
instead of thirty arrays with their reference counts (see `sojourn.sim.kernel.rows`). Nothing
here checks a bound.

What was compiled is kept on disk (`sojourn.sim.kernel.kept`), in a folder named after the kernel's
own text: numba looks only at the file of the entrance for changes, and the entrance calls functions
of all the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numba
from llvmlite import binding
from numba import config, njit, types

from sojourn.sim import log, lowered, luck, ticks
from sojourn.sim.kernel.kept import Kept
from sojourn.workload.profile_records import StepKind

F = TypeVar("F", bound=Callable[..., Any])

World: TypeAlias = Any
"""The one record of `sojourn.sim.kernel.state.WORLD`."""
Array: TypeAlias = Any
Row: TypeAlias = Any
"""A row of a structured array, by reference."""
Number: TypeAlias = Any
"""numba knows the type, and no type checker does."""

_CONSTANTS: Final = tuple(Path(str(module.__file__)) for module in (log, lowered, luck, ticks))
"""Modules whose constants are compiled into the kernel."""
_NUMBERED: Final = (
    log.STATUSES,
    lowered.ORDERS,
    lowered.ROUTERS,
    lowered.SCALES,
    lowered.METRICS,
    lowered.ADMISSIONS,
    tuple(StepKind),
)
"""Enumerations of other rooms whose order is compiled in too."""


def _name() -> str:
    """Of this kernel: its text and what is compiled into it, the compiler and the processor. (The
    compiler also looks at the entrances' file, and when that was written.)"""
    room = Path(__file__).parent
    entrances = (room / "run.py").stat()
    made_of = (
        numba.__version__,
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        str(room),
        str(entrances.st_mtime_ns),
        str(_NUMBERED),
    )
    digest = hashlib.sha256("\n".join(made_of).encode())
    for path in (*sorted(room.glob("*.py")), *_CONSTANTS):
        digest.update(path.read_bytes())
    return f"kernel-{digest.hexdigest()[:16]}"


KEPT: Final = Kept(_name())
_INNER: Final = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
}
"""Without what only calls from outside need."""


def compiled(function: F) -> F:
    """Compile when an entrance that calls it is compiled: once, for whole numbers of 64 bits.

    (By itself numba compiles a function again for every constant that it is called with, and for
    every width of a whole number.) It can't be called from Python.
    """
    made: Any = njit(**_INNER)(function)
    template = made.get_call_template
    made.get_call_template = lambda args, kws: template(tuple(map(_widest, args)), kws)
    result: F = made
    return result


def _widest(given: Any) -> Any:  # noqa: ANN401  numba's own objects
    kind = types.unliteral(given)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


def entrance(function: F) -> F:
    """Compile at first use, with all it calls, and keep it (`Kept`) where a folder can be
    written."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(KEPT.folder or "")
    try:
        made: F = njit(cache=KEPT.folder is not None, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
    return made
