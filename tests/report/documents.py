"""Documents and records small enough to read."""

from __future__ import annotations

from sojourn.attribution.records import Breakdown, Diagnosis, EngineUse, Evidence, Tail, Verdict
from sojourn.interval import Excuse, Interval
from sojourn.plan.records import Holding, Outcome, Plan, Price, Ranked, Refused
from sojourn.records import Bottleneck, Layer
from sojourn.report.compose import Findings
from sojourn.report.document import Card, Chart, Document, Heading, TableBlock, Text
from sojourn.trace.tables import Issue, Quality
from sojourn.workload import profile as profiles

SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"what": "a", "seconds": 1.5}, {"what": "b", "seconds": 3.0}]},
    "mark": "bar",
    "encoding": {
        "y": {"field": "what"},
        "x": {"field": "seconds", "type": "quantitative"},
    },
}
HOSTILE = '<script>alert(1)</script><img src="http://x.invalid/p">[/red][bold]&\x1b[2J'


def small(name="kb"):
    """One block of every kind."""
    return Document(
        title=f"sojourn report {name}",
        verdict=f"The bottleneck is {name} (91% sure).",
        exit_code=3,
        blocks=(
            Card(question="Where does the time go?", answer=f"In {name}.", tone="bad"),
            Card(question="How long does it hold?", answer="To 0.80× today's load."),
            Heading(text=f"Where the time goes in {name}", level=1),
            Text(text="Stages sum to the request.", tone="muted"),
            TableBlock(
                caption=f"End to end by bucket, {name}",
                columns=("bucket", "at", "requests", "end to end", "largest stages"),
                rows=(
                    ("short chat", "P50", "1200", "3.20 s [3.10 s, 3.31 s]", f"{name} 61%"),
                    ("all", "P99", "1460", "13.0 s [12.1 s, 14.2 s]", "queue 70%, prefill 20%"),
                ),
                align="llrrl",
            ),
            Heading(text="What limits it"),
            Chart(caption=f"Seconds in {name}", spec=SPEC),
        ),
        data={"counts": {"requests": 1460}, "share": 0.61},
    )


def interval(mid, spread=0.1):
    return Interval(low=mid * (1 - spread), mid=mid, high=mid * (1 + spread))


def quality():
    issue = Issue(action="dropped", reason="no arrival", count=3, source="a.csv", example="row 7")
    return Quality(read=100, kept=97, issues=(issue,), sources=("a.csv",))


def outcome(p99=13.0, **more):
    times = {"p50": interval(3.0), "p95": interval(8.0), "p99": interval(p99)}
    fields = {
        "requests": 600,
        "rate_per_s": 2.0,
        "e2e_s": {"all": times, "short_chat": times},
        "ttft_s": {},
        "attainment": {"all": interval(0.9, 0.02)},
        "error_share": interval(0.02),
        "degraded_share": 0.0,
        "attempts_per_request": 1.3,
        "usd_per_hour": 2.0,
        "usd_per_success": 0.0003,
    }
    return Outcome(**(fields | more))


def breakdown(name="kb"):
    stages = {"retrieval": 8.0, "queue": 1.0, "prefill": 1.0, "decode": 3.0}
    tails = tuple(
        Tail(
            bucket=bucket, percentile=p, requests=600, near=12, e2e_s=interval(13.0), stages=stages
        )
        for bucket in ("all", "short_chat")
        for p in (0.5, 0.99)
    )
    figures = {"mean": 2.0, "p50": 1.5, "p95": 5.0, "p99": 8.0, "visits": 700.0}
    return Breakdown(
        requests=600,
        percentiles=(0.5, 0.99),
        tails=tails,
        mean_stages={"all": stages},
        stations={name: figures},
        station_stages={name: "retrieval"},
        retries=None,
        engine=EngineUse(),
    )


def diagnosis(name="kb"):
    verdict = Verdict(
        bottleneck=Bottleneck.RETRIEVAL,
        layer=Layer.SYSTEM,
        bucket="all",
        confidence=0.91,
        share_of_p99=0.61,
        evidence=(Evidence(statement=f"{name} takes 61%", supports=True, rule="retrieval"),),
        confirm=(f"sample {name}",),
    )
    return Diagnosis(verdicts=(verdict,), by_bucket={"short_chat": Bottleneck.RETRIEVAL})


def unknown():
    """A diagnosis and a breakdown of a recording that shows nothing."""
    verdict = Verdict(
        bottleneck=Bottleneck.INSUFFICIENT_EVIDENCE,
        layer=None,
        bucket="all",
        confidence=0.0,
        evidence=(),
    )
    excuse = Excuse(reason="No spans were recorded", collect=("traces of the gateway",))
    nothing = Breakdown(
        requests=5, percentiles=(0.99,), tails=(), mean_stages={}, retries=None, engine=EngineUse()
    )
    return nothing, Diagnosis(verdicts=(verdict,), excuse=excuse)


def plan():
    common = {"layer": Layer.SYSTEM, "price": Price(), "source": "a page"}
    ranked = Ranked(
        name="retrieval_workers",
        title="More retrieval workers",
        calls_for="retrieval",
        outcome=outcome(6.0),
        p99_change_s=Interval(low=-8.0, mid=-7.0, high=-6.0),
        score=0.8,
        worth_it=True,
        why="it is full",
        **common,
    )
    refused = Refused(
        name="scale_out",
        title="More engine replicas",
        excuse=Excuse(reason="The time is in retrieval"),
        outcome=outcome(11.0),
        p99_change_s=Interval(low=-2.5, mid=-2.0, high=-1.5),
        **common,
    )
    holding = Holding(
        load_factor=interval(0.8),
        rate_per_s=interval(1.6),
        breaks="short_chat e2e_s",
        binds="retrieval kb",
        curve=((0.5, 4.0, 1.0), (1.0, 13.0, 0.8), (1.5, 40.0, 0.3)),
    )
    return Plan(
        baseline=outcome(),
        measured=outcome(),
        holding=holding,
        ranked=(ranked,),
        refused=(refused,),
    )


def findings(tables, config, name="kb", **more):
    fields = {
        "name": name,
        "quality": quality(),
        "profile": profiles.profile(tables, config),
        "breakdown": breakdown(name),
        "diagnosis": diagnosis(name),
        "plan": plan(),
    }
    return Findings(**(fields | more))
