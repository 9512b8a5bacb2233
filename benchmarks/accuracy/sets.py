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
    """Rows of every set (or of those named); one whose files are not as published has none, and
    says why."""
    chosen = {name: read for name, read in loaders().items() if not only or name in only}
    return {name: _rows(read, root) for name, read in chosen.items()}


BROKEN: Final = "its files are not as published"
"""Begins the reason of a set that could not be read."""
_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What a loader raises where a file is cut, has other columns, or text where a number belongs."""


def _rows(read: Loader, root: Path) -> Loaded:
    loaded = Loaded()
    try:
        loaded = read(root)
        if not loaded.rows and not loaded.left_out:
            loaded.skip(f"{BROKEN} (they hold no row)", 0)
    except _ERRORS as error:
        what = str(error).splitlines()[0][:120] if str(error) else "no reason given"
        loaded.skip(f"{BROKEN} ({type(error).__name__}: {what})", 0)
    return loaded


def broken(loaded: dict[str, Loaded]) -> dict[str, str]:
    """Sets that could not be read, each with the reason."""
    reasons = {
        name: [r for r in one.left_out if r.startswith(BROKEN)] for name, one in loaded.items()
    }
    return {name: found[0] for name, found in reasons.items() if found}
