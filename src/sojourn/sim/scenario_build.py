"""From a scenario file to what the simulator runs: stream and fleet, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity.records import EngineModel, Fleet
from sojourn.errors import InputError
from sojourn.interval import Excuse
from sojourn.sim.scenario import Scenario
from sojourn.sim.scenario_chain import chain_of
from sojourn.sim.scenario_fleet import check_stations, fleet_of
from sojourn.sim.scenario_prefixes import Unit
from sojourn.sim.scenario_records import DEFAULT_POOL, PoolSpec, ScenarioFile
from sojourn.sim.scenario_replay import Recording, through
from sojourn.sim.scenario_requests import crowds
from sojourn.sim.scenario_stream import drawn_stream
from sojourn.trace.arrays import Ints, whole
from sojourn.workload.profile_records import StepKind
from sojourn.workload.stream import Stream


@dataclass(frozen=True)
class Built:
    """A scenario ready to run, and what should be said of it."""

    scenario: Scenario
    notes: tuple[str, ...]


def build(file: ScenarioFile, path: Path, seed: int, recording: Recording | None = None) -> Built:
    """Draw the requests of one replication and put its fleet together.

    Args:
        file: the scenario. path: of its file; names in it are relative to its folder.
        seed: of this replication. recording: what `workload.replay` names, read once for all.

    Raises:
        InputError: the parts do not fit: says which key, what was found and what to do.
    """
    try:
        return _built(file, path.parent, seed, recording)
    except InputError as error:
        if error.path is not None:
            raise
        raise InputError(
            error.problem, path=path, row=error.row, field=error.field, todo=error.todo
        ) from error


def _built(file: ScenarioFile, folder: Path, seed: int, recording: Recording | None) -> Built:
    check_stations(file)
    chain = chain_of(file)
    unit = _unit(file)
    base: Fleet | None = None
    if recording is not None:
        stream, tokens = through(file, chain, recording, seed), None
        base = _base(file, recording)
    else:
        stream, tokens = drawn_stream(file, chain, crowds(file.workload, seed), seed, unit=unit)
    fleet = fleet_of(file, folder, unit=tokens, mean_context=_mean_context(stream), base=base)
    _check_calls(file, stream, fleet)
    return Built(Scenario(stream, fleet, seed), (*chain.notes, *_unit_notes(unit, tokens)))


def _base(file: ScenarioFile, recording: Recording) -> Fleet | None:
    """The fleet fitted to the recording, where the file names no engine.

    Raises:
        InputError: it cannot be fitted.
    """
    if file.engine is not None:
        return None
    from sojourn.capacity import fleet as fleets  # noqa: PLC0415  (only where nothing is named)

    built = fleets.build(recording.tables, recording.config)
    if isinstance(built, Excuse):
        raise InputError(
            f"nothing is said of what serves the calls, and it cannot be fitted: {built}",
            field="engine",
            todo="Name `model` and `accelerator`",
        )
    return built


def _unit(file: ScenarioFile) -> Unit | None:
    """Tokens of a block hash: as pools with a prefix cache say, else their block size. None where
    nothing is shared, or no pool caches.

    Raises:
        InputError: pools do not agree.
    """
    shared = any(kind.prefix or kind.agent or kind.session for kind in file.workload.classes)
    caching = {
        name: pool
        for name, pool in file.all_pools.items()
        if pool.prefix_caching or pool.prefix_cache is not None
    }
    if not shared or not caching:
        return None
    said = {
        name: pool.prefix_cache.tokens_per_hash
        for name, pool in caching.items()
        if pool.prefix_cache is not None
    }
    if len(set(said.values())) > 1:
        raise InputError(
            f"pools disagree on what a block hash covers: {said}",
            field="pools",
            todo="Give all prefix_cache.tokens_per_hash the same value",
        )
    size = next(iter(said.values()), None) or int(
        np.lcm.reduce([pool.block_size for pool in caching.values()])
    )
    for name, pool in caching.items():
        _refuse_odd(name, pool, size)
    return Unit(size, exact=bool(said))


def _refuse_odd(name: str, pool: PoolSpec, size: int) -> None:
    if size % pool.block_size:
        at = "engine" if name == DEFAULT_POOL else f"pools.{name}"
        raise InputError(
            f"a block hash covers {size} tokens, no multiple of block_size {pool.block_size}",
            field=f"{at}.block_size",
            todo="Use a block size that divides it",
        )


def _unit_notes(unit: Unit | None, tokens: int | None) -> tuple[str, ...]:
    if unit is None or tokens is None or tokens == unit.tokens:
        return ()
    return (
        f"prefixes are told apart by {tokens} tokens instead of {unit.tokens}: so many calls share"
        " tokens that their blocks would not fit into memory one by one",
    )


def _mean_context(stream: Stream) -> float | None:
    """Mean final context of the calls, tokens."""
    calls = stream.steps.filter(pc.equal(stream.steps.column("kind"), StepKind.CALL.value))
    if calls.num_rows == 0:
        return None
    total = whole(calls.column("input_tokens")) + whole(calls.column("output_tokens"))
    return float(total.mean())


def _check_calls(file: ScenarioFile, stream: Stream, fleet: Fleet) -> None:
    """Every call fits into a replica alone.

    Raises:
        InputError: one does not; says blocks needed and blocks there.
    """
    steps = stream.steps
    is_call = pc.equal(steps.column("kind"), StepKind.CALL.value)
    pools = {DEFAULT_POOL: fleet.engine, **fleet.pools}
    for name, engine in pools.items():
        calls = steps.filter(pc.and_(is_call, pc.equal(steps.column("pool"), name)))
        if calls.num_rows == 0:
            continue
        prompt = whole(calls.column("input_tokens"))
        output = np.maximum(whole(calls.column("output_tokens")), 1)
        drafts = 0 if engine.speculative is None else len(engine.speculative.acceptance)
        owner = calls.column("request")
        _fits(file, stream, name, engine, (prompt, output, prompt + output - 1 + drafts, owner))
        if engine.prefill is not None:
            other = engine.prefill.pool
            _fits(file, stream, other, pools[other], (prompt, output * 0, prompt, owner))


def _fits(
    file: ScenarioFile,
    stream: Stream,
    name: str,
    engine: EngineModel,
    calls: tuple[Ints, Ints, Ints, pa.ChunkedArray],
) -> None:
    prompt, output, needed, owner = calls
    worst = int(np.argmax(needed))
    at = "engine" if name == DEFAULT_POOL else f"pools.{name}"
    spec = file.all_pools.get(name)
    longest = None if spec is None else spec.max_model_len
    bucket = stream.requests.column("bucket")[owner[worst].as_py()].as_py()
    what = (
        f"the largest call ({bucket}: {int(prompt[worst]):,} prompt and {int(output[worst]):,}"
        " output tokens)"
    )
    todo = "or cut the tokens of that class with `most:`"
    blocks = -(-int(needed[worst]) // engine.block_size)
    if blocks > engine.kv_blocks:
        raise InputError(
            f"{what} needs {blocks:,} KV blocks of {engine.block_size} tokens, a replica has"
            f" {engine.kv_blocks:,}",
            field=f"{at}.kv_blocks",
            todo=f"Give the replica more memory (tensor_parallel, kv_dtype, kv_blocks), {todo}",
        )
    if longest is not None and int(prompt[worst] + output[worst]) > longest:
        raise InputError(
            f"{what} is longer than max_model_len {longest:,}",
            field=f"{at}.max_model_len",
            todo=f"Raise it, {todo}",
        )
