"""sojourn's own tables as Parquet files, with or without the store's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.progress import Progress, silent
from sojourn.trace import store
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import floats, with_floats
from sojourn.trace.readers.column_files import PARQUET_MAGIC, parquet_names
from sojourn.trace.schema import TABLES, TIME_COLUMNS
from sojourn.trace.sources import Head
from sojourn.trace.tables import Clock, Tables, conform

NAME: Final = "tables"
EPOCH_FLOOR_S: Final = 1e8


def sniff(head: Head) -> bool:
    """A Parquet file whose columns are those of one of our tables."""
    return head.data.startswith(PARQUET_MAGIC) and table_of(parquet_names(head.path)) is not None


def table_of(names: Sequence[str]) -> str | None:
    """The table that these columns belong to: all of them its own, all required ones there."""
    given = set(names)
    for table, columns in TABLES.items():
        required = {c.name for c in columns if c.required}
        if given and required <= given <= {c.name for c in columns}:
            return table
    return None


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """Files grouped by folder: one folder is one set of tables.

    Raises:
        InputError: a file is broken, or two of a folder hold the same table.
    """
    del config
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    parts = []
    for number, (folder, files) in enumerate(folders.items()):
        progress(f"reading {folder.name}", number / len(folders))
        if (folder / store.MANIFEST).is_file() and {f.stem for f in files} <= TABLES.keys():
            parts.append(store.load(folder))
        else:
            parts.append(_without_manifest(files))
    return merge(parts)


def _without_manifest(files: Sequence[Path]) -> Tables:
    ledger = Ledger(", ".join(str(file) for file in files))
    tables: dict[str, pa.Table] = {}
    for file in files:
        try:
            data = pq.read_table(file, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"is a broken Parquet file ({error})", path=file, todo="Write it again"
            ) from error
        name = table_of(data.column_names)
        if name is None:
            raise InputError("holds none of sojourn's tables", path=file)
        ledger.read += data.num_rows
        data = conform(name, data)
        tables[name] = pa.concat_tables([tables[name], data]) if name in tables else data
    return _zeroed(tables, ledger)


def _zeroed(tables: dict[str, pa.Table], ledger: Ledger) -> Tables:
    """Absolute times become seconds from their earliest; small ones are already relative."""
    starts = [
        np.nanmin(values)
        for name, data in tables.items()
        for column in TIME_COLUMNS[name]
        if (values := floats(data, column)).size and not np.isnan(values).all()
    ]
    origin = float(min(starts, default=0.0))
    if origin < EPOCH_FLOOR_S:
        return Tables.of(tables, clock=Clock(kind="relative"), quality=ledger.quality())
    for name, data in tables.items():
        for column in TIME_COLUMNS[name]:
            data = with_floats(data, column, floats(data, column) - origin)  # noqa: PLW2901  one column after the other
        tables[name] = data
    clock = Clock(kind="epoch", origin_epoch_s=origin)
    return Tables.of(tables, clock=clock, quality=ledger.quality())
