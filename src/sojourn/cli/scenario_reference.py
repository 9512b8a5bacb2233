"""The generated reference page of scenario files: every key, its default and meaning."""

from __future__ import annotations

import json
from typing import Any, Final

from sojourn.sim.scenario_records import ScenarioFile

HEAD: Final = (
    "# Scenario files",
    "",
    "Generated from `sojourn.sim.scenario_records`. What `sojourn simulate` runs; how to write one"
    " is told in [simulate](../how-to/simulate.md), what the simulator does with it in"
    " [how the simulator works](../explanation/simulator.md).",
    "",
    "*distribution* stands for a number (fixed) or a mapping with `distribution:` and the keys"
    " of that one, at the end of the page. Times are seconds.",
    "",
)
LAWS: Final = ("Fixed", "Uniform", "Exponential", "Lognormal", "Gamma", "Samples", "Quantiles")


def scenario_page() -> str:
    """Every section, in the order in which the file mentions it."""
    schema = ScenarioFile.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    lines = [*HEAD, *_section("(top)", schema)]
    seen: list[str] = []
    left = _named(schema)
    while left:
        name = left.pop(0)
        if name in seen or "properties" not in definitions[name]:
            continue
        seen.append(name)
        left += _named(definitions[name])
    laws = [name for name in LAWS if name in seen]
    for name in [*(name for name in seen if name not in laws), *laws]:
        lines += _section(name, definitions[name])
    return "\n".join(lines)


def _section(title: str, schema: dict[str, Any]) -> list[str]:
    needed = schema.get("required", ())
    told = " ".join(str(schema.get("description", "")).split())
    lines = [f"## {title}", "", told, "", "| key | takes | default | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for key, item in schema["properties"].items():
        default = "required" if key in needed else _written(item.get("default"))
        meaning = " ".join(str(item.get("description", "")).split())
        lines.append(f"| `{key}` | {_takes(item)} | {default} | {meaning} |")
    return [*lines, ""]


def _written(value: object) -> str:
    """A default as YAML writes it; of sections nothing, their own defaults hold."""
    if value is None or value in ([], {}, ""):
        return "unset"
    return "" if isinstance(value, dict | list) else f"`{json.dumps(value)}`"


def _takes(item: dict[str, Any]) -> str:
    """The kind of value, in words."""
    options = [*item.get("anyOf", []), *item.get("oneOf", []), *item.get("allOf", [])]
    if "$ref" in item:
        name = str(item["$ref"]).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if any("discriminator" in option for option in options):
        return "*distribution*"
    if options:
        kinds = [_takes(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    known = [item["const"]] if "const" in item else item.get("enum", [])
    return ", ".join(f"`{value}`" for value in known) or _plain(item)


def _plain(item: dict[str, Any]) -> str:
    """A value of one type."""
    kind = str(item.get("type", "any"))
    if kind == "array":
        inner = item.get("items") or {}
        return f"list of {_takes(inner)}" if inner else "list"
    if kind == "object":
        below = item.get("additionalProperties")
        return f"name: {_takes(below)}" if isinstance(below, dict) else "mapping"
    words = {"integer": "whole number", "string": "text", "boolean": "true or false"}
    return words.get(kind, kind)


def _named(schema: Any) -> list[str]:  # noqa: ANN401  any tree of JSON
    """Names of the definitions a schema refers to, in order."""
    if isinstance(schema, dict):
        own = [str(schema["$ref"]).rsplit("/", 1)[-1]] if "$ref" in schema else []
        below = [v for k, v in schema.items() if k not in ("$defs", "discriminator")]
        return own + [name for value in below for name in _named(value)]
    if isinstance(schema, list):
        return [name for value in schema for name in _named(value)]
    return []
