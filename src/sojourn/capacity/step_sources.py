"""Where step times of hardware that has not been recorded come from: measured operator tables where
they are installed and cover it, else the roofline. A fit to telemetry wins over both (`fleet`)."""

from __future__ import annotations

from sojourn.capacity import roofline, silicon
from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepModel
from sojourn.config import Deployment
from sojourn.interval import Excuse


def step_model(
    model: ModelSpec, gpu: Gpu, deployment: Deployment, *, mean_context: float | None = None
) -> StepModel:
    """Step times of one data-parallel rank of a replica; `source` names the tables they are from.

    Every source has this signature; one that does not cover the hardware returns an `Excuse`,
    and the next is asked. `mean_context`: tokens of a decoding sequence, where known.
    """
    tables = silicon.step_model(model, gpu, deployment, mean_context=mean_context)
    if not isinstance(tables, Excuse):
        return tables
    told = roofline.step_model(model, gpu, deployment, mean_context=mean_context)
    return told.model_copy(update={"source": f"{told.source} ({_first(tables.reason)})"})


def _first(reason: str) -> str:
    """The excuse in a few words: it stands in a line of a report."""
    return reason if len(reason) <= 160 else f"{reason[:157]}..."
