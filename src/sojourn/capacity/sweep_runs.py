"""Runs of a benchmark on one deployment: what was sent, and what its summary said."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from sojourn.capacity.flags import flag
from sojourn.capacity.policies import Scheduler
from sojourn.config import Config
from sojourn.trace.arrays import Floats
from sojourn.trace.tables import Tables

Ints = npt.NDArray[np.int64]


class Arrivals(StrEnum):
    """How a run's requests came."""

    CLOSED = "closed"
    """Clients that each send their next request when their last has ended."""
    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"
    """All at once."""
    STATIC = "static"
    """One batch that starts together, no other request: a batch latency run."""
    RECORDED = "recorded"


@dataclass(frozen=True)
class SweepRun:
    """One run of a benchmark on one deployment, and what its summary said.

    `inputs`, `outputs`, `cached`: tokens of each request in order of sending. `concurrency`:
    clients of a closed loop; in an open loop the most in flight. `measured`: figures by name, as
    `ttft_p50_s`, `tpot_mean_s`, `itl_mean_s`, `e2e_mean_s`, `output_tokens_per_s`,
    `requests_per_s`: seconds, and per second of the whole deployment. `skip`: first requests that
    do not count. `replicas`: equal engines behind the endpoint (data-parallel ranks count).
    `scheduler`: None: first come, first served.
    """

    arrivals: str
    inputs: Ints
    outputs: Ints
    measured: dict[str, float]
    cached: Ints | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None
    times_s: Floats | None = None
    skip: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16
    kv_blocks: int | None = None
    replicas: int = 1
    scheduler: Scheduler | None = None
    label: str = field(default="", compare=False)
    model: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.inputs)


FEWEST_REQUESTS: Final = 10
MOST_REQUESTS: Final = 20_000
LENGTHS_VARY: Final = 0.2
"""A summary tells mean lengths only. Lengths are taken as even over so much to both sides: of
equal lengths a simulated closed loop would go in waves for ever, which servers do not."""
STEADY: Final = 10.0
"""From this burstiness (shape of gamma gaps; 1 is Poisson) on, arrivals count as evenly spaced."""
METRICS: Final = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2e"}
STATISTICS: Final = {"mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}
RATES: Final = {
    "output_tokens_per_s": "output_tokens_per_s",
    "request_rate_per_s": "requests_per_s",
}


def runs_of(tables: Tables, config: Config) -> list[SweepRun]:
    """The benchmark runs of which `aggregates` holds a summary that can be replayed: lengths and
    arrivals told, and a latency. Others are left out."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in tables.aggregates.to_pylist():
        by_source.setdefault(row["source"], []).append(row)
    found = (_run(source, rows, tables, config) for source, rows in by_source.items())
    return [run for run in found if run is not None]


def _run(
    source: str, rows: list[dict[str, Any]], tables: Tables, config: Config
) -> SweepRun | None:
    told = {(row["metric"], row["statistic"]): float(row["value"]) for row in rows}
    labels = _labels(rows)
    count = int(told.get(("completed_requests", "count"), 0))
    lengths = [told.get((f"{side}_tokens", "sum"), 0.0) for side in ("input", "output")]
    measured = _figures(told)
    arrivals, rate, clients = _arrivals(labels)
    latency = any(name.endswith("_s") and "per_s" not in name for name in measured)
    if count < FEWEST_REQUESTS or min(lengths) <= 0 or not latency:
        return None
    requests = min(count, MOST_REQUESTS)
    inputs, outputs = (_lengths(total / count, requests, k) for k, total in enumerate(lengths))
    deployment = config.deployment
    return SweepRun(
        arrivals=arrivals,
        inputs=inputs,
        outputs=outputs,
        measured=measured,
        rate_per_s=rate,
        concurrency=clients,
        max_num_seqs=flag("max_num_seqs", tables, config)[0],
        max_num_batched_tokens=flag("max_num_batched_tokens", tables, config)[0],
        block_size=flag("block_size", tables, config)[0],
        kv_blocks=flag("kv_blocks", tables, config)[0] or None,
        replicas=deployment.replicas * deployment.data_parallel,
        label=source,
        model=str(labels.get("model_id") or ""),
    )


def _labels(rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        if row["labels"]:
            found = orjson.loads(row["labels"])
            if isinstance(found, dict):
                return found
    return {}


def _figures(told: dict[tuple[str, str], float]) -> dict[str, float]:
    found = {}
    for (metric, statistic), value in told.items():
        if not np.isfinite(value) or value <= 0:
            continue
        if metric in METRICS and statistic in STATISTICS:
            found[f"{METRICS[metric]}_{STATISTICS[statistic]}_s"] = value
        elif metric in RATES and statistic == "mean":
            found[RATES[metric]] = value
    return found


def _arrivals(labels: dict[str, Any]) -> tuple[Arrivals, float | None, int | None]:
    """Rule, rate and clients (or cap) by the labels of the benchmark."""
    rate, clients = _number(labels.get("request_rate")), _number(labels.get("max_concurrency"))
    many = None if clients is None else max(1, round(clients))
    if rate is None:
        return (Arrivals.BURST, None, None) if many is None else (Arrivals.CLOSED, None, many)
    steady = (_number(labels.get("burstiness")) or 1.0) >= STEADY
    return (Arrivals.CONSTANT if steady else Arrivals.POISSON), rate, many


def _number(value: Any) -> float | None:  # noqa: ANN401  a label is of any type
    """A positive, finite number; None for anything else ("inf" is no rate)."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found) and found > 0 else None


def _lengths(mean: float, count: int, seed: int) -> Ints:
    """Lengths around a mean, at least 1."""
    part = np.random.default_rng(seed).uniform(1 - LENGTHS_VARY, 1 + LENGTHS_VARY, count)
    return np.asarray(np.maximum(np.rint(mean * part / part.mean()), 1), dtype=np.int64)
