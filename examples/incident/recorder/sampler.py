"""Samples each engine replica once a second: its /metrics and the CPU time of its processes."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client.parser import text_string_to_metric_families

from recorder.machine import Replica

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "preemptions_total": "vllm:num_preemptions_total",
    "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
    "prefix_query_tokens_total": "vllm:prefix_cache_queries_total",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used so far, s (user and system)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_cpu_seconds() -> tuple[float, float]:
    """Return the CPU time (busy, stolen) of the whole machine so far, s."""
    values = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(value) for value in values]
    idle, steal = ticks[3] + ticks[4], ticks[7]
    return (sum(ticks[:8]) - idle - steal) / TICKS_PER_S, steal / TICKS_PER_S


@dataclass
class _Clock:
    """The last reading of a replica's two processes."""

    at_s: float
    core_s: float
    api_s: float


@dataclass
class EngineSampler:
    """Collects rows of the `engine_samples` table until it is cancelled."""

    replicas: list[Replica]
    interval_s: float = 1.0
    rows: list[dict[str, float | str]] = field(default_factory=list)

    async def run(self) -> None:
        """Sample at fixed times; a late sample is not repeated."""
        clocks = {replica.name: _read_clock(replica) for replica in self.replicas}
        async with aiohttp.ClientSession() as session:
            next_s = time.monotonic()
            while True:
                next_s += self.interval_s
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                for replica in self.replicas:
                    self.rows.append(await _sample(session, replica, clocks))

    def write(self, path: Path) -> None:
        """Write the rows as Parquet."""
        columns = ["t_s", "replica", *METRICS, "gpu_busy", "host_cpu"]
        types = [pa.string() if name == "replica" else pa.float64() for name in columns]
        schema = pa.schema(list(zip(columns, types, strict=True)))
        pq.write_table(pa.Table.from_pylist(self.rows, schema=schema), path, compression="zstd")

    def mean(self, column: str, between: tuple[float, float]) -> float:
        """Return the mean of a column over all replicas in a window of epoch seconds."""
        values = [float(row[column]) for row in self._within(between)]
        return sum(values) / len(values) if values else float("nan")

    def peak(self, column: str) -> float:
        """Return the largest value of a column."""
        return max(float(row[column]) for row in self.rows)

    def grown(self, column: str) -> float:
        """Return how much a counter grew over the recording, summed over replicas."""
        total = 0.0
        for name in {row["replica"] for row in self.rows}:
            values = [float(row[column]) for row in self.rows if row["replica"] == name]
            total += values[-1] - values[0]
        return total

    def _within(self, between: tuple[float, float]) -> list[dict[str, float | str]]:
        low, high = between
        return [row for row in self.rows if low <= float(row["t_s"]) < high]


async def _sample(
    session: aiohttp.ClientSession, replica: Replica, clocks: dict[str, _Clock]
) -> dict[str, float | str]:
    async with session.get(f"{replica.url}/metrics") as answer:
        text = await answer.text()
    now, last = _read_clock(replica), clocks[replica.name]
    clocks[replica.name] = now
    passed = now.at_s - last.at_s
    values = _scrape(text)
    row: dict[str, float | str] = {"t_s": time.time(), "replica": replica.name}
    row.update({column: values.get(name, 0.0) for column, name in METRICS.items()})
    row["gpu_busy"] = min(1.0, (now.core_s - last.core_s) / passed / replica.cpu_budget)
    row["host_cpu"] = min(1.0, (now.api_s - last.api_s) / passed)
    return row


def _read_clock(replica: Replica) -> _Clock:
    return _Clock(time.monotonic(), cpu_seconds(replica.core_pid), cpu_seconds(replica.api_pid))


def _scrape(text: str) -> dict[str, float]:
    wanted = set(METRICS.values())
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    }
