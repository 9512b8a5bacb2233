"""The one module that imports the package with the measured operator tables (extra `[silicon]`).

It asks the package's compiled engine for the times of single operators of one step and turns every
failure of it (not installed, another version, no data, an exception, a panic of its Rust side)
into `Refused`. Nothing else of sojourn sees its types, so another distribution can take its place.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol

PACKAGE: Final = "aiconfigurator-core"
MODULE: Final = "aiconfigurator_core"
VERSION: Final = "0.12.0"
"""The version the guards and the host terms were checked with."""
FAULTY: Final = 2.0
INSTALL: Final = "pip install 'sojourn[silicon]'"


class Refused(Exception):  # noqa: N818  a refusal, not a fault of ours: it becomes an `Excuse`
    """The tables cannot answer; the message says why."""


@dataclass(frozen=True)
class Op:
    """Time of one kind of operator over all layers of a step, s.

    `measured` is False for those the package computes (norms, activations, embeddings).
    """

    name: str
    s: float
    measured: bool


@dataclass(frozen=True)
class Query:
    """What is looked up: a model (a name of the package's list, or a folder with a config.json), a
    card and its layout, and the package's names of number formats (None: as the model says)."""

    model: str
    system: str
    backend: str
    tp: int
    pp: int
    dp: int
    moe_tp: int
    moe_ep: int
    gemm: str | None
    moe: str | None
    kv: str
    fmha: str | None


class StepTables(Protocol):
    """Operator times of one step of one data-parallel rank."""

    version: str

    def decode(self, batch: int, context: int) -> list[Op]:
        """A step of `batch` sequences, each with `context` tokens."""
        ...

    def prefill(self, tokens: int, prefix: int) -> list[Op]:
        """A step that computes `tokens` of one prompt behind `prefix` cached ones."""
        ...

    def mixed(self, tokens: int, batch: int, context: int) -> list[Op]:
        """A step that does both at once; no prefix."""
        ...


class _Tables:
    """`StepTables` over the package's compiled engine."""

    def __init__(self, engine: Any, version: str) -> None:  # noqa: ANN401  it ships no types
        self._engine = engine
        self.version = version

    def decode(self, batch: int, context: int) -> list[Op]:
        return _ops(
            _guarded(lambda: self._engine.decode_step_per_op(batch, max(context - 1, 1), 2))
        )

    def prefill(self, tokens: int, prefix: int) -> list[Op]:
        found = _guarded(
            lambda: self._engine.run_static_per_op(
                batch_size=1, isl=tokens + prefix, osl=2, prefix=prefix, mode="static_ctx"
            )
        )
        return _ops(found[0])

    def mixed(self, tokens: int, batch: int, context: int) -> list[Op]:
        after = max(2 * (context - tokens), 2)  # it takes the mean context as isl + osl / 2
        found = _guarded(
            lambda: self._engine.mixed_step_breakdown_per_op(tokens, batch, tokens, after)
        )
        return _ops([row for part in found for row in part])


class Fastest:
    """The tables of one engine, with the fastest measured kernel of any engine where engines share
    kernels: matrices, experts, collectives.

    Some were measured with the launch in (0.06 ms for a product that takes 0.01 beside it), and
    engines take over each other's kernels within months (those of routed experts later: `experts`
    says whether; own ones over `FAULTY` times as slow are faults all the same). Attention stays the
    engine's own.
    """

    def __init__(self, own: StepTables, others: Sequence[StepTables], *, experts: bool) -> None:
        self.version = own.version
        self._own = own
        self._others = others
        self._experts = experts
        self._least: dict[tuple[str, int, int], dict[str, float]] = {}

    def decode(self, batch: int, context: int) -> list[Op]:
        """As `StepTables.decode`."""
        ops = self._own.decode(batch, context)
        return self._best(ops, ("decode", batch, 0), lambda t: t.decode(batch, context))

    def prefill(self, tokens: int, prefix: int) -> list[Op]:
        """As `StepTables.prefill`."""
        ops = self._own.prefill(tokens, prefix)
        return self._best(ops, ("prefill", tokens, 0), lambda t: t.prefill(tokens, prefix))

    def mixed(self, tokens: int, batch: int, context: int) -> list[Op]:
        """As `StepTables.mixed`."""
        ops = self._own.mixed(tokens, batch, context)
        return self._best(ops, ("mixed", tokens, batch), lambda t: t.mixed(tokens, batch, context))

    def _taken(self, op: Op, least: float) -> float:
        """The time of an operator whose fastest measured kernel takes `least`."""
        if is_reduce(op.name) or "gemm" in op.name or self._experts or op.s > FAULTY * least:
            return min(op.s, least)
        return op.s

    def _best(
        self, ops: list[Op], key: tuple[str, int, int], ask: Callable[[StepTables], list[Op]]
    ) -> list[Op]:
        """The operators with shared ones at their least, which no context changes: asked once."""
        if key not in self._least:
            least: dict[str, float] = {}
            for tables in self._others:
                for op in _told(ask, tables):
                    if is_reduce(op.name) or "gemm" in op.name or "moe" in op.name:
                        least[op.name] = min(op.s, least.get(op.name, math.inf))
            self._least[key] = least
        least = self._least[key]
        return [
            replace(op, s=self._taken(op, least[op.name])) if op.name in least else op for op in ops
        ]


def _told(ask: Callable[[StepTables], list[Op]], tables: StepTables) -> list[Op]:
    try:
        return ask(tables)
    except Refused:
        return []


def is_product(name: str) -> bool:
    """Whether an operator is a matrix product, of dense weights or of experts."""
    return "gemm" in name or ("moe" in name and "dispatch" not in name)


def is_reduce(name: str) -> bool:
    """Whether an operator is an all-reduce between layers."""
    return "_ar_" in name or name.endswith("_ar") or "allreduce" in name


def _ops(rows: Any) -> list[Op]:  # noqa: ANN401  a foreign list
    """Its rows (name, ms, energy, source), checked.

    Raises:
        Refused: a time is no number, negative or infinite.
    """
    ops = [Op(str(r[0]), float(r[1]) / 1e3, str(r[3]) == "silicon") for r in rows]
    for op in ops:
        if not math.isfinite(op.s) or op.s < 0:
            raise Refused(f"the tables give {op.s} s for {op.name}")
    if not ops or sum(op.s for op in ops) <= 0:
        raise Refused("the tables give no time for the step")
    return ops


def installed_version() -> str | None:
    """Version of the package, or None where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def check_installed() -> None:
    """Whether the package is there in the version that was checked.

    Raises:
        Refused: it is not installed, or another version is.
    """
    found = installed_version()
    if found is None:
        raise Refused(f"{PACKAGE} is not installed ({INSTALL})")
    if found != VERSION:
        raise Refused(
            f"{PACKAGE} {found} is installed, {VERSION} was checked ({INSTALL} installs it)"
        )


@cache
def open_tables(query: Query) -> StepTables:
    """The tables of one deployment; kept, since building takes 0.01 to 0.9 s.

    Raises:
        Refused: not installed, another version, or no tables for it.
    """
    check_installed()
    _quiet()
    handle = _guarded(lambda: _attribute("sdk.engine", "EngineHandle"))
    engine = _guarded(
        lambda: handle.compile(
            query.model, query.system, query.backend, backend_version="current",
            tp_size=query.tp, pp_size=query.pp, attention_dp_size=query.dp,
            moe_tp_size=query.moe_tp, moe_ep_size=query.moe_ep, gemm_quant_mode=query.gemm,
            moe_quant_mode=query.moe, kvcache_quant_mode=query.kv, fmha_quant_mode=query.fmha,
        )
    )  # fmt: skip
    return _Tables(engine, _table_version(query.system, query.backend))


@cache
def _table_version(system: str, backend: str) -> str:
    resolve = _guarded(lambda: _attribute("sdk.perf_database", "resolve_query_version"))
    return str(_guarded(lambda: resolve(system, backend, "current")))


def system_bandwidth(system: str) -> float:
    """Memory bandwidth its card has by the package's own description, bytes/s.

    Raises:
        Refused: it has no such card.
    """
    load = _guarded(lambda: _attribute("sdk.perf_database", "load_system_spec"))
    return float(_guarded(lambda: load(system)["gpu"]["mem_bw"]))


@dataclass(frozen=True)
class KnownModel:
    """A model the package knows by name: its config.json, and the format of its weights where a
    second file says so (`FP8`, `NVFP4`, `MIXED_PRECISION`)."""

    name: str
    config: dict[str, Any]
    quantised: str | None


@cache
def known_models() -> tuple[KnownModel, ...]:
    """Every config the package carries.

    Raises:
        Refused: the package is not installed or not the one expected.
    """
    check_installed()
    module = _guarded(lambda: importlib.import_module(MODULE))
    folder = Path(str(module.__file__)).parent / "model_configs"
    names = set(_guarded(lambda: _attribute("sdk.common", "DefaultHFModels")))
    found = []
    for name in sorted(names):
        stem = str(name).replace("/", "--")
        config = _json(folder / f"{stem}_config.json")
        if config is not None:
            second = _json(folder / f"{stem}_hf_quant_config.json") or {}
            quantised = (second.get("quantization") or {}).get("quant_algo")
            found.append(KnownModel(str(name), config, quantised))
    return tuple(found)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None


def _attribute(module: str, name: str) -> Any:  # noqa: ANN401  a foreign object
    return getattr(importlib.import_module(f"{MODULE}.{module}"), name)


def _guarded(call: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever the package returns
    """What the call returns; its faults as `Refused`.

    A panic of the Rust side arrives as a `BaseException` whose class cannot be imported.

    Raises:
        Refused: whatever went wrong, in one line.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, Refused):
        raise
    except BaseException as error:  # a Rust panic is no Exception, and its class has no name here
        text = " ".join(str(error).split())[:300] or "no message"
        raise Refused(f"{PACKAGE}: {type(error).__name__}: {text}") from error


def _quiet() -> None:
    """Its warnings of single tables would go to the user's terminal; a level set by the caller
    stays."""
    logger = logging.getLogger(MODULE)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
