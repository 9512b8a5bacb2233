"""Predicted against measured: the table of every set, and docs/reference/accuracy.md.

    make accuracy
    PYTHONPATH=src:benchmarks python -m accuracy [--ground-truth FOLDER] [--only SET]
        [--source SOURCE] [--every N] [--json FILE] [--jobs N]

The page is written when every set and source was scored (or where --page names a file). Without
the measured files nothing is scored and nothing written.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from . import page, sets, sources
from .running import FITTED, HELD_OUT, run

ROOT: Final = Path(__file__).resolve().parents[2]
MEASURED: Final = ROOT.parent / "shared" / "data" / "ground_truth"
PAGE: Final = ROOT / "docs" / "reference" / "accuracy.md"
SOURCES: Final = ("fitted", "silicon", "roofline", HELD_OUT)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--ground-truth", type=Path, help="folder of the files")
    parser.add_argument("--only", action="append", choices=sorted(sets.loaders()), metavar="SET")
    parser.add_argument("--source", action="append", choices=SOURCES)
    parser.add_argument("--every", type=int, default=1, help="a quick look: every n-th row")
    parser.add_argument("--json", type=Path, help="every error of every row, to drill down")
    parser.add_argument("--page", type=Path, help="where the page goes")
    parser.add_argument("--jobs", type=int, default=-1, help="cores, as joblib has it")
    given = parser.parse_args(arguments)
    for path in (given.json, given.page):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"{path} cannot be written: name a file in a folder that is there")
    asked = given.ground_truth
    if asked is not None and not asked.is_dir():
        parser.error(f"{asked} is no folder: name the one that holds the measured files")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Load, predict, score, print, write."""
    given = parsed(arguments)
    root: Path = given.ground_truth or MEASURED
    if not root.is_dir():
        print(f"no measured files at {root}: nothing scored, no page written")
        return 0
    began = time.monotonic()
    loaded = sets.load(root, given.only)
    broken = sets.broken(loaded)
    for name, reason in broken.items():
        print(f"{name}: {reason}", file=sys.stderr)
    for each in loaded.values():
        each.rows = each.rows[:: max(1, given.every)]
    chosen, absent = [], {}
    for source in given.source or SOURCES:
        reason = None if source in (FITTED, HELD_OUT) else sources.absent(source)
        if reason is None:
            chosen.append(source)
        else:
            absent[source] = reason
    outcomes = run(loaded, chosen, jobs=given.jobs, progress=progress, root=root)
    report = page.Report(loaded, outcomes, absent)
    print(report.console())
    if given.json:
        given.json.write_text(report.json(), encoding="utf-8")
    everything = not given.only and not given.source and given.every == 1 and not broken
    target = given.page or (PAGE if everything and root == MEASURED else None)
    if target is not None:
        target.write_text(report.markdown(), encoding="utf-8")
        print(f"written: {target}")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if broken else 0


def progress(done: int, count: int) -> None:
    """A bar on stderr where that is a terminal, else a line for every tenth."""
    if sys.stderr.isatty():
        filled = 40 * done // count
        end = "\n" if done == count else ""
        bar = "#" * filled + "." * (40 - filled)
        print(f"\r[{bar}] {done}/{count}", end=end, file=sys.stderr, flush=True)
    elif done == count or done * 10 // count != (done - 1) * 10 // count:
        print(f"{done}/{count}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
