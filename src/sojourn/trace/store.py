"""The store: one folder with a Parquet file per table and `manifest.json`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from sojourn.errors import InputError
from sojourn.records import Record
from sojourn.trace.schema import TABLES
from sojourn.trace.tables import Clock, Quality, Tables, empty

if TYPE_CHECKING:
    import ibis

MANIFEST: Final = "manifest.json"
SCHEMA_VERSION: Final = 1
_AGAIN: Final = "The store is not whole: write it again with `sojourn ingest`"


class Manifest(Record):
    """What the folder holds besides rows."""

    schema_version: int = SCHEMA_VERSION
    clock: Clock = Field(default_factory=Clock)
    quality: Quality = Field(default_factory=Quality)
    meta: dict[str, str] = Field(default_factory=dict)
    rows: dict[str, int] = Field(default_factory=dict)


def save(tables: Tables, folder: Path | str) -> None:
    """Write all tables whole or not at all: a folder beside, then a rename.

    Raises:
        InputError: the place cannot be written, or holds something that is no store.
    """
    target = Path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise InputError("is a file, a store is a folder", path=target, todo="Name a folder")
    if target.exists() and not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise InputError(
            "exists and is no store of sojourn", path=target, todo="Choose another folder"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", path=target) from error
    try:
        _write(tables, beside)
        _swap(beside, target)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", path=target) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(tables: Tables, folder: Path) -> None:
    for name in TABLES:
        pq.write_table(tables.table(name), folder / f"{name}.parquet", compression="zstd")
    manifest = Manifest(
        clock=tables.clock, quality=tables.quality, meta=dict(tables.meta), rows=tables.counts()
    )
    manifest.save(folder / MANIFEST)


def _swap(beside: Path, target: Path) -> None:
    beside.chmod(0o755)
    if not target.exists():
        beside.rename(target)
        return
    old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    try:
        target.replace(old)
        beside.rename(target)
    finally:
        if not target.exists():
            old.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def load(folder: Path | str) -> Tables:
    """Read what `save` wrote.

    Raises:
        InputError: the folder is no store, is of a newer version, or a file is broken.
    """
    place = Path(folder)
    manifest = Manifest.load(place / MANIFEST)
    if manifest.schema_version > SCHEMA_VERSION:
        raise InputError(
            f"was written by a newer sojourn (schema {manifest.schema_version}, this one reads"
            f" {SCHEMA_VERSION})",
            path=place / MANIFEST,
            todo="Update sojourn",
        )
    data = {}
    for name in TABLES:
        file = place / f"{name}.parquet"
        try:
            data[name] = pq.read_table(file, partitioning=None) if file.exists() else empty(name)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"is a broken Parquet file ({error})", path=file, todo=_AGAIN
            ) from error
        told = manifest.rows.get(name, data[name].num_rows)
        if told != data[name].num_rows:
            raise InputError(
                f"has {data[name].num_rows:,} rows, the manifest says {told:,}"
                if file.exists()
                else f"is missing; the manifest says that it has {told:,} rows",
                path=file,
                todo=_AGAIN,
            )
    return Tables.of(data, clock=manifest.clock, quality=manifest.quality, meta=manifest.meta)


def connect(folder: Path | str) -> ibis.BaseBackend:
    """The store as an Ibis backend (DuckDB): one view per table.

    Raises:
        InputError: the folder is no store.
    """
    import ibis  # noqa: PLC0415  half a second that only this verb pays

    place = Path(folder)
    Manifest.load(place / MANIFEST)
    backend = ibis.duckdb.connect()
    for name in TABLES:
        file = place / f"{name}.parquet"
        if file.exists():
            backend.read_parquet(str(file), table_name=name)
    return backend
