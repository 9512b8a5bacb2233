"""A config mapping that knows the aliases of its fields and says which one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sojourn.errors import InputError

MOST: Final = 10**9
"""Of any size in a config: a thousand times the largest vocabulary and context."""
MOST_LAYERS: Final = 10_000
"""The deepest models have some 130 layers; each is a row of its own here."""


class Fields:
    """A config mapping that knows its aliases and says which field is missing."""

    def __init__(self, raw: Mapping[str, Any], path: str | None) -> None:
        self.raw = raw
        self.path = path

    def get(self, *names: str) -> Any:  # noqa: ANN401  a JSON value has no narrower type
        """The first of the names that is set, or None."""
        for name in names:
            if self.raw.get(name) is not None:
                return self.raw[name]
        return None

    def maybe(self, *names: str) -> int | None:
        """A whole number, or None where no name is set.

        Raises:
            InputError: it is set to something else.
        """
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]  # one number per layer, all alike
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise self.wrong(name, f"expected a number >= 0, found {str(value)[:40]!r}")
            if value > MOST or value != int(value):
                raise self.wrong(
                    name, f"expected a whole number up to {MOST:,}, found {str(value)[:40]}"
                )
            return int(value)
        return None

    def share(self, name: str, otherwise: float) -> float:
        """A number above 0 and up to 1, `otherwise` where it is not set.

        Raises:
            InputError: it is set to something else.
        """
        value = self.raw.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 < value <= 1:
            raise self.wrong(name, f"expected a number from 0.01 to 1, found {str(value)[:40]!r}")
        return value

    def whole(self, *names: str) -> int:
        """A whole number that must be there.

        Raises:
            InputError: none of the names is set, or to no positive number.
        """
        value = self.maybe(*names)
        if value is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.wrong(names[0], f"is missing{also}", "Pass the model's whole config.json")
        if value == 0:
            raise self.wrong(names[0], "must be positive, found 0")
        return value

    def words(self, name: str) -> str:
        """A string, empty where it is not set."""
        return str(self.raw.get(name) or "")

    def wrong(self, field: str, problem: str, todo: str = "") -> InputError:
        """The error that names the field and the file."""
        return InputError(problem, path=self.path or "model config", field=field, todo=todo)


def depth(fields: Fields) -> int:
    """Number of layers, from its field or from the list that names each.

    Raises:
        InputError: neither is there.
    """
    named = fields.get("layers_block_type")
    if isinstance(named, list):
        return len(named)
    layers = fields.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if layers > MOST_LAYERS:
        raise fields.wrong("num_hidden_layers", f"{layers:,} layers are more than any model has")
    return layers


def hidden_size(fields: Fields) -> int:
    """Width of the residual stream.

    Raises:
        InputError: it is not there.
    """
    return fields.whole("hidden_size", "n_embd", "d_model", "n_embed")
