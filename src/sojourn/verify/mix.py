"""Mix shift: how much of a change comes from other requests, not from the change.

Post-stratification: before's requests are reweighted so that their kinds (bucket, and within it
input length class x output length class) have after's shares; the weighted percentile is what
before would have shown under after's mix. Source: Holt & Smith 1979, JRSS A 142.

A request whose lengths are not known (it broke off before a call told them) has its bucket's
weight: a class of its own for those that failed would explain away every change that makes fewer
fail.

Wrong when: load changed as well (waiting is no property of a kind); a kind of after has no
request in before (its share is returned as `unseen`, and its requests are left out); the change
itself makes requests shorter (trimmed prompts, capped outputs): its gain then looks like a
change of mix, and the verdict says that it cannot tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.plan.slo import Judged
from sojourn.trace.arrays import Bools, Floats, Ints
from sojourn.trace.tables import Tables

CLASSES: Final = 3
"""Length classes per axis: with more, kinds of a few hundred requests run empty."""
MIN_KNOWN: Final = 0.5
"""An axis that fewer than half of the requests of a side have says more about who has it."""
UNKNOWN: Final = -1


@dataclass(frozen=True)
class Mix:
    """Weights of before's requests (mean 1), and which requests of after before has seen."""

    weights: Floats
    seen: Bools

    @property
    def unseen(self) -> float:
        """Share of after that is of a kind before never had."""
        return float(1 - self.seen.mean()) if self.seen.size else 0.0

    @property
    def effective(self) -> float:
        """Requests that equal weights would need for the same precision. Source: Kish 1965."""
        return effective_size(self.weights)


@dataclass(frozen=True)
class Kinds:
    """Bucket and length class of each request, coded alike in both windows.

    A class belongs to one bucket (`owner`); `UNKNOWN` where lengths are not known.
    """

    bucket: tuple[Ints, Ints]
    klass: tuple[Ints, Ints]
    owner: Ints
    buckets: int

    def mix(self, old: Ints | None = None, new: Ints | None = None) -> Mix:
        """Weights for rows of before and the seen rows of after; all rows, or a resample."""
        first = slice(None) if old is None else old
        second = slice(None) if new is None else new
        buckets = self.bucket[0][first], self.bucket[1][second]
        classes = self.klass[0][first], self.klass[1][second]
        by_bucket = _ratio(*(_shares(codes, self.buckets) for codes in buckets))
        counts = [_counts(codes, self.owner.size) for codes in classes]
        known = [np.bincount(self.owner, count, self.buckets)[self.owner] for count in counts]
        told = (known[0] > 0) & (known[1] > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = _ratio(counts[0] / known[0], counts[1] / known[1])
        inside = np.append(np.where(told, inside, 1.0), 1.0)  # last: `UNKNOWN`
        weights = by_bucket[buckets[0]] * inside[classes[0]]
        total = float(weights.mean()) if weights.size else 0.0
        empty = np.append(told & (counts[0] == 0), False)
        seen = (_counts(buckets[0], self.buckets) > 0)[buckets[1]] & ~empty[classes[1]]
        return Mix(weights=weights / total if total > 0 else weights, seen=seen)


def _counts(codes: Ints, size: int) -> Floats:
    return np.bincount(codes[codes >= 0], minlength=size).astype(float)


def _shares(codes: Ints, size: int) -> Floats:
    return _counts(codes, size) / max(codes.size, 1)


def _ratio(old: Floats, new: Floats) -> Floats:
    return np.divide(new, old, out=np.zeros_like(old), where=old > 0)


def lengths(tables: Tables, judged: Judged) -> tuple[Floats, Floats]:
    """Largest input and largest output of a call of each request (retries do not add up); NaN
    where unknown."""
    calls = tables.calls
    size = len(judged)
    if not calls.num_rows:
        return np.full(size, np.nan), np.full(size, np.nan)
    grouped = calls.group_by("request_id").aggregate(
        [("input_tokens", "max"), ("output_tokens", "max")]
    )
    rows = pc.index_in(pa.array(judged.request_id, pa.string()), grouped.column("request_id"))
    found = []
    for name in ("input_tokens_max", "output_tokens_max"):
        taken = pc.cast(grouped.column(name), pa.float64()).take(rows)
        found.append(np.asarray(taken.to_numpy(zero_copy_only=False), dtype=float))
    return found[0], found[1]


def _class(sides: tuple[Floats, Floats]) -> tuple[Ints, Ints]:
    """Length classes of one axis, at the quantiles of both windows together."""
    if any(np.isnan(side).mean() > 1 - MIN_KNOWN for side in sides if side.size):
        return np.zeros(sides[0].size, np.int64), np.zeros(sides[1].size, np.int64)
    pooled = np.concatenate(sides)
    inner = np.linspace(0, 1, CLASSES + 1)[1:-1]
    edges = np.unique(np.quantile(pooled[~np.isnan(pooled)], inner))
    first, second = (
        np.where(np.isnan(side), UNKNOWN, np.searchsorted(edges, side)).astype(np.int64)
        for side in sides
    )
    return first, second


def kinds(before: Tables, old: Judged, after: Tables, new: Judged) -> Kinds:
    """Bucket and length class of each judged request of both windows."""
    (old_in, old_out), (new_in, new_out) = lengths(before, old), lengths(after, new)
    pairs = _class((old_in, new_in)), _class((old_out, new_out))
    names, codes = np.unique(
        np.concatenate([old.bucket, new.bucket]).astype(str), return_inverse=True
    )
    cut = len(old)
    buckets = codes[:cut].astype(np.int64), codes[cut:].astype(np.int64)
    first, second = (
        np.where(
            (a == UNKNOWN) | (b == UNKNOWN), UNKNOWN, (bucket * CLASSES + a) * CLASSES + b
        ).astype(np.int64)
        for bucket, a, b in zip(buckets, *pairs, strict=True)
    )
    owner = np.repeat(np.arange(names.size, dtype=np.int64), CLASSES * CLASSES)
    return Kinds(bucket=buckets, klass=(first, second), owner=owner, buckets=names.size)


def effective_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2, Kish's effective sample size."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Mean of weighted values; NaN left out."""
    keep = ~np.isnan(values)
    mass = float(weights[keep].sum())
    return float((values[keep] * weights[keep]).sum()) / mass if mass > 0 else float("nan")


def weighted_quantile(values: Floats, weights: Floats, q: float) -> float:
    """The q-quantile of weighted values; NaN left out, NaN where none is left.

    With n* the effective size, t_i the cumulated share of weight and U the uniform distribution
    on [h, h + 1] / n*, h = q (n* - 1): the mean of the sorted values under U(t_i) - U(t_{i-1}).
    Equals numpy's quantile (type 7) for equal weights. Source: Akinshin 2023, arXiv 2304.07265.
    """
    keep = ~np.isnan(values) & (weights > 0)
    kept, mass = values[keep], weights[keep]
    if not kept.size:
        return float("nan")
    order = np.argsort(kept, kind="stable")
    size = effective_size(mass)
    reach = np.concatenate([[0.0], np.cumsum(mass[order])])
    part = np.diff(np.clip(reach / reach[-1] * size - q * (size - 1), 0.0, 1.0))
    return float((part * kept[order]).sum() / part.sum())
