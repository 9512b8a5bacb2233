"""Charts as Vega-Lite specifications: plain functions from records to dicts.

Text, axes and rules are drawn in `INK`, which the HTML page replaces by `currentColor`, so
that one drawing reads in the dark and in the light.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sojourn.attribution.records import ALL, Breakdown
from sojourn.capacity.records import CapacityModel
from sojourn.plan.records import Holding, Plan
from sojourn.records import Bottleneck, Stage, words
from sojourn.verify.records import Acceptance
from sojourn.workload.profile_records import Concentration, Profile

Spec = dict[str, Any]

INK: Final = "#010203"
FAINT: Final = "#040506"
WIDTH: Final = 720

PALETTE: Final[dict[str, str]] = {
    # engine: blues; outside: warm; between attempts: red; not explained: grey
    Stage.QUEUE.value: "#3465b0",
    Stage.PREFILL.value: "#3d85c6",
    Stage.DECODE.value: "#7fb8e6",
    Stage.KV_TRANSFER.value: "#5b7fb0",
    Stage.ENCODE.value: "#6a5acd",
    Stage.GATEWAY.value: "#b8a04a",
    Stage.GUARDRAIL.value: "#8f7d2e",
    Stage.RETRIEVAL.value: "#e07b00",
    Stage.RERANK.value: "#f2b04d",
    Stage.TOOL.value: "#2e8b57",
    Stage.NETWORK.value: "#8fcfa9",
    Stage.POSTPROCESS.value: "#b497d6",
    Stage.BACKOFF.value: "#d9534f",
    Stage.UNEXPLAINED.value: "#9a9a9a",
}
VISIBLE: Final = 0.01
"""Bars shorter than this part of the longest are no bars; their figures stand in the tables."""
BASES: Final = {
    "gpu_time": "GPU time",
    "kv_token_seconds": "KV token-seconds",
    "cost": "the cost",
}
GOOD: Final = "#2e8b57"
BAD: Final = "#d9534f"
PLAIN: Final = "#3d85c6"


def base(height: int | None = None) -> Spec:
    """What every chart shares: size, ink, no background."""
    size: Spec = {} if height is None else {"height": height}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": WIDTH,
        **size,
        "background": "transparent",
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {
                "labelColor": INK,
                "titleColor": INK,
                "domainColor": FAINT,
                "tickColor": FAINT,
                "gridColor": FAINT,
                "gridOpacity": 0.25,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "labelLimit": 380,
            },
            "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12},
            "text": {"color": INK},
            "header": {"labelColor": INK, "titleColor": INK},
        },
    }


def _stage_scale(stages: Sequence[str]) -> Spec:
    ordered = [name for name in PALETTE if name in stages]
    return {"domain": ordered, "range": [PALETTE[name] for name in ordered]}


def stage_bars(breakdown: Breakdown, *, floor: float = 0.005) -> Spec:
    """Stacked seconds per stage, one bar per bucket and percentile; parts under `floor` of a
    bar are drawn but get no legend entry of their own when nowhere larger."""
    rows: list[Spec] = []
    names = {value: order for order, value in enumerate(PALETTE)}
    for tail in breakdown.tails:
        for stage, seconds in tail.stages.items():
            if seconds > floor * max(tail.e2e_s.mid, 1e-12):
                rows.append(
                    {
                        "bucket": words(tail.bucket),
                        "percentile": f"P{tail.percentile * 100:g}",
                        "stage": stage,
                        "seconds": seconds,
                        "order": names.get(stage, len(names)),
                    }
                )
    present = {row["stage"] for row in rows}
    spec = base()
    spec["data"] = {"values": rows}
    spec["mark"] = {"type": "bar", "height": {"band": 0.85}}
    spec["encoding"] = {
        "row": {
            "field": "bucket",
            "title": None,
            "header": {"labelAngle": 0, "labelAlign": "left"},
        },
        "y": {"field": "percentile", "title": None, "sort": None},
        "x": {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "zero"},
        "color": {"field": "stage", "scale": _stage_scale(sorted(present)), "title": None},
        "order": {"field": "order"},
    }
    spec["spacing"] = 6
    spec["width"] = WIDTH - 120
    return spec


def arrivals(profile: Profile) -> Spec:
    """Requests per second by window; the peak window shaded."""
    windows = profile.arrivals.windows
    rows = [
        {
            "t": window.start_s,
            "end": window.start_s + window.length_s,
            "rate": window.requests / window.length_s,
            "floor": 0,
        }
        for window in windows
        if window.length_s > 0
    ]
    peak = profile.arrivals.peak
    spec = base(150)
    spec["layer"] = [
        {
            "data": {"values": [{"a": peak.start_s, "b": peak.start_s + peak.length_s}]},
            "mark": {"type": "rect", "color": BAD, "opacity": 0.15},
            "encoding": {
                "x": {"field": "a", "type": "quantitative"},
                "x2": {"field": "b"},
            },
        },
        {
            "data": {"values": rows},
            "mark": {"type": "rect", "color": PLAIN, "stroke": None},
            "encoding": {
                "x": {
                    "field": "t",
                    "type": "quantitative",
                    "title": "seconds since the first arrival",
                },
                "x2": {"field": "end"},
                "y": {"field": "rate", "type": "quantitative", "title": "requests/s"},
                "y2": {"field": "floor"},
            },
        },
    ]
    return spec


def concentration(curves: Sequence[Concentration]) -> Spec:
    """Share of requests (largest first) against share of the basis."""
    rows = [
        {"requests": x, "share": y, "basis": BASES[curve.basis]}
        for curve in curves
        for x, y in curve.curve
    ]
    spec = base(220)
    share = {"type": "quantitative", "axis": {"format": ".0%"}, "scale": {"domain": [0, 1]}}
    spec["data"] = {"values": rows}
    spec["mark"] = {"type": "line", "strokeWidth": 2.5}
    spec["encoding"] = {
        "x": {"field": "requests", "title": "share of requests, the most expensive first", **share},
        "y": {"field": "share", "title": "share taken", **share},
        "color": {
            "field": "basis",
            "title": None,
            "scale": {"range": [PALETTE["queue"], PALETTE["retrieval"], PALETTE["tool"]]},
        },
    }
    return spec


def knee(holding: Holding, e2e_target_s: float | None) -> Spec:
    """P99 against load; today and the load that still holds marked."""
    rows = [{"load": load, "p99": p99, "attainment": share} for load, p99, share in holding.curve]
    x = {"field": "load", "type": "quantitative", "title": "load, as a multiple of today's"}
    marks = [{"load": 1.0, "what": "today"}]
    if holding.load_factor.mid > 0:
        marks.append({"load": holding.load_factor.mid, "what": "holds to here"})
    layers: list[Spec] = [
        {
            "data": {"values": rows},
            "mark": {"type": "line", "point": {"size": 45}, "color": PLAIN, "strokeWidth": 2.5},
            "encoding": {
                "x": x,
                "y": {"field": "p99", "type": "quantitative", "title": "P99 end to end, seconds"},
            },
        },
        {
            "data": {"values": marks},
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": INK},
            "encoding": {"x": x},
        },
        {
            "data": {"values": marks},
            "mark": {"type": "text", "align": "left", "dx": 4, "y": 8},
            "encoding": {"x": x, "text": {"field": "what"}},
        },
    ]
    if e2e_target_s is not None:
        target = {"values": [{"p99": e2e_target_s}]}
        y = {"field": "p99", "type": "quantitative"}
        layers += [
            {"data": target, "mark": {"type": "rule", "color": BAD}, "encoding": {"y": y}},
            {
                "data": target,
                "mark": {
                    "type": "text",
                    "text": "target end to end",
                    "color": BAD,
                    "align": "left",
                    "dy": -6,
                    "x": 4,
                },
                "encoding": {"y": y},
            },
        ]
    spec = base(240)
    spec["layer"] = layers
    return spec


def headroom(model: CapacityModel) -> Spec:
    """Utilisation of each resource at the mean and in the peak window (the retry budget, a
    warning and no limit, is in the table only)."""
    limits = [r for r in model.resources if r.bottleneck is not Bottleneck.RETRY_AMPLIFICATION]
    rows = [
        {"resource": resource.name, "when": when, "load": load}
        for resource in limits
        for when, load in (("mean", resource.mean_load), ("peak", resource.peak_load))
    ]
    order = [resource.name for resource in limits]
    spec = base()
    spec["height"] = {"step": 12}
    spec["layer"] = [
        {
            "data": {"values": rows},
            "mark": {"type": "bar"},
            "encoding": {
                "y": {"field": "resource", "sort": order, "title": None},
                "yOffset": {"field": "when"},
                "x": {
                    "field": "load",
                    "type": "quantitative",
                    "title": "utilisation",
                    "axis": {"format": ".0%"},
                },
                "color": {
                    "field": "when",
                    "title": None,
                    "scale": {"domain": ["mean", "peak"], "range": ["#9cc3e6", PALETTE["queue"]]},
                },
            },
        },
        {
            "data": {"values": [{"x": 1}]},
            "mark": {"type": "rule", "color": BAD, "strokeDash": [4, 3]},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        },
    ]
    return spec


def _action_rows(plan: Plan, base: float) -> list[Spec]:
    """Predicted P99 of each simulated action with its interval, seconds; `base` is today's."""
    return [
        {
            "action": item.title,
            "p99": base + item.p99_change_s.mid,
            "low": base + item.p99_change_s.low,
            "high": base + item.p99_change_s.high,
            "what": what,
        }
        for what, items in (("recommended", plan.ranked), ("not recommended", plan.refused))
        for item in items
        if item.p99_change_s is not None and item.outcome is not None
    ]


def actions(plan: Plan) -> Spec | None:
    """Predicted P99 of each simulated action beside the baseline, with its interval; None where
    nothing was simulated."""
    today = plan.baseline.e2e_s.get(ALL, {}).get("p99")
    rows = [] if today is None else _action_rows(plan, today.mid)
    if today is None or not rows:
        return None
    order = [row["action"] for row in rows]
    y = {"field": "action", "sort": order, "title": None}
    spec = base()
    spec["width"] = WIDTH - 200
    spec["height"] = {"step": 20}
    spec["layer"] = [
        {
            "data": {"values": rows},
            "mark": {"type": "bar", "height": {"band": 0.6}},
            "encoding": {
                "y": y,
                "x": {"field": "p99", "type": "quantitative", "title": "predicted P99, seconds"},
                "color": {
                    "field": "what",
                    "title": None,
                    "scale": {
                        "domain": ["recommended", "not recommended"],
                        "range": [GOOD, "#b0b0b0"],
                    },
                },
            },
        },
        {
            "data": {"values": rows},
            "mark": {"type": "rule", "color": INK, "strokeWidth": 1.5},
            "encoding": {
                "y": y,
                "x": {"field": "low", "type": "quantitative"},
                "x2": {"field": "high"},
            },
        },
        {
            "data": {"values": [{"x": today.mid}]},
            "mark": {"type": "rule", "color": BAD, "strokeDash": [4, 3]},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        },
    ]
    return spec


def before_after(acceptance: Acceptance) -> Spec | None:
    """Compared times (seconds) before and after, with intervals; None where there are none."""
    times = [f for answer in acceptance.answers for f in answer.figures if f.unit == "s"]
    pairs = [
        (figure.name, when, value)
        for figure in {f.name: f for f in times}.values()
        for when, value in (("before", figure.before), ("after", figure.after))
        if value is not None
    ]
    longest = max((value.mid for _name, _when, value in pairs), default=0.0)
    rows = [
        {"figure": name, "when": when, "mid": value.mid, "low": value.low, "high": value.high}
        for name, when, value in pairs
        if value.mid > VISIBLE * longest
    ]
    if not rows:
        return None
    order = list(dict.fromkeys(row["figure"] for row in rows))
    y: Spec = {"field": "figure", "sort": order, "title": None}
    offset: Spec = {"field": "when", "sort": ["before", "after"]}
    spec = base()
    spec["height"] = {"step": 12}
    spec["data"] = {"values": rows}
    spec["layer"] = [
        {
            "mark": {"type": "bar"},
            "encoding": {
                "y": y,
                "yOffset": offset,
                "x": {"field": "mid", "type": "quantitative", "title": "seconds"},
                "color": {
                    "field": "when",
                    "title": None,
                    "scale": {"domain": ["before", "after"], "range": ["#b0b0b0", PLAIN]},
                },
            },
        },
        {
            "mark": {"type": "rule", "color": INK},
            "encoding": {
                "y": y,
                "yOffset": offset,
                "x": {"field": "low", "type": "quantitative"},
                "x2": {"field": "high"},
            },
        },
    ]
    return spec
