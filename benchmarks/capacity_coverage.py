"""How often the range of the load held covers the truth: `python benchmarks/capacity_coverage.py`.

One engine, one traffic (Poisson, every seventh prompt long), one SLO. The truth is the knee of
recordings of 30,000 requests; against it stand the ranges of recordings of 1,000.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plan.conftest import call, make_engine, make_stream

from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.plan.holding import holding
from sojourn.plan.load_search import Limits, knees
from sojourn.plan.sustained import RateRuns, sustained
from sojourn.workload.stream import Stream

RECORDINGS, REQUESTS, LONG = 30, 1_000, 30_000
SLO = {"default": {"percentile": 0.95, "ttft_s": 1.0, "tpot_s": 0.03}}


def recording(seed: int, count: int, rate: float = 5.0) -> Stream:
    """Requests of the traffic."""
    rng = np.random.default_rng(seed)
    heavy = rng.random(count) < 0.15
    prompt = np.where(heavy, rng.integers(1500, 4000, count), rng.integers(50, 600, count))
    output = rng.geometric(1 / 60, count)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    return make_stream(
        [
            (t, "short_chat", [call(int(p), int(o))])
            for t, p, o in zip(arrival, prompt, output, strict=True)
        ]
    )


def main() -> None:
    """Print the truth, and of the short recordings: coverage, spread, mean half-width."""
    config, fleet = Config.from_dict({"slo": SLO}), Fleet(engine=make_engine(max_num_seqs=16))
    longs = [holding(recording(10_000 + k, LONG), fleet, config, seeds=[0]) for k in range(4)]
    pattern = float(np.mean([found.rate_per_s.mid for found in longs]))
    runs = RateRuns(recording(10_000, LONG), fleet, config, requests=2 * LONG)
    for_ever = float(np.mean([b.low for b in knees(runs.held, [0, 1], 6.0, Limits(0.1, 100.0))]))
    found: dict[str, list[tuple[float, float, bool]]] = {"pattern": [], "for ever": []}
    for seed in range(RECORDINGS):
        stream = recording(seed, REQUESTS)
        held = holding(stream, fleet, config)
        steady = sustained(stream, fleet, config, start_per_s=held.rate_per_s.mid)
        for name, rate, truth in (
            ("pattern", held.rate_per_s, pattern),
            ("for ever", steady.rate_per_s, for_ever),
        ):
            half = rate.width / 2 / rate.mid
            found[name].append((np.log(rate.mid / truth), half, rate.contains(truth)))
    print(f"truth: {pattern:.3f} requests/s at the pattern, {for_ever:.3f} for ever")
    for name, rows in found.items():
        off, half, inside = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        print(
            f"{name}: {inside.sum():.0f} of {len(rows)} ranges of"
            f" {config.analysis.confidence:.0%} hold the truth; off by {off.mean():+.1%} on"
            f" average, spread {off.std():.1%}, mean half-width {half.mean():.1%}"
        )


if __name__ == "__main__":
    main()
