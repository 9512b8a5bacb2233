"""Records one run or all of them: engine, application, load, telemetry. `python record.py -h`.

Every server listens on the loopback interface, and only processes started here are stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from app.config import Scenario, load_scenario
from loadgen import drive
from make_model import make_model
from recorder.machine import (
    HERE,
    EngineFlags,
    Machine,
    Replica,
    raise_priority,
    settle,
    start_engine,
    wait_for,
)
from recorder.probe import probe
from recorder.receiver import OtlpReceiver, write_lines
from recorder.sampler import EngineSampler, cpu_seconds, machine_cpu_seconds
from recorder.summary import summarize
from workload import make_tasks

RECORDINGS = HERE.parent.parent / "src" / "sojourn" / "recordings"
REPLICAS = {"before": 1, "after": 2}
SCENARIOS = ("incident", "saturated")
CPU_BUDGET = 0.8
APP_PORT, OTLP_PORT = 8_200, 8_318
log = logging.getLogger("record")


@dataclass(frozen=True)
class Run:
    """One recording to make."""

    scenario: str
    variant: str
    target: Path


@dataclass
class Outcome:
    """What a run leaves in memory before it is written."""

    started_s: float
    statuses: dict[str, int]
    late_s: float
    other_cpu_share: float
    stolen_cpu_share: float
    probes: dict[str, dict[str, dict[str, float]]]


def record(run: Run, scratch: Path, flags: EngineFlags) -> dict[str, Any]:
    """Make one recording and write its folder; return what `recording.yaml` holds."""
    scenario = load_scenario(HERE / "scenarios" / f"{run.scenario}.yaml")
    model = make_model(scratch / "model")
    machine = Machine(scratch)
    if not raise_priority():
        machine.notes.append("no permission to raise priority: other processes may have interfered")
    try:
        return asyncio.run(_record(run, scenario, machine, (model, flags)))
    finally:
        machine.stop()


async def _record(
    run: Run, scenario: Scenario, machine: Machine, engine: tuple[Path, EngineFlags]
) -> dict[str, Any]:
    model, flags = engine
    receiver = OtlpReceiver()
    otlp = await receiver.start(OTLP_PORT)
    count = REPLICAS[run.variant]
    replicas = [start_engine(machine, i, model, otlp, flags) for i in range(count)]
    for core, replica in enumerate(replicas):
        await asyncio.to_thread(settle, machine, replica, core, CPU_BUDGET)
    gateway = _start_gateway(run, machine, replicas, otlp)
    await asyncio.to_thread(
        wait_for, f"http://127.0.0.1:{APP_PORT}/health", gateway, timeout_s=60
    )
    log.info("%s/%s: up, driving %.0f s", run.scenario, run.variant, scenario.load.duration_s)
    sampler = EngineSampler(replicas)
    outcome = await _drive(scenario, sampler, (machine, replicas, gateway))
    await asyncio.to_thread(machine.stop)
    await receiver.stop()
    return _write(run, (scenario, flags), (outcome, sampler, receiver), (machine, replicas))


def _start_gateway(
    run: Run, machine: Machine, replicas: list[Replica], otlp: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "app.gateway", f"--otlp={otlp}", f"--port={APP_PORT}"]
    command += ["--scenario", str(HERE / "scenarios" / f"{run.scenario}.yaml")]
    command += [f"--engine={replica.url}" for replica in replicas]
    return machine.spawn(command, machine.scratch / "gateway.log", {})


async def _drive(
    scenario: Scenario,
    sampler: EngineSampler,
    running: tuple[Machine, list[Replica], subprocess.Popen[bytes]],
) -> Outcome:
    """Probe, drive the load to its last answer, probe again; meanwhile sample."""
    _, replicas, gateway = running
    before = {replica.name: await probe(replica.url) for replica in replicas}
    pids = [os.getpid(), gateway.pid]
    pids += [pid for replica in replicas for pid in (replica.api_pid, replica.core_pid)]
    sampling = asyncio.create_task(sampler.run())
    await asyncio.sleep(2.0)
    clock, own = machine_cpu_seconds(), sum(map(cpu_seconds, pids))
    started, since = time.time(), time.monotonic()
    url = f"http://127.0.0.1:{APP_PORT}/v1/task"
    statuses, late = await drive(make_tasks(scenario.load), url)
    passed = (time.monotonic() - since) * (os.cpu_count() or 1)
    busy, stolen = (b - a for a, b in zip(clock, machine_cpu_seconds(), strict=True))
    others = busy - (sum(map(cpu_seconds, pids)) - own)
    await asyncio.sleep(2.0)
    sampling.cancel()
    after = {replica.name: await probe(replica.url) for replica in replicas}
    return Outcome(
        started_s=started,
        statuses={str(status): n for status, n in sorted(statuses.items())},
        late_s=late,
        other_cpu_share=max(0.0, others) / passed,
        stolen_cpu_share=stolen / passed,
        probes={"before": before, "after": after},
    )


def _write(
    run: Run,
    settings: tuple[Scenario, EngineFlags],
    results: tuple[Outcome, EngineSampler, OtlpReceiver],
    running: tuple[Machine, list[Replica]],
) -> dict[str, Any]:
    """Write the folder beside its place, then move it there in one step."""
    scenario, flags = settings
    outcome, sampler, receiver = results
    machine, replicas = running
    spans, dropped = receiver.resource_spans()
    spans = _since(spans, outcome.started_s)
    peak = _peak_window(scenario, outcome.started_s)
    facts = _facts(run, settings, (outcome, sampler), running)
    facts |= summarize(spans, peak)
    facts["left_out_spans"] = dict(dropped)
    folder = run.target.with_name(f".{run.target.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_lines(spans, folder / "spans.otlp.jsonl.gz")
    sampler.write(folder / "engine_samples.parquet")
    _write_engine_log(replicas[0].log, folder / "engine.log.gz")
    text = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    (folder / "recording.yaml").write_text(text, encoding="utf-8")
    shutil.rmtree(run.target, ignore_errors=True)
    folder.rename(run.target)
    return facts


def _since(resource_spans: list[dict[str, Any]], start_s: float) -> list[dict[str, Any]]:
    """Leave out the probes' engine spans: those that have no parent."""
    for resource in resource_spans:
        for scope in resource["scopeSpans"]:
            scope["spans"] = [
                span
                for span in scope["spans"]
                if span["name"] != "llm_request" or "parentSpanId" in span
            ]
        resource["scopeSpans"] = [scope for scope in resource["scopeSpans"] if scope["spans"]]
    return [resource for resource in resource_spans if resource["scopeSpans"]]


def _peak_window(scenario: Scenario, started_s: float) -> tuple[float, float]:
    """Return the plateau: the phase with the highest constant rate, in epoch seconds."""
    best, window, at = 0.0, (0.0, 0.0), 0.0
    for length, first, last in scenario.load.phases:
        if first == last and first > best:
            best, window = first, (started_s + at, started_s + at + length)
        at += length
    return window


def _facts(
    run: Run,
    settings: tuple[Scenario, EngineFlags],
    results: tuple[Outcome, EngineSampler],
    running: tuple[Machine, list[Replica]],
) -> dict[str, Any]:
    scenario, flags = settings
    outcome, sampler = results
    machine, replicas = running
    peak = _peak_window(scenario, outcome.started_s)
    queries = sampler.grown("prefix_query_tokens_total")
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "variant": run.variant,
        "replicas": len(replicas),
        "started_epoch_s": round(outcome.started_s, 3),
        "peak_window_epoch_s": [round(value, 3) for value in peak],
        "seed": scenario.load.seed,
        "duration_s": scenario.load.duration_s,
        "rate_plan": [
            {"seconds": length, "from_per_s": first, "to_per_s": last}
            for length, first, last in scenario.load.phases
        ],
        "gateway": asdict(scenario.gateway),
        "pools": {name: asdict(pool) for name, pool in scenario.pools.items()},
        "versions": {"vllm": version("vllm"), "python": sys.version.split()[0]},
        "layout": {
            "core_process_cpu_budget": replicas[0].cpu_budget,
            "cores": "one engine core process per core; all else on what is left of both",
            "processors": os.cpu_count(),
        },
        "engine": asdict(flags),
        "answers_by_status": outcome.statuses,
        "engine_busy_at_peak": round(sampler.mean("gpu_busy", peak), 3),
        "api_server_busy_at_peak": round(sampler.mean("host_cpu", peak), 3),
        "kv_usage_max": round(sampler.peak("kv_usage"), 3),
        "waiting_max": sampler.peak("waiting"),
        "preemptions": sampler.grown("preemptions_total"),
        "prefix_hit_share": round(sampler.grown("prefix_hit_tokens_total") / max(queries, 1.0), 3),
        "noise": {
            "other_processes_cpu_share": round(outcome.other_cpu_share, 4),
            "stolen_cpu_share": round(outcome.stolen_cpu_share, 4),
            "generator_late_at_most_s": round(outcome.late_s, 4),
            "probes": outcome.probes,
            "notes": machine.notes,
        },
    }


def _write_engine_log(source: Path, target: Path) -> None:
    """Keep the engine's own stats lines, as it wrote them."""
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    kept = "".join(line for line in lines if "throughput:" in line)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(kept.encode())


def all_runs(only: str | None, controls: int) -> list[Run]:
    """Return the runs to make: mains and controls alternate, so that drift shows in both."""
    runs = []
    for number in range(controls + 1):
        for scenario in SCENARIOS:
            for variant in REPLICAS:
                if number == 0:
                    target = RECORDINGS / scenario / variant
                else:
                    target = HERE / "controls" / scenario / f"{variant}-control-{number}"
                runs.append(Run(scenario, variant, target))
    return [run for run in runs if only is None or f"{run.scenario}/{run.variant}" == only]


def main() -> None:
    """Parse the command line and record."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="SCENARIO/VARIANT", help="e.g. incident/before")
    parser.add_argument("--controls", type=int, default=1, help="repeats of each run (default 1)")
    parser.add_argument("--to", type=Path, help="write the one run chosen by --only here")
    arguments = parser.parse_args()
    runs = all_runs(arguments.only, 0 if arguments.to else arguments.controls)
    if arguments.to:
        runs = [Run(run.scenario, run.variant, arguments.to) for run in runs]
    for run in runs:
        with tempfile.TemporaryDirectory(prefix="sojourn-record-") as scratch:
            facts = record(run, Path(scratch), EngineFlags())
        log.info("%s -> %s, E2E %s", run.variant, run.target, facts["e2e_s"])


if __name__ == "__main__":
    main()
