"""Charts of a load held: latency, and what ends, against what is offered."""

from __future__ import annotations

from typing import Final

from sojourn.plan.records import Holding
from sojourn.report.charts import BAD, GOOD, INK, PLAIN, Spec, base
from sojourn.report.plots import WIDE, Axes, Curve, plot
from sojourn.units import format_seconds

LOAD: Final = "load, as a multiple of today's"
_X: Final[Spec] = {"field": "load", "type": "quantitative", "title": LOAD}


def _marks(held: Holding) -> list[tuple[float, str]]:
    marks = [(1.0, "today")]
    if held.load_factor.mid > 0:
        marks.append((held.load_factor.mid, "holds to here"))
    return marks


def latency(held: Holding, e2e_target_s: float | None) -> Spec:
    """P99 and P50 against load; today, the load held with its interval, and the target."""
    rows = [
        {"load": p.load_factor, "seconds": value, "what": name}
        for p in held.points
        for name, value in (
            ("P99", p.p99_s),
            ("P99 to first token", p.ttft_p99_s),
            ("P50", p.p50_s),
        )
        if value is not None
    ]
    seconds = [row["seconds"] for row in rows if isinstance(row["seconds"], float)]
    log = bool(seconds) and min(seconds) > 0 and max(seconds) > WIDE * min(seconds)
    y: Spec = {"field": "seconds", "type": "quantitative", "title": "seconds, end to end"}
    if log:
        y["scale"] = {"type": "log"}
    layers: list[Spec] = [
        _band(held),
        {
            "data": {"values": rows},
            "mark": {"type": "line", "point": {"size": 40}, "strokeWidth": 2.5},
            "encoding": {"x": _X, "y": y, "color": _colours(["P99", "P99 to first token", "P50"])},
        },
        *_rules(held),
    ]
    if e2e_target_s is not None:
        target = {"values": [{"seconds": e2e_target_s}]}
        at: Spec = {"field": "seconds", "type": "quantitative"}
        text = {"type": "text", "text": "target", "color": BAD, "align": "left", "dy": -6, "x": 4}
        layers += [
            {"data": target, "mark": {"type": "rule", "color": BAD}, "encoding": {"y": at}},
            {"data": target, "mark": text, "encoding": {"y": at}},
        ]
    spec = base(240)
    spec["layer"] = layers
    return spec


def throughput(held: Holding) -> Spec:
    """What ends and what of it is good, against what is offered."""
    names = ["offered", "ends", "ends within the SLO"]
    rows = [
        {"load": p.load_factor, "rate": value, "what": name}
        for p in held.points
        for name, value in zip(
            names, (p.offered_per_s, p.throughput_per_s, p.good_per_s), strict=True
        )
    ]
    spec = base(200)
    spec["layer"] = [
        _band(held),
        {
            "data": {"values": rows},
            "mark": {"type": "line", "point": {"size": 40}, "strokeWidth": 2.5},
            "encoding": {
                "x": _X,
                "y": {"field": "rate", "type": "quantitative", "title": "requests/s"},
                "color": _colours(names),
            },
        },
        *_rules(held),
    ]
    return spec


def _colours(names: list[str]) -> Spec:
    return {
        "field": "what",
        "title": None,
        "scale": {"domain": names, "range": [PLAIN, "#e07b00", GOOD]},
    }


def _band(held: Holding) -> Spec:
    """The interval of the load held."""
    return {
        "data": {"values": [{"a": held.load_factor.low, "b": held.load_factor.high}]},
        "mark": {"type": "rect", "color": GOOD, "opacity": 0.15},
        "encoding": {"x": {"field": "a", "type": "quantitative"}, "x2": {"field": "b"}},
    }


def _rules(held: Holding) -> list[Spec]:
    marks = {"values": [{"load": load, "what": what} for load, what in _marks(held)]}
    return [
        {
            "data": marks,
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": INK},
            "encoding": {"x": _X},
        },
        {
            "data": marks,
            "mark": {"type": "text", "align": "left", "dx": 4, "y": 8},
            "encoding": {"x": _X, "text": {"field": "what"}},
        },
    ]


def latency_text(held: Holding, e2e_target_s: float | None) -> str:
    """`latency` for a terminal."""
    known = [(p.load_factor, p.p99_s) for p in held.points if p.p99_s is not None]
    level = None if e2e_target_s is None else (e2e_target_s, "target")
    axes = Axes(LOAD, "P99 end to end", format_seconds, tuple(_marks(held)), level)
    return plot([Curve("", "●", tuple(known))], axes)


def throughput_text(held: Holding) -> str:
    """`throughput` for a terminal."""
    points = held.points
    curves = [
        Curve("offered", "○", tuple((p.load_factor, p.offered_per_s) for p in points)),
        Curve("ends", "●", tuple((p.load_factor, p.throughput_per_s) for p in points)),
        Curve("in time", "▲", tuple((p.load_factor, p.good_per_s) for p in points)),
    ]
    marks = tuple(_marks(held))
    return plot(curves, Axes(LOAD, "requests/s", "{:.3g}".format, marks, may_log=False))
