"""Step estimates per second from a fitted table, in the kernel, on one core.

    python benchmarks/step_speed.py [--estimates 10000000] [--repeat 5] [--json]

An estimate is the duration of one engine step: so many decodes, the sum of their contexts, so many
prompt tokens and the context that each of them attends to. The kernel's own function answers
(`sojourn.sim.kernel.steps.step_ticks`, the one a simulation calls) for random mixed steps, one
after the other; every answer is compared with the readable engine's formula on the same tables,
and with `StepModel.step_s`. Baselines: `StepModel.step_s` in Python, and aiconfigurator-core
(measured operator tables behind a compiled engine) where it is installed. Then whole runs: the
steps that the simulator has gone through per second, with a queue, KV blocks and a log.
"""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sim_measure as measure
import sim_workloads as workloads
from numba import njit
from sim_measure import Figure, at_least, say

from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.interval import Provenance
from sojourn.sim.kernel.arrays import pools
from sojourn.sim.kernel.compiled import Array
from sojourn.sim.kernel.packing import GROWING, Run, pack
from sojourn.sim.kernel.run import DONE, ROOM, begin, go
from sojourn.sim.kernel.steps import step_ticks
from sojourn.sim.lowered import PoolPlan
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.ticks import PER_S

Ints = npt.NDArray[np.int64]
BAR = 10_000_000
SLOTS, BUDGET = 512, 8192
FEW = 20_000
"""Estimates of the slow ones."""
TICK_ERROR = 1e-3
"""Largest relative difference to `StepModel.step_s`: slopes are rounded to whole ticks."""
EVENTS = 1 << 20
RUN_REQUESTS = 100_000


@dataclass(frozen=True)
class Steps:
    """Mixed steps: decodes, sum of their contexts, prompt tokens, and token x context of those."""

    decodes: Ints
    contexts: Ints
    tokens: Ints
    attended: Ints

    @classmethod
    def drawn(cls, count: int) -> Steps:
        """1 to 512 decodes of 1 to 8,192 tokens each; in a third of the steps a piece of a prompt,
        as far as the token budget goes."""
        rng = np.random.default_rng(0)
        decodes = rng.integers(1, SLOTS + 1, count)
        contexts = decodes * rng.integers(1, 8193, count)
        tokens = np.where(rng.random(count) < 1 / 3, rng.integers(1, BUDGET - SLOTS, count), 0)
        attended = tokens * rng.integers(0, 8192, count) + tokens * (tokens + 1) // 2
        return cls(decodes, contexts, tokens, attended)


def fitted() -> StepModel:
    """Tables of the size a fit gives: 12 batches, 6 chunks."""
    batches = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    return StepModel(
        batches=batches,
        base_s=tuple(6e-3 + 2.3e-5 * b + 1e-4 * b**0.5 for b in batches),
        slope_s_per_token=tuple(4e-8 + 1e-11 * b for b in batches),
        prefill_s_per_token=2.5e-5,
        prefill_s_per_token_context=3e-10,
        prefill_tokens=(0, 1, 256, 1024, 4096, 8192),
        prefill_base_s=(0.0, 3e-3, 2.5e-3, 2e-3, 1e-3, 0.0),
        host_s=1e-3,
        provenance=Provenance.FITTED,
        source="tables of the size of a fit",
    )


def packed(step: StepModel) -> tuple[Run, PoolPlan]:
    """The kernel's arrays for an engine with these step times."""
    engine = EngineModel(
        step=step, replicas=1, max_num_seqs=SLOTS, max_num_batched_tokens=BUDGET, kv_blocks=1 << 20
    )
    scenario = workloads.plain(workloads.azure(1, workloads.TRACE), engine=engine)
    lowered = lower(Scenario(scenario.stream, Fleet(engine=engine), 0))
    return pack(lowered), lowered.pools[0]


@njit(error_model="numpy")  # type: ignore[untyped-decorator]  # numba has no types
def answer(world: Array, decodes: Ints, contexts: Ints, tokens: Ints, attended: Ints) -> Ints:
    """An estimate for every step, ticks."""
    w = world[0]
    told = np.empty(len(decodes), np.int64)
    pool = pools(w)[0]
    for i in range(len(decodes)):
        told[i] = step_ticks(w, pool, decodes[i], contexts[i], tokens[i], attended[i])
    return told


def by_the_rule(plan: PoolPlan, steps: Steps) -> Ints:
    """The readable engine's formula on the same tables."""
    told = plan.base[steps.decodes] + plan.slope[steps.decodes] * steps.contexts
    return np.maximum(told + plan.prompt[steps.tokens] + plan.context * steps.attended, 1)


def in_python(step: StepModel, steps: Steps) -> npt.NDArray[np.float64]:
    """`StepModel.step_s` one by one."""
    rows = zip(*(a.tolist() for a in vars(steps).values()), strict=True)
    return np.array([step.step_s(*row) for row in rows])


def peer() -> Callable[[Steps], object] | None:
    """aiconfigurator-core's whole-step query (one call, no parts), or None without it."""
    try:
        handle: Any = importlib.import_module("aiconfigurator_core.sdk.engine").EngineHandle
    except ImportError:
        return None
    logging.disable(logging.WARNING)
    engine = handle.compile(
        "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm", backend_version="current", tp_size=1,
        pp_size=1, attention_dp_size=1, moe_tp_size=1, moe_ep_size=1, gemm_quant_mode=None,
        moe_quant_mode=None, kvcache_quant_mode=None, fmha_quant_mode=None,
    )  # fmt: skip

    def ask(steps: Steps) -> None:
        for decodes, contexts in zip(steps.decodes.tolist(), steps.contexts.tolist(), strict=True):
            engine.decode_step_latency(decodes, contexts // decodes, 2)

    return ask


def estimates(count: int, repeat: int) -> Iterator[Figure]:
    """The kernel's function by itself, checked, and its baselines."""
    step, steps = fitted(), Steps.drawn(count)
    few = Steps(*(a[:FEW] for a in vars(steps).values()))
    run, plan = packed(step)
    answer(run.world, *vars(few).values())
    walls, told = measure.walls(lambda: answer(run.world, *vars(steps).values()), repeat)
    if not np.array_equal(told, by_the_rule(plan, steps)):
        raise SystemExit("the kernel's estimates are not those of the readable engine")
    rate = count / walls.best_s
    yield at_least("estimates", "kernel, best", rate, "estimates/s", BAR)
    yield at_least("estimates", "kernel, median", count / walls.median_s, "estimates/s", BAR)
    yield Figure("estimates", "share of the core the best run had", walls.core_share, "")
    yield Figure("estimates", "estimates a second of processor time", count / walls.work_s, "1/s")
    slow, seconds = measure.walls(lambda: in_python(step, few), 1)
    error = float(np.abs(told[:FEW] / PER_S / seconds - 1).max())
    if error > TICK_ERROR:
        raise SystemExit(f"the kernel's estimates differ from StepModel.step_s by {error:.2%}")
    yield Figure("estimates", "largest difference to StepModel.step_s", error, "")
    rate_slow = FEW / slow.best_s
    name = "StepModel.step_s, Python"
    yield Figure("estimates", name, rate_slow, "estimates/s", rate / rate_slow, "slower")
    ask = peer()
    if ask is None:
        say("aiconfigurator-core is not installed: not compared")
        return
    walls, _ = measure.walls(lambda: ask(few), 1)
    rate_peer = FEW / walls.best_s
    name = "aiconfigurator-core 0.12.0, decode steps"
    yield Figure("estimates", name, rate_peer, "estimates/s", rate / rate_peer, "slower")


def whole_runs(repeat: int) -> Iterator[Figure]:
    """Decode steps that the simulator has gone through per second: Azure's conversations on one
    H100 replica. Alike steps are one event, so this is no rate of estimates."""
    traffic = workloads.azure(RUN_REQUESTS, workloads.TRACE)
    free = workloads.plain(traffic)
    per_s = measure.saturation_per_s(free, measure.engine("kernel"))
    for load in (0.5, 0.95):
        lowered = lower(workloads.plain(traffic.at_rate(load * per_s)))
        walls, steps = measure.walls(lambda lowered=lowered: run_through(pack(lowered)), repeat)
        name = f"steps gone through at load {load}"
        yield Figure("whole runs", name, steps / walls.best_s, "steps/s")


def run_through(run: Run) -> int:
    """A run to its end; its decode steps."""
    begin(run.world)
    while (code := go(run.world, EVENTS)) != DONE:
        if code == ROOM:
            for name in GROWING:
                run.make_room(name)
    return int(run.arrays["replicas"]["done"].sum())


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--estimates", type=int, default=BAR)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    say(measure.on_one_core())
    figures = [*estimates(given.estimates, given.repeat), *whole_runs(min(given.repeat, 3))]
    measure.show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
