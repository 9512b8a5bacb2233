"""The folders of the recordings, written from what was kept raw."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import yaml
from recorder.receiver import write_lines
from recorder.sampler import EngineSampler

from bench.step_format import EVENT_COLUMNS, EVENTS, SETTINGS, STEP, STEPS

ENGINE_ID = re.compile(r"^cmpl-(.+?)-0(?:-[0-9a-f]+)?$")
"""How the engine names the request that came with `X-Request-Id: $1`."""
COUNTERS = (
    "preemptions_total",
    "prefix_hit_tokens_total",
    "prefix_query_tokens_total",
    "prompt_tokens_total",
    "generation_tokens_total",
)
ENGINE_SAID = ("KV cache size", "num_gpu_blocks", "Chunked prefill", "non-default args", "runner")


def write_all(raw: Path, mains: Path, controls: Path) -> None:
    """Write the folder of every run, a main one below `mains`, the others below `controls`."""
    with (raw / "found.pickle").open("rb") as packed:
        found = pickle.load(packed)  # written by record.py a moment ago
    spans = json.loads((raw / "spans.json").read_text(encoding="utf-8"))
    steps, events = _read_log(raw)
    common = _common(raw, found)
    common["left_out_spans"] = found["left_out"] | {"llm_request of a probe": _probes(spans, found)}
    for entry in found["runs"]:
        run = entry["run"]
        root = mains if run["main"] else controls
        folder = root / f".{run['name']}.new"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        facts = _write(folder, entry, spans, steps, events)
        text = yaml.safe_dump(facts | common, sort_keys=False, allow_unicode=True, width=100)
        (folder / "recording.yaml").write_text(text, encoding="utf-8")
        shutil.rmtree(root / run["name"], ignore_errors=True)
        folder.rename(root / run["name"])


def _read_log(raw: Path) -> tuple[np.ndarray, pa.Table | None]:
    if not (raw / STEPS).exists() or not (raw / STEPS).stat().st_size:
        return np.zeros(0, dtype=STEP), None
    steps = np.fromfile(raw / STEPS, dtype=STEP)
    options = pc.ReadOptions(column_names=list(EVENT_COLUMNS))
    return steps, pc.read_csv(raw / EVENTS, read_options=options)


def _write(
    folder: Path,
    entry: dict[str, Any],
    spans: list[dict[str, Any]],
    steps: np.ndarray,
    events: pa.Table | None,
) -> dict[str, Any]:
    rows = entry["rows"]
    began, ended = entry["samples"][0]["t_s"], entry["samples"][-1]["t_s"]
    own = _spans_of(spans, {row["request_id"] for row in rows})
    write_lines(own, folder / "spans.otlp.jsonl.gz")
    sampler = EngineSampler([])
    sampler.rows = entry["samples"]
    sampler.write(folder / "engine_samples.parquet")
    _write_requests(folder / "requests.parquet", rows)
    inside = (steps["t_s"] >= began) & (steps["t_s"] < ended)
    if events is not None:
        first = int(np.argmax(inside))
        _write_steps(folder / "steps.parquet", steps[inside])
        _write_events(folder / "events.parquet", events, (began, ended), first)
    return _facts(entry, own, steps[inside])


def _write_steps(path: Path, steps: np.ndarray) -> None:
    """A step's time runs from the start of scheduling to the end of taking the output."""
    scheduled, model, update = steps["schedule_s"], steps["model_s"], steps["update_s"]
    columns: dict[str, pa.Array] = {
        "step_start_s": pa.array(np.round(steps["t_s"], 6)),
        "elapsed_s": _micro(scheduled + model + update),
        "schedule_s": _micro(scheduled),
        "model_s": _micro(model),
        "update_s": _micro(update),
    }
    for name in STEP.names or ():
        if name not in columns and name != "t_s":
            columns[name] = pa.array(steps[name].astype(np.int32))
    floats = [name for name, column in columns.items() if pa.types.is_floating(column.type)]
    table = pa.table(columns)
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in columns if name not in floats],
        use_byte_stream_split=floats,
    )


def _micro(seconds: np.ndarray) -> pa.Array:
    """Whole microseconds, as float32 s: what the clock is good for, and small."""
    return pa.array(np.round(seconds, 6).astype(np.float32))


def _write_events(
    path: Path, events: pa.Table, between: tuple[float, float], first_step: int
) -> None:
    times = events["t_s"].to_numpy()
    events = events.filter(pa.array((times >= between[0]) & (times < between[1])))
    names = [_sent_id(name) for name in events["request_id"].to_pylist()]
    events = events.set_column(3, "request_id", pa.array(names))
    steps = events["step"].to_numpy() - first_step
    events = events.set_column(1, "step", pa.array(steps.astype(np.int32)))
    kept = np.array([name is not None for name in names])
    pq.write_table(events.filter(pa.array(kept)), path, compression="zstd", compression_level=19)


def _sent_id(name: str) -> str | None:
    found = ENGINE_ID.match(name)
    return found[1] if found else None


def _spans_of(resources: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    """The resourceSpans with the spans of these requests only."""
    kept = []
    for resource in resources:
        scopes = []
        for scope in resource["scopeSpans"]:
            spans = [span for span in scope["spans"] if _sent_id(_engine_id(span)) in names]
            if spans:
                scopes.append({**scope, "spans": spans})
        if scopes:
            kept.append({**resource, "scopeSpans": scopes})
    return kept


def _probes(resources: list[dict[str, Any]], found: dict[str, Any]) -> int:
    """Return how many spans belong to no run: those of the probes."""
    known = {row["request_id"] for entry in found["runs"] for row in entry["rows"]}
    return sum(
        _sent_id(_engine_id(span)) not in known
        for resource in resources
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    )


def _engine_id(span: dict[str, Any]) -> str:
    for attribute in span["attributes"]:
        if attribute["key"] == "gen_ai.request.id":
            return str(attribute["value"]["stringValue"])
    return ""


BLOCK = 128


def block_hashes(tokens: list[int]) -> list[int]:
    """Return a number for each full block: equal iff all tokens up to its end are equal."""
    hashes, last = [], b""
    array = np.array(tokens, dtype="<i4")
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = array[start : start + BLOCK].tobytes()
        last = hashlib.blake2b(last + block, digest_size=8).digest()
        hashes.append(int.from_bytes(last, "little", signed=True))
    return hashes


def _write_requests(path: Path, rows: list[dict[str, Any]]) -> None:
    """`computed_block_hashes`: as far as the answer is known too (a conversation's turns)."""
    plain = {
        name: [row[name] for row in rows]
        for name in rows[0]
        if name not in {"prompt", "answer", "asked_output_tokens"}
    }
    hashes = [block_hashes(row["prompt"]) for row in rows]
    computed = [
        block_hashes((row["prompt"] + row["answer"])[:-1]) if row["answer"] else None
        for row in rows
    ]
    table = pa.table(plain)
    lists = pa.list_(pa.int64())
    table = table.append_column("block_hashes", pa.array(hashes, lists))
    table = table.append_column("computed_block_hashes", pa.array(computed, lists))
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _facts(entry: dict[str, Any], spans: list[dict[str, Any]], steps: np.ndarray) -> dict[str, Any]:
    run, rows, samples = entry["run"], entry["rows"], entry["samples"]
    first, last = samples[0], samples[-1]
    found = sum(len(scope["spans"]) for resource in spans for scope in resource["scopeSpans"])
    statuses = Counter(row["status"] for row in rows)
    wrong = sum(row["output_tokens"] != row["asked_output_tokens"] for row in rows)
    wrong += sum(row["prompt_tokens"] != len(row["prompt"]) for row in rows)
    late = max(row["send_s"] - row["planned_s"] for row in rows)
    return {
        "run": run["name"],
        "load": run["load"],
        "server_life": run.get("life", 1),
        "seed": run["seed"],
        "rate_per_s": run["rate_per_s"],
        "duration_s": run["duration_s"],
        "kinds": [dict(kind) for kind in run["kinds"]],
        "started_epoch_s": round(entry["started_s"], 6),
        "counts": {
            "requests": found,
            "failed": {},
            "attempts": found,
            "model_calls": found,
            "engine_spans": found,
            "spans": found,
            "sent": len(rows),
            "answers_by_status": {str(status): n for status, n in statuses.items()},
            "with_other_lengths_than_asked": wrong,
            "with_fewer_chunks_than_tokens": sum(
                row["chunks"] < row["output_tokens"] for row in rows
            ),
            "steps": len(steps),
        },
        "totals": {
            name: {"before": first[name], "after": last[name], "grown": last[name] - first[name]}
            for name in COUNTERS
        },
        "seen": {
            "preempted_in_steps": int(steps["preempted"].sum()),
            "cached_tokens_of_first_admissions": sum(row["cached_tokens"] for row in rows),
            "running_max": int(steps["running"].max(initial=0)),
            "waiting_max": int(steps["waiting"].max(initial=0)),
            "free_blocks_min": int(steps["free_blocks"].min(initial=1 << 30)),
            "requests_per_s": round(len(rows) / (last_end(rows) - entry["started_s"]), 4),
        },
        "milliseconds": dict(_percentiles(rows)),
        "noise": {
            "other_processes_cpu_share": round(entry["other_cpu_share"], 4),
            "stolen_cpu_share": round(entry["stolen_cpu_share"], 4),
            "generator_late_at_most_s": round(late, 4),
            "engine_core_busy": round(float(np.mean([s["gpu_busy"] for s in samples])), 3),
            "api_server_busy": round(float(np.mean([s["host_cpu"] for s in samples])), 3),
        },
    }


def last_end(rows: list[dict[str, Any]]) -> float:
    """Return when the last answer ended, epoch s."""
    return float(max(row["end_s"] for row in rows))


def _percentiles(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
    """TTFT and E2E from sending; TPOT is the mean gap after the first token of each request."""
    names = ("send_s", "first_chunk_s", "last_chunk_s", "end_s", "output_tokens")
    column = {name: np.array([row[name] for row in rows]) for name in names}
    several = column["output_tokens"] > 1
    gaps = column["last_chunk_s"] - column["first_chunk_s"]
    values = {
        "ttft": column["first_chunk_s"] - column["send_s"],
        "tpot": gaps[several] / (column["output_tokens"][several] - 1),
        "e2e": column["end_s"] - column["send_s"],
    }
    for name, seconds in values.items():
        p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
        yield (
            name,
            {
                "mean": round(float(seconds.mean()) * 1e3, 3),
                "p50": round(float(p50), 3),
                "p99": round(float(p99), 3),
            },
        )


def _common(raw: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What is the same for all runs of a server's life."""
    log = (raw / found["log"]).read_text(encoding="utf-8", errors="replace").splitlines()
    settings = raw / SETTINGS
    model = json.loads((raw / "model" / "config.json").read_text(encoding="utf-8"))
    said = [line for line in log if any(part in line for part in ENGINE_SAID)]
    return {
        "order_of_runs": [entry["run"]["name"] for entry in found["runs"]],
        "engine": {**found["flags"], "more": list(found["flags"]["more"])},
        "scheduler": json.loads(settings.read_text()) if settings.exists() else None,
        "engine_said": [_without_places(line, raw) for line in said],
        "model": model,
        "versions": {
            "vllm": version("vllm"),
            "torch": version("torch"),
            "python": sys.version.split()[0],
        },
        "machine": {
            "processors": found["processors"],
            "layout": "engine core on one core; API server, generator, receiver on the other",
        },
        "probes": {"before": found["probe_before"], "after": found["probe_after"]},
        "notes": found["notes"],
    }


def _without_places(line: str, raw: Path) -> str:
    """A log line without process id, date and this machine's folders."""
    text = re.sub(r"^\(\w+ pid=\d+\) ", "", line).replace(str(raw), "")
    return re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d ", "", text)
