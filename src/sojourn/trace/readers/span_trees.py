"""One trace as trees: its roots, and every span's time made to lie within its parent's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sojourn.trace.ledger import Ledger
from sojourn.trace.readers.spans import Span
from sojourn.trace.readers.stages import Role, classify

TOLERANCE_NS: Final = 1_000
"""Jaeger's resolution: what is off by less is rounding, not skew."""
_SERVICE: Final = ("service.instance.id", "service.name", "host.name")


def roots_of(trace: str, members: list[Span], ledger: Ledger) -> list[tuple[Span, bool]]:
    """The spans that are requests, each with whether it was recorded itself.

    Spans without a parent are requests. One whose parent was not exported is placed under the
    root where there is one; where there is none it is the root, or, when there are several,
    each model call is a request of its own, and anything else gets one root over all.
    """
    by_id = {span.id: span for span in members}
    tops: list[Span] = []
    orphans: list[Span] = []
    for span in members:
        parent = by_id.get(span.parent) if span.parent != span.id else None
        if parent is not None:
            parent.children.append(span)
        elif span.parent and span.parent != span.id:
            orphans.append(span)
        else:
            tops.append(span)
    if not orphans:
        return [(span, True) for span in tops]
    example = f"{orphans[0].name} of trace {trace}"
    if tops:
        ledger.add("noted", "parent not exported: placed under the root", len(orphans), example)
        for span in orphans:
            _holder(span, tops).children.append(span)
        return [(span, True) for span in tops]
    ledger.add("noted", "parent not exported: taken as root", len(orphans), example)
    calls = (Role.CALL, Role.ENGINE)
    if len(orphans) == 1 or all(classify(span)[0] in calls for span in orphans):
        return [(span, True) for span in orphans]
    return [(_made_root(trace, orphans), False)]


def _holder(span: Span, tops: list[Span]) -> Span:
    return next((top for top in tops if top.start <= span.start <= top.end), tops[0])


def _made_root(trace: str, orphans: list[Span]) -> Span:
    first = min(orphans, key=lambda span: span.start)
    start, end = first.start, max(span.end for span in orphans)
    failed = any(span.error for span in orphans)
    root = Span(trace, f"{trace}:root", "", "root not exported", 0, start, end, {}, first.resource)
    root.error, root.children = failed, orphans
    root.true_start, root.true_end = start, end
    return root


def walk(root: Span) -> Iterator[Span]:
    """The tree from the top: a parent before what is below it, children by start."""
    stack = [root]
    while stack:
        span = stack.pop()
        yield span
        if span.children:
            stack.extend(sorted(span.children, key=lambda s: s.start, reverse=True))


def close_open_ends(root: Span, ledger: Ledger) -> bool:
    """Give spans that never ended the end of what is below them; drop those without.

    Returns:
        Whether the root itself had ended.
    """
    order = list(walk(root))
    if all(span.end for span in order):
        return True
    ended = bool(root.end)
    for span in reversed(order):
        gone = [child for child in span.children if not child.end]
        for child in gone:
            span.children.remove(child)
            ledger.drop("span never ended", 1, f"row {child.row}: {child.name}")
        if not span.end and span.children:
            span.end = span.true_end = max(span.start, *(child.end for child in span.children))
            ledger.add("repaired", "span never ended: ends with what is below it", 1, span.name)
    return ended


def fit(root: Span, ledger: Ledger) -> None:
    """Every span within its parent.

    A span of another service that fits into its parent but lies outside has a skewed clock: it
    is shifted with all below it. Else it is cut; work that goes on after its caller gave up
    keeps its own end in `true_end`.
    """
    for parent in walk(root):
        for child in parent.children:
            low, high = parent.start - child.start, child.end - parent.end
            if low <= 0 and high <= 0:
                continue
            if max(low, high) <= TOLERANCE_NS:
                _cut(child, parent)
            elif _is_skew(child, parent, low):
                _shift(child, low if low > 0 else -high)
                ledger.add(
                    "repaired", "clock skew between services: span shifted into its parent", 1,
                    f"{child.name}: {(low if low > 0 else -high) / 1e9:+.6f} s",
                )  # fmt: skip
            else:
                _cut(child, parent)
                ledger.add(
                    "clamped", "span outside its parent", 1, f"row {child.row}: {child.name}"
                )


def _is_skew(child: Span, parent: Span, low: int) -> bool:
    if child.resource is parent.resource:
        return False
    other = any(child.resource.get(key) != parent.resource.get(key) for key in _SERVICE)
    fits = child.end - child.start <= parent.end - parent.start
    return other and fits and (low > 0 or not parent.error)


def _cut(child: Span, parent: Span) -> None:
    child.start = min(max(child.start, parent.start), parent.end)
    child.end = min(max(child.end, child.start), parent.end)


def _shift(top: Span, by: int) -> None:
    for span in walk(top):
        span.start += by
        span.end += by
        span.true_start += by
        span.true_end += by
        if span.first_token is not None:
            span.first_token += by
