"""Predicted against recorded: what doubling the engine does to the two packaged incidents.

For each scenario the fleet is fitted on `before` alone, its requests are replayed on two
replicas, and the result is compared with the recorded `after`. Repeated recordings of both
sides (controls) give the noise floor: their largest relative distance to the packaged ones.

    python benchmarks/recorded_pairs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sojourn import loop
from sojourn.cli.options import CONFIG_NAME, load_config
from sojourn.interval import Excuse
from sojourn.plan import slo
from sojourn.plan.records import Outcome

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "src" / "sojourn" / "recordings"
CONTROLS = ROOT / "examples" / "incident" / "controls"
PERCENTILES = ("p50", "p95", "p99")
SEEDS = range(5)


@dataclass(frozen=True)
class Pair:
    """One percentile of one scenario, seconds: measured and predicted, and the noise floor."""

    scenario: str
    what: str
    percentile: str
    recorded_s: float
    predicted_s: float
    floor: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.recorded_s - 1


def measured(folder: Path) -> Outcome:
    """Outcome of a recording."""
    config = load_config(folder / CONFIG_NAME, [], None)
    return slo.outcome(loop.read(folder, config=config), config)


def floor(scenario: str, side: str, percentile: str) -> float:
    """Largest relative distance of a control recording to the packaged one; NaN without any."""
    own = measured(RECORDINGS / scenario / side).e2e_s["all"][percentile].mid
    controls = sorted((CONTROLS / scenario).glob(f"{side}-control-*"))
    others = [measured(folder).e2e_s["all"][percentile].mid for folder in controls]
    return max((abs(other / own - 1) for other in others), default=float("nan"))


def pairs(scenario: str) -> Iterator[Pair]:
    """The baseline and the doubled engine against the recordings, over `SEEDS`."""
    before = RECORDINGS / scenario / "before"
    config = load_config(before / CONFIG_NAME, [], None)
    seen = loop.look(loop.read(before, config=config), config)
    fleet = loop.fleet(seen)
    if isinstance(fleet, Excuse):
        raise SystemExit(str(fleet))
    for side, replicas, what in (("before", 1, "as recorded"), ("after", 2, "engine doubled")):
        outcomes = []
        for seed in SEEDS:
            drawn = loop.reseeded(seen, seed)
            run, used = loop.simulated(drawn, fleet, replicas=replicas)
            outcomes.append(slo.outcome(run.tables, config, used))
        real = measured(RECORDINGS / scenario / side)
        for percentile in PERCENTILES:
            predicted = float(np.mean([o.e2e_s["all"][percentile].mid for o in outcomes]))
            recorded = real.e2e_s["all"][percentile].mid
            yield Pair(
                scenario, what, percentile, recorded, predicted, floor(scenario, side, percentile)
            )


def main() -> None:
    """Print the table."""
    print("| scenario | what | at | recorded s | predicted s | error | control spread |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for scenario in ("incident", "saturated"):
        for pair in pairs(scenario):
            print(
                f"| {pair.scenario} | {pair.what} | {pair.percentile.upper()} |"
                f" {pair.recorded_s:.2f} | {pair.predicted_s:.2f} | {pair.error:+.0%} |"
                f" {pair.floor:.0%} |"
            )


if __name__ == "__main__":
    main()
