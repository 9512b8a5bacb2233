"""The blocks and the verdict of a simulated scenario."""

from __future__ import annotations

from typing import Final

from sojourn.attribution.records import ALL
from sojourn.config import Config
from sojourn.interval import Interval
from sojourn.plan.records import Outcome
from sojourn.plan.simulated_records import BucketResult, Simulated
from sojourn.plan.slo import Judged
from sojourn.records import words
from sojourn.report.answers import MISSED, OK, checked, largest
from sojourn.report.document import Block, TableBlock, Text
from sojourn.report.pages import seconds
from sojourn.sim.stability import Stability, Trend
from sojourn.units import format_seconds, format_share

DASH: Final = "–"
STAYS_BROKEN: Final = 0.05
"""Failures in the last quarter of a run, three times those of the first: said aloud."""
IDLE: Final = 0.0005
"""Shares below it are written as 0."""


def verdict(record: Simulated, judged: Judged | None, config: Config) -> tuple[str, int]:
    """What the scenario comes to, in a sentence, and the exit code: 3 where the system is
    unstable or the SLO missed, 4 where the SLO cannot be decided, else 0."""
    if record.unstable:
        return _unstable(record), MISSED
    lead = f"{record.requests:,} requests in {_runs(record)}."
    worse = _worse(record)
    if judged is not None:
        sentence, code = checked(judged, config)
        return f"{lead} {sentence}{worse}", code
    every = record.buckets[0]
    p99 = every.e2e_s.get("p99")
    tail = "" if p99 is None else f" P99 {p99.format(format_seconds)} end to end."
    failed = every.failed_share
    broken = f" {failed.format(format_share)} failed." if failed.mid > 0 else ""
    stable = sum(item.trend is Trend.STABLE for item in record.stability)
    said = " Stable." if stable == record.replications else ""
    return f"{lead}{said}{tail}{broken}{worse}", OK


def verdict_of_replay(
    outcome: Outcome, found: Stability, load: float, replicas: int
) -> tuple[str, int]:
    """What recorded requests came to at `load` times their rate, and the exit code: 3 where the
    system is unstable."""
    lead = f"{outcome.requests:,} requests simulated at {load:g}× the recorded load"
    lead += f" on {replicas} engine replica{'' if replicas == 1 else 's'}."
    if found.trend is Trend.GROWING:
        return f"{lead} {found.describe()}.", MISSED
    failed = outcome.error_share
    return (f"{lead} {failed.format(format_share)} failed." if failed.mid > 0 else lead), OK


def _worse(record: Simulated) -> str:
    """Said where failures came and stayed: time limits keep the number in flight from growing, so
    such a system fails without being unstable."""
    if not record.moments:
        return ""
    quarter = len(record.moments) // 4
    first, last = (
        sum(item.failed_share for item in part) / quarter
        for part in (record.moments[:quarter], record.moments[-quarter:])
    )
    if last < max(STAYS_BROKEN, 3 * first):
        return ""
    return (
        f" It does not recover: {format_share(last)} of the last quarter fail, of the first"
        f" {format_share(first)}."
    )


def _runs(record: Simulated) -> str:
    return "1 replication" if record.replications == 1 else f"{record.replications} replications"


def _unstable(record: Simulated) -> str:
    growing = [item for item in record.stability if item.trend is Trend.GROWING]
    rates = [item.growth_per_s.mid for item in growing if item.growth_per_s is not None]
    arrivals = sum(item.arrival_per_s for item in growing) / len(growing)
    growth = sum(rates) / len(rates)
    flight = sum(item.in_flight for item in growing) / len(growing)
    where = ""
    if record.saturated is not None:
        waits = next(r.waiting_at_end for r in record.resources if r.name == record.saturated)
        where = f" Saturated: {record.saturated}, where {waits:,.0f} wait by then."
    return (
        f"UNSTABLE: the number in flight grows by {growth:.3g} requests a second, of"
        f" {arrivals:.3g} that arrive; {flight:,.0f} are in flight at the last arrival.{where}"
        " Latencies would grow with the length of the run, so none are given."
    )


def blocks(record: Simulated) -> list[Block]:
    """Outcome, where the time goes, resources, the course of the run, controllers, notes."""
    found: list[Block] = [_outcome(record)]
    if record.tails:
        found.append(_tails(record))
    found += _pools(record)
    found += _stations(record)
    if record.moments:
        found.append(_moments(record))
    if record.change_counts:
        found += _changes(record)
    found += [Text(text=f"{note[0].upper()}{note[1:]}.", tone="muted") for note in record.notes]
    return found


def _share(value: Interval | None) -> str:
    if value is None:
        return DASH
    return "0%" if value.high < IDLE else value.format(format_share)


def _outcome(record: Simulated) -> TableBlock:
    over = f"{record.confidence:.0%} intervals over {_runs(record)}"
    if record.unstable:
        return TableBlock(
            caption=f"Outcome ({over}); no latencies, they grow with the run",
            columns=("bucket", "requests", "failed", "shed", "degraded", "attempts"),
            rows=tuple(_ends(item) for item in record.buckets),
            align="lrrrrr",
        )
    columns = (
        "bucket", "requests", "failed", "attempts", "E2E P50", "E2E P95", "E2E P99", "TTFT P50",
        "TTFT P99", "TPOT P50",
    )  # fmt: skip
    rows = tuple(
        (
            words(item.bucket),
            f"{item.requests:,.0f}",
            _share(item.failed_share),
            f"{item.attempts.mid:.2f}",
            *(seconds(item.e2e_s.get(key)) for key in ("p50", "p95", "p99")),
            *(seconds(item.ttft_s.get(key)) for key in ("p50", "p99")),
            seconds(item.tpot_s.get("p50")),
        )
        for item in record.buckets
    )
    return TableBlock(caption=f"Outcome ({over})", columns=columns, rows=rows, align="lrrrrrrrrr")


def _ends(item: BucketResult) -> tuple[str, ...]:
    shares = (item.failed_share, item.shed_share, item.degraded_share)
    return (
        words(item.bucket),
        f"{item.requests:,.0f}",
        *(_share(value) for value in shares),
        f"{item.attempts.mid:.2f}",
    )


def _tails(record: Simulated) -> TableBlock:
    rows = tuple(
        (
            words(tail.bucket),
            f"P{tail.percentile * 100:g}",
            seconds(tail.e2e_s),
            ", ".join(f"{words(n)} {format_share(part)}" for n, part in largest(tail.stages, 4)),
        )
        for tail in record.tails
        if tail.bucket == ALL or len(record.buckets) > 1
    )
    return TableBlock(
        caption="Where the time goes (first replication)",
        columns=("bucket", "at", "end to end", "largest stages"),
        rows=rows,
        align="llrl",
    )


def _shown(value: float | None) -> str:
    return DASH if value is None else format_share(value)


def _pools(record: Simulated) -> list[Block]:
    pools = [item for item in record.resources if item.kind == "pool"]
    rows = tuple(
        (
            item.name,
            DASH if item.replicas is None else f"{item.replicas:.3g}",
            f"{item.visits:,.0f}",
            _shown(item.busy),
            _shown(item.slots),
            f"{_shown(item.kv)} / {_shown(item.kv_most)}",
            format_seconds(item.wait_s),
            f"{item.waiting_at_end:,.0f}",
            f"{item.preemptions:,.0f}",
            _shown(item.hit_share),
        )
        for item in pools
        if item.visits or item.busy
    )
    if not rows:
        return []
    return [
        TableBlock(
            caption="Engines while requests arrive (busy: a step is under way, which is no measure"
            " of how full they are)",
            columns=("pool", "replicas", "calls", "busy", "slots", "KV mean / most", "mean wait",
                     "waiting at the end", "preemptions", "cache hits"),
            rows=rows,
            align="lrrrrrrrrr",
        )
    ]  # fmt: skip


def _stations(record: Simulated) -> list[Block]:
    rows = tuple(
        (
            item.name,
            f"{item.visits:,.0f}",
            "no limit" if item.busy is None else format_share(item.busy),
            format_seconds(item.wait_s),
            f"{item.waiting_at_end:,.0f}",
            f"{item.refused:,.0f}",
            f"{item.timed_out:,.0f}",
        )
        for item in record.resources
        if item.kind == "station"
    )
    if not rows:
        return []
    return [
        TableBlock(
            caption="Stations while requests arrive (at work: share of their servers)",
            columns=("station", "visits", "at work", "mean wait", "waiting at the end", "refused",
                     "timed out"),
            rows=rows,
            align="lrrrrrr",
        )
    ]  # fmt: skip


def _moments(record: Simulated) -> TableBlock:
    latency = () if record.unstable else ("E2E P50", "E2E P99")
    rows = tuple(
        (
            f"{item.start_s:,.0f} to {item.end_s:,.0f} s",
            f"{item.requests:,.0f}",
            f"{item.in_flight:,.0f}",
            "0%" if item.failed_share < IDLE else format_share(item.failed_share),
            f"{item.attempts:.2f}",
            *(
                ()
                if record.unstable
                else (format_seconds(item.e2e_p50_s), format_seconds(item.e2e_p99_s))
            ),
        )
        for item in record.moments
    )
    return TableBlock(
        caption="The course of the run, by arrival",
        columns=("arrived", "requests", "in flight after", "failed", "attempts", *latency),
        rows=rows,
        align="lrrrr" + "r" * len(latency),
    )


def _changes(record: Simulated) -> list[Block]:
    counted = ", ".join(
        f"{what} {count:,.3g} times" for what, count in record.change_counts.items()
    )
    levels = [int(item.which) for item in record.changes if item.what == "level"]
    top = f"; the ladder climbed to rung {max(levels)}" if any(levels) else ""
    return [
        Text(text=f"Controllers, per replication: {counted}{top}."),
        TableBlock(
            caption="Controllers at work (first replication, at most 20 shown)",
            columns=("at", "what", "which"),
            rows=tuple(
                (format_seconds(item.t_s), item.what, item.which) for item in record.changes[:20]
            ),
            align="rll",
        ),
    ]


def data(record: Simulated) -> dict[str, object]:
    """The record, for machines."""
    return {"simulated": record.model_dump(mode="json")}
