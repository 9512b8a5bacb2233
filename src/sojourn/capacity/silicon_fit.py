"""Operator tables into the tables of a step model: queries over a grid, and what a line misses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sojourn.trace.arrays import Floats

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
CONTEXTS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
CHUNKS: Final = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREFIXES: Final = (2048, 8192, 16384)
BESIDE: Final = (8, 64, 256)
"""Decodes in the mixed steps that the prompt table is fitted to, beside none."""
NEAR: Final = 4.0
"""Contexts within this factor of the mean one count fully in the fit of a line, others a tenth."""


@dataclass(frozen=True)
class Decode:
    """base[B] + slope[B] x (sum of contexts), s, and the relative errors of those lines on the
    grid near the mean context: median and largest."""

    base_s: Floats
    slope_s: Floats
    median_error: float
    largest_error: float


def decode_lines(times: Floats, context: float) -> Decode:
    """Lines through times [batch, context], relative errors weighted by nearness to `context`.

    Source: derived (weighted least squares of the relative error, slope and base >= 0). Wrong
    when: windows close or a kernel changes its split of the context inside the range.
    """
    contexts = np.asarray(CONTEXTS, dtype=np.float64)
    near = np.abs(np.log(contexts / context)) <= np.log(NEAR)
    weight = np.where(near, 1.0, 0.1)
    base, slope, errors = [], [], []
    for batch, row in zip(BATCHES, times, strict=True):
        kept = np.isfinite(row)
        at, seen = contexts[kept] * batch, row[kept]
        b, a = _line(at, seen, weight[kept] / seen)
        base.append(b)
        slope.append(a)
        checked = near[kept] if near[kept].any() else np.ones(len(seen), dtype=bool)
        errors.append(np.abs((b + a * at) / seen - 1)[checked])
    flat = np.concatenate(errors)
    return Decode(
        base_s=np.asarray(base),
        slope_s=np.asarray(slope),
        median_error=float(np.median(flat)),
        largest_error=float(flat.max()),
    )


def _line(at: Floats, seen: Floats, weight: Floats) -> tuple[float, float]:
    """Base and slope, both >= 0, of the weighted least squares line."""
    if len(at) == 1:
        return float(seen[0]), 0.0
    matrix = np.column_stack((np.ones_like(at), at)) * weight[:, None]
    (base, slope), *_ = np.linalg.lstsq(matrix, seen * weight, rcond=None)
    if slope < 0:
        return float(np.average(seen, weights=weight**2)), 0.0
    if base < 0:
        return 0.0, float((matrix[:, 1] @ (seen * weight)) / (matrix[:, 1] @ matrix[:, 1]))
    return float(base), float(slope)


@dataclass(frozen=True)
class Prompts:
    """What prompt tokens add to a step: `base_s` of a step without decodes, `added_s` of n tokens
    at each of `tokens`, `attended_s` of one token seeing one other; and the errors of the sum
    against mixed steps asked as such: median and largest."""

    tokens: tuple[int, ...]
    base_s: float
    added_s: Floats
    attended_s: float
    median_error: float
    largest_error: float


def prompt_costs(
    prefill: Callable[[int, int], float],
    mixed: Callable[[int, int], float],
    decode: Callable[[int], float],
    *,
    longest: int,
) -> Prompts:
    """Prompt costs that add up with decodes best.

    step(B, n) = decode(B) + added(n) + attended x n^2/2, decode(0) = base: weighted least squares
    over B in (0, 8, 64, 256) and all n, relative errors. Source: derived; both sides share the
    reading of weights, so a prompt adds less than it costs alone. Wrong when: more than 256
    decodes run beside a short chunk (the sum is then too short by a few percent).

    Symbols: `prefill(n, prefix)` a step with n tokens of one prompt, s; `mixed(n, B)` and
    `decode(B)` at one mean context, s; `longest` chunk that is asked for.
    """
    tokens = tuple(n for n in CHUNKS if n <= longest)
    alone = np.array([prefill(n, 0) for n in tokens])
    attended = _attended(prefill, dict(zip(tokens, alone, strict=True)))
    square = attended * np.asarray(tokens, dtype=np.float64) ** 2 / 2
    rows, targets = [], []
    for i, single in enumerate(alone):
        rows.append((0, i))
        targets.append((single - square[i], single))
    for batch in BESIDE:
        beside = decode(batch)
        for i, n in enumerate(tokens):
            whole = mixed(n, batch)
            rows.append((1, i))
            targets.append((whole - beside - square[i], whole))
    base, added = _solve(rows, targets, len(tokens))
    told = np.array([(base if first == 0 else 0.0) + added[i] for first, i in rows])
    errors = np.abs([(t - left) / whole for t, (left, whole) in zip(told, targets, strict=True)])
    return Prompts(
        tokens=(0, *tokens),
        base_s=base,
        added_s=np.concatenate(([0.0], added)),
        attended_s=attended,
        median_error=float(np.median(errors)),
        largest_error=float(errors.max()),
    )


def _solve(
    rows: list[tuple[int, int]], targets: list[tuple[float, float]], count: int
) -> tuple[float, Floats]:
    matrix = np.zeros((len(rows), count + 1))
    values = np.zeros(len(rows))
    for r, ((first, i), (left, whole)) in enumerate(zip(rows, targets, strict=True)):
        matrix[r, 0] = (first == 0) / whole
        matrix[r, i + 1] = 1 / whole
        values[r] = left / whole
    found, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    added = np.maximum.accumulate(np.maximum(found[1:], 0.0))
    return float(max(found[0], 0.0)), np.asarray(added, dtype=np.float64)


def _attended(prefill: Callable[[int, int], float], alone: dict[int, float]) -> float:
    """Seconds of one token attending to one other: what a cached prefix adds to a chunk.

    Least squares of the relative error over chunks of at least 512 tokens.
    """
    top, bottom = 0.0, 0.0
    for n, single in alone.items():
        if n < 512:
            continue
        for prefix in PREFIXES:
            whole = prefill(n, prefix)
            weight = 1 / whole**2
            top += weight * (whole - single) * n * prefix
            bottom += weight * (n * prefix) ** 2
    return max(top / bottom, 0.0) if bottom else 0.0
