"""Arrays as compiled functions see them: a bare address, so `calls(w)[c]` is one multiplication.

(numba's own arrays carry length, strides and a reference count through every function, and look at
every index for a negative one. Half of the time that compiling took went into that.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numba
from llvmlite import ir
from numba import types
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from sojourn.sim.kernel.compiled import Array, World
from sojourn.sim.kernel.state import ARRAYS, WORLD

_BYTE: Final = ir.IntType(8)
_WORD: Final = ir.IntType(64)


class Table(types.Type):  # type: ignore[misc]  # numba has no types
    """Rows of one kind, from an address on."""

    def __init__(self, row: Any) -> None:  # noqa: ANN401  numba's own objects, here and below
        self.row = row
        super().__init__(name=f"Table({row})")


@register_model(Table)
class _Model(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types
    def __init__(self, manager: Any, kind: Any) -> None:  # noqa: ANN401
        super().__init__(manager, kind, _BYTE.as_pointer())


@infer_global(operator.getitem)
class _GetRow(AbstractTemplate):  # type: ignore[misc]  # numba has no types
    def generic(self, args: Any, _: Any) -> Any:  # noqa: ANN401
        if isinstance(args[0], Table) and isinstance(args[1], types.Integer):
            return signature(args[0].row, args[0], types.int64)
        return None


@infer_global(operator.setitem)
class _SetNumber(AbstractTemplate):  # type: ignore[misc]  # numba has no types
    def generic(self, args: Any, _: Any) -> Any:  # noqa: ANN401
        if isinstance(args[0], Table) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.int64, args[0].row)
        return None


def _place(context: Any, builder: Any, table: Table, base: Any, index: Any) -> Any:  # noqa: ANN401
    """The address of a row, as a pointer to it."""
    if isinstance(table.row, types.Record):
        size, kind = table.row.size, context.get_value_type(table.row)
    else:
        number = context.get_data_type(table.row)
        size, kind = context.get_abi_sizeof(number), number.as_pointer()
    offset = builder.mul(index, ir.Constant(_WORD, size))
    return builder.bitcast(builder.gep(base, [offset], source_etype=_BYTE), kind)


@lower_builtin(operator.getitem, Table, types.int64)  # type: ignore[untyped-decorator]  # no types
def _get(context: Any, builder: Any, kinds: Any, values: Any) -> Any:  # noqa: ANN401
    table = kinds.args[0]
    place = _place(context, builder, table, *values)
    return place if isinstance(table.row, types.Record) else builder.load(place)


@lower_builtin(operator.setitem, Table, types.int64, types.Any)  # type: ignore[untyped-decorator]  # no types
def _set(context: Any, builder: Any, kinds: Any, values: Any) -> Any:  # noqa: ANN401
    base, index, value = values
    builder.store(value, _place(context, builder, kinds.args[0], base, index))
    return context.get_dummy_value()


def table(name: str) -> Callable[[World], Array]:
    """A function from the World to one of its arrays."""
    kind = Table(numba.from_dtype(ARRAYS[name]))
    offset = WORLD.fields[f"{name}_at"][1]  # type: ignore[index]  # a structured type has fields

    def code(context: Any, builder: Any, _: Any, values: Any) -> Any:  # noqa: ANN401
        world = builder.bitcast(values[0], _BYTE.as_pointer())
        field = builder.gep(world, [ir.Constant(_WORD, offset)], source_etype=_BYTE)
        address = builder.load(builder.bitcast(field, _WORD.as_pointer()), align=8)
        return builder.inttoptr(address, context.get_value_type(kind))

    def accessor(typing_context: Any, w: Any) -> Any:  # noqa: ANN401
        return kind(w), code

    made: Callable[[World], Array] = intrinsic(accessor)
    return made
