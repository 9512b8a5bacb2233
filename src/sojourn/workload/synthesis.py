"""A stream made from a profile: arrivals as bursty as its own, programs from its buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.errors import DomainError
from sojourn.trace.arrays import Floats, Ints
from sojourn.workload.profile_records import Arrivals, Profile, Template
from sojourn.workload.scaling import repeated_steps
from sojourn.workload.stream import STREAM_REQUESTS, STREAM_STEPS, Stream

SILENT: Final = 0.01
"""A window without arrivals stays silent when the rate that would fill it makes that silence less
likely than this; else it is empty by chance."""
LEAST_CV2: Final = 0.01
"""Smoother than this is a clock; the gamma distribution needs a little room."""
MAX_CELLS: Final = 2_000_000
"""Pieces of the rate path: seconds of three weeks; longer streams get longer pieces."""
ENOUGH_TENS: Final = 30
"""Windows of 10 s from which their dispersion is known well enough (within about a quarter)."""


@dataclass(frozen=True)
class _Modulation:
    """Relative variances of the rate: `window` between windows, and of independent gamma factors
    per block of 10 s and of 1 s. `cv2`: squared CV of gaps in operational time."""

    window: float
    ten: float
    one: float
    cv2: float


def synthesize(
    profile: Profile, *, duration_s: float, load_factor: float = 1.0, seed: int = 0
) -> Stream:
    """Requests like those of a profile, for `duration_s`, at `load_factor` times its rate.

    Arrivals are a doubly stochastic renewal process: the rate follows the profile's windows
    (repeated or cut to the duration, their counting noise shrunk away), is multiplied by
    independent gamma factors per 10 s and 1 s with the variance that brings the dispersion at
    those scales to the profile's, and gaps in operational time are gamma distributed. Each
    request takes a bucket by the shares of its window and one of the bucket's templates.

    Raises:
        DomainError: duration or load factor is not positive, or the profile has no templates.
    Wrong when: length and arrival depend on each other beyond the window, or sessions matter
    (requests are drawn one by one; prefix reuse is what the templates say).
    """
    if not (duration_s > 0 and load_factor > 0 and math.isfinite(duration_s * load_factor)):
        raise DomainError(
            f"synthesis needs a positive duration and load factor, got {duration_s}, {load_factor}"
        )
    pools = {name: b.templates for name, b in profile.buckets.items() if b.templates}
    if not pools:
        raise DomainError(
            "the profile has no templates to draw programs from. Profile a recording whose calls"
            " tell their tokens"
        )
    rng = np.random.default_rng(seed)
    times = _arrivals(profile.arrivals, duration_s, load_factor, rng)
    names = tuple(pools)
    bucket = _buckets(profile, names, times, rng)
    return _stream(times, bucket, pools, rng, seed)


def _arrivals(
    arrivals: Arrivals, duration_s: float, load_factor: float, rng: np.random.Generator
) -> Floats:
    if arrivals.requests < 2 or arrivals.duration_s <= 0:
        raise DomainError("a profile of fewer than two arrivals has no rate to synthesize from")
    shape = _modulation(arrivals)
    edges, rates = _rate_path(arrivals, shape, duration_s, rng)
    rates = rates * load_factor
    volume = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])
    total = float(volume[-1])
    number = int(total + 10 * math.sqrt(total * max(shape.cv2, 1.0)) + 20)
    gaps = rng.gamma(1 / shape.cv2, shape.cv2, size=number)
    # The first point of a stationary renewal process falls anywhere in a gap, not at its end.
    points = np.cumsum(gaps) - gaps[0] * rng.random()
    points = points[points < total]
    # `right` skips cells of rate zero: the first cell whose end lies beyond the point.
    cell = np.searchsorted(volume[1:], points, side="right")
    times: Floats = edges[cell] + (points - volume[cell]) / rates[cell]
    return times


def _modulation(arrivals: Arrivals) -> _Modulation:
    """Relative variances of the rate from dispersions D(w) at three scales.

    For counts N over a width w with mean m = rate w: D = 1 + m v(w), v the relative variance of
    the rate averaged over w. Independent factors on blocks of b < w keep b/w of their variance.
    D that falls with the width comes of time stamps rounded to a grid (all of a second's or of
    three seconds' arrivals at once): then the wider scale is believed.
    """
    mean = arrivals.rate_per_s
    widths = np.array([w.length_s for w in arrivals.windows])
    counts = np.array([w.requests for w in arrivals.windows], dtype=float)
    whole = widths >= widths.max() * 0.999
    width = float(widths.max())
    at_window = counts[whole].var() / counts[whole].mean() if whole.sum() > 1 else 1.0
    base = min(arrivals.dispersion.get("1s", math.nan), 1.0)
    base = 1.0 if math.isnan(base) else base

    def relative(d: float, scale_s: float) -> float:
        return 0.0 if math.isnan(d) else max(d - base, 0.0) / (mean * scale_s)

    d1 = arrivals.dispersion.get("1s", math.nan)
    d10 = arrivals.dispersion.get("10s", math.nan)
    if d1 > d10 and arrivals.duration_s >= ENOUGH_TENS * 10:
        d1 = d10
    v1, v10 = relative(d1, 1.0), relative(d10, 10.0)
    window = relative(float(at_window), width)
    ten = one = 0.0
    for _ in range(20):
        one = max((1 + v1) / ((1 + window) * (1 + ten)) - 1, 0.0)
        ten = max((1 + v10) / ((1 + window) * (1 + one / 10)) - 1, 0.0)
        left = (1 + ten * min(10 / width, 1)) * (1 + one * min(1 / width, 1))
        window = max((1 + relative(float(at_window), width)) / left - 1, 0.0)
    cv2 = _local_cv2(arrivals, base)
    return _Modulation(window, ten, one, cv2)


def _local_cv2(arrivals: Arrivals, base: float) -> float:
    """Squared CV of gaps once the rate is divided out: 1 (Poisson given the rate), or less where
    counts are steadier than Poisson (a pacing client): then the gaps' own, corrected by windows."""
    if base >= 1.0 or math.isnan(arrivals.cv_interarrival):
        return 1.0
    return min(max(arrivals.cv_interarrival**2, base, LEAST_CV2), 1.0)


def _rate_path(
    arrivals: Arrivals, shape: _Modulation, duration_s: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Edges and rates of a piecewise constant rate over the duration."""
    lengths = np.array([w.length_s for w in arrivals.windows])
    counts = np.array([w.requests for w in arrivals.windows], dtype=float)
    window_rate = _shrunk(lengths, counts, shape)
    ends = np.cumsum(np.tile(lengths, math.ceil(duration_s / float(lengths.sum()))))
    seconds = np.arange(0.0, duration_s, max(1.0, duration_s / MAX_CELLS))
    edges = np.unique(np.concatenate([seconds, ends[ends < duration_s], [duration_s]]))
    middle = (edges[:-1] + edges[1:]) / 2
    window = _window_at(arrivals, middle)
    ten, one = (middle // 10).astype(int), middle.astype(int)
    factor = _gamma(shape.ten, ten, rng) * _gamma(shape.one, one, rng)
    return edges, window_rate[window] * factor


def _shrunk(lengths: Floats, counts: Floats, shape: _Modulation) -> Floats:
    """Rates of windows with counting noise shrunk away: mean + s (rate - mean), where s^2 is the
    part of the observed variance that is not noise (James and Stein's idea).

    Windows that are silent beyond chance stay silent.
    """
    rate = counts / lengths
    mean = float(counts.sum() / lengths.sum())
    observed = float(np.average((rate / mean - 1) ** 2, weights=lengths))
    keep = math.sqrt(min(shape.window / observed, 1.0)) if observed > 0 else 0.0
    shrunk = mean + keep * (rate - mean)
    silent = (counts == 0) & (np.exp(-shrunk * lengths) < SILENT)
    shrunk[silent] = 0.0
    return np.asarray(shrunk * (counts.sum() / float((shrunk * lengths).sum())))


def _gamma(variance: float, block: Ints, rng: np.random.Generator) -> Floats:
    """A factor of mean 1 and the given variance per block, for each entry of `block`."""
    number = int(block.max(initial=0)) + 1
    if variance <= 0:
        return np.ones(block.size)
    return np.asarray(rng.gamma(1 / variance, variance, size=number)[block])


def _window_at(arrivals: Arrivals, times: Floats) -> Ints:
    """The profile's window that serves each moment; the windows repeat without end."""
    ends = np.cumsum([w.length_s for w in arrivals.windows])
    place = np.searchsorted(ends, times % ends[-1], side="right")
    return np.asarray(np.minimum(place, ends.size - 1), dtype=np.int64)


def _buckets(
    profile: Profile, names: tuple[str, ...], times: Floats, rng: np.random.Generator
) -> Ints:
    """A bucket (place in `names`) per arrival, by the shares of its window, else of the whole."""
    overall = np.array([profile.buckets[name].share for name in names])
    grid = np.array(
        [[w.buckets.get(n, 0) for n in names] for w in profile.arrivals.windows], dtype=float
    )
    grid[grid.sum(axis=1) == 0] = overall
    limits = np.cumsum(grid / grid.sum(axis=1, keepdims=True), axis=1)
    limits[:, -1] = 1.0
    mine = limits[_window_at(profile.arrivals, times)]
    return np.asarray((rng.random((times.size, 1)) >= mine).sum(axis=1), dtype=np.int64)


def _stream(
    times: Floats,
    bucket: Ints,
    pools: dict[str, tuple[Template, ...]],
    rng: np.random.Generator,
    seed: int,
) -> Stream:
    templates = [template for pool in pools.values() for template in pool]
    sizes = np.array([len(pool) for pool in pools.values()])
    offset = np.cumsum(sizes) - sizes
    source = offset[bucket] + (rng.random(times.size) * sizes[bucket]).astype(np.int64)
    names = np.array(list(pools), dtype=object)
    facts = [(t.tenant, t.route, t.priority) for t in templates]
    tenant, route, priority = (
        pa.array(column).take(pa.array(source)) for column in zip(*facts, strict=True)
    )
    number = times.size
    requests = pa.table(
        [
            pa.array([f"synthetic-{seed}-{i}" for i in range(number)], type=pa.string()),
            pa.array(times),
            pa.nulls(number, pa.string()),
            tenant.cast(pa.string()),
            route.cast(pa.string()),
            priority.cast(pa.int64()),
            pa.array(names[bucket].tolist(), type=pa.string()),
        ],
        schema=STREAM_REQUESTS,
    )
    return Stream(requests, repeated_steps(_step_table(templates), source))


def _step_table(templates: list[Template]) -> pa.Table:
    rows = [
        {"request": place, **step.model_dump(mode="json")}
        for place, template in enumerate(templates)
        for step in template.steps
    ]
    return pa.Table.from_pylist(rows, schema=STREAM_STEPS)
