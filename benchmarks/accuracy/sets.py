"""Every data set by name, and its loader."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from .rows import Loaded, Loader
from .sets_blis import blis
from .sets_gpustack import gpustack
from .sets_mlperf import mlperf
from .sets_open import azure, exp_4, iog, kubecon, rtx_pro_6000

OPEN: Final[dict[str, Loader]] = {
    "lmbench": exp_4,
    "rtx": rtx_pro_6000,
    "mlperf": mlperf,
    "iog": iog,
    "kubecon": kubecon,
    "blis": blis,
    "azure": azure,
    "gpustack": gpustack,
}
CLOSED: Final = "accuracy.sets_closed"
"""Module of the closed-loop sets: it has `LOADERS`, name to loader."""


def loaders() -> dict[str, Loader]:
    """All loaders, by the name that `--only` takes."""
    try:
        closed: dict[str, Loader] = importlib.import_module(CLOSED).LOADERS
    except ModuleNotFoundError as error:
        if error.name != CLOSED:
            raise
        closed = {}
    return {**OPEN, **closed}


def load(root: Path, only: list[str] | None = None) -> dict[str, Loaded]:
    """Rows of every set (or of those named)."""
    return {name: read(root) for name, read in loaders().items() if not only or name in only}
