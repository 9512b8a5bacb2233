"""The simulator against peers from PyPI, on the same workload in one run.

    python benchmarks/sim_peers.py --install       # once: the peers, in a venv of their own
    python benchmarks/sim_peers.py [--requests 10000] [--customers 100000] [--peer aisimulate ...]

aisimulate  an engine replica of a Rust simulator of LLM serving (no stations, no retries), twice:
            with fixed step times, which this simulator can be given exactly (equal work: the
            mean times must agree), and with its own H100 model of Llama-3.1-8B, which may differ
simpy, ciw  stations: M/M/c, and four in a row; the same arrivals and service times, customer by
            customer, so that the mean waits must agree (the models are in benchmarks/peers/)

Every peer is timed by its own clock around its run (imports and reading left out). Ours is timed
twice: the engine alone, and `simulate` with the tables of requests and calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sim_measure as measure
import sim_workloads as workloads
import yaml
from sim_measure import Figure, say

from sojourn.capacity.records import EngineModel, StepModel
from sojourn.interval import Provenance
from sojourn.sim.log import Log
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.sim.ticks import PER_S

HERE = Path(__file__).resolve().parent
STATION_PACKAGES = ("simpy", "ciw", "numpy")
ENGINE_PACKAGES = (
    "numpy", "pandas", "pyarrow", "pyyaml", "scipy", "packaging", "pydantic", "psutil", "ijson",
)  # fmt: skip
AISIMULATE = ("--pre", "--no-deps", "--only-binary", ":all:", "aisimulate")
"""Its newest version as a source package only fetches a wheel from elsewhere: wheels alone."""
ENGINE_LOAD = 0.8
PREFILL_MS, DECODE_MS = 30.0, 10.0
"""Fixed step times: a step takes the first if it has prompt tokens, and the second if it has
decodes (so says aisimulate's report of single requests)."""
THEIR_MODEL, THEIR_CARD, TRACE_BLOCK = "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 512


@dataclass(frozen=True)
class Options:
    """What is run."""

    engine: str
    requests: int
    customers: int
    repeat: int
    trace: Path
    python: Path


@dataclass(frozen=True)
class Ours:
    """Our run: requests a second of the engine alone and of all up to the tables."""

    engine_per_s: float
    whole_per_s: float
    log: Log


class PeerError(Exception):
    """A peer that cannot be run, and what it said."""


def install(folder: Path) -> None:
    """A venv in `folder` with the peers."""
    say(f"installing the peers into {folder}")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for packages in ((*STATION_PACKAGES, *ENGINE_PACKAGES), AISIMULATE):
        subprocess.run([*pip, *packages], check=True)


def default_folder() -> Path:
    """Where the peers are looked for: the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sojourn" / "benchmark-peers"


def ours(scenario: Scenario, options: Options) -> Ours:
    """Time our engine on a scenario."""
    count = scenario.stream.requests.num_rows
    lowered = lower(scenario)
    walls, log = measure.walls(lambda: measure.engine(options.engine)(lowered), options.repeat)
    whole, _ = measure.walls(lambda: _tables(scenario, options), options.repeat)
    return Ours(count / walls.best_s, count / whole.best_s, log)


def _tables(scenario: Scenario, options: Options) -> tuple[object, ...]:
    tables = simulate(scenario, engine=options.engine).tables
    return tables.requests, tables.calls


def _run(command: list[str]) -> str:
    """What a peer prints.

    Raises:
        PeerError: it failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as failure:
        raise PeerError(str(failure)) from failure
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["(it said nothing)"]
        raise PeerError(f"exit code {done.returncode}: {lines[-1][:200]}")
    return done.stdout


def _rates(section: str, peer: str, per_s: float, own: Ours, engine: str) -> Iterator[Figure]:
    yield Figure(section, peer, per_s, "requests/s")
    for what, rate in (("engine", own.engine_per_s), ("with its tables", own.whole_per_s)):
        yield Figure(section, f"{engine}, {what}", rate, "requests/s", rate / per_s, peer)


# ---- aisimulate ------------------------------------------------------------------------------


def fixed_steps() -> StepModel:
    """aisimulate's fixed step times as our tables."""
    decode, prefill = DECODE_MS / 1000, PREFILL_MS / 1000
    return StepModel(
        batches=(0, 1, 2),
        base_s=(0.0, decode, decode),
        slope_s_per_token=(0.0, 0.0, 0.0),
        prefill_s_per_token=0.0,
        prefill_tokens=(0, 1, 2),
        prefill_base_s=(0.0, prefill, prefill),
        provenance=Provenance.ASSUMED,
        source="fixed, as the peer's",
    )


def their_config(trace: Path, engine: EngineModel, timing: dict[str, Any]) -> dict[str, Any]:
    """The same replica in aisimulate's words: trace arrivals, vLLM scheduling, no prefix cache."""
    worker: dict[str, Any] = {
        "parallelism": {"replicas": engine.replicas, "tensor": 1},
        "scheduler": {
            "max_batched_tokens": engine.max_num_batched_tokens,
            "max_sequences": engine.max_num_seqs,
        },
        "kv_cache": {
            "block_size": engine.block_size,
            "prefix_caching": False,
            "capacity": {"type": "fixed", "blocks": engine.kv_blocks},
        },
    }
    if timing:
        worker["timing"] = timing
    source = {
        "type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": TRACE_BLOCK,
    }  # fmt: skip
    return {
        "traffic": {"source": source, "load": {"type": "trace_timestamps"}},
        "engine": {
            "mode": "aggregated",
            "model": THEIR_MODEL,
            "hardware": THEIR_CARD,
            "backend": "vllm",
            "workers": {"aggregated": worker},
        },
    }


def write_trace(path: Path, traffic: workloads.Traffic) -> None:
    """A Mooncake trace of this traffic; no two requests share a block."""
    blocks = -(-traffic.prompt // TRACE_BLOCK)
    first = np.cumsum(blocks) - blocks
    with path.open("w") as out:
        for at, prompt, output, start, count in zip(
            (traffic.arrival_s * 1000).tolist(), traffic.prompt.tolist(), traffic.output.tolist(),
            first.tolist(), blocks.tolist(), strict=True,
        ):  # fmt: skip
            row = {
                "timestamp": at, "input_length": prompt, "output_length": output,
                "hash_ids": list(range(start, start + count)),
            }  # fmt: skip
            out.write(json.dumps(row) + "\n")


def _aisimulate(options: Options, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Its report; the wall time is the best of the repeats."""
    path, out = folder / "prediction.yaml", folder / "out"
    path.write_text(yaml.safe_dump(config))
    command = [
        str(options.python.parent / "aisimulate"), "predict", "--config", str(path),
        "--output-dir", str(out), "--overwrite", "--format", "json",
    ]  # fmt: skip
    reports = []
    for number in range(options.repeat):
        say(f"aisimulate, run {number + 1} of {options.repeat}")
        _run(command)
        reports.append(json.loads((out / "prediction.json").read_text()))
    return min(reports, key=lambda report: report["wall_time_ms"])


def aisimulate(options: Options) -> Iterator[Figure]:
    """One replica, the Azure trace, both kinds of step times."""
    azure = workloads.azure(options.requests, options.trace)
    h100 = workloads.h100(azure)
    fixed = h100.model_copy(update={"step": fixed_steps()})
    timings: tuple[tuple[str, EngineModel, dict[str, Any]], ...] = (
        (
            "fixed", fixed,
            {"type": "fixed", "prefill_ms": PREFILL_MS, "decode_ms": DECODE_MS},
        ),
        ("H100", h100, {}),
    )  # fmt: skip
    for name, engine, timing in timings:
        run = measure.engine(options.engine)
        rate = measure.saturation_per_s(workloads.plain(azure, engine=engine), run)
        traffic = azure.at_rate(ENGINE_LOAD * rate)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.jsonl"
            write_trace(trace, traffic)
            report = _aisimulate(options, their_config(trace, engine, timing), Path(folder))
        own = ours(workloads.plain(traffic, engine=engine), options)
        section = f"aisimulate, {name}"
        per_s = options.requests / (report["wall_time_ms"] / 1000)
        yield from _rates(section, "aisimulate", per_s, own, options.engine)
        yield from _engine_results(section, report, own.log)


def _engine_results(section: str, report: dict[str, Any], log: Log) -> Iterator[Figure]:
    """Means of both, and how far they are apart."""
    calls = log.calls
    mine = {
        "e2e": float((calls["end"] - calls["arrival"]).mean()) / PER_S,
        "ttft": float((calls["first"] - calls["arrival"]).mean()) / PER_S,
    }
    for name, theirs in (("e2e", "mean_e2e_latency_ms"), ("ttft", "mean_ttft_ms")):
        other = report[theirs] / 1000
        yield Figure(section, f"mean {name}", mine[name], "s", mine[name] / other, "aisimulate's")
        apart = mine[name] / other - 1
        yield Figure(section, f"mean {name}, relative difference", apart, "")
    done = report["completed_requests"]
    yield Figure(section, "requests it completed", done, "requests")


# ---- SimPy and Ciw ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stations:
    """Arrivals, service times (customers x stations), and servers (None: no limit)."""

    name: str
    arrival_s: workloads.Floats
    service_s: workloads.Floats
    servers: list[int | None]


def station_workloads(count: int) -> tuple[Stations, ...]:
    """M/M/8 at 90%; and four in a row: exponential at 90%, lognormal at 80%, a delay without
    limit, exponential at 70%. One arrival a second."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1.0, count))
    single = Stations("M/M/8", arrival, rng.exponential(0.9 * 8, (count, 1)), [8])
    columns = [
        rng.exponential(0.9 * 4, count),
        rng.lognormal(np.log(0.8 * 2) - 0.5, 1.0, count),
        rng.exponential(3.0, count),
        rng.exponential(0.7 * 8, count),
    ]
    return single, Stations("four stations", arrival, np.stack(columns, axis=1), [4, 2, None, 8])


def _waits_s(log: Log, stations: int) -> list[float]:
    visits = log.visits
    return [
        float((visits["started"] - visits["entered"])[visits["place"] == place].mean()) / PER_S
        for place in range(stations)
    ]


def station_peer(name: str, options: Options) -> Iterator[Figure]:
    """One peer on both station workloads."""
    for work in station_workloads(options.customers):
        section = f"{name}, {work.name}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "workload.npz"
            servers = np.array([count or 0 for count in work.servers])
            np.savez(path, arrival_s=work.arrival_s, service_s=work.service_s, servers=servers)
            script = str(HERE / "peers" / f"{name}_stations.py")
            reports = []
            for number in range(options.repeat):
                say(f"{section}, run {number + 1} of {options.repeat}")
                reports.append(json.loads(_run([str(options.python), script, str(path)])))
        best = min(reports, key=lambda report: report["wall_s"])
        own = ours(workloads.queue(work.arrival_s, work.service_s, work.servers), options)
        peer = f"{name} {best['version']}"
        yield from _rates(section, peer, options.customers / best["wall_s"], own, options.engine)
        waits = _waits_s(own.log, len(work.servers))
        apart = max(abs(mine - theirs) for mine, theirs in zip(waits, best["wait_s"], strict=True))
        yield Figure(section, "mean wait, all stations", sum(waits), "s")
        yield Figure(section, "largest difference of a station's mean wait", apart, "s")


PEERS: dict[str, Callable[[Options], Iterator[Figure]]] = {
    "aisimulate": aisimulate,
    "simpy": lambda options: station_peer("simpy", options),
    "ciw": lambda options: station_peer("ciw", options),
}


def figures(names: list[str], options: Options) -> Iterator[Figure]:
    """All figures; a peer that cannot be run has one that says so."""
    for name in names:
        try:
            yield from PEERS[name](options)
        except PeerError as failure:
            yield Figure(name, f"could not be run: {failure}", None, "")


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--engine", default="kernel")
    found.add_argument("--requests", type=int, default=10_000)
    found.add_argument("--customers", type=int, default=100_000)
    found.add_argument("--repeat", type=int, default=3)
    found.add_argument("--peer", action="append", choices=sorted(PEERS))
    found.add_argument("--trace", type=Path, default=workloads.TRACE)
    found.add_argument("--folder", type=Path, default=default_folder(), help="of the peers' venv")
    found.add_argument("--install", action="store_true", help="make that venv, then stop")
    found.add_argument("--json", action="store_true")
    return found


def main() -> None:
    """Print the figures."""
    given = parser().parse_args()
    if given.install:
        install(given.folder)
        return
    python = given.folder / "bin" / "python"
    if not python.exists():
        raise SystemExit(
            f"The peers are not installed in {given.folder}. Run once:\n"
            f"    python {Path(__file__).name} --install --folder {given.folder}"
        )
    options = Options(
        given.engine, given.requests, given.customers, given.repeat, given.trace, python
    )
    say(f"{options.engine}; {measure.on_one_core()}; best of {options.repeat}")
    measure.show(figures(given.peer or list(PEERS), options), as_json=given.json)


if __name__ == "__main__":
    main()
