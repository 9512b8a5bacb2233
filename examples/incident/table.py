"""Prints the README's table from the recordings and their controls. `python table.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent.parent / "src" / "sojourn" / "recordings"
COLUMNS = (
    "recording",
    "E2E P50",
    "P95",
    "P99",
    "requests",
    "failed",
    "attempts",
    "attempts per request at peak",
    "engine busy at peak",
    "queue P95 at peak",
    "probes' TPOT, ms",
    "others' CPU",
)


def folders() -> Iterator[tuple[str, Path]]:
    """Yield each recording's name and folder, a main one before its controls."""
    for scenario in ("incident", "saturated"):
        for variant in ("before", "after"):
            yield f"{scenario}/{variant}", RECORDINGS / scenario / variant
            for folder in sorted((HERE / "controls" / scenario).glob(f"{variant}-control-*")):
                yield f"{scenario}/{folder.name}", folder


def row(name: str, facts: dict[str, Any]) -> list[str]:
    """Return the cells of one recording."""
    e2e, counts, noise = facts["e2e_s"], facts["counts"], facts["noise"]
    probes = noise["probes"]
    tpots = [probe["tpot_ms"] for when in probes.values() for probe in when.values()]
    return [
        name,
        *(f"{e2e[percentile]:.2f}" for percentile in ("p50", "p95", "p99")),
        str(counts["requests"]),
        str(sum(counts["failed"].values())),
        str(counts["attempts"]),
        f"{facts['attempts_per_request_at_peak']:.2f}",
        f"{facts['engine_busy_at_peak']:.0%}",
        f"{facts['stage_s_at_peak']['engine queue']['p95']:.2f}",
        f"{min(tpots):.1f} to {max(tpots):.1f}",
        f"{noise['other_processes_cpu_share']:.0%}",
    ]


def main() -> None:
    """Print the table."""
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for name, folder in folders():
        facts = yaml.safe_load((folder / "recording.yaml").read_text(encoding="utf-8"))
        print(f"| {' | '.join(row(name, facts))} |")


if __name__ == "__main__":
    main()
