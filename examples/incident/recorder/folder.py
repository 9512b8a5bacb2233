"""The folder of one recording: what is in it and how it is written."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from app.config import Scenario

from recorder.machine import HERE, EngineFlags, Replica
from recorder.receiver import OtlpReceiver, write_lines
from recorder.sampler import EngineSampler
from recorder.summary import summarize

LOGS = HERE / "logs"
"""The engines' own log lines, apart from the recordings: a metrics scrape says the same."""


@dataclass
class Outcome:
    """What driving the load told, beside the telemetry."""

    started_s: float
    statuses: dict[str, int]
    late_s: float
    other_cpu_share: float
    stolen_cpu_share: float
    probes: dict[str, dict[str, dict[str, float]]]


@dataclass
class Recording:
    """One finished run, still in memory."""

    scenario: Scenario
    variant: str
    flags: EngineFlags
    replicas: list[Replica]
    outcome: Outcome
    sampler: EngineSampler
    receiver: OtlpReceiver
    notes: list[str]

    def write(self, target: Path) -> dict[str, Any]:
        """Write the folder beside its place, then move it there in one step.

        Returns what `recording.yaml` holds.
        """
        spans, dropped = self.receiver.resource_spans()
        spans = _without_probes(spans)
        facts = self._facts() | summarize(spans, self.peak_window())
        facts["left_out_spans"] = dict(dropped)
        folder = target.with_name(f".{target.name}.new")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_lines(spans, folder / "spans.otlp.jsonl.gz")
        self.sampler.write(folder / "engine_samples.parquet")
        _write_settings(self.scenario.name, len(self.replicas), folder / "sojourn.yaml")
        LOGS.mkdir(exist_ok=True)
        log = LOGS / f"{self.scenario.name}-{target.name}.log.gz"
        _write_engine_log(self.replicas[0].log, log)
        text = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
        (folder / "recording.yaml").write_text(text, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
        return facts

    def peak_window(self) -> tuple[float, float]:
        """Return the plateau: the phase with the highest constant rate, in epoch seconds."""
        start, best, window = self.outcome.started_s, 0.0, (0.0, 0.0)
        for length, first, last in self.scenario.load.phases:
            if first == last and first > best:
                best, window = first, (start, start + length)
            start += length
        return window

    def _facts(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "variant": self.variant,
            "replicas": len(self.replicas),
            **self._settings(),
            **self._engine_facts(),
            "noise": {
                "other_processes_cpu_share": round(self.outcome.other_cpu_share, 4),
                "stolen_cpu_share": round(self.outcome.stolen_cpu_share, 4),
                "generator_late_at_most_s": round(self.outcome.late_s, 4),
                "probes": self.outcome.probes,
                "notes": self.notes,
            },
        }

    def _settings(self) -> dict[str, Any]:
        load = self.scenario.load
        return {
            "started_epoch_s": round(self.outcome.started_s, 3),
            "peak_window_epoch_s": [round(value, 3) for value in self.peak_window()],
            "seed": load.seed,
            "duration_s": load.duration_s,
            "rate_plan": [
                {"seconds": length, "from_per_s": first, "to_per_s": last}
                for length, first, last in load.phases
            ],
            "gateway": asdict(self.scenario.gateway),
            "pools": {name: asdict(pool) for name, pool in self.scenario.pools.items()},
            "versions": {"vllm": version("vllm"), "python": sys.version.split()[0]},
            "layout": {
                "core_process_cpu_budget": self.replicas[0].cpu_budget,
                "cores": "one engine core process per core; all else on what is left of both",
                "processors": os.cpu_count(),
            },
            "engine": asdict(self.flags),
        }

    def _engine_facts(self) -> dict[str, Any]:
        sampler, peak = self.sampler, self.peak_window()
        hits = sampler.grown("prefix_hit_tokens_total")
        queries = sampler.grown("prefix_query_tokens_total")
        return {
            "answers_by_status": self.outcome.statuses,
            "engine_busy_at_peak": round(sampler.mean("gpu_busy", peak), 3),
            "api_server_busy_at_peak": round(sampler.mean("host_cpu", peak), 3),
            "kv_usage_max": round(sampler.peak("kv_usage"), 3),
            "waiting_max": sampler.peak("waiting"),
            "preemptions": sampler.grown("preemptions_total"),
            "prefix_hit_share": round(hits / max(queries, 1.0), 3),
        }


def _without_probes(resource_spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the engine spans of the probes: those that no call of the gateway caused."""
    for resource in resource_spans:
        for scope in resource["scopeSpans"]:
            scope["spans"] = [
                span
                for span in scope["spans"]
                if span["name"] != "llm_request" or "parentSpanId" in span
            ]
        resource["scopeSpans"] = [scope for scope in resource["scopeSpans"] if scope["spans"]]
    return [resource for resource in resource_spans if resource["scopeSpans"]]


def _write_settings(scenario: str, replicas: int, target: Path) -> None:
    """Write what sojourn is told of this run: its scenario's settings, with its replicas."""
    source = HERE / "scenarios" / f"{scenario}.sojourn.yaml"
    text = source.read_text(encoding="utf-8")
    target.write_text(text.replace("replicas: 1", f"replicas: {replicas}"), encoding="utf-8")


def _write_engine_log(source: Path, target: Path) -> None:
    """Keep the engine's own stats lines, as it wrote them."""
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    kept = "".join(line for line in lines if "throughput:" in line)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(kept.encode())
