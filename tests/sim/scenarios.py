"""Random scenarios, small, in which every rule of the rule book has something to do.

`random_scenario(seed)` depends on its seed alone. Sizes are drawn so that blocks run out, queues
refuse and limits pass; half of the scenarios live on a grid of quarters of a second, where many
things happen at one instant; in half of them calls crowd into engines that cannot hold them all.
`tests/sim/test_scenarios.py` counts what really happened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.sim.making import call, delay, station, stream, visit

from sojourn.capacity.policies import (
    Admission,
    AdmissionPolicy,
    Autoscaler,
    Client,
    Encoder,
    Ladder,
    LoadMetric,
    Order,
    PrefillPool,
    PrefixCache,
    Router,
    RouterPolicy,
    Rung,
    ScaleMetric,
    Scheduler,
    Speculative,
)
from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.config import Retry
from sojourn.interval import Provenance
from sojourn.sim.scenario import Scenario
from sojourn.workload.stream import Stream

STATIONS = ("search", "rerank", "sql", "mail", "nowhere")
"""The fleet does not know the last."""
DRAFTED = "drafted"
PREFILLED, PREFILL = "prefilled", "prefill"


class Luck:
    """A Generator with the few questions that are asked of it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one(self, options):
        return options[int(self.rng.integers(len(options)))]

    def some(self, options, probability: float):
        """A value, or nothing."""
        return self.one(options) if self.chance(probability) else None

    def whole(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def hash(self) -> int:
        return int(self.rng.integers(-(2**63), 2**63 - 1))


@dataclass
class Setting:
    """What the parts of a scenario agree on."""

    luck: Luck
    grid: bool
    crowded: bool
    block: int
    hash_tokens: int
    pools: tuple[str, ...]
    longest: int
    hashed: bool
    images: tuple[int, ...]
    shared: list[list[int]]

    def seconds(self, mean: float, *, zero: float = 0.1) -> float:
        """A time: on the grid, or anywhere; sometimes 0."""
        if self.luck.chance(zero):
            return 0.0
        if self.grid:
            return self.luck.whole(1, max(1, round(8 * mean))) / 4
        return float(self.luck.rng.exponential(mean))


def random_scenario(seed: int) -> Scenario:
    """A scenario of 1 to 40 requests."""
    luck = Luck(seed)
    block = luck.one((1, 2, 4, 16))
    setting = Setting(
        luck=luck,
        grid=luck.chance(0.5),
        crowded=luck.chance(0.5),
        block=block,
        hash_tokens=block * luck.one((1, 2)),
        pools=_pool_names(luck),
        longest=luck.one((8, 30, 90)),
        hashed=luck.chance(0.6),
        images=(0, *(luck.hash() for _ in range(luck.whole(1, 3)))),
        shared=[[luck.hash() for _ in range(luck.one((2, 8, 40)))] for _ in range(2)],
    )
    made = _stream(setting)
    return Scenario(made, _fleet(setting, made), seed=luck.whole(0, 9))


def _pool_names(luck: Luck) -> tuple[str, ...]:
    names = ["default"]
    if luck.chance(0.25):
        names.append(DRAFTED)
    if luck.chance(0.35):
        names += [PREFILLED, PREFILL]
    return tuple(names)


# The stream


def _stream(setting: Setting) -> Stream:
    luck = setting.luck
    count = luck.one((1, 3, luck.whole(4, 15), luck.whole(10, 40)))
    gap = luck.one((0.0, 0.05) if setting.crowded else (0.0, 0.2, 0.6))
    gaps = [setting.seconds(gap, zero=0.25) if gap else 0.0 for _ in range(count)]
    arrivals = np.cumsum(gaps) + luck.one((0.0, 0.5, 1000.25))
    weights = luck.one(((0.9, 0.05),) if setting.crowded else ((0.8, 0.1), (0.45, 0.4), (0.1, 0.8)))
    programs = [_program(setting, weights) for _ in range(count)]
    for name in ("block_hashes", "image_id"):
        if luck.chance(0.1):  # a stream may lack either
            for step in (step for program in programs for step in program):
                step.pop(name, None)
    return stream(
        arrivals,
        programs,
        sessions=[luck.some(("a", "b", "c", "d"), 0.7) for _ in range(count)],
        priorities=[luck.whole(-2, 1) if luck.chance(0.8) else 0 for _ in range(count)],
    )


def _program(setting: Setting, weights: tuple[float, float]) -> list[dict]:
    """Groups of one to three steps; the calls of a request are the turns of a conversation."""
    luck = setting.luck
    own = [luck.hash() for _ in range(200)]
    grown, steps = 0, []
    for group in range(luck.one((1, 1, 2, 4))):
        for _ in range(luck.one((1, 1, 2, 3))):
            kind = luck.rng.random()
            if kind < weights[0]:
                made = _call(setting, own, grown, group)
                grown = luck.one((0, made["input_tokens"] + made["output_tokens"]))
            elif kind < sum(weights):
                made = visit(luck.one(STATIONS), setting.seconds(0.3), group=group)
            else:
                made = delay(setting.seconds(0.2), group=group)
            steps.append(made)
    return steps


def _call(setting: Setting, own: list[int], grown: int, group: int) -> dict:
    luck = setting.luck
    prompt = min(grown, 2 * setting.longest) + luck.whole(1, setting.longest)
    output = luck.one((0, 1, 2, luck.whole(1, setting.longest), luck.whole(1, setting.longest)))
    if setting.crowded:
        output = luck.whole(1, 2 * setting.longest)
    made = call(prompt, output, cached=luck.whole(0, prompt + 3), group=group)
    made["pool"] = luck.one(setting.pools)
    if luck.chance(0.25):
        made["image_tokens"] = luck.whole(1, 20)
        made["image_id"] = luck.one(setting.images)
    if setting.hashed and luck.chance(0.9):
        common = luck.one(setting.shared)[: luck.one((0, 1, 3, 40))]
        told = luck.one((prompt, prompt + output, prompt // 2)) // setting.hash_tokens
        made["block_hashes"] = [*common, *own[len(common) :]][:told]
    return made


# The fleet


def _fleet(setting: Setting, made: Stream) -> Fleet:
    luck = setting.luck
    pools = {name: _engine(setting, name, made) for name in setting.pools}
    return Fleet(
        engine=pools.pop("default"),
        pools=pools,
        stations=_stations(setting),
        retry=_retry(setting),
        client=_client(setting),
        admission=_admission(luck) if luck.chance(0.35) else None,
        ladder=_ladder(setting) if luck.chance(0.35) else None,
    )


def _engine(setting: Setting, name: str, made: Stream) -> EngineModel:
    luck = setting.luck
    accept = tuple(luck.one((0.0, 0.3, 0.8, 1.0)) for _ in range(luck.whole(1, 3)))
    drafts = accept if name == DRAFTED or luck.chance(0.1) else ()
    seqs = luck.one((3, 5, 8) if setting.crowded else (1, 2, 4, 8))
    budget = seqs * (1 + len(drafts)) + luck.one((0, 3, 20, 200))
    replicas = luck.one((1, 1, 1, 2) if setting.crowded else (1, 1, 2, 3))
    return EngineModel(
        step=_step(setting),
        replicas=replicas,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        block_size=setting.block,
        kv_blocks=_kv_blocks(setting, made, name, len(drafts)),
        scheduler=Scheduler(
            order=luck.one(tuple(Order)),
            long_prompt_cap=luck.some((1, 4, 15), 0.5 if setting.crowded else 0.3),
            admit_full_input=luck.chance(0.3 if setting.crowded else 0.5),
            watermark=luck.one((0.0, 0.0, 0.0, 0.05, 0.3)),
        ),
        prefix_cache=PrefixCache(tokens_per_hash=setting.hash_tokens)
        if setting.hashed and luck.chance(0.8)
        else None,
        speculative=Speculative(acceptance=drafts, draft_s=0.01) if drafts else None,
        router=Router(
            policy=luck.one(tuple(RouterPolicy)), load_weight_tokens=luck.one((0.0, 2.5, 256.0))
        ),
        prefill=_prefill_pool(setting) if name == PREFILLED else None,
        encoder=_encoder(setting) if luck.chance(0.4) else None,
        autoscaler=_autoscaler(luck, replicas) if luck.chance(0.3) else None,
        abort_on_cancel=luck.chance(0.6),
    )


def _step(setting: Setting) -> StepModel:
    """On the grid every step takes a quarter; beside it times depend on all that they may."""
    luck = setting.luck
    front = luck.one(((), (), (0.0, 0.25), (0.0, 0.01, 0.3)))
    if setting.grid:
        tables = {"base_s": (0.25, 0.25), "slope_s_per_token": (0.0, 0.0)}
        rates = {"prefill_s_per_token": 0.0}
    else:
        base = luck.rng.uniform(0.005, 0.06)
        tables = {
            "base_s": (base, base + luck.rng.uniform(0, 1)),
            "slope_s_per_token": (0.0, luck.one((0.0, 1e-3))),
        }
        rates = {
            "prefill_s_per_token": luck.rng.uniform(0, 1e-3),
            "prefill_s_per_token_context": luck.one((0.0, 1e-5)),
            "host_s": luck.one((0.0, 0.002)),
        }
        if luck.chance(0.3):
            rates |= {"prefill_tokens": (0, 4, 32), "prefill_base_s": (0.0, 0.004, 0.006)}
    return StepModel(
        batches=(0, 64), **tables, **rates, front_s=luck.one((0.0, 0.25)), front_samples_s=front,
        front_load=luck.one(((), ((2, 1.5), (4, 0.0), (9, 2.7)))),
        provenance=Provenance.ASSUMED, source="test",
    )  # fmt: skip


def _kv_blocks(setting: Setting, made: Stream, name: str, drafts: int) -> int:
    """At least what the shortest call needs; most often a little more than the longest."""
    steps = made.steps.to_pylist()
    mine = {PREFILL: (PREFILLED, PREFILL)}.get(name, (name,))
    tokens = [
        max(1, s["input_tokens"]) + max(1, s["output_tokens"]) - 1 + drafts
        for s in steps
        if s["kind"] == "call" and s["pool"] in mine
    ] or [setting.longest]
    room = int(setting.luck.one((1.0, 1.0, 1.5, 2.5 if setting.crowded else 6.0)) * max(tokens))
    if setting.luck.chance(0.12):
        room = int(np.median(tokens))  # some calls fit nowhere
    return -(-max(room, min(tokens)) // setting.block)


def _prefill_pool(setting: Setting) -> PrefillPool:
    luck = setting.luck
    base = setting.seconds(0.2, zero=0.3)
    rate = 0.0 if setting.grid else luck.one((0.0, 1e-3))
    return PrefillPool(pool=PREFILL, transfer_base_s=base, transfer_s_per_token=rate)


def _encoder(setting: Setting) -> Encoder:
    luck = setting.luck
    return Encoder(
        servers=luck.whole(1, 2), base_s=setting.seconds(0.2, zero=0.2),
        s_per_token=0.0 if setting.grid else 0.003, cache_images=luck.one((0, 1, 2)),
    )  # fmt: skip


def _autoscaler(luck: Luck, replicas: int) -> Autoscaler:
    metric = luck.one(tuple(ScaleMetric))
    return Autoscaler(
        metric=metric,
        target=luck.one((0.2, 0.6)) if metric == ScaleMetric.KV_USAGE else luck.one((0.5, 1.5, 4)),
        every_s=luck.one((0.25, 0.5, 1.3)),
        cold_start_s=luck.one((0.0, 0.25, 0.9)),
        least=luck.whole(1, replicas),
        most=replicas + luck.whole(0, 3),
        scale_down_after_s=luck.one((0.0, 0.5, 1.0)),
        tolerance=luck.one((0.0, 0.1, 0.5)),
    )


def _stations(setting: Setting):
    luck = setting.luck
    pool = luck.some(("tools",), 0.4)
    found = {}
    for name in STATIONS[:-1]:
        samples = tuple(setting.seconds(0.4) for _ in range(luck.whole(1, 9)))
        model = station(
            name, luck.one((None, 1, 1, 2)), samples=samples, pool=luck.some((pool,), 0.7),
            timeout_s=luck.some((0.25, 0.5, 0.9), 0.4), stops_on_cancel=luck.chance(0.5),
            optional=luck.chance(0.4), queue_limit=luck.some((0, 1, 3), 0.3),
            rate_per_s=luck.some((1.0, 4.0, 9.7), 0.3), burst=luck.whole(1, 3),
            drift=luck.one(((), ((2.0, 1.5),), ((-5.0, 0.5), (1.0, 1.7), (1002.0, 3.1)))),
        )  # fmt: skip
        found[name] = model
    return {
        name: model if luck.chance(0.9) else model.model_copy(update={"service_samples_s": ()})
        for name, model in found.items()
    }


def _retry(setting: Setting) -> Retry:
    luck = setting.luck
    return Retry(
        attempt_timeout_s=luck.some((0.25, 0.75, 2.0, 5.0, 2.37), 0.25 if setting.crowded else 0.6),
        max_attempts=luck.one((1, 2, 3, 5)),
        backoff_s=luck.one((0.0, 0.0, 0.25, 0.3)),
        backoff_factor=luck.one((1.0, 2.0)),
        retry_on_timeout=luck.chance(0.7),
        degrade_on_timeout=luck.chance(0.2),
        jitter=luck.one((0.0, 0.5, 1.0)),
    )


def _client(setting: Setting) -> Client:
    luck = setting.luck
    return Client(
        closed_loop=luck.some((1, 3, 50), 0.25),
        think_samples_s=luck.one(((), (0.0, 0.25), (0.1, 0.2, 0.7))),
        max_in_flight=luck.some((1, 2, 5), 0.1 if setting.crowded else 0.3),
        retry_on_error=luck.chance(0.6),
        retry_budget_per_success=luck.some((0.0, 0.3, 1.0), 0.4),
        retry_budget_most=luck.one((0.0, 1.0, 2.5)),
    )


def _admission(luck: Luck) -> Admission:
    metric = luck.one(tuple(LoadMetric))
    low = luck.one((0.0, 1.0, 2.0))
    return Admission(
        policy=luck.one(tuple(AdmissionPolicy)), metric=metric, low=low,
        high=low + luck.one((1.0, 4.0, 9.0)), wait_s=luck.one((0.0, 0.2, 1.0)),
    )  # fmt: skip


def _ladder(setting: Setting) -> Ladder:
    luck = setting.luck
    rungs, above = [], luck.one((0.5, 1.0, 3.0))
    for _ in range(luck.whole(1, 3)):
        rungs.append(
            Rung(
                above=above, below=above * luck.one((0.3, 0.8, 1.0)),
                skip=tuple(s for s in STATIONS[:-1] if luck.chance(0.4)),
                output_most=luck.some((1, 3, 10), 0.5), max_attempts=luck.some((1, 2), 0.4),
                shed_priority_to=luck.some((-2, -1, 0), 0.3),
            )
        )  # fmt: skip
        above += luck.one((0.0, 1.0, 2.0))
    metric = luck.one(tuple(LoadMetric))
    return Ladder(metric=metric, every_s=luck.one((0.25, 0.4, 1.0)), rungs=tuple(rungs))
