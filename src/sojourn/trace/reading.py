"""`read`: files and folders of telemetry to one `Tables`, whatever formats they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from sojourn.config import Config
from sojourn.errors import InputError, UnknownFormatError, UsageError
from sojourn.progress import Progress, silent
from sojourn.trace.merge import merge
from sojourn.trace.quality import clean
from sojourn.trace.readers import (
    agentic,
    column_files,
    column_layouts,
    columns,
    engine_log,
    jaeger,
    mooncake,
    otlp,
    own,
    refused,
    vllm_bench,
)
from sojourn.trace.readers.span_tables import INSTANCE
from sojourn.trace.sources import Head, expand, head_of
from sojourn.trace.store import MANIFEST
from sojourn.trace.tables import Issue, Quality, Tables
from sojourn.yaml_file import YamlError, read_yaml


@dataclass(frozen=True)
class Format:
    """One served format: how it is recognised, how it is read, and what to call it."""

    sniff: Callable[[Head], bool]
    read: Callable[[Sequence[Path], Config, Progress], Tables]
    words: str


FORMATS: Final[Mapping[str, Format]] = {
    "tables": Format(own.sniff, own.read, "sojourn's own tables (Parquet)"),
    "otlp": Format(otlp.sniff, otlp.read, "OTLP JSON traces, also Tempo's"),
    "jaeger": Format(jaeger.sniff, jaeger.read, "Jaeger JSON traces"),
    "vllm_bench": Format(vllm_bench.sniff, vllm_bench.read, "vllm bench serve results"),
    "agentic_sessions": Format(agentic.sniff, agentic.read, "kv-cache-tester agentic sessions"),
    "mooncake": Format(mooncake.sniff, mooncake.read, "Mooncake or Bailian JSON lines"),
    "engine_log": Format(engine_log.sniff, engine_log.read, "vLLM or SGLang server log"),
    "otlp_protobuf": Format(otlp.sniff_protobuf, otlp.read_protobuf, "OTLP traces as protobuf"),
    "columns": Format(
        columns.sniff, columns.read, "CSV, JSON lines or Parquet with one row per request"
    ),
}
"""Tried in this order: the more telling mark first."""

SKIPPED_NAMES: Final = ("readme", "license", "source", "notice", "changelog", "makefile")
SKIPPED_SUFFIXES: Final = frozenset(
    {".md", ".rst", ".html", ".yaml", ".yml", ".py", ".sh", ".toml", ".png", ".svg", ".ipynb"}
)
META_FILE: Final = "recording.yaml"


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> Tables:
    """Read files or folders; the format of each is told by its content.

    Args:
        paths: files, or folders that are read with all below them.
        format: one of `FORMATS`, for all files, where the content does not tell.
        config: its `columns` map names the columns of CSV, JSON lines and Parquet.
        progress: called with a text and the share done, 0 to 1.

    Returns:
        One set of tables whose origin is the earliest arrival, cleaned, with every row that
        was not used counted by reason in `quality`.

    Raises:
        UsageError: `format` is no known format.
        InputError: a path is missing or a file cannot be used.
        UnknownFormatError: no reader recognises a file that was named.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown format {format!r}. Known: {', '.join(FORMATS)}")
    config = config or Config()
    told = progress or silent
    files = expand(paths)
    groups, issues = _sorted_out(files, format, config)
    if not groups:
        raise _nothing(files, issues)
    parts: list[Tables] = []
    for number, (name, members) in enumerate(groups.items()):
        low, width = number / len(groups), 1 / len(groups)

        def scaled(text: str, share: float, low: float = low, width: float = width) -> None:
            told(text, low + width * min(1.0, max(0.0, share)))

        parts.append(clean(FORMATS[name].read(members, config, scaled)))
    told("joining sources", 1.0)
    merged = merge(parts)
    if len(parts) > 1:
        merged = clean(merged)
    merged = _aligned(merged)
    meta = _recording_meta(files, issues)
    quality = merged.quality.merged(Quality(issues=tuple(issues)))
    return replace(merged, quality=quality, meta={**meta, **merged.meta})


def _aligned(tables: Tables) -> Tables:
    """Replicas of calls under the names that the engine samples use, where traces tell both."""
    sampled = set(tables.engine_samples.column("replica").unique().to_pylist()) - {None}
    known = {
        key.removeprefix(INSTANCE): name
        for key, name in tables.meta.items()
        if key.startswith(INSTANCE) and name in sampled
    }
    known = {address: name for address, name in known.items() if address not in sampled}
    if not known:
        return tables
    replicas = tables.calls.column("replica").to_pylist()
    renamed = pa.array([known.get(name, name) for name in replicas], pa.string())
    index = tables.calls.column_names.index("replica")
    calls = tables.calls.set_column(index, tables.calls.schema.field(index), renamed)
    return replace(tables, calls=calls)


def _sorted_out(
    files: Sequence[tuple[Path, bool]], format_name: str | None, config: Config
) -> tuple[dict[str, list[Path]], list[Issue]]:
    """Files by format, and what is not read. A file that was named must be readable."""
    groups: dict[str, list[Path]] = {}
    issues: list[Issue] = []
    single = len(files) == 1 or all(named for _, named in files)
    for path, named in files:
        if not named and _is_aside(path):
            if path.name != MANIFEST:
                issues.append(_aside(path, "not telemetry, skipped"))
            continue
        try:
            name = format_name or detect(path, config)
        except InputError as error:
            if named or single:
                raise
            issues.append(_aside(path, f"not read: {error.problem}"))
            continue
        if name == "columns" and not named and not single and not _has_arrivals(path, config):
            issues.append(_aside(path, "not read: lengths without arrivals make no trace"))
            continue
        groups.setdefault(name, []).append(path)
    return groups, issues


def _has_arrivals(path: Path, config: Config) -> bool:
    names = column_files.header(head_of(path))
    layout = column_layouts.layout_of(names, config)
    return layout is None or column_layouts.has_arrivals(layout)


def _is_aside(path: Path) -> bool:
    stem = path.name.split(".")[0].lower()
    own_manifest = path.name == MANIFEST
    return own_manifest or stem in SKIPPED_NAMES or path.suffix.lower() in SKIPPED_SUFFIXES


def _aside(path: Path, reason: str) -> Issue:
    return Issue(action="noted", reason=reason, count=1, source=str(path))


def detect(path: Path, config: Config | None = None) -> str:
    """Name of the format that a file's content shows.

    Raises:
        InputError: the file cannot be opened or is empty.
        UnknownFormatError: no reader recognises it, or it is a known format not served yet.
    """
    head = head_of(path)
    if config is not None and config.columns:
        names = set(column_files.header(head))
        if set(config.columns.values()) & names:
            return columns.NAME
    for name, known in FORMATS.items():
        if known.sniff(head):
            return name
    other = refused.name_of(head)
    if other is not None:
        raise UnknownFormatError(
            f"is recognised as: {other}; this format is not served yet",
            path=path,
            todo=f"Served: {', '.join(FORMATS)}",
        )
    raise UnknownFormatError(
        f"is of no known format; looked at {_seen(head)}",
        path=path,
        todo="Known: "
        + "; ".join(f"{name} ({known.words})" for name, known in FORMATS.items())
        + ". For a table of your own, say which column is which under `columns:` in sojourn.yaml",
    )


def _seen(head: Head) -> str:
    if head.is_binary:
        return f"its first bytes {head.data[:8].hex(' ')}"
    if head.is_json:
        return f"its JSON keys {', '.join(sorted(head.keys)[:12]) or '(none)'}"
    first = head.lines[0][:120] if head.lines else ""
    return f"its first line {first!r}"


def _nothing(files: Sequence[tuple[Path, bool]], issues: Sequence[Issue]) -> InputError:
    reasons = [f"{issue.source}: {issue.reason}" for issue in issues if "not read" in issue.reason]
    return UnknownFormatError(
        f"none of {len(files)} files is telemetry that can be read"
        + (f" ({'; '.join(reasons[:3])})" if reasons else ""),
        todo=f"Known formats: {', '.join(FORMATS)}",
    )


def _recording_meta(files: Sequence[tuple[Path, bool]], issues: list[Issue]) -> dict[str, str]:
    """Scalars of a recording.yaml that lies beside the files: its own, and the engine's flags
    under `engine`, by their bare names."""
    meta: dict[str, str] = {}
    for path, named in files:
        if named or path.name != META_FILE:
            continue
        try:
            value = read_yaml(path)
        except YamlError as error:
            issues.append(_aside(path, f"not read: {error}"))
            continue
        told = value if isinstance(value, dict) else {}
        engine = told.get("engine")
        for section in (told, engine if isinstance(engine, dict) else {}):
            meta |= {
                str(key): str(item)
                for key, item in section.items()
                if isinstance(item, str | int | float | bool)
            }
    return meta
