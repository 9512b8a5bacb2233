"""Sizes and times of a fleet that an engine's whole numbers hold, and its tables have room for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from sojourn.capacity.policies import Autoscaler
from sojourn.capacity.records import EngineModel, Fleet, StationModel, StepModel
from sojourn.config import MAX_ATTEMPTS
from sojourn.errors import UsageError
from sojourn.sim.ticks import LONGEST_S

MOST_SEQS: Final = 65_536
"""A table of step times has a row for every batch up to this."""
MOST_BUDGET: Final = 4_194_304
"""And one for every number of prompt tokens up to this."""
MOST_BLOCKS: Final = 100_000_000
MOST_REPLICAS: Final = 1_000_000
MOST_COUNT: Final = 2**31 - 1
"""Counts beside times are 32-bit numbers."""
SHORTEST_LOOK_S: Final = 1e-3
"""Between two looks of a controller: each is an event, and a run may last days."""
MOST_WEIGHT: Final = 1e9
"""Thousandths of it, times a replica's load, are a 64-bit number."""
_DAYS: Final = f"{LONGEST_S:,.0f} s ({LONGEST_S / 86400:.0f} days)"


def check_sizes(fleet: Fleet, pools: dict[str, EngineModel]) -> None:
    """Of a fleet, whose pools are given by name.

    Raises:
        UsageError: says which setting is too large or too small, and what was expected.
    """
    for what, value, most in _counts(fleet, pools):
        if not value <= most:
            raise UsageError(f"{what} is {value:,}; the simulator takes at most {most:,}")
    for what, every in _looks(fleet, pools):
        if not every >= SHORTEST_LOOK_S:
            raise UsageError(
                f"{what} is {every:g} s; expected {SHORTEST_LOOK_S:g} s or more: each look of a"
                " controller is an event of the run"
            )
    for name, station in fleet.stations.items():
        _check_station(name, station)


def check_longest_step(
    name: str, pool: EngineModel, *, longest: int, calls: int, attempts: int
) -> None:
    """The longest step that a pool can be in for, with calls of up to `longest` tokens.

    Every decode may have the longest context, and all prompt tokens of the step attend to it.

    Raises:
        UsageError: it would outlast any run.
    """
    step = pool.step
    drafts = 0 if pool.speculative is None else len(pool.speculative.acceptance)
    running = min(pool.max_num_seqs, pool.kv_blocks, max(1, calls * attempts))
    budget = pool.max_num_batched_tokens
    seconds = (
        step.host_s
        + (0.0 if pool.speculative is None else pool.speculative.draft_s)
        + _most(step, step.base_s, running * (1 + drafts))
        + _most(step, step.slope_s_per_token, running * (1 + drafts)) * running * longest
        + max(step.prefill_base_s, default=0.0)
        + max(0.0, step.prefill_step_s(budget))
        + step.prefill_s_per_token_context * min(budget, running * longest) * longest
    )
    if not seconds <= LONGEST_S:
        raise UsageError(
            f"pool {name!r}: a full step with contexts of {longest:,} tokens would take"
            f" {seconds:g} s; expected at most {_DAYS}. Check the units of its step times: all"
            " are seconds"
        )


def _most(step: StepModel, values: tuple[float, ...], batch: int) -> float:
    """The largest value up to a batch, 0 at least."""
    inside = [v for b, v in zip(step.batches, values, strict=True) if b <= batch]
    at_end = step.model_copy(update={"base_s": values}).decode_step_s(batch, 0.0)
    return float(np.max([0.0, *inside, at_end]))


def _counts(
    fleet: Fleet, pools: dict[str, EngineModel]
) -> Iterator[tuple[str, float, int | float]]:
    """What is counted, how much of it there is, and how much there may be."""
    yield "retry.max_attempts", fleet.retry.max_attempts, MAX_ATTEMPTS
    yield "client.max_in_flight", fleet.client.max_in_flight or 0, 10**12
    yield "client.retry_budget_most", fleet.client.retry_budget_most, 1e12
    yield "client.retry_budget_per_success", fleet.client.retry_budget_per_success or 0, 1e12
    for place, rung in enumerate(() if fleet.ladder is None else fleet.ladder.rungs):
        yield f"ladder rung {place}: output_most", rung.output_most or 0, MOST_COUNT
        yield f"ladder rung {place}: max_attempts", rung.max_attempts or 0, MOST_COUNT
        yield f"ladder rung {place}: shed_priority_to", abs(rung.shed_priority_to or 0), 2**61
    for name, station in fleet.stations.items():
        yield f"station {name!r}: servers", station.servers or 0, MOST_COUNT
        yield f"station {name!r}: queue_limit", station.queue_limit or 0, MOST_COUNT
    for name, pool in pools.items():
        yield from ((f"pool {name!r}: {what}", n, most) for what, n, most in _pool_counts(pool))


def _pool_counts(pool: EngineModel) -> Iterator[tuple[str, float, int | float]]:
    yield "replicas", pool.replicas, MOST_REPLICAS
    yield "max_num_seqs", pool.max_num_seqs, MOST_SEQS
    yield "max_num_batched_tokens", pool.max_num_batched_tokens, MOST_BUDGET
    yield "kv_blocks", pool.kv_blocks, MOST_BLOCKS
    yield "block_size", pool.block_size, MOST_COUNT
    yield "scheduler.long_prompt_cap", pool.scheduler.long_prompt_cap or 0, 2**60
    yield "router.load_weight_tokens", pool.router.load_weight_tokens, MOST_WEIGHT
    yield "step.front_load (calls)", max((n for n, _ in pool.step.front_load), default=0), 2**60
    if pool.prefix_cache is not None:
        yield "prefix_cache.tokens_per_hash", pool.prefix_cache.tokens_per_hash, 2**60
    if pool.encoder is not None:
        yield "encoder.servers", pool.encoder.servers, 2**60
        yield "encoder.cache_images", pool.encoder.cache_images, 2**60
    if pool.autoscaler is not None:
        yield from _scaler_counts(pool.autoscaler)


def _scaler_counts(scaler: Autoscaler) -> Iterator[tuple[str, float, int | float]]:
    yield "autoscaler.most", scaler.most, MOST_REPLICAS
    yield "autoscaler.target", scaler.target, 10**9 if scaler.most <= 1000 else 10**6


def _looks(fleet: Fleet, pools: dict[str, EngineModel]) -> Iterator[tuple[str, float]]:
    """Every time between two looks of a controller."""
    if fleet.ladder is not None:
        yield "ladder.every_s", fleet.ladder.every_s
    for name, pool in pools.items():
        if pool.autoscaler is not None:
            yield f"pool {name!r}: autoscaler.every_s", pool.autoscaler.every_s


def _check_station(name: str, station: StationModel) -> None:
    back = station.burst / station.rate_per_s if station.rate_per_s else 0.0
    if station.burst > 1 and not back <= LONGEST_S:
        raise UsageError(
            f"station {name!r}: burst / rate_per_s, the time in which a burst comes back, is"
            f" {back:g} s; expected at most {_DAYS}"
        )
    slowest = max((factor for _, factor in station.drift), default=1.0)
    longest = max(station.service_samples_s, default=0.0)
    if not slowest * longest <= LONGEST_S:
        raise UsageError(
            f"station {name!r}: service_samples_s times the largest factor of its drift is"
            f" {slowest * longest:g} s; expected at most {_DAYS}"
        )
