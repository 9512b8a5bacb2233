"""How functions of the kernel are compiled, and how they reach the arrays of a run.

All state of a run is in a few structured arrays. They are reached through their addresses in one
record, the `World` (see `sojourn.sim.kernel.state`), so a compiled function takes one pointer
instead of thirty arrays with their reference counts. Nothing here checks a bound: set
NUMBA_BOUNDSCHECK=1 to have it checked (tests/sim/kernel does, once).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from numba import njit, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

World: TypeAlias = Any
"""The one record of `sojourn.sim.kernel.state.WORLD`."""
Array: TypeAlias = Any
Row: TypeAlias = Any
"""A row of a structured array, by reference."""
Number: TypeAlias = Any
"""numba knows the type, and no type checker does."""


def compiled(function: F) -> F:
    """Compile at first use, and keep what was compiled."""
    made: F = njit(cache=True, error_model="numpy")(function)
    return made


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def pointer(typing_context: Any, address: Any) -> Any:  # noqa: ANN401  numba's own objects
    """An address (int64) as a pointer, for `numba.carray`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), code
