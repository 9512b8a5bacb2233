"""Records one run or all of them: engine, application, load, telemetry. `python record.py -h`.

Every server listens on the loopback interface, and only processes started here are stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config import Scenario, load_scenario
from loadgen import drive
from make_model import make_model
from recorder.folder import Outcome, Recording
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
from recorder.receiver import OtlpReceiver
from recorder.sampler import EngineSampler, cpu_seconds, machine_cpu_seconds

from workload import make_tasks

RECORDINGS = HERE.parent.parent / "src" / "sojourn" / "recordings"
REPLICAS = {"before": 1, "after": 2}
SCENARIOS = ("incident", "saturated")
CPU_BUDGET = 0.8
APP_PORT, OTLP_PORT = 8_200, 8_318
GATEWAY = f"http://127.0.0.1:{APP_PORT}"
log = logging.getLogger("record")


@dataclass(frozen=True)
class Run:
    """One recording to make."""

    scenario: str
    variant: str
    target: Path

    @property
    def scenario_file(self) -> Path:
        """Where the scenario's settings are."""
        return HERE / "scenarios" / f"{self.scenario}.yaml"


@dataclass
class Bench:
    """The processes of one run."""

    machine: Machine
    replicas: list[Replica] = field(default_factory=list)
    gateway: subprocess.Popen[bytes] | None = None

    def start(self, run: Run, otlp: str, flags: EngineFlags) -> None:
        """Start the replicas, give each its share of the processor, then start the gateway."""
        model = make_model(self.machine.scratch / "model")
        self.replicas = [
            start_engine(self.machine, index, model, otlp, flags)
            for index in range(REPLICAS[run.variant])
        ]
        for core, replica in enumerate(self.replicas):
            settle(self.machine, replica, core, CPU_BUDGET)
        command = [sys.executable, "-m", "app.gateway", f"--otlp={otlp}", f"--port={APP_PORT}"]
        command += ["--scenario", str(run.scenario_file)]
        command += [f"--engine={replica.url}" for replica in self.replicas]
        self.gateway = self.machine.spawn(command, self.machine.scratch / "gateway.log", {})
        wait_for(f"{GATEWAY}/health", self.gateway, timeout_s=60)

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far by this run, the recorder included, s."""
        pids = [os.getpid()] + ([self.gateway.pid] if self.gateway else [])
        for replica in self.replicas:
            pids += [replica.api_pid, replica.core_pid]
        return sum(map(cpu_seconds, pids))

    async def probe(self) -> dict[str, dict[str, float]]:
        """Return how fast each idle replica is now."""
        return {replica.name: await probe(replica.url) for replica in self.replicas}


def record(run: Run, flags: EngineFlags) -> dict[str, Any]:
    """Make one recording and write its folder; return what `recording.yaml` holds."""
    with tempfile.TemporaryDirectory(prefix="sojourn-record-") as scratch:
        bench = Bench(Machine(Path(scratch)))
        if not raise_priority():
            bench.machine.notes.append("priority not raised: other processes may have interfered")
        try:
            return asyncio.run(_record(run, bench, flags))
        finally:
            bench.machine.stop()


async def _record(run: Run, bench: Bench, flags: EngineFlags) -> dict[str, Any]:
    scenario = load_scenario(run.scenario_file)
    receiver = OtlpReceiver()
    otlp = await receiver.start(OTLP_PORT)
    await asyncio.to_thread(bench.start, run, otlp, flags)
    log.info("%s/%s: up, driving %.0f s", run.scenario, run.variant, scenario.load.duration_s)
    sampler = EngineSampler(bench.replicas)
    outcome = await _drive(scenario, sampler, bench)
    await asyncio.to_thread(bench.machine.stop)
    await receiver.stop()
    return Recording(
        scenario=scenario,
        variant=run.variant,
        flags=flags,
        replicas=bench.replicas,
        outcome=outcome,
        sampler=sampler,
        receiver=receiver,
        notes=bench.machine.notes,
    ).write(run.target)


async def _drive(scenario: Scenario, sampler: EngineSampler, bench: Bench) -> Outcome:
    """Probe, drive the load to its last answer, probe again; meanwhile sample."""
    before = await bench.probe()
    sampling = asyncio.create_task(sampler.run())
    await asyncio.sleep(2.0)
    clock, own = machine_cpu_seconds(), bench.cpu_seconds()
    started, since = time.time(), time.monotonic()
    statuses, late = await drive(make_tasks(scenario.load), f"{GATEWAY}/v1/task")
    passed = (time.monotonic() - since) * (os.cpu_count() or 1)
    busy, stolen = (b - a for a, b in zip(clock, machine_cpu_seconds(), strict=True))
    others = busy - (bench.cpu_seconds() - own)
    await asyncio.sleep(2.0)
    sampling.cancel()
    return Outcome(
        started_s=started,
        statuses={str(status): n for status, n in sorted(statuses.items())},
        late_s=late,
        other_cpu_share=max(0.0, others) / passed,
        stolen_cpu_share=stolen / passed,
        probes={"before": before, "after": await bench.probe()},
    )


def all_runs(only: str | None, first: int, controls: int) -> list[Run]:
    """Return the runs to make: mains and controls alternate, so that drift shows in both."""
    runs = []
    for number in range(first, controls + 1):
        for scenario in SCENARIOS:
            for variant in REPLICAS:
                if number == 0:
                    target = RECORDINGS / scenario / variant
                else:
                    target = HERE / "controls" / scenario / f"{variant}-control-{number}"
                runs.append(Run(scenario, variant, target))
    return [run for run in runs if only is None or f"{run.scenario}/{run.variant}" == only]


def _interrupt(_number: int, _frame: object) -> None:
    """Leave by way of every `finally`, so that what was started is stopped."""
    raise SystemExit("stopped by a signal")


def main() -> None:
    """Parse the command line and record."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="SCENARIO/VARIANT", help="e.g. incident/before")
    parser.add_argument("--controls", type=int, default=1, help="repeats of each run (default 1)")
    parser.add_argument("--first", type=int, default=0, help="0: main runs first, 1: controls only")
    parser.add_argument("--to", type=Path, help="write the one run chosen by --only here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    runs = all_runs(arguments.only, arguments.first, 0 if arguments.to else arguments.controls)
    if not runs:
        parser.error(f"no such run: {arguments.only}")
    if arguments.to:
        runs = [Run(run.scenario, run.variant, arguments.to) for run in runs]
    for run in runs:
        facts = record(run, EngineFlags())
        log.info("%s -> %s, E2E %s", run.variant, run.target, facts["e2e_s"])


if __name__ == "__main__":
    main()
