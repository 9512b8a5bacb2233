"""`Tables`: what ingestion and the simulator both produce, and every later room reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from pydantic import Field

from sojourn.errors import InputError
from sojourn.records import Record
from sojourn.trace.schema import TABLES, arrow_schema

_MAKERS: Final = "_makers"
"""Where tables that are not made yet keep what makes them."""


class Clock(Record):
    """What zero means. Tables of different clocks are never joined by absolute time.

    kind: `epoch` (origin is seconds since 1970), `monotonic` (one process's own clock),
    `relative` (a trace that starts at zero) or `simulated`.
    """

    kind: str = "relative"
    origin_epoch_s: float = 0.0


class Issue(Record):
    """One reason for which rows were dropped, changed or left incomplete."""

    action: str = Field(description="dropped, clamped, repaired, missing or noted")
    reason: str
    count: int
    source: str = ""
    example: str = Field("", description="first case: row and value")


class Quality(Record):
    """What was read and what was not: nothing is dropped without a line here."""

    read: int = 0
    kept: int = 0
    issues: tuple[Issue, ...] = ()
    sources: tuple[str, ...] = ()

    def merged(self, other: Quality) -> Quality:
        """The sum of two."""
        return Quality(
            read=self.read + other.read,
            kept=self.kept + other.kept,
            issues=self.issues + other.issues,
            sources=self.sources + other.sources,
        )

    @property
    def dropped(self) -> int:
        """Rows that could not be used."""
        return sum(issue.count for issue in self.issues if issue.action == "dropped")


def require_requests(tables: Tables) -> None:
    """Single requests are there to be looked at.

    Raises:
        InputError: there is none; names the sources and, where rows were dropped, why.
    """
    if tables.requests.num_rows:
        return
    why = [issue for issue in tables.quality.issues if issue.action == "dropped"]
    cause = f" ({why[0].count:,} rows dropped: {why[0].reason}, {why[0].example})" if why else ""
    raise InputError(
        f"has no requests to look at{cause}",
        path=", ".join(tables.quality.sources) or None,
        todo="Aggregates and engine samples alone do not show single requests: add a trace, a"
        " gateway log or a benchmark's detailed results",
    )


def empty(table: str) -> pa.Table:
    """A table of the schema without rows."""
    return arrow_schema(table).empty_table()


def conform(table: str, data: pa.Table) -> pa.Table:
    """Columns of the schema in its order, absent ones null, types cast.

    Raises:
        InputError: a column cannot be cast to the schema's type, or a required one is absent.
    """
    columns = []
    for spec in TABLES[table]:
        if spec.name in data.column_names:
            try:
                columns.append(data.column(spec.name).cast(spec.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"table {table!r}: {error}", field=spec.name, todo=f"Expected {spec.type}"
                ) from error
        elif spec.required and data.num_rows:
            raise InputError(f"table {table!r} lacks a required column", field=spec.name)
        else:
            columns.append(pa.nulls(data.num_rows, spec.type))
    return pa.table(columns, schema=arrow_schema(table))


def from_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as dicts to a table of the schema; keys that the schema lacks are an error.

    Raises:
        KeyError: a row has a key that is no column.
    """
    names = [c.name for c in TABLES[table]]
    known = set(names)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        unknown = row.keys() - known
        if unknown:
            raise KeyError(f"no column {sorted(unknown)} in table {table!r}")
        for name in names:
            columns[name].append(row.get(name))
    arrays = [pa.array(columns[c.name], type=c.type) for c in TABLES[table]]
    return pa.table(arrays, schema=arrow_schema(table))


@dataclass(frozen=True)
class Tables:
    """The six tables of one recording or one simulated run, with clock and quality.

    Every table has exactly the columns of `sojourn.trace.schema`, in order. Times are seconds
    since `clock.origin_epoch_s`. `meta` holds what a source says once (engine flags, versions).
    """

    requests: pa.Table = field(default_factory=lambda: empty("requests"))
    calls: pa.Table = field(default_factory=lambda: empty("calls"))
    spans: pa.Table = field(default_factory=lambda: empty("spans"))
    engine_samples: pa.Table = field(default_factory=lambda: empty("engine_samples"))
    gpu_activity: pa.Table = field(default_factory=lambda: empty("gpu_activity"))
    aggregates: pa.Table = field(default_factory=lambda: empty("aggregates"))
    clock: Clock = field(default_factory=Clock)
    quality: Quality = field(default_factory=Quality)
    meta: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tables: Mapping[str, pa.Table],
        *,
        clock: Clock | None = None,
        quality: Quality | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Self:
        """From a mapping of table name to Arrow table, each made to conform to the schema."""
        return cls(
            **{name: conform(name, data) for name, data in tables.items()},
            clock=clock or Clock(),
            quality=quality or Quality(),
            meta=meta or {},
        )

    @classmethod
    def lazily(
        cls,
        makers: Mapping[str, Callable[[], pa.Table]],
        *,
        clock: Clock | None = None,
        quality: Quality | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Self:
        """As `of`, but each table is made when it is first asked for."""
        made = cls(clock=clock or Clock(), quality=quality or Quality(), meta=meta or {})
        for name in makers:
            del made.__dict__[name]
        made.__dict__[_MAKERS] = dict(makers)
        return made

    if not TYPE_CHECKING:  # (else the checker would take any name for an attribute)

        def __getattr__(self, name: str) -> pa.Table:
            """A table that is not made yet."""
            maker = self.__dict__.get(_MAKERS, {}).get(name)
            if maker is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            self.__dict__[name] = data = conform(name, maker())
            return data

    def table(self, name: str) -> pa.Table:
        """One table by name.

        Raises:
            KeyError: no such table.
        """
        if name not in TABLES:
            raise KeyError(name)
        data: pa.Table = getattr(self, name)
        return data

    def counts(self) -> dict[str, int]:
        """Rows per table."""
        return {name: self.table(name).num_rows for name in TABLES}

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{k}</th><td>{v:,}</td></tr>" for k, v in self.counts().items())
        issues = json.dumps([issue.model_dump() for issue in self.quality.issues])
        return f"<table><caption>Tables</caption>{rows}</table><pre>{issues[:2000]}</pre>"
