"""The blocks of what was seen: attribution, traffic, data quality."""

from __future__ import annotations

import math

from sojourn.attribution.records import ALL, Breakdown, Diagnosis, EngineUse, RetryReport
from sojourn.interval import Interval
from sojourn.records import Bottleneck, words
from sojourn.report import charts
from sojourn.report.answers import largest
from sojourn.report.document import Block, Chart, Heading, TableBlock, Text
from sojourn.trace.tables import Quality
from sojourn.units import format_seconds, format_share
from sojourn.workload.profile_records import Profile, Summary


def seconds(value: Interval | None) -> str:
    """A duration with its range."""
    return "–" if value is None else value.format(format_seconds)


# --- where the time goes


def attribution(breakdown: Breakdown, diagnosis: Diagnosis) -> list[Block]:
    """Stages per bucket and percentile, stations, retries, verdicts."""
    blocks: list[Block] = []
    if breakdown.tails:
        blocks.append(
            Chart(
                caption="Seconds per stage in requests near each percentile; parts sum to it.",
                spec=charts.stage_bars(breakdown),
            )
        )
        blocks.append(_tail_table(breakdown))
    if breakdown.stations:
        blocks.append(_station_table(breakdown))
    blocks += _engine(breakdown.engine)
    if breakdown.retries is not None:
        blocks += _retries(breakdown.retries)
    blocks += _verdicts(diagnosis)
    blocks += [Text(text=note, tone="muted") for note in breakdown.notes]
    return blocks


def _tail_table(breakdown: Breakdown) -> TableBlock:
    rows = []
    for tail in breakdown.tails:
        top = ", ".join(
            f"{words(name)} {format_share(part)}" for name, part in largest(tail.stages, 4)
        )
        rows.append(
            (
                words(tail.bucket),
                f"P{tail.percentile * 100:g}",
                str(tail.requests),
                seconds(tail.e2e_s),
                top,
            )
        )
    return TableBlock(
        caption="End to end by bucket (measured), and its largest stages",
        columns=("bucket", "at", "requests", "end to end", "largest stages"),
        rows=tuple(rows),
        align="llrrl",
    )


def _station_table(breakdown: Breakdown) -> TableBlock:
    rows = [
        (
            name,
            f"{figures.get('visits', 0):.0f}",
            *(format_seconds(figures.get(key)) for key in ("mean", "p50", "p95", "p99")),
        )
        for name, figures in breakdown.stations.items()
    ]
    return TableBlock(
        caption="Parts of the chain (measured span durations, waiting included)",
        columns=("part", "visits", "mean", "P50", "P95", "P99"),
        rows=tuple(rows),
        align="lrrrrr",
    )


def _engine(use: EngineUse) -> list[Block]:
    """How full the engine was at the peak; nothing where nothing is known."""
    of_slots = "" if use.slots is None else f" of {use.slots:.0f} slots"
    known = (
        ("busy", format_share(use.busy_share), use.busy_share),
        ("every batch slot taken", format_share(use.slots_full_share), use.slots_full_share),
        ("requests waiting in the engine", format_share(use.waiting_share), use.waiting_share),
        ("KV cache in use (P95)", format_share(use.kv_usage_p95), use.kv_usage_p95),
        ("in the batch, mean", f"{use.running_mean or 0:.1f}{of_slots}", use.running_mean),
        ("in the batch, at most", f"{use.running_max or 0:.0f}{of_slots}", use.running_max),
        ("preemptions", f"{use.preemptions or 0:.0f}", use.preemptions),
        ("prompt tokens found in cache", format_share(use.prefix_hit_share), use.prefix_hit_share),
        ("busiest host core (P95)", format_share(use.host_cpu_p95), use.host_cpu_p95),
    )
    rows = tuple((name, shown) for name, shown, value in known if value is not None)
    if not rows:
        return []
    return [
        TableBlock(
            caption="The engine in the peak window, as sampled (shares of time where not said"
            " otherwise); busy is no measure of how full it is",
            columns=("what", "figure"),
            rows=rows,
            align="lr",
        )
    ]


def _retries(report: RetryReport) -> list[Block]:
    rows = [
        ("attempts per request", report.attempts_per_request.format("{:.2f}".format)),
        ("… in the peak window", f"{report.peak_attempts_per_request:.2f}"),
        ("… outside it", f"{report.calm_attempts_per_request:.2f}"),
        ("attempts that are retries", format_share(report.retry_share_of_attempts)),
        ("time spent on attempts that failed", format_share(report.wasted_share_of_time)),
    ]
    if report.wasted_share_of_engine_tokens is not None:
        rows.append(
            ("engine tokens wasted on them", format_share(report.wasted_share_of_engine_tokens))
        )
    rows += [
        (
            f"{mass.where}s that end at {mass.value_s:.3g} s",
            f"{format_share(mass.share)} of the failed ({mass.count})",
        )
        for mass in report.timeouts
    ]
    left = report.budget_left_at_engine
    if left:
        rows.append(
            (
                "time limit left on reaching the engine (median, worst 5%)",
                f"{format_share(left.get('p50'))}, {format_share(left.get('p05'))}",
            )
        )
        if "under_half" in left:
            rows.append(
                ("model calls begun with less than half left", format_share(left["under_half"]))
            )
    return [
        TableBlock(
            caption=f"Retries ({report.provenance})",
            columns=("what", "figure"),
            rows=tuple(rows),
            align="lr",
        )
    ]


def _verdicts(diagnosis: Diagnosis) -> list[Block]:
    blocks: list[Block] = [Heading(text="What limits it", level=2)]
    if diagnosis.excuse is not None:
        blocks.append(Text(text=str(diagnosis.excuse), tone="warn"))
    overall = [verdict for verdict in diagnosis.verdicts if verdict.bucket == ALL]
    for order, verdict in enumerate(overall[:4]):
        head = "Top" if order == 0 else "Runner-up" if order == 1 else "Also considered"
        part = (
            ""
            if verdict.share_of_p99 is None
            else f", carries {format_share(verdict.share_of_p99)} of the P99"
        )
        blocks.append(
            TableBlock(
                caption=(
                    f"{head}: {words(verdict.bottleneck.value)}"
                    f" (score {verdict.confidence:.2f}{part})"
                ),
                columns=("", "evidence"),
                rows=tuple(
                    ("for" if fact.supports else "against", fact.statement)
                    for fact in verdict.evidence
                ),
            )
        )
        if verdict.confirm:
            blocks.append(Text(text=f"Would decide: {'; '.join(verdict.confirm)}.", tone="muted"))
    if diagnosis.by_bucket:
        named = ", ".join(
            f"{words(bucket)}: {words(Bottleneck(value).value)}"
            for bucket, value in diagnosis.by_bucket.items()
        )
        blocks.append(Text(text=f"By bucket: {named}."))
    return blocks


# --- the traffic


def profile(record: Profile) -> list[Block]:
    """Arrivals, buckets, concentration, prefix reuse."""
    arrivals = record.arrivals
    peak_rate = arrivals.peak.requests / arrivals.peak.length_s
    spread = ", ".join(
        f"{value:.3g} at {window}"
        for window, value in arrivals.dispersion.items()
        if not math.isnan(value)
    )
    uneven = f" Variance over mean of the counts: {spread} (a Poisson stream has 1)."
    blocks: list[Block] = [
        Text(
            text=(
                f"{arrivals.requests:,} requests in {format_seconds(arrivals.duration_s)}:"
                f" {arrivals.rate_per_s:.3g}/s on average, {peak_rate:.3g}/s in the busiest"
                f" {format_seconds(arrivals.peak.length_s)}.{uneven if spread else ''}"
            )
        ),
        *_lengths(record),
        Chart(caption="Arrivals; the peak window is shaded.", spec=charts.arrivals(record)),
        _bucket_table(record),
    ]
    if record.concentration:
        worst = "; ".join(
            f"10% of requests take {format_share(curve.top_10_percent)} of"
            f" {charts.BASES[curve.basis]} ({curve.provenance.value})"
            for curve in record.concentration
        )
        blocks.append(Chart(caption=f"{worst}.", spec=charts.concentration(record.concentration)))
    blocks += _mixes(record)
    return blocks


def _lengths(record: Profile) -> list[Block]:
    """Lengths of all calls together; the buckets' own are in their table."""
    known = [
        (name, lengths)
        for name, lengths in (("input", record.input_call), ("output", record.output_call))
        if lengths is not None and lengths.count
    ]
    if not known:
        return []
    told = "; ".join(
        f"{name} mean {s.mean:.0f}, P50 {s.p50:.0f}, P90 {s.p90:.0f}, P99 {s.p99:.0f},"
        f" squared variation {s.cv2:.2f}"
        for name, s in known
    )
    return [Text(text=f"Tokens of a call: {told}.")]


def _mixes(record: Profile) -> list[Block]:
    out: list[Block] = []
    for name, mix in (
        ("Models", record.models),
        ("Routes", record.routes),
        ("Tenants", record.tenants),
    ):
        if len(mix) > 1:
            top = sorted(mix.items(), key=lambda pair: -pair[1])[:8]
            out.append(
                Text(text=f"{name}: " + ", ".join(f"{k} {format_share(v)}" for k, v in top) + ".")
            )
    if record.prefix is not None:
        ideal = (
            ""
            if record.prefix.ideal is None
            else f"; an unlimited cache would reach {format_share(record.prefix.ideal)}"
        )
        out.append(
            Text(
                text=(
                    f"Prompt tokens found in the prefix cache:"
                    f" {format_share(record.prefix.hit_share)}"
                    f" ({record.prefix.provenance.value}){ideal}."
                )
            )
        )
    return out


def _tokens(found: Summary) -> str:
    return f"{found.p50:.0f} / {found.p99:.0f}" if found.count else "–"


def _bucket_table(record: Profile) -> TableBlock:
    rows = tuple(
        (
            words(bucket.name),
            format_share(bucket.share),
            f"{bucket.peak_rate_per_s:.2g}/s",
            _tokens(bucket.input),
            _tokens(bucket.output),
            f"{bucket.calls_per_request:.2g}",
            f"{bucket.tool_rounds:.2g}",
            "–"
            if bucket.outside_s is None
            else f"{format_seconds(bucket.outside_s.p50)} / {format_seconds(bucket.outside_s.p99)}",
        )
        for bucket in record.buckets.values()
    )
    return TableBlock(
        caption="Request buckets (tokens and outside time as P50 / P99 per request)",
        columns=("bucket", "share", "peak", "input", "output", "calls", "tool rounds", "outside"),
        rows=rows,
        align="lrrrrrrr",
    )


# --- what was read


def quality(record: Quality) -> list[Block]:
    """What was read, and what was not and why."""
    blocks: list[Block] = [
        Text(
            text=(
                f"{record.read:,} rows read, {record.kept:,} kept, {record.dropped:,} dropped, from"
                f" {len(record.sources)} source{'s' if len(record.sources) != 1 else ''}."
            )
        )
    ]
    if record.issues:
        blocks.append(
            TableBlock(
                caption="Rows dropped, changed or incomplete, by reason",
                columns=("action", "reason", "count", "first case"),
                rows=tuple(
                    (issue.action, issue.reason, f"{issue.count:,}", issue.example)
                    for issue in record.issues
                ),
                align="llrl",
            )
        )
    return blocks
