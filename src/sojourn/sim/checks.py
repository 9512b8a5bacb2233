"""What a scenario must satisfy before an engine runs it; whatever breaks it is said with its place.

A call that names a pool which the fleet lacks is allowed: it goes to `engine`. A call that no
replica can hold is refused when it comes; a pool that could hold none of its calls is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity.records import EngineModel, Fleet
from sojourn.errors import UsageError
from sojourn.sim.check_sizes import check_longest_step, check_sizes
from sojourn.sim.scenario import Scenario
from sojourn.sim.ticks import LONGEST_S
from sojourn.trace.arrays import Bools, Floats
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream

KINDS: Final = tuple(kind.value for kind in StepKind)
MOST_TOKENS: Final = 2**31 - 1
"""Token counts of a log are 32-bit numbers."""
MOST_PRIORITY: Final = 2**61
"""A ladder that sheds none sheds from a priority beyond it."""
ENGINE: Final = "default"
"""Name of the pool that is the fleet's `engine`."""
_COUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "image_tokens")
_DAYS: Final = f"{LONGEST_S:,.0f} s ({LONGEST_S / 86400:.0f} days)"


def check(scenario: Scenario) -> None:
    """What every engine may rely on.

    Raises:
        UsageError: says which step, request, pool or station breaks what, and what was expected.
    """
    _check_seed(scenario.seed)
    _check_arrivals(scenario.stream)
    _check_priorities(scenario.stream)
    _check_steps(scenario.stream)
    check_sizes(scenario.fleet, _pools(scenario.fleet))
    _check_fleet(scenario.fleet)
    _check_ladder(scenario)
    _check_long_calls(scenario)
    _check_room(scenario)


def _check_seed(seed: object) -> None:
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise UsageError(f"seed {seed!r}: expected a whole number of 64 bits")


def _check_priorities(stream: Stream) -> None:
    priority = _column(stream.requests, "priority", 0)
    odd = (priority > MOST_PRIORITY) | (priority < -MOST_PRIORITY)
    _refuse(odd, "priority", f"within {MOST_PRIORITY:,} of 0", "stream request")


def _check_arrivals(stream: Stream) -> None:
    arrivals = np.asarray(_column(stream.requests, "arrival_s", np.nan), dtype=np.float64)
    if not arrivals.size:
        return
    if not np.isfinite(arrivals).all():
        raise UsageError(f"stream request {_first(~np.isfinite(arrivals))}: arrival_s is no number")
    early = np.diff(arrivals) < 0
    if early.any():
        raise UsageError(
            f"stream request {_first(early) + 1} arrives before the one above it;"
            " sort requests by arrival_s"
        )
    span = float(arrivals[-1] - arrivals[0])
    if span > LONGEST_S:
        raise UsageError(
            f"the stream spans {span:,.0f} s from first to last arrival; a run takes at most"
            f" {_DAYS}: simulate a part of it, or check the unit of arrival_s"
        )


def _check_steps(stream: Stream) -> None:
    owner = _column(stream.steps, "request", -1)
    group = _column(stream.steps, "group", -1)
    _refuse((group < 0) | (group > MOST_TOKENS), "group", f"a number from 0 to {MOST_TOKENS:,}")
    same = np.diff(owner) == 0
    if (np.diff(owner) < 0).any() or (same & (np.diff(group) < 0)).any():
        raise UsageError("stream steps must be sorted by (request, group)")
    count = stream.requests.num_rows
    beyond = (owner < 0) | (owner >= count)
    if beyond.any() or (np.bincount(owner, minlength=count) == 0).any():
        raise UsageError(
            "stream steps do not fit the requests: every request needs a step, and every step"
            " the row of its request"
        )
    kinds = pc.is_in(stream.steps.column("kind"), value_set=pa.array(KINDS))
    _refuse(~kinds.to_numpy(), "kind", f"one of {', '.join(KINDS)}")
    service = _column(stream.steps, "service_s", 0.0)
    _refuse(~(np.isfinite(service) & (service >= 0)), "service_s", "seconds, 0 or more")
    _refuse(service > LONGEST_S, "service_s", f"at most {_DAYS}")
    for name in _COUNTS:
        tokens = _column(stream.steps, name, 0)
        _refuse(tokens < 0, name, "tokens, 0 or more")
        _refuse(tokens > MOST_TOKENS, name, f"tokens, at most {MOST_TOKENS:,}")
    if "block_hashes" in stream.steps.column_names:
        hashes = stream.steps.column("block_hashes").combine_chunks()
        if hashes.flatten().null_count:
            raise UsageError("stream steps: block_hashes must hold no null; leave the list shorter")


def _check_fleet(fleet: Fleet) -> None:
    if ENGINE in fleet.pools:
        raise UsageError(
            f"pool {ENGINE!r} is the fleet's engine; give the one under `pools` another name"
        )
    for name, pool in _pools(fleet).items():
        _check_pool(name, pool)
        _check_prefill(name, pool, fleet)
    for what, seconds in _durations(fleet):
        if not 0 <= seconds <= LONGEST_S:
            raise UsageError(f"{what} is {seconds:g} s; expected 0 to {_DAYS}")


def _pools(fleet: Fleet) -> dict[str, EngineModel]:
    return {ENGINE: fleet.engine, **fleet.pools}


def _check_pool(name: str, pool: EngineModel) -> None:
    cache, scaler = pool.prefix_cache, pool.autoscaler
    if cache is not None and cache.tokens_per_hash % pool.block_size:
        raise UsageError(
            f"pool {name!r}: tokens_per_hash {cache.tokens_per_hash} must be a multiple of"
            f" block_size {pool.block_size}"
        )
    each = 1 + _drafts(pool)
    if pool.max_num_batched_tokens < pool.max_num_seqs * each:
        tokens = f" of {each} tokens (1 and {each - 1} drafted)" if each > 1 else ""
        raise UsageError(
            f"pool {name!r}: max_num_batched_tokens {pool.max_num_batched_tokens} is too few for"
            f" max_num_seqs {pool.max_num_seqs} decodes{tokens}; at least"
            f" {pool.max_num_seqs * each} are needed"
        )
    if scaler is None:
        return
    if scaler.most < scaler.least:
        raise UsageError(
            f"pool {name!r}: its autoscaler's most ({scaler.most}) is below its least"
            f" ({scaler.least})"
        )
    if scaler.least > pool.replicas:
        raise UsageError(
            f"pool {name!r}: its autoscaler keeps at least {scaler.least} replicas, but it begins"
            f" with {pool.replicas}; raise replicas or lower least"
        )


def _check_prefill(name: str, pool: EngineModel, fleet: Fleet) -> None:
    if pool.prefill is None:
        return
    other = pool.prefill.pool
    pools = _pools(fleet)
    if other == name:
        raise UsageError(
            f"pool {name!r} names itself as its prefill pool; leave `prefill` out for one pool"
            " that does both"
        )
    if other not in pools:
        known = ", ".join(sorted(p for p in pools if p != name)) or "none"
        raise UsageError(f"pool {name!r}: no prefill pool {other!r}; there are: {known}")
    if pools[other].prefill is not None:
        raise UsageError(
            f"pool {name!r}: its prefill pool {other!r} has prompts computed elsewhere itself"
            " (a cycle or a chain); a prefill pool must compute them"
        )


def _durations(fleet: Fleet) -> Iterator[tuple[str, float]]:
    """Every time that something takes, and what it is. (A limit may be longer than any run: it is
    none then.)"""
    retry = fleet.retry
    yield (
        "retry's last backoff",
        (1 + retry.jitter) * _power(retry.backoff_s, retry.backoff_factor, retry.max_attempts),
    )
    for sample in fleet.client.think_samples_s:
        yield "client.think_samples_s", sample
    if fleet.ladder is not None:
        yield "ladder.every_s", fleet.ladder.every_s
    for name, station in fleet.stations.items():
        yield (
            f"station {name!r}: 1 / rate_per_s",
            1 / station.rate_per_s if station.rate_per_s else 0,
        )
        for sample in station.service_samples_s:
            yield f"station {name!r}: service_samples_s", sample
    for name, pool in _pools(fleet).items():
        yield from ((f"pool {name!r}: {what}", value) for what, value in _pool_durations(pool))


def _pool_durations(pool: EngineModel) -> Iterator[tuple[str, float]]:
    step = pool.step
    yield "front_s", step.front_s
    yield "prefill_s_per_token", step.prefill_s_per_token
    yield "prefill_s_per_token_context", step.prefill_s_per_token_context
    slowest = max((factor for _, factor in step.front_load), default=1.0)
    yield from (("front_samples_s", slowest * sample) for sample in step.front_samples_s)
    yield "a decode step at max_num_seqs", max(0.0, step.decode_step_s(pool.max_num_seqs, 0.0))
    if pool.prefill is not None:
        yield "prefill.transfer_base_s", pool.prefill.transfer_base_s
        yield "prefill.transfer_s_per_token", pool.prefill.transfer_s_per_token
    if pool.encoder is not None:
        yield "encoder.base_s", pool.encoder.base_s
        yield "encoder.s_per_token", pool.encoder.s_per_token
    if pool.autoscaler is not None:
        yield "autoscaler.every_s", pool.autoscaler.every_s
        yield "autoscaler.cold_start_s", pool.autoscaler.cold_start_s


def _power(wait: float, factor: float, attempts: int) -> float:
    """The longest backoff; infinite where it is beyond a float."""
    with np.errstate(over="ignore"):
        return float(wait * np.float64(factor) ** max(0, attempts - 1)) if wait else 0.0


def _check_ladder(scenario: Scenario) -> None:
    ladder = scenario.fleet.ladder
    if ladder is None:
        return
    known = set(scenario.fleet.stations) | set(_visited(scenario.stream))
    for place, rung in enumerate(ladder.rungs):
        unknown = sorted(set(rung.skip) - known)
        if unknown:
            raise UsageError(
                f"ladder rung {place}: no station {unknown[0]!r} to leave out; there are:"
                f" {', '.join(sorted(known)) or 'none'}"
            )


def _visited(stream: Stream) -> list[str]:
    visits = stream.steps.filter(pc.equal(stream.steps.column("kind"), StepKind.STATION.value))
    return [str(name) for name in pc.unique(pc.fill_null(visits.column("name"), "")).to_pylist()]


def _check_long_calls(scenario: Scenario) -> None:
    """What grows with a call's tokens stays within a run."""
    steps, retry = scenario.stream.steps, scenario.fleet.retry
    calls = steps.filter(pc.equal(steps.column("kind"), StepKind.CALL.value))
    if calls.num_rows == 0:
        return
    prompt, images = _column(calls, "input_tokens", 0), _column(calls, "image_tokens", 0)
    known = prompt + np.maximum(_column(calls, "output_tokens", 0), 1)
    _refuse(known > MOST_TOKENS, "input_tokens + output_tokens", f"at most {MOST_TOKENS:,}", "call")
    for name, pool in _pools(scenario.fleet).items():
        check_longest_step(
            name,
            pool,
            longest=int(known.max()),
            calls=calls.num_rows,
            attempts=retry.max_attempts,
        )
        for what, seconds in _moved(pool, int(prompt.max()), int(images.max())):
            if not seconds <= LONGEST_S:
                raise UsageError(
                    f"pool {name!r}: {what} takes {seconds:g} s; expected 0 to {_DAYS}"
                )


def _moved(pool: EngineModel, prompt: int, images: int) -> Iterator[tuple[str, float]]:
    """The longest transfer of a prompt and the longest encoding."""
    if pool.prefill is not None:
        moved = pool.prefill.transfer_base_s + pool.prefill.transfer_s_per_token * prompt
        yield f"prefill: to move a prompt of {prompt:,} tokens", moved
    if pool.encoder is not None:
        encoded = pool.encoder.base_s + pool.encoder.s_per_token * images
        yield f"encoder: an image of {images:,} tokens", encoded


def _check_room(scenario: Scenario) -> None:
    """Something of what comes to a pool must fit into a replica of it."""
    steps, pools = scenario.stream.steps, _pools(scenario.fleet)
    calls = steps.filter(pc.equal(steps.column("kind"), StepKind.CALL.value))
    prompt = np.maximum(_column(calls, "input_tokens", 0), 1)
    output = np.maximum(_column(calls, "output_tokens", 0), 1)
    asked = pc.fill_null(calls.column("pool"), ENGINE)
    found = pc.index_in(asked, value_set=pa.array(list(pools), pa.string()))
    place = np.asarray(pc.fill_null(found, 0).to_numpy())
    least: dict[str, int] = {}
    for number, (name, pool) in enumerate(pools.items()):
        mine = place == number
        if not mine.any():
            continue
        needed = int((prompt[mine] + output[mine]).min()) - 1 + _drafts(pool)
        least[name] = min(needed, least.get(name, needed))
        if pool.prefill is not None:
            other, alone = pool.prefill.pool, int(prompt[mine].min())
            least[other] = min(alone, least.get(other, alone))
    for name, tokens in least.items():
        block, had = pools[name].block_size, pools[name].kv_blocks
        needed = -(-tokens // block)
        if needed > had:
            raise UsageError(
                f"pool {name!r}: no call fits into a replica. The shortest needs {needed:,} KV"
                f" blocks ({tokens:,} tokens, {block} a block), kv_blocks is {had:,}"
            )


def _drafts(pool: EngineModel) -> int:
    return len(pool.speculative.acceptance) if pool.speculative is not None else 0


def _refuse(bad: Bools, name: str, expected: str, what: str = "stream step") -> None:
    if bad.any():
        raise UsageError(f"{what} {_first(bad)}: {name} must be {expected}")


def _first(mask: Bools) -> int:
    return int(np.flatnonzero(mask)[0])


def _column(table: pa.Table, name: str, null: float) -> npt.NDArray[np.int64] | Floats:
    return np.asarray(pc.fill_null(table.column(name), null).to_numpy())
