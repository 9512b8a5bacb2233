"""Prints the recordings' figures and how far equal runs differ. `python table.py`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent.parent / "src" / "sojourn" / "recordings" / "engine"
MEASURES = ("ttft", "tpot", "e2e")
PERCENTILES = ("p50", "p99")
READ = ("index", "send_s", "first_chunk_s", "last_chunk_s", "end_s", "output_tokens")
COUNTED = (
    ("seen", "requests_per_s"),
    ("totals", "preemptions_total", "grown"),
    ("totals", "prefix_hit_tokens_total", "grown"),
)
STEP_CONTENTS = (
    "generation_requests",
    "generation_context",
    "context_tokens",
    "context_pairs",
    "context_requests",
)
COLUMNS = tuple(f"{m.upper()} {p.upper()}" for m in MEASURES for p in PERCENTILES)


@dataclass(frozen=True)
class Recording:
    """One run: what `recording.yaml` says, and the client's columns."""

    facts: dict[str, Any]
    requests: dict[str, np.ndarray]

    def value(self, *path: str) -> float:
        """Return a number of `recording.yaml`."""
        here: Any = self.facts
        for key in path:
            here = here[key]
        return float(here)


def read_all(roots: list[Path]) -> dict[str, Recording]:
    """Return the recordings by run, in the order in which they were made."""
    found = []
    for path in (path for root in roots for path in root.glob("*/recording.yaml")):
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
        table = pq.read_table(path.parent / "requests.parquet", columns=list(READ))
        requests = {name: table[name].to_numpy() for name in READ}
        found.append(Recording(facts, requests))
    found.sort(key=lambda recording: recording.value("started_epoch_s"))
    return {recording.facts["run"]: recording for recording in found}


def six_figures(requests: dict[str, np.ndarray], count: int | None = None) -> list[float]:
    """Return P50 and P99 of TTFT, TPOT and E2E, ms, of the first `count` requests."""
    cut = {name: column[:count] for name, column in requests.items()}
    several = cut["output_tokens"] > 1
    gaps = (cut["last_chunk_s"] - cut["first_chunk_s"])[several]
    columns = (
        cut["first_chunk_s"] - cut["send_s"],
        gaps / (cut["output_tokens"][several] - 1),
        cut["end_s"] - cut["send_s"],
    )
    return [float(v) * 1e3 for column in columns for v in np.percentile(column, (50, 99))]


def runs(found: dict[str, Recording]) -> list[list[str]]:
    """Return a row for each run."""
    return [
        [
            name,
            str(run.facts["seed"]),
            str(run.facts["counts"]["sent"]),
            f"{run.value('seen', 'requests_per_s'):.2f}",
            *(f"{value:.1f}" for value in six_figures(run.requests)),
            f"{run.value('totals', 'preemptions_total', 'grown'):.0f}",
            f"{run.value('totals', 'prefix_hit_tokens_total', 'grown'):.0f}",
            str(run.facts["seen"]["running_max"]),
            str(run.facts["seen"]["free_blocks_min"]),
            f"{run.value('noise', 'engine_core_busy'):.0%}",
            f"{run.value('noise', 'other_processes_cpu_share'):.1%}",
        ]
        for name, run in found.items()
    ]


def spreads(found: dict[str, Recording]) -> list[list[str]]:
    """Return how far each control is from the main run of its load, as a share of the main's.

    A control with the same seed that is shorter is compared with the same requests of the main.
    """
    rows = []
    for name, control in found.items():
        main = found.get(control.facts["load"])
        if main is None or main is control:
            continue
        same = control.facts["seed"] == main.facts["seed"]
        count = len(control.requests["index"]) if same else None
        whole = not same or count == len(main.requests["index"])
        pairs = zip(six_figures(main.requests, count), six_figures(control.requests), strict=True)
        rows.append(
            [
                f"{name} to {main.facts['run']}",
                "same" if same else "other",
                *(f"{after / before - 1:+.1%}" for before, after in pairs),
                *(_change(main, control, whole, *path) for path in COUNTED),
            ]
        )
    return rows


def drift(roots: list[Path]) -> list[list[str]]:
    """Return each run's step time over what a linear model fitted on `base` gives its steps.

    Crude on purpose: one model for all, so a run whose ratio is off from its repeat's was
    recorded at another speed of the machine.
    """
    paths = {path.parent.name: path for root in roots for path in root.glob("*/steps.parquet")}
    contents, elapsed = _steps(paths["base"])
    model, *_ = np.linalg.lstsq(contents / elapsed[:, None], np.ones(len(elapsed)), rcond=None)
    rows = []
    for name, path in paths.items():
        contents, elapsed = _steps(path)
        decodes = contents[:, 3] == 0
        shares = (np.ones_like(decodes), decodes, ~decodes)
        ratios = (elapsed[share].sum() / (contents[share] @ model).sum() for share in shares)
        rows.append([name, str(len(elapsed)), *(f"{ratio:.3f}" for ratio in ratios)])
    return sorted(rows)


def _steps(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """What was in each step that computed something, and how long it took, s."""
    table = pq.read_table(path)
    columns = [table[name].to_numpy().astype(float) for name in STEP_CONTENTS]
    contents = np.column_stack([np.ones(table.num_rows), *columns])
    some = (contents[:, 1] + contents[:, 3]) > 0
    return contents[some], table["elapsed_s"].to_numpy().astype(float)[some]


def _change(main: Recording, control: Recording, whole: bool, *path: str) -> str:
    """The control's value over the main's; a shorter control's counts compare with nothing."""
    before, after = main.value(*path), control.value(*path)
    if not whole:
        return ""
    return f"{after / before - 1:+.1%}" if before else f"{after - before:+.0f}"


def show(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[RECORDINGS, HERE / "controls"])
    roots = parser.parse_args().roots
    recordings = read_all(roots)
    busy = ("preempted", "hit tokens", "running max", "free blocks min", "core busy", "others' CPU")
    show(("run", "seed", "requests", "requests/s", *COLUMNS, *busy), runs(recordings))
    print()
    more = ("requests/s", "preempted", "hit tokens")
    show(("control", "seed", *COLUMNS, *more), spreads(recordings))
    print()
    show(("run", "steps", "step time", "decodes only", "with context"), drift(roots))


if __name__ == "__main__":
    main()
