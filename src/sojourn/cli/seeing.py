"""Verbs that say what is: ingest, profile, attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.app import app
from sojourn.cli.options import (
    Configured,
    Format,
    Json,
    Output,
    Paths,
    Quiet,
    deliver,
    telemetry,
)


@app.command()
def ingest(
    paths: Paths,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the store.")],
    config: Configured = None,
    format: Format = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read telemetry and keep it as a store: a folder of Parquet tables."""
    from sojourn.report import compose, pages
    from sojourn.trace import store
    from sojourn.workload import buckets

    with telemetry(paths, config=config, quiet=quiet, format=format) as it:
        tables = buckets.assign(it.tables, it.config)
        store.save(tables, output)
    rows = ", ".join(f"{count:,} {name}" for name, count in tables.counts().items() if count)
    document = compose.single(
        "sojourn ingest",
        pages.quality(tables.quality),
        verdict=(f"{output}: {rows or 'no rows'}.", 0),
        data={"counts": tables.counts(), "quality": tables.quality.model_dump(mode="json")},
    )
    deliver(document, output=None, json=json)


@app.command()
def profile(
    paths: Paths,
    config: Configured = None,
    format: Format = None,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What the traffic is: arrivals, buckets, lengths, reuse, concentration."""
    from sojourn.report import compose, pages
    from sojourn.workload import buckets
    from sojourn.workload import profile as profiles

    with telemetry(paths, config=config, quiet=quiet, format=format, output=output) as it:
        record = profiles.profile(buckets.assign(it.tables, it.config), it.config)
    document = compose.single(
        "sojourn profile",
        [*pages.profile(record), *pages.quality(it.tables.quality)],
        verdict=(f"{record.arrivals.requests:,} requests in {len(record.buckets)} buckets.", 0),
        data={"profile": record.model_dump(mode="json")},
    )
    deliver(document, output=output, json=json, quiet=quiet)


@app.command()
def attribute(
    paths: Paths,
    config: Configured = None,
    format: Format = None,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Where the time goes, per bucket and percentile, and which bottleneck that shows."""
    from sojourn import loop
    from sojourn.report import answers, compose, pages

    with telemetry(paths, config=config, quiet=quiet, format=format, output=output) as it:
        tables = it.tables
        if tables.requests.num_rows == 0 and tables.engine_samples.num_rows:
            breakdown, diagnosis = loop.engine_alone(tables, it.config)
        else:
            seen = loop.look(tables, it.config)
            tables, breakdown, diagnosis = seen.tables, seen.breakdown, seen.diagnosis
    document = compose.single(
        "sojourn attribute",
        [*pages.attribution(breakdown, diagnosis), *pages.quality(tables.quality)],
        verdict=answers.attributed(breakdown, diagnosis),
        data={
            "breakdown": breakdown.model_dump(mode="json"),
            "diagnosis": diagnosis.model_dump(mode="json"),
        },
    )
    deliver(document, output=output, json=json, quiet=quiet)
