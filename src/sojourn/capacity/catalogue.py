"""The catalogue: accelerators and models as data rows, each number with its source.

Rows live in `data/*.yaml`. A model may also be any Hugging Face config.json, and an accelerator
any YAML file with the fields of a row, by path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field, ValidationError

from sojourn.capacity.model_config import parse_config, read_config
from sojourn.capacity.model_records import ModelSpec
from sojourn.errors import InputError, UsageError
from sojourn.interval import Provenance, Sourced
from sojourn.records import Record
from sojourn.units import GB, TERA
from sojourn.yaml_file import YamlError, read_yaml

_UNITS: Final = {
    "memory_gib": "GiB",
    "bandwidth_bytes_per_s": "B/s",
    "bf16_flops": "FLOP/s",
    "fp16_flops": "FLOP/s",
    "fp8_flops": "FLOP/s",
    "fp4_flops": "FLOP/s",
    "int8_ops": "op/s",
    "link_bytes_per_s": "B/s",
    "tdp_w": "W",
    "usd_per_hour": "USD/h",
}


class Gpu(Record):
    """An accelerator. Rates are dense peak rates; `link_bytes_per_s` is one direction."""

    name: str
    aliases: tuple[str, ...] = ()
    memory_gib: float = Field(gt=0, description="As the driver reports it.")
    bandwidth_bytes_per_s: float = Field(gt=0)
    bf16_flops: float = Field(gt=0)
    fp16_flops: float = Field(gt=0)
    fp8_flops: float | None = Field(None, gt=0)
    fp4_flops: float | None = Field(None, gt=0)
    int8_ops: float | None = Field(None, gt=0)
    link_bytes_per_s: float = Field(gt=0)
    tdp_w: float = Field(gt=0)
    usd_per_hour: float | None = Field(None, ge=0)
    facts: dict[str, Sourced] = Field(default_factory=dict, description="Source of each number.")

    def flops(self, dtype: str) -> float:
        """Peak rate of matrix products with weights and activations of `dtype`, 1/s.

        Weight-only formats (int4) are multiplied in bf16, and so is a format the card has no
        units for. mxfp4 is multiplied with 8-bit activations where there are FP4 units.
        """
        own = {
            "fp16": self.fp16_flops,
            "fp8": self.fp8_flops,
            "int8": self.int8_ops,
            "nvfp4": self.fp4_flops,
            "mxfp4": self.fp8_flops if self.fp4_flops else None,
        }.get(dtype)
        return own or self.bf16_flops


def gpus() -> dict[str, Gpu]:
    """Every accelerator of the catalogue, by name."""
    return dict(_gpus())


def models() -> dict[str, ModelSpec]:
    """Every model of the catalogue, by name."""
    return dict(_models())


def gpu(name: str) -> Gpu:
    """An accelerator by catalogue name, alias, or path of a YAML file with a row.

    Raises:
        UsageError: no such name. InputError: the file is no row.
    """
    if name.endswith((".yaml", ".yml")):
        return _gpu_file(Path(name))
    found = _find(name, {g.name: g.aliases for g in _gpus().values()})
    if found is None:
        raise _unknown("accelerator", name, _gpus())
    return _gpus()[found]


def model(name_or_path: str) -> ModelSpec:
    """A model by catalogue name, alias, or path of a config.json (or of the folder with it).

    Raises:
        UsageError: no such name. InputError: the file is no config that can be used.
    """
    found = _find(name_or_path, _model_aliases())
    if found is not None:
        return _models()[found]
    path = Path(name_or_path)
    if name_or_path.endswith(".json") or (path / "config.json").is_file():
        return read_config(path)
    raise _unknown("model", name_or_path, _models())


def _key(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum() or c == ".")


def _find(name: str, known: Mapping[str, Iterable[str]]) -> str | None:
    wanted = _key(name)
    for own, aliases in known.items():
        if wanted in {_key(own), *(_key(alias) for alias in aliases)}:
            return own
    return None


def _unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    also = "a Hugging Face config.json" if what == "model" else "a YAML file with its figures"
    return UsageError(
        f"no {what} {name!r} in the catalogue.{hint} Known: {', '.join(names)}."
        f" Or give the path of {also}"
    )


def _data(file: str) -> dict[str, Any]:
    text = resources.files("sojourn.capacity.data").joinpath(file).read_text(encoding="utf-8")
    rows: dict[str, Any] = yaml.safe_load(text)
    return rows


def _sourced(field: str, pair: list[Any], sources: Mapping[str, str]) -> Sourced:
    value, source = pair
    assumed = field == "usd_per_hour"
    return Sourced(
        value=float(value),
        unit=_UNITS.get(field, "parameters"),
        provenance=Provenance.ASSUMED if assumed else Provenance.CATALOGUE,
        source=sources[source],
    )


@cache
def _gpus() -> dict[str, Gpu]:
    data = _data("gpus.yaml")
    result = {}
    for name, row in data["gpus"].items():
        facts = {
            field: _sourced(field, pair, data["sources"])
            for field, pair in row.items()
            if field in _UNITS
        }
        values = {field: fact.value for field, fact in facts.items()}
        result[name] = Gpu(name=name, aliases=tuple(row["aliases"]), facts=facts, **values)
    return result


def _gpu_file(path: Path) -> Gpu:
    try:
        raw = read_yaml(path)
    except YamlError as error:
        raise InputError(str(error), path=path, todo="Check the file") from error
    if not isinstance(raw, dict):
        raise InputError("holds no fields", path=path, todo=f"Give {', '.join(_UNITS)}")
    given = {"name": path.stem, **raw}
    facts = {
        field: Sourced(
            value=value, unit=_UNITS[field], provenance=Provenance.ASSUMED, source=str(path)
        )
        for field, value in given.items()
        if field in _UNITS and isinstance(value, int | float)
    }
    try:
        return Gpu.model_validate({**given, "facts": facts})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], path=path, field=field, todo="Correct the row") from error


@cache
def _model_rows() -> dict[str, Any]:
    return _data("models.yaml")


@cache
def _model_aliases() -> dict[str, tuple[str, ...]]:
    return {name: tuple(row["aliases"]) for name, row in _model_rows()["models"].items()}


@cache
def _models() -> dict[str, ModelSpec]:
    data = _model_rows()
    result = {}
    for name, row in data["models"].items():
        facts = {
            field: _sourced(field, row[field], data["sources"])
            for field in ("parameters", "active_parameters")
            if field in row
        }
        result[name] = parse_config(
            row["config"], name=name, source=row["source"], facts=facts, path=f"models.yaml: {name}"
        )
    return result


def catalogue_page() -> str:
    """The catalogue as a Markdown page: every figure, and where it is from."""
    return "\n".join([*_page_head(), *_gpu_section(), *_model_section(), ""])


def _page_head() -> list[str]:
    return [
        "# Catalogue",
        "",
        "Accelerators and models that sojourn knows by name. A model may also be the path of any"
        " Hugging Face `config.json`; an accelerator the path of a YAML file with the same fields."
        " Rates are dense peak rates; prices are indications (assumed): set"
        " `deployment.usd_per_replica_hour` to your own.",
        "",
    ]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / TERA:,.0f}"


def _gpu_section() -> list[str]:
    lines = [
        "## Accelerators",
        "",
        "| Name | Memory GiB | Bandwidth GB/s | BF16 TFLOP/s | FP8 TFLOP/s | INT8 TOP/s"
        " | Link GB/s, one way | TDP W | USD/h (assumed) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {g.name} | {g.memory_gib:.2f} | {g.bandwidth_bytes_per_s / GB:,.0f} |"
        f" {_rate(g.bf16_flops)} | {_rate(g.fp8_flops)} | {_rate(g.int8_ops)} |"
        f" {g.link_bytes_per_s / GB:,.0f} | {g.tdp_w:.0f} |"
        f" {'–' if g.usd_per_hour is None else f'{g.usd_per_hour:.2f}'} |"
        for g in _gpus().values()
    ]
    lines += ["", "### Sources", ""]
    for g in _gpus().values():
        lines.append(f"- **{g.name}**")
        lines += [f"    - {field}: {fact.source}" for field, fact in g.facts.items()]
    return [*lines, ""]


def _model_section() -> list[str]:
    lines = [
        "## Models",
        "",
        "Parameters are counted from the config and checked against the published total.",
        "",
        "| Name | Architecture | Parameters, 1e9 | published | Active, 1e9 | Layers"
        " | Attention | Checkpoint |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for spec in _models().values():
        kinds = ", ".join(
            f"{a.layers} {a.kind}{f' ({a.window})' if a.window else ''}" for a in spec.attention
        )
        published = spec.facts["parameters"].value
        lines.append(
            f"| {spec.name} | {spec.architecture} | {spec.parameters / GB:.2f} |"
            f" {published / GB:.2f} | {spec.active_parameters / GB:.2f} | {spec.layers} | {kinds} |"
            f" {spec.checkpoint_dtype} |"
        )
    lines += ["", "### Sources", ""]
    for spec in _models().values():
        facts = "; ".join(f"{field}: {fact.source}" for field, fact in spec.facts.items())
        lines.append(f"- **{spec.name}**: {spec.source}; {facts}")
    return lines
