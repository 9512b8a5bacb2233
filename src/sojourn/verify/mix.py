"""Mix shift: how much of a change comes from other requests, not from the change.

Post-stratification: before's requests are reweighted so that their strata (bucket x input
length class x output length class) have after's shares; the weighted percentile is what before
would have shown under after's mix. Source: Holt & Smith 1979, JRSS A 142 (post-stratification).
Wrong when: load changed as well (waiting is not a property of a stratum), or a stratum of after
has no request in before (its share is returned as `unseen` and stays out).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.plan.slo import Judged
from sojourn.trace.tables import Tables

Floats = npt.NDArray[np.float64]

CLASSES: Final = 3
"""Length classes per axis: with more, strata of a few hundred requests run empty."""


@dataclass(frozen=True)
class Mix:
    """Weights of before's requests (mean 1), and the share of after that before never saw."""

    weights: Floats
    unseen: float


def lengths(tables: Tables, judged: Judged) -> tuple[Floats, Floats]:
    """Largest input and summed output tokens of each judged request; NaN where unknown."""
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


def _classes(values: Floats, edges: Floats) -> npt.NDArray[np.int64]:
    return np.where(np.isnan(values), -1, np.searchsorted(edges, values)).astype(np.int64)


def _edges(pooled: Floats) -> Floats:
    kept = pooled[~np.isnan(pooled)]
    if not kept.size:
        return np.empty(0)
    inner = np.linspace(0, 1, CLASSES + 1)[1:-1]
    return np.unique(np.quantile(kept, inner))


def reweight(before: Tables, old: Judged, after: Tables, new: Judged) -> Mix:
    """Weights that give before's requests after's mix."""
    sides = [lengths(before, old), lengths(after, new)]
    labels: list[npt.NDArray[np.str_]] = []
    edges = [_edges(np.concatenate([side[axis] for side in sides])) for axis in (0, 1)]
    for judged, side in zip((old, new), sides, strict=True):
        names = judged.bucket.astype(str)
        parts = [_classes(side[axis], edges[axis]).astype(str) for axis in (0, 1)]
        labels.append(np.char.add(np.char.add(names, parts[0]), parts[1]))
    values, codes = np.unique(np.concatenate(labels), return_inverse=True)
    cut = len(labels[0])
    shares = [
        np.bincount(part, minlength=values.size) / max(part.size, 1)
        for part in (codes[:cut], codes[cut:])
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(shares[0] > 0, shares[1] / shares[0], 0.0)
    weights = ratio[codes[:cut]]
    total = weights.mean() if weights.size else 0.0
    unseen = float(shares[1][shares[0] == 0].sum())
    return Mix(weights=weights / total if total > 0 else np.ones(cut), unseen=unseen)


def weighted_quantile(values: Floats, weights: Floats, q: float) -> float:
    """The q-quantile of weighted values (inverse of the weighted distribution); NaN left out."""
    keep = ~np.isnan(values) & (weights > 0)
    kept, mass = values[keep], weights[keep]
    if not kept.size:
        return float("nan")
    order = np.argsort(kept, kind="stable")
    reach = np.cumsum(mass[order])
    at = np.searchsorted(reach, q * reach[-1], side="left")
    return float(kept[order][min(at, kept.size - 1)])
