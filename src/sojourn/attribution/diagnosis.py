"""`diagnose`: from the breakdown to verdicts, each with its evidence for and against."""

from __future__ import annotations

from typing import Final

from sojourn.attribution.facts import (
    BOUND,
    MIN_REQUESTS,
    NOT_BOUND,
    PERSISTENT,
    SHARE_HIGH,
    Facts,
    gather,
)
from sojourn.attribution.records import ALL, Breakdown, Diagnosis, Evidence, Verdict
from sojourn.attribution.rules import CONFIRM, OPENS, RULES
from sojourn.attribution.scoring import CEILING, Finding
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.records import LAYER_OF, Bottleneck, Stage
from sojourn.workload.profile_records import Profile

EVEN: Final = 0.5
"""A verdict below even odds is not given as the answer."""

WORTH_SAYING: Final = 0.15
"""A finding less sure than the prior's odds of one in eight has been argued down."""

SPANS: Final = "OpenTelemetry spans of retrieval, rerank, tools and model calls (1% of requests)"
FIRST_TOKEN: Final = "time to the first token of each call, in the gateway's log"
METRICS: Final = "engine /metrics (running, waiting, KV use) every 1 to 5 s through a peak"
ENGINE_ALONE: Final = (
    "engine samples alone tell how full the engine is, not where requests spend their time"
)
ENDS: Final = "end time or duration of each request, in the gateway's log"


def diagnose(breakdown: Breakdown, profile: Profile | None, config: Config) -> Diagnosis:
    """Verdicts on the whole (`all`), ranked by confidence times the share they explain; then the
    first verdict of each bucket. Without a profile (no requests were recorded) it refuses."""
    if profile is None:
        return _refused(ENGINE_ALONE, (ENDS, SPANS))
    overall = gather(breakdown, profile, config, ALL)
    if overall is None:
        return _refused("no request has a latency", (ENDS, SPANS))
    verdicts, excuse = _judge(overall, breakdown)
    by_bucket: dict[str, Bottleneck] = {}
    firsts: list[Verdict] = []
    for bucket in breakdown.mean_stages:
        if bucket == ALL:
            continue
        facts = gather(breakdown, profile, config, bucket)
        if facts is not None:
            first = _judge(facts, breakdown)[0][0]
            by_bucket[bucket] = first.bottleneck
            firsts.append(first)
    return Diagnosis(
        verdicts=(*verdicts, *firsts),
        by_bucket=by_bucket,
        engine_bound=engine_bound(overall),
        excuse=excuse,
    )


def _refused(reason: str, collect: tuple[str, ...]) -> Diagnosis:
    evidence = Evidence(statement=reason, supports=True, rule="insufficient_evidence")
    verdict = Verdict(
        bottleneck=Bottleneck.INSUFFICIENT_EVIDENCE,
        layer=None,
        bucket=ALL,
        confidence=1.0,
        evidence=(evidence,),
        confirm=collect,
    )
    return Diagnosis(verdicts=(verdict,), excuse=Excuse(reason=reason, collect=collect))


def _judge(facts: Facts, breakdown: Breakdown) -> tuple[list[Verdict], Excuse | None]:
    """All verdicts of one bucket, the first being the answer; an excuse when it is a refusal."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    found.sort(key=lambda f: (-f.confidence * f.importance, f.bottleneck))
    said = [
        f
        for f in found
        if f.confidence >= WORTH_SAYING and f.bottleneck is not Bottleneck.INSUFFICIENT_EVIDENCE
    ]
    sure = [f for f in said if f.confidence >= EVEN]
    verdicts = [
        _verdict(f, facts.tail.bucket) for f in (*sure, *(f for f in said if f not in sure))
    ]
    thin = next(f for f in found if f.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE)
    best = max((f.confidence * f.importance for f in sure), default=0.0)
    too_few = facts.tail.requests < MIN_REQUESTS
    if sure and not too_few and thin.confidence * thin.importance <= best:
        return verdicts, None
    excuse = _excuse(facts, breakdown, too_few=too_few)
    refusal = Verdict(
        bottleneck=Bottleneck.INSUFFICIENT_EVIDENCE,
        layer=None,
        bucket=facts.tail.bucket,
        confidence=CEILING if too_few else max(thin.confidence, 1.0 - _surest(found)),
        share_of_p99=thin.share,
        evidence=thin.evidence,
        confirm=excuse.collect,
    )
    return [refusal, *verdicts], excuse


def _surest(found: list[Finding]) -> float:
    return max((f.confidence for f in found), default=0.0)


def _verdict(finding: Finding, bucket: str) -> Verdict:
    return Verdict(
        bottleneck=finding.bottleneck,
        layer=LAYER_OF[finding.bottleneck],
        bucket=bucket,
        confidence=finding.confidence,
        share_of_p99=finding.share,
        evidence=finding.evidence,
        confirm=CONFIRM.get(finding.bottleneck, ()),
        opens=OPENS.get(finding.bottleneck, ()),
    )


def _excuse(facts: Facts, breakdown: Breakdown, *, too_few: bool) -> Excuse:
    """Why no answer is given, and the one or two cheapest recordings that would decide."""
    count = facts.tail.requests
    if too_few:
        return Excuse(
            reason=f"{count} requests are too few for a P99 of {facts.tail.bucket}",
            collect=(
                f"a longer window: at least {MIN_REQUESTS} requests, better 300, with a peak",
            ),
        )
    hidden = facts.share(Stage.UNEXPLAINED)
    if hidden >= SHARE_HIGH:
        collect = [FIRST_TOKEN] if facts.share(Stage.DECODE) <= 0 else []
        collect.append(SPANS if not breakdown.stations or not collect else METRICS)
        return Excuse(
            reason=f"{hidden:.0%} of the P99 is in no known stage", collect=tuple(collect)
        )
    if facts.engine_share <= facts.outside_share:
        return Excuse(
            reason="no stage stands out: the P99 is spread over several", collect=(SPANS, METRICS)
        )
    if facts.occupied is None:
        return Excuse(
            reason="the engine's stages carry the P99, but nothing shows how full the engine was",
            collect=(METRICS,),
        )
    return Excuse(
        reason="the P99 is each request's own work in the engine: no shared limit is seen",
        collect=("a target (`slo` in sojourn.yaml) to judge it by", METRICS),
    )


def engine_bound(facts: Facts) -> bool | None:
    """Whether twice the engine would shorten the P99 by more than noise.

    By `removable`: the queue, and half of what sharing adds to prefill and decode. Between the
    two bounds the occupancy decides. None: too little is known (much unexplained time, few
    requests, or a queue that contradicts the slack of the engine or is only inferred).
    """
    if facts.tail.requests < MIN_REQUESTS or "removable" not in facts.extra:
        return None
    removable, hidden = facts.extra["removable"], facts.share(Stage.UNEXPLAINED)
    if removable + hidden <= NOT_BOUND:
        return False
    if hidden >= PERSISTENT:
        return None
    if removable >= BOUND:
        inferred = facts.extra.get("inferred", 0.0) >= NOT_BOUND
        return True if facts.occupied or (facts.occupied is None and not inferred) else None
    if removable <= NOT_BOUND:
        return None if hidden >= SHARE_HIGH else False
    return facts.occupied
