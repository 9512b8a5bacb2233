"""`Progress`: how long work tells whoever waits for it how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, float], None]
"""Called with what is being done and how far it is, 0 to 1."""


def silent(_text: str, _fraction: float) -> None:
    """The progress of those who pass none."""
