"""Speed, memory and compile time of the simulator's engines, on one core.

    python benchmarks/sim_speed.py [--engine kernel] [--requests 1000000] [--section plain ...]

Sections:
  plain    the Azure conversation trace tiled, one replica at 95% of saturation, features off
  chain    the whole chain: 8 replicas, router, stations, retries, prefix cache, priorities
  length   cost a request with 100 and with 10,000 output tokens, at equal load
  load     cost a request by load (one replica) and by replicas
  memory   peak memory beyond input and output, a request, in a fresh process
  compile  first use with an empty cache and with a warm one, in fresh processes
  twins    the kernel against the reference on the same scenario, and whether their logs agree

Saturation is measured by a closed loop with the same engine. Rates with a bar are by wall time;
costs a request and the ratio of the twins by processor time (one thread), so that they hold on a
busy machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import sim_measure as measure
import sim_workloads as workloads
from sim_measure import Figure, Run, at_least, at_most, say

from sojourn.capacity.records import EngineModel
from sojourn.sim.lowered import Lowered
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

PLAIN_BAR, CHAIN_BAR, MEMORY_BAR, COMPILE_BAR = 1_000_000, 200_000, 200, 20
LENGTHS = (100, 1_000, 10_000)
LENGTH_BAR = 1.5
"""Cost of 10,000 output tokens over that of 100: no growth, and room for noise."""
PLAIN_LOAD, CHAIN_LOAD, LENGTH_LOAD, REPLICAS_LOAD = 0.95, 0.8, 0.7, 0.9
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
REPLICAS = (1, 2, 4, 8, 16, 32, 64)
HASHES = (16, 64, 512)
"""Tokens of a block hash: vLLM's block, a few blocks, the Mooncake traces'."""
CHAIN_HASH = 64
SATURATING = 40_000
"""Requests of the closed loop that finds the saturation, at most."""
FAIR_SHARE = 0.98
"""The deadline of the chain's attempts: this quantile of the same run without deadlines."""
WARM_UP = 200


@dataclass(frozen=True)
class Options:
    """What is run."""

    engine: str
    requests: int
    chain_requests: int
    repeat: int
    trace: Path

    @property
    def run(self) -> Run:
        """The engine."""
        return measure.engine(self.engine)


def loaded(traffic: workloads.Traffic, load: float, options: Options) -> workloads.Traffic:
    """Traffic at a share of what one H100 replica can take."""
    return traffic.at_rate(load * saturation_per_s(traffic, options))


def saturation_per_s(
    traffic: workloads.Traffic, options: Options, engine: EngineModel | None = None
) -> float:
    """What one replica can take of this traffic, requests per second."""
    few = traffic.first(min(SATURATING, len(traffic.arrival_s)))
    return measure.saturation_per_s(workloads.plain(few, engine=engine), options.run)


def measured(lowered: Lowered, options: Options) -> tuple[measure.Walls, object]:
    """Walls of the engine alone, compiled beforehand."""
    return measure.walls(lambda: options.run(lowered), options.repeat)


def warm_up(options: Options) -> None:
    """Compile whatever there is to compile."""
    traffic = workloads.azure(WARM_UP, options.trace)
    for scenario in (workloads.plain(traffic), workloads.chain(traffic, timeout_s=60.0)):
        options.run(lower(scenario))


def _parts(section: str, scenario: Scenario, bar: float, options: Options) -> Iterator[Figure]:
    """Requests per second of lowering, engine, and the whole of `simulate`."""
    count = scenario.stream.requests.num_rows
    lowering, lowered = measure.walls(lambda: lower(scenario), 1)
    say(f"{section}: lowered in {lowering.best_s:.2f} s; engine {options.repeat} times")
    walls, log = measured(lowered, options)
    running = measure.mean_in_flight(log)
    attempts = float(log.ends["attempts"].mean())
    yield at_least(section, "engine, best", count / walls.best_s, "requests/s", bar)
    yield at_least(section, "engine, median", count / walls.median_s, "requests/s", bar)
    yield Figure(section, "share of the core the best run had", walls.core_share, "")
    yield Figure(section, "requests a second of processor time", count / walls.work_s, "1/s")
    yield Figure(section, "requests in the system, mean", running, "requests")
    yield Figure(section, "attempts a request", attempts, "attempts")
    yield Figure(section, "preemptions a call", float(log.calls["preemptions"].mean()), "")
    cached = float(log.calls["cached"].sum()) / float(lowered.steps.prompt.sum())
    yield Figure(section, "prompt tokens found in the prefix cache, share", cached, "")
    del log
    yield Figure(section, "lowering", count / lowering.best_s, "requests/s")
    whole, run = measure.walls(lambda: simulate(scenario, engine=options.engine), 1)
    yield Figure(section, "simulate (check, lower, run)", count / whole.best_s, "requests/s")
    for names in (("requests", "calls"), ("spans", "engine_samples")):
        tables, _ = measure.walls(lambda n=names: [getattr(run.tables, name) for name in n], 1)
        what = f"tables {' and '.join(names)}"
        yield Figure(section, what, count / tables.best_s, "requests/s")


def plain(options: Options) -> Iterator[Figure]:
    """The trace on one replica near saturation, features off."""
    traffic = loaded(workloads.azure(options.requests, options.trace), PLAIN_LOAD, options)
    say(f"plain: {traffic.source}; {len(traffic.arrival_s) / traffic.arrival_s[-1]:.2f} requests/s")
    yield from _parts("plain", workloads.plain(traffic), PLAIN_BAR, options)


def chain_scenario(options: Options, count: int, tokens_per_hash: int) -> Scenario:
    """The chain at `CHAIN_LOAD` of its engines' saturation, attempts limited to `FAIR_SHARE`."""
    traffic = workloads.azure(count, options.trace)
    few = traffic.first(min(SATURATING, count))
    idle = workloads.chain(few, tokens_per_hash=tokens_per_hash)
    rate = CHAIN_LOAD * measure.saturation_per_s(idle, options.run)
    few = few.at_rate(rate)
    calm = options.run(lower(workloads.chain(few, tokens_per_hash=tokens_per_hash)))
    limit = measure.e2e_quantile_s(calm, FAIR_SHARE)
    say(f"chain: {rate:.1f} requests/s, attempts limited to {limit:.1f} s")
    return workloads.chain(traffic.at_rate(rate), tokens_per_hash=tokens_per_hash, timeout_s=limit)


def chain(options: Options) -> Iterator[Figure]:
    """The whole chain; then again with finer and coarser block hashes."""
    scenario = chain_scenario(options, options.chain_requests, CHAIN_HASH)
    yield from _parts("chain", scenario, CHAIN_BAR, options)
    for tokens in HASHES:
        lowered = lower(chain_scenario(options, options.chain_requests, tokens))
        walls, _ = measured(lowered, options)
        rate = options.chain_requests / walls.best_s
        what = f"engine, best, {tokens} tokens a block hash"
        yield at_least("chain", what, rate, "requests/s", CHAIN_BAR)


def length(options: Options) -> Iterator[Figure]:
    """100, 1,000 and 10,000 output tokens at the same share of saturation: with the H100's KV, and
    with KV for every slot (then nothing is preempted)."""
    count = max(WARM_UP, options.requests // 10)
    for ample in (True, False):
        cost = {}
        for output in LENGTHS:
            traffic = workloads.poisson(count, prompt=512, output=output)
            engine = workloads.h100(traffic)
            if ample:
                engine = measure.without_kv_limit(engine, 512 + output)
            rate = LENGTH_LOAD * saturation_per_s(traffic, options, engine)
            lowered = lower(workloads.plain(traffic.at_rate(rate), engine=engine))
            walls, log = measured(lowered, options)
            cost[output] = measure.cost_ns(walls.work_s, count)
            kv = "ample KV" if ample else "H100's KV"
            running = measure.mean_in_flight(log)
            what = f"{output} output tokens, {kv}, {running:.0f} in the system"
            yield Figure("length", what, cost[output], "ns/request")
        short, middle, long = LENGTHS
        ratio, what = cost[long] / cost[short], f"cost, {long:,} over {short:,} tokens, {kv}"
        yield at_most("length", what, ratio, "times", LENGTH_BAR)
        ratio, what = cost[long] / cost[middle], f"cost, {long:,} over {middle:,} tokens, {kv}"
        yield Figure("length", what, ratio, "times")


def load(options: Options) -> Iterator[Figure]:
    """Cost by load on one replica, and by replicas at one load."""
    count = max(WARM_UP, options.requests // 5)
    azure = workloads.azure(count, options.trace)
    rate = saturation_per_s(azure, options)
    seen = []
    for share in LOADS:
        walls, log = measured(lower(workloads.plain(azure.at_rate(share * rate))), options)
        seen.append((measure.cost_ns(walls.work_s, count), measure.mean_in_flight(log)))
        what = f"load {share:.2f}, {seen[-1][1]:.1f} in the system"
        yield Figure("load", what, seen[-1][0], "ns/request")
    yield _growth(f"load {LOADS[-1]} over {LOADS[0]}", seen)
    seen = []
    for replicas in REPLICAS:
        traffic = azure.at_rate(REPLICAS_LOAD * rate * replicas)
        walls, log = measured(lower(workloads.plain(traffic, replicas=replicas)), options)
        seen.append((measure.cost_ns(walls.work_s, count), measure.mean_in_flight(log)))
        what = f"{replicas} replicas, {seen[-1][1]:.1f} in the system"
        yield Figure("load", what, seen[-1][0], "ns/request")
    yield _growth(f"{REPLICAS[-1]} over {REPLICAS[0]} replicas", seen)


def _growth(what: str, seen: list[tuple[float, float]]) -> Figure:
    """The bar of logarithmic growth: each doubling of what is in the system adds at most what a
    request costs at first."""
    (low, few), (high, many) = seen[0], seen[-1]
    allowed = 1 + math.log2(max(many / few, 1.0))
    return at_most("load", f"cost, {what}", high / low, "times", allowed)


def memory(options: Options) -> Iterator[Figure]:
    """Peak memory of each engine run beyond what it was given and what it gave back."""
    if sys.platform != "linux":
        say("memory: measured on Linux only; left out")
        return
    for section, count in (("plain", options.requests), ("chain", options.chain_requests)):
        found = _fresh(options, f"memory-{section}")
        what = f"{section}: peak beyond input and output"
        yield at_most("memory", what, found["extra"] / count, "bytes/request", MEMORY_BAR)
        yield Figure("memory", f"{section}: input arrays", found["input"] / count, "bytes/request")
        yield Figure(
            "memory", f"{section}: output arrays", found["output"] / count, "bytes/request"
        )


def _memory_child(options: Options, section: str) -> dict[str, float]:
    """In a fresh process: the engine run's peak, its input and its output, bytes."""
    warm_up(options)
    if section == "plain":
        traffic = loaded(workloads.azure(options.requests, options.trace), PLAIN_LOAD, options)
        scenario = workloads.plain(traffic)
    else:
        scenario = chain_scenario(options, options.chain_requests, CHAIN_HASH)
        traffic = None
    lowered = lower(scenario)
    del scenario, traffic
    measure.give_back()
    before = measure.resident_bytes("VmRSS")
    measure.forget_peak()
    log = options.run(lowered)
    peak = measure.resident_bytes("VmHWM")
    output = measure.nbytes(log)
    extra = max(peak - before - output, 0)
    return {"extra": extra, "input": measure.nbytes(lowered), "output": output}


def compile_time(options: Options) -> Iterator[Figure]:
    """First use in fresh processes: cache empty, then warm."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"SOJOURN_CACHE_DIR": cache}
        cold = _fresh(options, "first-use", environment)
        kept = sum(1 for path in Path(cache).rglob("*") if path.is_file())
        warm = _fresh(options, "first-use", environment)
    for shape in ("plain", "chain"):
        yield at_most("compile", f"empty cache, first {shape} run", cold[shape], "s", COMPILE_BAR)
        yield Figure("compile", f"warm cache, first {shape} run", warm[shape], "s")
    both, cpu = (
        sum(cold[f"{shape}{kind}"] for shape in ("plain", "chain")) for kind in ("", " cpu")
    )
    yield at_most("compile", "empty cache, both", both, "s", COMPILE_BAR)
    yield at_most("compile", "empty cache, both, by processor time", cpu, "s", COMPILE_BAR)
    yield Figure("compile", "empty cache, whole process, imports included", cold["process"], "s")
    yield Figure("compile", "warm cache, whole process, imports included", warm["process"], "s")
    yield Figure("compile", "files in the cache", kept, "files")


def _first_use_child(options: Options) -> dict[str, float]:
    """In a fresh process: seconds of the first run of each shape, loading the engine included."""
    found = {}
    traffic = workloads.azure(WARM_UP, options.trace)
    for name, scenario in (
        ("plain", workloads.plain(traffic)),
        ("chain", workloads.chain(traffic, timeout_s=60.0)),
    ):
        lowered = lower(scenario)
        first, _ = measure.walls(lambda lo=lowered: measure.engine(options.engine)(lo), 1)
        found[name], found[f"{name} cpu"] = first.best_s, first.work_s
    return found


def twins(options: Options) -> Iterator[Figure]:
    """The engine against the readable reference: same scenario, same log."""
    count = min(5000, options.requests)
    plain_traffic = loaded(workloads.azure(count, options.trace), PLAIN_LOAD, options)
    scenarios = {
        "plain": workloads.plain(plain_traffic),
        "chain": chain_scenario(options, count, CHAIN_HASH),
    }
    for name, scenario in scenarios.items():
        lowered = lower(scenario)
        ours, log = measured(lowered, options)
        say(f"twins: the reference, {count} requests, {name}")
        slow, other = measure.walls(lambda lowered=lowered: measure.engine("reference")(lowered), 1)
        agree = "logs equal" if log.same(other) else "LOGS DIFFER"
        yield Figure("twins", f"reference, {name}", count / slow.work_s, "requests/s")
        rate, ratio = count / ours.work_s, slow.work_s / ours.work_s
        what = f"{options.engine}, {name}, {count} requests, {agree}"
        yield Figure("twins", what, rate, "requests/s", ratio, "the reference")


SECTIONS: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "plain": plain,
    "chain": chain,
    "length": length,
    "load": load,
    "memory": memory,
    "compile": compile_time,
    "twins": twins,
}


def _fresh(
    options: Options, child: str, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """This script in a process of its own, for one measurement."""
    command = [
        sys.executable, __file__, "--child", child, "--engine", options.engine,
        "--requests", str(options.requests), "--chain-requests", str(options.chain_requests),
        "--trace", str(options.trace),
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env=os.environ | (environment or {}), check=True, text=True
    )
    return json.loads(done.stdout) | {"process": time.perf_counter() - began}


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--engine", default="kernel")
    found.add_argument("--requests", type=int, default=1_000_000)
    found.add_argument("--chain-requests", type=int, default=200_000)
    found.add_argument("--repeat", type=int, default=3)
    found.add_argument("--section", action="append", choices=sorted(SECTIONS))
    found.add_argument("--trace", type=Path, default=workloads.TRACE)
    found.add_argument("--json", action="store_true")
    found.add_argument("--child", help=argparse.SUPPRESS)
    return found


def main() -> None:
    """Print the figures."""
    given = parser().parse_args()
    options = Options(given.engine, given.requests, given.chain_requests, given.repeat, given.trace)
    pinned = measure.on_one_core()
    if given.child == "first-use":
        json.dump(_first_use_child(options), sys.stdout)
        return
    if given.child:
        json.dump(_memory_child(options, given.child.removeprefix("memory-")), sys.stdout)
        return
    say(f"{options.engine}; {pinned}; best and median of {options.repeat}")
    warm_up(options)
    figures = (f for name in given.section or SECTIONS for f in SECTIONS[name](options))
    measure.show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
