"""Step times by source: measured operator tables, roofline. (Fits are in `fitting`.)"""

from __future__ import annotations

import importlib
import inspect
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.interval import Excuse

from .predicting import Source
from .rows import Row

MODULES: Final = {"silicon": "sojourn.capacity.silicon", "roofline": "sojourn.capacity.roofline"}


def roofline(model: ModelSpec, gpu: Gpu, row: Row, context: float) -> StepModel | Excuse:
    """From bytes and FLOPs, with the shipped constants."""
    return _told("roofline", model, gpu, row, context)


def silicon(model: ModelSpec, gpu: Gpu, row: Row, context: float) -> StepModel | Excuse:
    """From measured operator tables (optional extra)."""
    return _told("silicon", model, gpu, row, context)


def _told(name: str, model: ModelSpec, gpu: Gpu, row: Row, context: float) -> StepModel | Excuse:
    module = importlib.import_module(MODULES[name])
    told: StepModel | Excuse = module.step_model(model, gpu, row.deployment, mean_context=context)
    return told


def absent(name: str) -> str | None:
    """Why a source cannot be asked here; None: it can."""
    try:
        module = importlib.import_module(MODULES[name])
    except ImportError as error:
        return f"not installed: {error}"
    if not callable(getattr(module, "step_model", None)):
        return "has no step_model"
    missing = getattr(module, "missing", None)
    if callable(missing) and not inspect.signature(missing).parameters:
        said = missing()
        return str(said) if said else None
    return None


def none(model: ModelSpec, gpu: Gpu, row: Row, context: float) -> StepModel | Excuse:
    """Of rows about the KV pool alone, which ask for no step time."""
    return Excuse(reason=f"{row.id} asks for a step time")


BY_NAME: Final[dict[str, Source]] = {"silicon": silicon, "roofline": roofline, "memory": none}
