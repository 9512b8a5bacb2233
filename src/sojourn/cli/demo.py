"""`sojourn demo`: once round the loop on the packaged recordings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sojourn.cli.options import CONFIG_NAME, load_config
from sojourn.errors import SojournError

if TYPE_CHECKING:
    from sojourn.report.compose import Findings
    from sojourn.report.document import Document

SCENARIOS: Final = ("incident", "saturated")


def run(seed: int | None, tell: Callable[[str, float], None]) -> Document:
    """Both scenarios, each once round the loop; the document exits 0.

    Raises:
        SojournError: the recordings are not in the package.
    """
    from sojourn.report import compose

    with as_file(files("sojourn") / "recordings") as root:
        missing = [
            name for name in SCENARIOS if not (root / name / "before" / CONFIG_NAME).is_file()
        ]
        if missing:
            raise SojournError(f"the packaged recordings lack {', '.join(missing)}. Reinstall")
        found = [
            _scenario(root / name, seed, _part(tell, order, name))
            for order, name in enumerate(SCENARIOS)
        ]
    document = compose.report(
        found, "sojourn demo: two recorded incidents that need opposite repairs"
    )
    return document.model_copy(update={"exit_code": 0})


def _part(
    tell: Callable[[str, float], None], order: int, name: str
) -> Callable[[str, float], None]:
    return lambda text, done: tell(f"{name}: {text}", (order + done) / len(SCENARIOS))


def _scenario(folder: Path, seed: int | None, tell: Callable[[str, float], None]) -> Findings:
    from sojourn import loop

    sides = {}
    for side in ("before", "after"):
        config = load_config(folder / side / CONFIG_NAME, [], seed)
        sides[side] = (loop.read(folder / side, config=config), config)
    before, config = sides["before"]
    return loop.go_round(folder.name, before, config, after=sides["after"], progress=tell)
