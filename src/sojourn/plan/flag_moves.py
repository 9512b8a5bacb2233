"""How the load held moves with each flag, by simulation: the same days, one flag changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel, Fleet
from sojourn.capacity.step_moves import Hardware, moved_blocks, moved_engine
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.plan.capacity_records import FlagMove
from sojourn.plan.load_runs import LoadRuns
from sojourn.plan.load_search import NEARBY, Bracket, change, knees
from sojourn.plan.records import Holding
from sojourn.progress import Progress, silent
from sojourn.workload.stream import Stream

SHARES: Final = (0.80, 0.95)
"""Memory shares tried, beside today's."""
PAIRS: Final = 4
"""Seeds of a comparison: paired, so few are enough."""
NAME_HARDWARE: Final = Excuse(
    reason="The hardware is not named",
    collect=("set deployment.model and deployment.accelerator in sojourn.yaml",),
)


@dataclass(frozen=True)
class Variant:
    """One flag changed: the fleet and the stream then, or why that cannot be told."""

    flag: str
    now: str
    then: str
    fleet: Fleet | Excuse
    stream: Stream | None = None
    note: str = ""


def flag_moves(
    stream: Stream,
    fleet: Fleet,
    config: Config,
    *,
    hardware: Hardware | None,
    held: Holding | None = None,
    progress: Progress = silent,
) -> tuple[FlagMove, ...]:
    """Every flag's change of the load held at today's pattern; `held`: what is known of today's."""
    start = 1.0 if held is None else held.load_factor.mid
    edge = frozenset(() if held is None else held.on_edge)
    seeds = range(config.analysis.seed, config.analysis.seed + PAIRS)
    ask = partial(_knees, config=config, seeds=seeds, on_edge=edge)
    base = ask(stream, fleet, start=start)
    if base[0].open:
        return ()
    found = []
    chosen = list(variants(stream, fleet, hardware))
    for number, variant in enumerate(chosen):
        progress(f"{variant.flag} {variant.then}", number / len(chosen))
        found.append(_move(variant, stream, base, ask, config.analysis.confidence))
    return tuple(found)


def _move(
    variant: Variant,
    stream: Stream,
    base: list[Bracket],
    ask: Callable[..., list[Bracket]],
    confidence: float,
) -> FlagMove:
    told = {"flag": variant.flag, "now": variant.now, "then": variant.then, "note": variant.note}
    if isinstance(variant.fleet, Excuse):
        return FlagMove(change=variant.fleet, **told)
    changed = stream if variant.stream is None else variant.stream
    after = ask(changed, variant.fleet, start=base[0].low)
    if after[0].open:
        where = "any" if after[0].low > 1 else "no"
        return FlagMove(change=Excuse(reason=f"The SLO is then held at {where} load tried"), **told)
    return FlagMove(change=change(base, after, confidence), **told)


def _knees(
    stream: Stream,
    fleet: Fleet,
    *,
    config: Config,
    seeds: Sequence[int],
    on_edge: frozenset[str],
    start: float,
) -> list[Bracket]:
    runs = LoadRuns(stream, fleet, config, silent, seeds[0], on_edge)
    return knees(runs.held, seeds, start, runs.limits, step=NEARBY)


def variants(stream: Stream, fleet: Fleet, hardware: Hardware | None) -> Iterator[Variant]:
    """The changes that are tried, those that cannot be told as well."""
    engine = fleet.engine
    yield from _sizes(fleet)
    yield from _memory_share(fleet, hardware)
    yield from _kv_dtype(fleet, hardware)
    yield from _layout(fleet, hardware)
    yield from _prefix(stream, fleet)
    budget = engine.max_num_batched_tokens
    cap = engine.scheduler.long_prompt_cap
    chunk = max(1, budget // 2) if cap is None else cap // 2
    for most, text in ((chunk, f"{chunk:,}"), (None, "none")):
        if most != cap:
            scheduler = engine.scheduler.model_copy(update={"long_prompt_cap": most})
            now = "none" if cap is None else f"{cap:,}"
            yield Variant("chunk size cap", now, text, _with(fleet, scheduler=scheduler))


def _with(fleet: Fleet, **update: object) -> Fleet:
    return fleet.model_copy(update={"engine": fleet.engine.model_copy(update=update)})


def _sizes(fleet: Fleet) -> Iterator[Variant]:
    """Slots and token budget, halved and doubled; the budget holds a token a slot at least."""
    engine = fleet.engine
    slots, budget = engine.max_num_seqs, engine.max_num_batched_tokens
    for then in (max(1, slots // 2), slots * 2):
        if then != slots:
            update = {"max_num_seqs": then, "max_num_batched_tokens": max(budget, then)}
            yield Variant("max_num_seqs", f"{slots:,}", f"{then:,}", _with(fleet, **update))
    for then in (max(slots, budget // 2), budget * 2):
        if then != budget:
            changed = _with(fleet, max_num_batched_tokens=then)
            yield Variant("max_num_batched_tokens", f"{budget:,}", f"{then:,}", changed)


def _memory_share(fleet: Fleet, hardware: Hardware | None) -> Iterator[Variant]:
    flag = "gpu_memory_utilization"
    if hardware is None:
        yield Variant(flag, "?", "other shares", NAME_HARDWARE)
        return
    now = hardware.deployment.gpu_memory_utilization
    for then in SHARES:
        if abs(then - now) < 0.005:
            continue
        after = hardware.changed(gpu_memory_utilization=then)
        blocks = moved_blocks(fleet.engine, hardware, after)
        changed = blocks if isinstance(blocks, Excuse) else _with(fleet, kv_blocks=blocks)
        yield Variant(flag, f"{now:.2f}", f"{then:.2f}", changed, note=_pool(fleet.engine, blocks))


def _pool(engine: EngineModel, blocks: int | Excuse) -> str:
    return "" if isinstance(blocks, Excuse) else f"KV pool x {blocks / engine.kv_blocks:.2f}"


def _kv_dtype(fleet: Fleet, hardware: Hardware | None) -> Iterator[Variant]:
    """KV cache in 8 bits: half the bytes a token. Without hardware the pool doubles, as bytes
    say, and the steps are as now."""
    flag = "kv_dtype"
    engine = fleet.engine
    risk = "answers may change: measure quality"
    if hardware is None:
        doubled = _with(fleet, kv_blocks=2 * engine.kv_blocks)
        text = f"were today's 16 bits; steps as now, since the hardware is not named; {risk}"
        yield Variant(flag, "16 bits", "fp8", doubled, note=text)
        return
    now = hardware.deployment.kv_dtype
    if now.startswith("fp8"):
        return
    moved = moved_engine(engine, hardware, hardware.changed(kv_dtype="fp8"))
    changed = moved if isinstance(moved, Excuse) else fleet.model_copy(update={"engine": moved})
    yield Variant(flag, now, "fp8", changed, note=risk)


def _layout(fleet: Fleet, hardware: Hardware | None) -> Iterator[Variant]:
    """Tensor parallelism against replicas on as many accelerators, and twice as many."""
    flag = "tensor_parallel x replicas"
    if hardware is None:
        yield Variant(flag, "?", "other layouts", NAME_HARDWARE)
        return
    if hardware.deployment.pipeline_parallel * hardware.deployment.data_parallel > 1:
        excuse = Excuse(reason="Layouts with pipeline stages or data-parallel ranks are not varied")
        yield Variant(flag, "?", "other layouts", excuse)
        return
    degree, replicas = hardware.deployment.tensor_parallel, fleet.engine.replicas
    now = f"{degree} x {replicas}"
    tried = [(degree * 2, replicas // 2)] if replicas % 2 == 0 else []
    tried += [(degree // 2, replicas * 2)] if degree % 2 == 0 else []
    tried += [(degree, replicas * 2), (degree * 2, replicas)]
    for each, count in tried:
        moved: EngineModel | Excuse = fleet.engine
        if each != degree:
            after = hardware.changed(tensor_parallel=each)
            moved = moved_engine(fleet.engine, hardware, after)
        same = each * count == degree * replicas
        note = "as many GPUs" if same else f"{each * count / (degree * replicas):g} x the GPUs"
        changed = (
            moved
            if isinstance(moved, Excuse)
            else fleet.model_copy(update={"engine": moved.model_copy(update={"replicas": count})})
        )
        yield Variant(flag, now, f"{each} x {count}", changed, note=note)


def _prefix(stream: Stream, fleet: Fleet) -> Iterator[Variant]:
    """Prefix cache off: no prompt token is found. On cannot be told of a recording without it."""
    flag = "prefix cache"
    cached = stream.steps.column("cached_tokens").to_numpy()
    if fleet.engine.prefix_cache is None and not cached.any():
        excuse = Excuse(
            reason="No prompt token was found in cache, so what a cache would find is not known",
            collect=("cached_tokens of calls, or block hashes, with the prefix cache on",),
        )
        yield Variant(flag, "off or unused", "on", excuse)
        return
    place = stream.steps.column_names.index("cached_tokens")
    none = pa.array(np.zeros(len(cached), dtype=np.int64))
    bare = Stream(stream.requests, stream.steps.set_column(place, "cached_tokens", none))
    yield Variant(flag, "on", "off", _with(fleet, prefix_cache=None), stream=bare)
