"""The catalogue: accelerators and models as data rows, each number with its source.

Rows live in `data/*.yaml`. A model may also be any Hugging Face config.json, and an accelerator
any YAML file with the fields of a row, by path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field, ValidationError

from sojourn.capacity.gpu_names import Card, find_card
from sojourn.capacity.model_config import parse_config, read_config
from sojourn.capacity.model_names import find_model, key, without_tuning
from sojourn.capacity.model_records import ModelSpec
from sojourn.errors import InputError, UsageError
from sojourn.interval import Provenance, Sourced
from sojourn.records import Record
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
    return {name: _model(name) for name in _model_rows()}


def gpu(name: str) -> Gpu:
    """An accelerator by catalogue name, alias, the name a publisher uses for it or for a system
    with it ("8x NVIDIA H100-SXM-80GB"), or the path of a YAML file with a row.

    Raises:
        UsageError: no such name. InputError: the file is no row.
    """
    if name.endswith((".yaml", ".yml")):
        return _gpu_file(Path(name))
    found = _gpu_keys().get(key(name)) or find_card(name, _cards())
    if found is None:
        raise _unknown("accelerator", name, _gpus())
    return _gpus()[found]


def model(name_or_path: str) -> ModelSpec:
    """A model by catalogue name or alias, with or without the organisation's prefix, or the path of
    a config.json (or of the folder with it).

    A suffix for the weight format (-FP8, -NVFP4, -AWQ, ...) gives the same model with that
    `checkpoint_dtype`.

    Raises:
        UsageError: no such name. InputError: the file is no config that can be used.
    """
    found = find_model(name_or_path, _model_keys().get)
    if found is not None:
        spec = _model(found.name)
        return spec if found.dtype is None else _stored_in(spec, found.name, found.dtype)
    path = Path(name_or_path)
    if name_or_path.endswith(".json") or (path / "config.json").is_file():
        return read_config(path)
    raise _unknown("model", name_or_path, _model_rows())


def _stored_in(spec: ModelSpec, row: str, dtype: str) -> ModelSpec:
    """The same model from a checkpoint whose blocks are stored in another format; the row's
    `formats` say which parts its publisher leaves in 16 bits then."""
    experts_only = {"attention": "bf16", "dense": "bf16"} if dtype == "mxfp4" else {}
    return spec.model_copy(
        update={
            "name": f"{spec.name}-{dtype.upper()}",
            "checkpoint_dtype": dtype,
            "part_dtypes": _model_rows()[row].get("formats", {}).get(dtype, experts_only),
            "source": f"{spec.source}; weights in {dtype} by the checkpoint's name",
        }
    )


def _unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    names = sorted(known)
    plain = {key(own): own for own in names}
    near = difflib.get_close_matches(key(name.rsplit("/", 1)[-1]), plain, n=5, cutoff=0.4)
    hint = f" Did you mean {', '.join(plain[n] for n in near)}?" if near else ""
    also = "a Hugging Face config.json" if what == "model" else "a YAML file with its figures"
    return UsageError(
        f"no {what} {name!r} in the catalogue.{hint} {len(names)} are known by name"
        f" (listed in the reference, page Catalogue). Or give the path of {also}"
    )


def _data(file: str) -> dict[str, Any]:
    text = resources.files("sojourn.capacity.data").joinpath(file).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where PyYAML has it
    rows: dict[str, Any] = yaml.load(text, Loader=loader)
    return rows


def _sourced(field: str, value: object, source: str, *, assumed: bool = False) -> Sourced:
    return Sourced(
        value=float(str(value)),
        unit=_UNITS.get(field, "parameters"),
        provenance=Provenance.ASSUMED if assumed else Provenance.CATALOGUE,
        source=source,
    )


@cache
def _gpu_rows() -> dict[str, Any]:
    return _data("gpus.yaml")


@cache
def _gpus() -> dict[str, Gpu]:
    sources, assumed = _gpu_rows()["sources"], _gpu_rows()["assumed"]
    result = {}
    for name, row in _gpu_rows()["gpus"].items():
        facts = {}
        for field, figure in row["figures"].items():
            value, source = figure if isinstance(figure, list) else (figure, row["source"])
            facts[field] = _sourced(field, value, sources[source], assumed=source in assumed)
        values = {field: fact.value for field, fact in facts.items()}
        aliases = tuple(row.get("aliases", ()))
        result[name] = Gpu(name=name, aliases=aliases, facts=facts, **values)
    return result


@cache
def _gpu_keys() -> dict[str, str]:
    return {key(known): g.name for g in _gpus().values() for known in (g.name, *g.aliases)}


@cache
def _cards() -> tuple[Card, ...]:
    return tuple(
        Card(name, row["chip"], row.get("form"), tuple(row["box_gb"]))
        for name, row in _gpu_rows()["gpus"].items()
    )


def _gpu_file(path: Path) -> Gpu:
    try:
        raw = read_yaml(path)
    except YamlError as error:
        raise InputError(str(error), path=path, todo="Check the file") from error
    if not isinstance(raw, dict):
        raise InputError("holds no fields", path=path, todo=f"Give {', '.join(_UNITS)}")
    given = {"name": path.stem, **raw}
    try:
        row = Gpu.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"], path=path, field=field, todo="Correct the row") from error
    facts = {
        field: Sourced(
            value=getattr(row, field),
            unit=_UNITS[field],
            provenance=Provenance.ASSUMED,
            source=str(path),
        )
        for field in given
        if field in _UNITS and getattr(row, field) is not None
    }
    return row.model_copy(update={"facts": {**facts, **row.facts}})


@cache
def _model_rows() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for file in _data("models.yaml")["files"]:
        rows.update(_data(file))
    return rows


@cache
def _model_sources() -> dict[str, str]:
    return dict(_data("models.yaml")["sources"])


def names_of(name: str) -> tuple[str, ...]:
    """Every name of a model's row, its own first."""
    row = _model_rows()[name]
    repo = (row["repo"],) if "repo" in row else ()
    return (name, *repo, *row.get("aliases", ()))


@cache
def _model_keys() -> dict[str, str]:
    """Row of every name, with and without organisation and tuning suffix; its own name wins."""
    keys: dict[str, str] = {}
    for name in _model_rows():
        for known in names_of(name):
            short = known.rsplit("/", 1)[-1]
            for form in (known, short, without_tuning(short)):
                keys.setdefault(key(form), name)
    return keys | {key(name): name for name in _model_rows()}


def _model_config(name: str) -> dict[str, Any]:
    row = _model_rows()[name]
    base = _model_config(row["like"]) if "like" in row else {}
    return {**base, **_expanded(row.get("config", {}))}


def _expanded(value: Any) -> Any:  # noqa: ANN401  a YAML value has no narrower type
    """A config with its short lists written out: {runs: [[2, [a]], [3, [b, c]]]} is a list."""
    if isinstance(value, dict):
        if set(value) == {"runs"}:
            return [_expanded(one) for count, unit in value["runs"] for one in unit * count]
        return {name: _expanded(one) for name, one in value.items()}
    return value


@cache
def _checks() -> dict[str, str]:
    """What the fields of each model's row were compared with after they were written."""
    told = _data("models.yaml")
    checks = dict.fromkeys(_model_rows(), str(told["unchecked"]))
    for check in told["checked"].values():
        checks |= dict.fromkeys(check["models"], str(check["how"]))
    return checks


@cache
def _model(name: str) -> ModelSpec:
    row = _model_rows()[name]
    sources = _model_sources()
    facts = {
        field: _sourced(field, row[field][0], sources[row[field][1]])
        for field in ("parameters", "active_parameters")
        if field in row
    }
    file = row.get("source") or f"config.json of {row['repo']} on Hugging Face"
    source = f"{file}; {_checks()[name]}"
    path = f"catalogue: {name}"
    return parse_config(_model_config(name), name=name, source=source, facts=facts, path=path)
