"""Records a real engine under the loads of `plan.yaml`, all in one server life. `record.py -h`.

Two steps: the loads are driven and everything is kept raw in a folder; then the folders of the
recordings are written from it. The second can be done again without the first (`--from`).

Every server listens on the loopback interface, and only processes started here are stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.client import drive
from bench.folders import write_all
from bench.plan import Run, make_requests, read_plan
from bench.step_format import DIRECTORY_VARIABLE
from make_model import make_model
from recorder.machine import (
    EngineFlags,
    Machine,
    Replica,
    find_core,
    pin,
    raise_priority,
    start_engine,
)
from recorder.probe import probe
from recorder.receiver import OtlpReceiver
from recorder.sampler import EngineSampler, cpu_seconds, machine_cpu_seconds

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent.parent / "src" / "sojourn" / "recordings" / "engine"
CONTROLS = HERE / "controls"
OTLP_PORT = 8_318
ENGINE_CORE, OTHER_CORE = 0, 1
SPANS_ARRIVE_S = 2.0
"""Longer than the engine's own exporter waits between two batches (set below)."""
log = logging.getLogger("record")


async def record(plan: Path, raw: Path, *, life: int, step_log: bool) -> None:
    """Start the engine, drive all runs of one server life, keep everything raw."""
    settings, runs = read_plan(plan)
    runs = [run for run in runs if run.life == life]
    machine = Machine(raw)
    if not raise_priority():
        machine.notes.append("priority not raised: other processes may have interfered")
    receiver = OtlpReceiver()
    otlp = await receiver.start(OTLP_PORT)
    try:
        replica, flags = await asyncio.to_thread(_start, machine, settings, otlp, step_log)
        found: dict[str, Any] = {"probe_before": await probe(replica.url), "runs": []}
        for run in runs:
            found["runs"].append(await _drive(run, replica))
        found["probe_after"] = await probe(replica.url)
        await asyncio.sleep(SPANS_ARRIVE_S)
    finally:
        await asyncio.to_thread(machine.stop)
        await receiver.stop()
    spans, left_out = receiver.resource_spans()
    found |= {"flags": asdict(flags), "notes": machine.notes, "left_out": dict(left_out)}
    found |= {"plan": settings, "processors": os.cpu_count(), "log": replica.log.name}
    (raw / "spans.json").write_text(json.dumps(spans), encoding="utf-8")
    with (raw / "found.pickle").open("wb") as out:
        pickle.dump(found, out)


def _start(
    machine: Machine, settings: dict[str, Any], otlp: str, step_log: bool
) -> tuple[Replica, EngineFlags]:
    model = make_model(machine.scratch / "model")
    more = settings.get("more_flags", [])
    if step_log:
        more = ["--scheduler-cls=bench.steplog.StepLogScheduler", *more]
    flags = EngineFlags(**settings["engine"], more=tuple(more))
    environment = {
        "PYTHONPATH": str(HERE),
        DIRECTORY_VARIABLE: str(machine.scratch),
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
        **settings.get("environment", {}),
    }
    replica = start_engine(machine, ENGINE_CORE, model, otlp, flags, environment)
    find_core(replica)
    pin(replica.core_pid, settings.get("core_process_on", ENGINE_CORE))
    pin(replica.api_pid, OTHER_CORE)
    pin(os.getpid(), OTHER_CORE)
    return replica, flags


async def _drive(run: Run, replica: Replica) -> dict[str, Any]:
    """Drive one run to its last answer, then wait until the engine is idle."""
    requests = make_requests(run)
    sampler = EngineSampler([replica])
    sampling = asyncio.create_task(sampler.run())
    await asyncio.sleep(1.5)
    own = [os.getpid(), replica.core_pid, replica.api_pid]
    clock, used = machine_cpu_seconds(), sum(map(cpu_seconds, own))
    since = time.monotonic()
    started, rows = await drive(run.name, requests, replica.url)
    passed = (time.monotonic() - since) * (os.cpu_count() or 1)
    busy, stolen = (b - a for a, b in zip(clock, machine_cpu_seconds(), strict=True))
    others = busy - (sum(map(cpu_seconds, own)) - used)
    while True:
        await asyncio.sleep(1.5)
        if sampler.rows[-1]["running"] == sampler.rows[-1]["waiting"] == 0.0:
            break
    sampling.cancel()
    log.info("%s: %d requests in %.1f s", run.name, len(rows), rows[-1]["end_s"] - started)
    return {
        "run": asdict(run),
        "started_s": started,
        "rows": rows,
        "samples": sampler.rows,
        "other_cpu_share": max(0.0, others) / passed,
        "stolen_cpu_share": stolen / passed,
    }


def _interrupt(_number: int, _frame: object) -> None:
    """Leave by way of every `finally`, so that what was started is stopped."""
    raise SystemExit("stopped by a signal")


def main() -> None:
    """Parse the command line and record."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=HERE / "plan.yaml")
    parser.add_argument("--raw", type=Path, required=True, help="folder for the raw data")
    parser.add_argument(
        "--from", dest="again", action="store_true", help="record nothing: --raw is there already"
    )
    parser.add_argument("--life", type=int, default=1, help="which server life of the plan")
    parser.add_argument("--to", type=Path, help="write all folders here, not to their places")
    parser.add_argument(
        "--no-step-log", action="store_true", help="the engine's own scheduler, unlogged"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    raw = arguments.raw.resolve()
    if not arguments.again:
        raw.mkdir(parents=True, exist_ok=True)
        step_log = not arguments.no_step_log
        asyncio.run(record(arguments.plan, raw, life=arguments.life, step_log=step_log))
    write_all(raw, arguments.to or RECORDINGS, arguments.to or CONTROLS)


if __name__ == "__main__":
    main()
