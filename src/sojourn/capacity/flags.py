"""Every value of `deployment`, and where it comes from.

The order, best first: sojourn.yaml (a command-line option is put into it), the launch text it
names, what the engine printed into the telemetry, the default of that engine and version, ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from sojourn.capacity import catalogue
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.engine_calls import main_engine
from sojourn.capacity.launch import read_launch
from sojourn.capacity.launch_checks import Setting, check
from sojourn.capacity.launch_defaults import defaults
from sojourn.capacity.launch_deployment import Said, said
from sojourn.capacity.launch_flags import Value
from sojourn.capacity.launch_records import Launch
from sojourn.capacity.memory_knobs import engine_version
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.plausible import Finding, check_config, check_gpu, credible_gpu
from sojourn.config import Config, Deployment
from sojourn.errors import InputError, UsageError
from sojourn.interval import Provenance
from sojourn.records import Record
from sojourn.trace.tables import Tables

META_NAMES: Final = {"kv_blocks": ("num_gpu_blocks", "kv_blocks", "num_gpu_blocks_override")}
"""Names an engine gives to a flag, where they differ from ours; best first."""
PRINTED: Final = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size",
                  "kv_blocks")  # fmt: skip
"""Whole numbers that engines print."""


class Resolved(Record):
    """A value of `deployment` in force, and where it comes from."""

    name: str
    value: Value | None
    source: str
    provenance: Provenance


def set_in(config: Config, name: str) -> bool:
    """Whether sojourn.yaml sets this key of `deployment` itself."""
    return "deployment" in config.model_fields_set and name in config.deployment.model_fields_set


def launched(config: Config) -> Launch | None:
    """The launch that sojourn.yaml names, or None.

    Raises:
        InputError: it cannot be read.
    """
    text = config.deployment.launch
    return None if text is None else read_launch(text)


def flag(name: str, tables: Tables, config: Config) -> tuple[int, Provenance]:
    """A whole-number flag of the engine and where it comes from; 0 where nothing says it.

    name: max_num_seqs, max_num_batched_tokens, block_size or kv_blocks.
    """
    found = _value(name, tables, config, launched(config))
    if found is None:
        return int(getattr(config.deployment, name) or 0), Provenance.ASSUMED
    return int(found.value or 0), found.provenance


def printed(name: str, tables: Tables) -> int | None:
    """A whole number that the engine printed, or None."""
    for key in META_NAMES.get(name, (name,)):
        for place in (key, f"engine.{key}"):
            value = _whole(tables.meta.get(place))
            if value is not None:
                return value
    return None


def _whole(text: str | None) -> int | None:
    """A positive whole number, also written as 1024.0; None for anything else."""
    try:
        value = float(str(text).strip())
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value >= 1 else None


def _value(name: str, tables: Tables, config: Config, launch: Launch | None) -> Resolved | None:
    """A value from the file, the launch or the engine's print; None where none has it."""
    own = getattr(config.deployment, name) if set_in(config, name) else None
    from_launch = _said(launch, config).get(name)
    if own is not None and (from_launch is None or from_launch.value != own):
        return Resolved(name=name, value=own, source="sojourn.yaml", provenance=Provenance.MEASURED)
    if from_launch is not None:
        return Resolved(
            name=name,
            value=from_launch.value,
            source=from_launch.source,
            provenance=Provenance.MEASURED,
        )
    shown = printed(name, tables) if name in PRINTED else None
    if shown is not None:
        return Resolved(
            name=name, value=shown, source="printed by the engine", provenance=Provenance.MEASURED
        )
    return _seen_replicas(tables) if name == "replicas" else None


def _seen_replicas(tables: Tables) -> Resolved | None:
    """As many as the telemetry names; None where it holds no call."""
    if not tables.calls.num_rows:
        return None
    named = main_engine(tables.calls)[0].column("replica")
    count = max(1, len(named.unique().drop_null()))
    return Resolved(
        name="replicas",
        value=count,
        source="named in the telemetry",
        provenance=Provenance.INFERRED,
    )


def _said(launch: Launch | None, config: Config) -> Mapping[str, Said]:
    """What the launch sets; a pool in tokens is cut into blocks; names the catalogue lacks are
    left out (a fit needs no hardware)."""
    if launch is None:
        return {}
    found = said(launch)
    tokens = found.pop("kv_tokens", None)
    if tokens is not None and "kv_blocks" not in found:
        size = found.get("block_size")
        block = int(size.value) if size is not None else config.deployment.block_size
        if size is None and launch.engine == "sglang" and not set_in(config, "block_size"):
            block = 1
        found["kv_blocks"] = Said(max(1, int(tokens.value) // block), tokens.source)
    for name, look in (("model", catalogue.model), ("accelerator", catalogue.gpu)):
        if name in found and not set_in(config, name):
            try:
                look(str(found[name].value))
            except (UsageError, InputError):
                del found[name]
    return found


def resolve(config: Config, tables: Tables) -> tuple[Deployment, tuple[Resolved, ...]]:
    """`deployment` with every value in force, and where each comes from.

    Raises:
        UsageError: values contradict each other so that no engine would start; names each.
        InputError: the launch cannot be read.
    """
    deployment, table = _resolved(config, tables)
    errors = [finding for finding in _findings(config, tables, deployment) if finding.error]
    if errors:
        raise UsageError("; ".join(str(finding) for finding in errors))
    return _valid(deployment), table


def with_launch(config: Config) -> Config:
    """The config with what its launch says in the keys of `deployment` that it does not set, for
    rooms that read it directly. `resolve` still tells where each value comes from.

    Raises:
        UsageError: a flag is out of its key's range, or a figure of an accelerator's own file is
            of no machine. InputError: the launch or that file cannot be read.
    """
    card = config.deployment.accelerator
    if card is not None and card.endswith((".yaml", ".yml")):
        credible_gpu(card)
    told = _said(launched(config), config)
    missing = {name: entry.value for name, entry in told.items() if not set_in(config, name)}
    if not missing:
        return config
    return config.model_copy(
        update={"deployment": _valid(config.deployment.model_copy(update=missing))}
    )


def findings(config: Config, tables: Tables) -> tuple[Finding, ...]:
    """Contradictions and values likely in another unit, errors first.

    Raises:
        InputError: the launch cannot be read.
    """
    deployment, _ = _resolved(config, tables)
    found = tuple(_findings(config, tables, deployment))
    return tuple(sorted(found, key=lambda finding: not finding.error))


def _resolved(config: Config, tables: Tables) -> tuple[Deployment, tuple[Resolved, ...]]:
    launch = launched(config)
    names = [name for name in Deployment.model_fields if name != "launch"]
    found = {name: _value(name, tables, config, launch) for name in names}
    own: dict[str, Any] = {k: v.value for k, v in found.items() if v is not None}
    versioned = bool(engine_version(str(own.get("engine", "")))[1])
    if launch is not None or versioned:
        by_default = _defaults(own, found, config)
        own |= {name: entry.value for name, entry in by_default.items()}
        found |= by_default
    table = tuple(found[name] or _ours(name, config.deployment) for name in names)
    return config.deployment.model_copy(update=own), table


def _defaults(
    own: Mapping[str, Any], found: Mapping[str, Resolved | None], config: Config
) -> dict[str, Resolved]:
    """Of the engine, for names that nothing else says."""
    engine, version = engine_version(str(own.get("engine", config.deployment.engine)))
    card = _card(own.get("accelerator"))
    memory = None if card is None else card.memory_gib
    name = "" if card is None else card.name
    return {
        key: Resolved(
            name=key, value=entry.value, source=entry.source, provenance=Provenance.CATALOGUE
        )
        for key, entry in defaults(engine, version, memory_gib=memory, card=name).items()
        if key in found and found[key] is None
    }


def _ours(name: str, deployment: Deployment) -> Resolved:
    return Resolved(
        name=name,
        value=getattr(deployment, name),
        source="sojourn's default",
        provenance=Provenance.ASSUMED,
    )


def _card(name: object) -> Gpu | None:
    try:
        return None if name is None else catalogue.gpu(str(name))
    except (UsageError, InputError):
        return None


def _spec(name: object) -> ModelSpec | None:
    try:
        return None if name is None else catalogue.model(str(name))
    except (UsageError, InputError):
        return None


def _findings(config: Config, tables: Tables, deployment: Deployment) -> Iterator[Finding]:
    launch = launched(config)
    card = _card(deployment.accelerator)
    model = _spec(deployment.model)
    yield from check(Setting(deployment, launch, model, card))
    yield from check_config(config)
    if card is not None and str(deployment.accelerator).endswith((".yaml", ".yml")):
        yield from check_gpu(card)
    yield from _unknown(config)
    if launch is None:
        return
    yield from _others(config, launch)
    for name in PRINTED:
        shown, told = printed(name, tables), _said(launch, config).get(name)
        if shown is not None and told is not None and told.value != shown:
            yield Finding(
                where=name,
                what=f"the engine of this telemetry printed {shown}, {told.source} says"
                f" {told.value}",
                todo="Check that the launch is of the engine that was recorded",
            )


def _unknown(config: Config) -> Iterator[Finding]:
    """A model or an accelerator of sojourn.yaml that cannot be had: a file is an error, a name a
    warning, since a fit needs none."""
    looks = (("model", catalogue.model), ("accelerator", catalogue.gpu))
    for name, look in looks:
        own = getattr(config.deployment, name)
        if own is None or not set_in(config, name):
            continue
        try:
            look(own)
        except (UsageError, InputError) as error:
            yield Finding(
                where=f"deployment.{name}",
                what=str(error).rstrip("."),
                todo="Answers that need it are refused",
                error=own.endswith((".json", ".yaml", ".yml")),
            )


def _others(config: Config, launch: Launch) -> Iterator[Finding]:
    """Where sojourn.yaml and its launch differ; and names that are not in the catalogue."""
    everything = said(launch)
    usable = _said(launch, config)
    for name, told in everything.items():
        own = getattr(config.deployment, name, None)
        if set_in(config, name) and own is not None and not _alike(name, own, told.value):
            yield Finding(
                where=f"deployment.{name}",
                what=f"sojourn.yaml says {own}, {told.source} says {told.value}",
                todo="sojourn.yaml is taken; leave the key out to take the launch",
            )
        elif name in ("model", "accelerator") and name not in usable and own is None:
            yield Finding(
                where=f"deployment.{name}",
                what=f"{told.value} ({told.source}) is not in the catalogue",
                todo="Give the path of its config.json or row, or a name of the catalogue",
            )


def _alike(name: str, own: object, told: object) -> bool:
    """Whether two values mean the same: two names of one model or card do."""
    if own == told:
        return True
    if name == "engine":
        return engine_version(str(own))[0] == engine_version(str(told))[0]
    look = {"model": _spec, "accelerator": _card}.get(name)
    if look is None:
        return False
    one, other = look(own), look(told)
    return one is not None and other is not None and one.name == other.name


def _valid(deployment: Deployment) -> Deployment:
    """The same, checked against the ranges of its keys.

    Raises:
        UsageError: names the key and what was expected.
    """
    try:
        return Deployment.model_validate(deployment.model_dump(exclude_unset=True))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"deployment.{name}: {first['msg']} (found {str(first['input'])[:60]!r}). Correct the"
            " flag in deployment.launch, or set the key in sojourn.yaml"
        ) from error
