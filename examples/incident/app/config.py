"""Settings of the application and of its load: one YAML file per scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class PoolConfig:
    """A back end with a fixed number of workers and a lognormal service time.

    `median_s` and `sigma` describe the time one job occupies a worker:
    exp(N(ln median_s, sigma)). Jobs of requests that the load plan lets arrive in
    [slow_from_s, slow_to_s) take `slow_factor` times as long: the back end is shared, and its
    other users have their peak then too.
    """

    workers: int
    median_s: float
    sigma: float
    slow_from_s: float = 0.0
    slow_to_s: float = 0.0
    slow_factor: float = 1.0

    def level(self, at_s: float) -> float:
        """Return how many times as long a job takes for a request planned at `at_s`."""
        return self.slow_factor if self.slow_from_s <= at_s < self.slow_to_s else 1.0


@dataclass(frozen=True)
class GatewayConfig:
    """Timeout and retry policy of the gateway."""

    attempt_timeout_s: float
    max_attempts: int
    backoff_base_s: float
    backoff_factor: float
    backoff_jitter: float


@dataclass(frozen=True)
class CallShape:
    """Token range of one model call: prompt words beyond the shared prefix, and output length."""

    input_low: int
    input_high: int
    output_low: int
    output_high: int


@dataclass(frozen=True)
class BucketConfig:
    """Share of the traffic and the shape of a bucket's model calls."""

    share: float
    calls_low: int
    calls_high: int
    shape: CallShape


@dataclass(frozen=True)
class LoadConfig:
    """The open-loop arrival plan: (seconds, rate at the start, rate at the end) per phase."""

    seed: int
    phases: tuple[tuple[float, float, float], ...]
    buckets: dict[str, BucketConfig]
    tenants: dict[str, float]
    session_share: float
    system_words: int

    @property
    def duration_s(self) -> float:
        """Length of the whole plan."""
        return sum(phase[0] for phase in self.phases)


@dataclass(frozen=True)
class Scenario:
    """Everything a recording depends on except how many engine replicas there are."""

    name: str
    title: str
    gateway: GatewayConfig
    pools: dict[str, PoolConfig]
    load: LoadConfig


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file; a missing or misspelt key raises with its name."""
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    load = raw["load"]
    return Scenario(
        name=raw["name"],
        title=raw["title"],
        gateway=GatewayConfig(**raw["gateway"]),
        pools={name: PoolConfig(**pool) for name, pool in raw["pools"].items()},
        load=LoadConfig(
            seed=load["seed"],
            phases=tuple((float(a), float(b), float(c)) for a, b, c in load["phases"]),
            buckets={name: _bucket(b) for name, b in load["buckets"].items()},
            tenants=dict(load["tenants"]),
            session_share=load["session_share"],
            system_words=load["system_words"],
        ),
    )


def _bucket(raw: dict[str, Any]) -> BucketConfig:
    low, high = raw["calls"]
    return BucketConfig(
        share=raw["share"],
        calls_low=low,
        calls_high=high,
        shape=CallShape(*raw["input"], *raw["output"]),
    )
