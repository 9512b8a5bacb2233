"""Robust non-negative least squares, for costs that cannot be negative."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from sojourn.trace.arrays import Floats

HUBER = 1.345
"""Huber's constant: 95% efficiency on normal noise (Huber 1981), in standard deviations."""
ROUNDS = 30
SIGMA_OF_MAD = 1.4826
TWICE = 2.0
LEAST_TOLD = 0.1
"""A row told less than this part of its duration is not understood yet: it must not dominate."""


def robust_nnls(
    rows: Floats, target: Floats, scale: Floats, *, envelope: npt.NDArray[np.bool_]
) -> Floats:
    """Coefficients >= 0 with `rows @ x ~ target`, by iteratively reweighted least squares.

    The error of a row is relative to what the model says of it (`scale` is the first guess and
    keeps its ratio to the target): dividing by the observed duration instead would favour the
    short ones and bias every cost low by the squared coefficient of variation. Weights after
    Huber. Rows of `envelope` may only be longer than the model says for reasons outside it (a
    wait): their positive residuals beyond the noise seen on the negative side weigh by Tukey's
    biweight, which falls to nothing.
    Source: quasi-likelihood with variance ~ mean squared (Wedderburn 1974); Huber 1981.
    Wrong when: more than half of the rows are disturbed.
    """
    stretch = scale / target
    weights = np.ones(len(target))
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        new = _solve(rows / scale[:, None], target / scale, np.sqrt(weights))
        settled = np.allclose(new, found, rtol=1e-6, atol=0.0)
        found = new
        if settled:
            break
        told = np.maximum(rows @ found, LEAST_TOLD * target)
        scale = told * stretch
        weights = _weights((target - rows @ found) / scale, envelope)
    return found


def _solve(rows: Floats, target: Floats, root: Floats) -> Floats:
    norms = np.sqrt((rows**2).mean(axis=0))
    norms[norms == 0] = 1.0
    system = np.column_stack([rows / norms, target]) * root[:, None]
    triangle = np.asarray(np.linalg.qr(system, mode="r"))
    found, _rest = nnls(triangle[:, :-1], triangle[:, -1])
    return np.asarray(found / norms, dtype=np.float64)


def _weights(residual: Floats, envelope: npt.NDArray[np.bool_]) -> Floats:
    weights = np.ones(len(residual))
    for rows, one_sided in ((~envelope, False), (envelope, True)):
        part = residual[rows]
        if not part.size:
            continue
        below = part[part < 0] if one_sided else part
        spread = SIGMA_OF_MAD * float(np.median(np.abs(below))) if below.size else 0.0
        limit = HUBER * max(spread, 1e-9)
        size = np.abs(part)
        weights[rows] = np.minimum(1.0, limit / np.maximum(size, limit))
        if one_sided:
            reach = np.clip(part / (4.685 / HUBER * limit), 0.0, 1.0)
            weights[rows] = np.where(part > 0, (1 - reach**2) ** 2, weights[rows]) + 1e-6
    return weights


def relative_nnls(rows: Floats, target: Floats) -> Floats:
    """Coefficients >= 0 with `rows @ x ~ target`, errors relative to what the model says.

    Unlike `robust_nnls` it keeps the mean of skewed noise: a target is cut only where it is more
    than `TWICE` its told value, or less than the inverse (a stall, a broken clock).
    Source: quasi-likelihood with variance ~ mean squared (Wedderburn 1974).
    Wrong when: a good part of the targets is stalls.
    """
    told = np.asarray(target, dtype=np.float64)
    cut, found = told, np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        new = _solve(rows / told[:, None], cut / told, np.ones(len(told)))
        settled = np.allclose(new, found, rtol=1e-6, atol=0.0)
        found = new
        if settled:
            break
        told = np.maximum(rows @ found, LEAST_TOLD * target)
        cut = np.clip(target, told / TWICE, told * TWICE)
    return found
