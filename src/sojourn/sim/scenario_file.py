"""Scenario files: read, checked, every mistake named by file, key, expectation and way out."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sojourn.errors import InputError
from sojourn.sim.scenario_records import ScenarioFile
from sojourn.workload.arrival_process import LONGEST_S
from sojourn.yaml_file import YamlError, read_yaml

MOST_MISTAKES: Final = 5
"""Told at once; with more, the first ones are usually the cause of the rest."""
LARGEST: Final = 1e12
"""Past every count, token, price and rate of a scenario; seeds apart."""
HEAD_BYTES: Final = 65_536
"""Read to see whether a file is a scenario."""
SMALLEST: Final = 1e-18
"""Below a millionth of the simulator's tick: nothing but rounding comes of it."""
PAGE: Final = "docs/reference/scenario.md lists every key; `sojourn schema scenario` prints them"
SYNONYMS: Final = {
    "gpu": "accelerator",
    "gpus": "tensor_parallel",
    "tp": "tensor_parallel",
    "dtype": "weight_dtype",
    "dist": "distribution",
    "std": "cv",
    "std_dev": "cv",
    "rate": "rate_per_s",
    "rps": "rate_per_s",
    "qps": "rate_per_s",
    "duration": "duration_s",
    "workers": "servers",
    "timeout": "timeout_s",
    "token_budget": "max_num_batched_tokens",
    "steps": "chain",
    "depends_on": "after",
    "weight": "share",
}
"""Other tools' words for a key."""


def is_scenario(path: Path) -> bool:
    """Whether a path is a scenario file: a line of it opens `workload:`, or its name ends in .yaml
    (no telemetry does: then the mistake is told as one of a scenario)."""
    if not path.is_file():
        return False
    if path.suffix.lower() in (".yaml", ".yml"):
        return True
    try:
        with path.open("rb") as file:
            return re.search(rb"^workload\s*:", file.read(HEAD_BYTES), re.MULTILINE) is not None
    except OSError:
        return False


def read_scenario(path: Path | str) -> ScenarioFile:
    """A scenario file, checked as far as it can be without drawing requests.

    Raises:
        InputError: the file cannot be read, is no YAML, or has a key that is unknown, missing or
            out of range: says which, what was expected, and what to do.
    """
    try:
        raw = read_yaml(Path(path))
    except YamlError as error:
        raise InputError(str(error), path=path, todo="Correct the file") from error
    return scenario_from(raw, str(path))


def scenario_from(raw: Any, where: str = "scenario") -> ScenarioFile:  # noqa: ANN401  any YAML
    """Validate what a file holds.

    Raises:
        InputError: as `read_scenario`.
    """
    if not isinstance(raw, dict):
        raise InputError(
            f"expected keys such as `workload:` and `engine:`, found {_shown(raw)}",
            path=where,
            todo=PAGE,
        )
    _refuse_numbers(raw, where)
    try:
        return ScenarioFile.model_validate(raw)
    except ValidationError as error:
        details = error.errors()
        told = [_told(item, raw) for item in details[:MOST_MISTAKES]]
        more = len(details) - len(told)
        rest = f" (and {more} more)" if more > 0 else ""
        raise InputError("; ".join(told) + rest, path=where, todo=PAGE) from error


def _refuse_numbers(raw: dict[Any, Any], where: str) -> None:
    """Numbers that no key may hold: not a number, infinite, or past all bounds."""
    left: list[tuple[str, str, Any]] = [("", "", raw)]
    while left:
        path, key, value = left.pop()
        if isinstance(value, dict):
            left += [(_joined(path, inner), str(inner), item) for inner, item in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{path}[{place}]", key, item) for place, item in enumerate(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool) and key != "seed":
            most = LONGEST_S if key.endswith("_s") and not key.endswith("_per_s") else LARGEST
            if not math.isfinite(value) or abs(value) > most or 0 < abs(value) < SMALLEST:
                raise InputError(
                    f"{_shown(value)} is no number to simulate with",
                    path=where,
                    field=path,
                    todo=f"Give 0, or a number from {SMALLEST:g} to {most:,.0f}; check its unit",
                )


def _joined(path: str, key: Any) -> str:  # noqa: ANN401  any YAML key
    return f"{path}.{key}" if path else str(key)


def _shown(value: Any) -> str:  # noqa: ANN401  any YAML value
    """A value in few characters."""
    if isinstance(value, dict | list | tuple):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"{value:.3g}" if abs(value) < 10**300 else "a number of more than 300 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _told(item: ErrorDetails, raw: dict[Any, Any]) -> str:
    """One mistake: the key's path, what was found there, what was expected."""
    location = item["loc"]
    path = _path(location, raw)
    said = str(item["msg"])
    match item["type"]:
        case "extra_forbidden":
            text = f"unknown key.{_near(location)}"
        case "missing":
            text = "missing"
        case "union_tag_invalid" | "enum" | "literal_error":
            text = _choice(item)
        case "union_tag_not_found":
            text = "expected a number, or a mapping with `distribution:`"
        case "value_error":
            text = said.removeprefix("Value error, ")
        case kind if kind.startswith(("model_", "dict_type")):
            text = f"expected keys below it, found {_shown(item['input'])}"
        case "tuple_type":
            text = f"expected a list, found {_shown(item['input'])}"
        case _:
            text = f"{said.replace('Input should', 'should')} (found {_shown(item['input'])})"
    return f"{path}: {text}" if path else text


def _choice(item: ErrorDetails) -> str:
    """A word that is none of those known."""
    context = item.get("ctx", {})
    expected = str(context.get("expected_tags", context.get("expected", ""))).replace("'", "")
    found = str(context.get("tag", item["input"]))
    options = expected.replace(" or ", ", ").split(", ")
    near = difflib.get_close_matches(found, options, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"found {_shown(found)}, expected one of {expected}{hint}"


def _path(location: tuple[int | str, ...], raw: Any) -> str:  # noqa: ANN401  any YAML value
    """A location as it is found in the file: without the names of variants that pydantic adds."""
    path, here = "", raw
    last = len(location) - 1
    for place, part in enumerate(location):
        if isinstance(part, int) and isinstance(here, list | tuple) and part < len(here):
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            path, here = _joined(path, part), here[part]
        elif place == last and not (isinstance(part, str) and part.startswith("function-")):
            path = _joined(path, part)
    return path


def _near(location: tuple[int | str, ...]) -> str:
    """The known keys beside an unknown one: the nearest, else all."""
    known = sorted(_known_keys(location[:-1]))
    name = str(location[-1])
    meant = SYNONYMS.get(name.lower())
    near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f" Did you mean `{near[0]}`?"
    return f" Known here: {', '.join(known)}" if known else ""


def _known_keys(location: tuple[int | str, ...]) -> set[str]:
    """Keys that the schema has at a location."""
    schema = ScenarioFile.model_json_schema()
    definitions: dict[str, Any] = schema.get("$defs", {})
    here = _variants(schema, definitions)
    for part in location:
        below = []
        for item in here:
            if isinstance(part, int):
                below += [item["items"]] if isinstance(item.get("items"), dict) else []
            elif part in item.get("properties", {}):
                below.append(item["properties"][part])
            elif isinstance(item.get("additionalProperties"), dict):
                below.append(item["additionalProperties"])
        if below:
            here = [variant for item in below for variant in _variants(item, definitions)]
        else:  # the name of a variant
            here = [v for v in here if _tag(v) in (part, None)]
    return {key for item in here for key in item.get("properties", {})}


def _tag(schema: dict[str, Any]) -> str | None:
    found = schema.get("properties", {}).get("distribution", {}).get("const")
    return None if found is None else str(found)


def _variants(schema: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema without references and alternatives."""
    if "$ref" in schema:
        return _variants(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    options = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    return [v for option in options for v in _variants(option, definitions)] or [schema]
