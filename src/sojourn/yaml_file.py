"""YAML as sojourn takes it: one value per key, bounded in size and depth, one kind of error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

MAX_VALUES: Final = 100_000
"""Values in one file, aliases followed; ten thousand stations with ten keys each."""
MAX_BYTES: Final = 4_000_000
"""Bytes of one file: 40 for each of the values."""


class YamlError(ValueError):
    """The file cannot be taken as YAML; the message says where and why."""


class _Loader(yaml.SafeLoader):
    """The safe loader, but a key that is set twice is an error: one of the two would be lost."""

    count = 0
    most = MAX_VALUES

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401  as PyYAML has it
        """A node; reading ends past the bound, long before the end of an endless file."""
        self.count += 1
        if self.count > 2 * self.most:  # keys are nodes too
            raise YamlError(f"holds more than {self.most:,} values")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """A mapping whose keys differ."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                name = (key.tag, key.value)
                if name in lines:
                    raise YamlError(
                        f"line {line}: key {key.value!r} was set in line {lines[name]} already."
                        " Keep one of the two"
                    )
                lines[name] = line
        return node


def read_yaml(path: Path) -> Any:  # noqa: ANN401  whatever the file holds
    """The content of a YAML file.

    Raises:
        YamlError: it cannot be read, is no YAML, sets a key twice, or grows past all bounds.
    """
    if not path.is_file():
        raise YamlError("is no file" if path.exists() else "does not exist")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise YamlError(f"has more than {MAX_BYTES:,} bytes")  # noqa: TRY301  read once
        text = path.read_text(encoding="utf-8-sig")
        value = yaml.load(text, Loader=_Loader)
    except OSError as error:
        raise YamlError(f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        raise YamlError(f"is not YAML: {error}") from error
    except RecursionError as error:
        raise YamlError("is nested too deeply") from error
    except YamlError:
        raise
    except ValueError as error:
        raise YamlError(f"holds a value that cannot be: {error}") from error
    if _values(value) > MAX_VALUES:
        raise YamlError(f"grows to more than {MAX_VALUES:,} values; look for nested aliases")
    return value


def _values(value: Any) -> int:  # noqa: ANN401  any YAML value
    """How many values there are, aliases followed; counting ends past the bound."""
    count, left = 0, [value]
    while left and count <= MAX_VALUES:
        item = left.pop()
        count += 1
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list | tuple | set):
            left.extend(item)
    return count
