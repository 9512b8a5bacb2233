"""The roofline with constants that have not seen a row's model, weight dtype and card.

The shipped constants were fitted on some of these sets. For an honest score of deployments never
seen, groups (model x dtype x card) are dealt into folds; a row is predicted with constants fitted,
by `benchmarks/fit_roofline.py`, on the measured rows of all other folds.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import fit_roofline
from roofline_rows import Measured, load

from sojourn.capacity import roofline
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.interval import Excuse

from .rows import Row
from .scoring import group_name, group_of

FOLDS: Final = 4
Constants = Any
"""The roofline's record of constants; None: nothing was left to fit on."""


def fold_of(group: str) -> int:
    """The fold of a group, by its name alone."""
    return zlib.crc32(group.encode()) % FOLDS


def constants(root: Path, fold: int) -> Constants:
    """Constants fitted on every measured row whose group is in another fold."""
    rows, _ = load(root)
    others = [row for row in rows if fold_of(group_of_measured(row)) != fold]
    return fit_roofline.fit(others, fit_roofline.neutral()) if others else None


def group_of_measured(row: Measured) -> str:
    """The group of a row of the fit, by the names of the catalogue."""
    return group_name(row.model, row.deployment.weight_dtype, row.gpu)


def source(
    fitted: Sequence[Constants], model: ModelSpec, gpu: Gpu, row: Row, context: float
) -> StepModel | Excuse:
    """Step times with the constants of the row's fold."""
    mine = fitted[fold_of(group_of(row))]
    if mine is None:
        return Excuse(reason="no measured rows to fit the roofline on")
    return roofline.step_model(model, gpu, row.deployment, mean_context=context, constants=mine)
