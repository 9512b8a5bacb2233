"""vLLM and SGLang server logs: the engine's own statistics lines, and what it said at launch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson

from sojourn.config import Config
from sojourn.progress import Progress, silent
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import MAX_SPREAD_S
from sojourn.trace.sources import Head, lines_of
from sojourn.trace.tables import Clock, Tables, from_rows

NAME: Final = "engine_log"
YEARLESS: Final = "engine_log.first_line"
"""Month, day and time of the first line, for a log without a year; UTC unless told."""
MARKS: Final = ("Avg prompt throughput:", "Decode batch", "Prefill batch")
LAUNCH_MARKS: Final = ("vLLM API server version", "Initializing a V1 LLM engine",
                       "Initializing an LLM engine", "server_args=ServerArgs(",
                       "The server is fired up", "GPU KV cache size", "# GPU blocks")  # fmt: skip
_NUM: Final = r"([0-9][0-9,]*\.?[0-9]*)"
_VLLM: Final = {
    "prompt_tokens_per_s": re.compile(rf"Avg prompt throughput: {_NUM} tokens/s"),
    "generation_tokens_per_s": re.compile(rf"Avg generation throughput: {_NUM} tokens/s"),
    "running": re.compile(rf"Running: {_NUM} req"),
    "waiting": re.compile(rf"(?:Waiting|Pending): {_NUM} req"),
    "kv_usage": re.compile(rf"(?:GPU|CPU|XPU|TPU) KV cache usage: {_NUM}%"),
}
_SWAPPED: Final = re.compile(rf"Swapped: {_NUM} req")
_HIT_RATE: Final = re.compile(rf"(?<!External )(?<!MM )[Pp]refix cache hit rate: (?:GPU: )?{_NUM}%")
_ENGINE: Final = re.compile(r"Engine (\d+):")
_PREEMPTED: Final = re.compile(r"total(?:_num)?_cumulative_preemption(?:_cnt)?=(\d+)")
_SGLANG: Final = {
    "running": re.compile(rf"#running-req: {_NUM}"),
    "waiting": re.compile(rf"#queue-req: {_NUM}"),
    "kv_usage": re.compile(rf"(?<!\w )token usage: {_NUM}"),
    "generation_tokens_per_s": re.compile(rf"gen throughput \(token/s\): {_NUM}"),
    "prompt_tokens_per_s": re.compile(rf"input throughput \(token/s\): {_NUM}"),
}
_NEW: Final = re.compile(rf"#new-token: {_NUM}")
_CACHED: Final = re.compile(rf"#cached-token: {_NUM}")
_RANK: Final = re.compile(r"\[[\d :,.T-]+((?: (?:DP|TP|EP|PP)\d+)*)\]")
_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?"
)
_SHORT: Final = re.compile(
    r"\b(?:INFO|WARNING|ERROR|DEBUG)\s+(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?"
)
FACTS: Final = {
    "engine.kv_blocks": re.compile(
        rf"# (?:GPU|CUDA|cuda) blocks: {_NUM}"
        rf"|num_gpu_blocks(?:_override)?\s?(?:is|=|:)\s?{_NUM}"
    ),
    "engine.kv_cache_tokens": re.compile(
        rf"[GC]PU KV cache size: {_NUM} tokens|max_total_num_tokens={_NUM}"
    ),
    "engine.max_concurrency": re.compile(
        rf"Maximum concurrency for {_NUM} tokens per request: {_NUM}x"
    ),
    "engine.max_model_len": re.compile(rf"max_(?:model|seq)_len[=:'\" ]+{_NUM}|context_len={_NUM}"),
    "engine.max_num_seqs": re.compile(rf"max_num_seqs[=:'\" ]+{_NUM}|max_running_requests={_NUM}"),
    "engine.max_num_batched_tokens": re.compile(
        rf"max_num_batched_tokens[=:'\" ]+{_NUM}|chunked_prefill_size={_NUM}"
    ),
    "engine.tensor_parallel": re.compile(rf"tensor_parallel_size[=:'\" ]+{_NUM}|\btp_size={_NUM}"),
    "engine.block_size": re.compile(rf"\bblock_size[=:'\" ]+{_NUM}"),
    "engine.version": re.compile(r"vLLM API server version (\S+)|LLM engine \((v[^)]+)\)"),
    "engine.model": re.compile(r"\bmodel='([^']+)'|model_path='([^']+)'"),
    "engine.weights_gib": re.compile(rf"[Mm]odel (?:loading took|weights take) {_NUM} ?Gi?B"),
}  # fmt: skip
_FACT_WORDS: Final = ("blocks", "KV cache size", "oncurrency", "max_", "model", "version", "_size")


def sniff(head: Head) -> bool:
    """A statistics line, or a line that only an engine's launch prints."""
    return not head.is_binary and any(mark in head.text for mark in (*MARKS, *LAUNCH_MARKS))


@dataclass
class _Log:
    """What is carried from line to line."""

    name: str
    many: bool
    ledger: Ledger
    samples: list[dict[str, Any]] = field(default_factory=list)
    hit_rates: list[tuple[int, str | None, float]] = field(default_factory=list)
    times: list[tuple[datetime, str]] = field(default_factory=list)
    totals: dict[tuple[str | None, str], float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    last: datetime | None = None
    year: int = 1972


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """One engine sample per statistics line; launch facts in `meta`."""
    del config
    return merge([_read_one(path, progress, many=len(paths) > 1) for path in paths])


def _read_one(path: Path, progress: Progress, *, many: bool) -> Tables:
    ledger = Ledger(str(path))
    log = _Log(path.name.split(".")[0], many, ledger)
    for number, raw in lines_of(path, ledger, progress):
        line = raw.decode("utf-8", "replace")
        if line.startswith('{"log":'):
            line = _docker(line)
        if any(mark in line for mark in MARKS):
            _statistics(line, number, log)
        elif "preemption" in line and (found := _PREEMPTED.search(line)):
            log.totals[(_replica(line, log), "preemptions_total")] = float(found[1])
        elif any(word in line for word in _FACT_WORDS):
            _facts(line, log)
    return _tables(log)


def _docker(line: str) -> str:
    """A line of Docker's JSON log, with its time in front."""
    try:
        value = orjson.loads(line)
        return f"{value.get('time', '')} {value['log']}"
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return line


def _statistics(line: str, number: int, log: _Log) -> None:
    log.ledger.read += 1
    when = _time(line, log)
    if when is None:
        log.ledger.drop("statistics line without a time", 1, f"row {number}")
        return
    vllm = MARKS[0] in line
    values = {
        name: _float(found[1])
        for name, pattern in (_VLLM if vllm else _SGLANG).items()
        if (found := pattern.search(line))
    }
    if "running" not in values and "generation_tokens_per_s" not in values:
        log.ledger.drop("statistics line without figures", 1, f"row {number}")
        return
    replica = _replica(line, log)
    if vllm:
        percent = values.get("kv_usage")
        values["kv_usage"] = None if percent is None else percent / 100
        if swapped := _SWAPPED.search(line):
            values["waiting"] = (values.get("waiting") or 0.0) + (_float(swapped[1]) or 0.0)
        if rate := _HIT_RATE.search(line):
            log.hit_rates.append((len(log.samples), replica, (_float(rate[1]) or 0.0) / 100))
    else:
        _count_prefill(line, replica, log)
    for (owner, name), total in log.totals.items():
        if owner == replica:
            values[name] = total
    log.samples.append({"replica": replica, **values})
    log.times.append(when)


def _count_prefill(line: str, replica: str | None, log: _Log) -> None:
    """SGLang says per prefill batch how many prompt tokens were new and how many cached."""
    new, cached = _NEW.search(line), _CACHED.search(line)
    if new is None or cached is None:
        return
    fresh, hit = _float(new[1]) or 0.0, _float(cached[1]) or 0.0
    for name, count in (
        ("prefix_hit_tokens_total", hit),
        ("prefix_query_tokens_total", fresh + hit),
        ("prompt_tokens_total", fresh + hit),
    ):
        key = (replica, name)
        log.totals[key] = log.totals.get(key, 0.0) + count


def _float(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value < 1e15 else None


def _replica(line: str, log: _Log) -> str | None:
    engine = _ENGINE.search(line)
    rank = _RANK.search(line)
    part = f"engine-{engine[1]}" if engine else ""
    if rank and "DP" in rank[1]:
        part = next(word for word in rank[1].split() if word.startswith("DP"))
    if log.many:
        return f"{log.name}/{part}" if part else log.name
    return part or None


def _time(line: str, log: _Log) -> tuple[datetime, str] | None:
    """(time, kind): `zone` or `naive` for a full date, `yearless` for vLLM's month and day."""
    found = _ISO.search(line[:200])
    try:
        if found is not None:
            fraction = (found[3] or "0")[:6].ljust(6, "0")
            zone = (found[4] or "+00:00").replace("Z", "+00:00")
            text = f"{found[1]}T{found[2]}.{fraction}{zone}"
            return datetime.fromisoformat(text).astimezone(UTC), "zone" if found[4] else "naive"
        short = _SHORT.search(line[:200])
        if short is None:
            return None
        month, day, hour, minute, second = (int(part) for part in short.groups()[:5])
        when = datetime(log.year, month, day, hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    if log.last is not None and when < log.last - timedelta(days=180):
        log.year += 1
        when = when.replace(year=log.year, day=min(when.day, 28) if month == 2 else when.day)
    log.last = when
    return when, "yearless"


def _facts(line: str, log: _Log) -> None:
    for key, pattern in FACTS.items():
        if key in log.facts and key != "engine.kv_blocks":
            continue
        found = pattern.search(line)
        if found is None:
            continue
        groups = [group.replace(",", "") for group in found.groups() if group]
        if key == "engine.max_concurrency":
            log.facts["engine.max_concurrency_tokens"] = groups[0]
        log.facts[key] = groups[-1]


def _tables(log: _Log) -> Tables:
    ledger = log.ledger
    kinds = {kind for _, kind in log.times}
    epoch = bool(kinds) and "yearless" not in kinds
    if "naive" in kinds:
        ledger.add("noted", "log times without a zone are taken as UTC")
    if "yearless" in kinds:
        ledger.add("noted", "log times have no year and no zone")
        if len(kinds) > 1:
            _drop_dated(log)
            kinds = {"yearless"}
    stamps = [when.timestamp() for when, _ in log.times]
    _drop_far(log, stamps)
    origin = min((when.timestamp() for when, _ in log.times), default=0.0)
    samples = [
        {"t_s": when.timestamp() - origin, **sample}
        for (when, _), sample in zip(log.times, log.samples, strict=True)
    ]
    if not samples:
        ledger.add("noted", "log holds no statistics line (is --disable-log-stats set?)")
    source = ledger.source
    rates = [
        {
            "source": source, "metric": "prefix_hit_rate", "statistic": "mean", "value": rate,
            "t_s": samples[index]["t_s"], "meaning": "recent requests, as the engine logs it",
            "labels": orjson.dumps({"replica": replica}).decode(),
        }
        for index, replica, rate in log.hit_rates
        if index < len(samples)
    ]  # fmt: skip
    return Tables.of(
        {
            "engine_samples": from_rows("engine_samples", samples),
            "aggregates": from_rows("aggregates", rates),
        },
        clock=Clock(kind="epoch" if epoch else "relative", origin_epoch_s=origin if epoch else 0.0),
        quality=ledger.quality(),
        meta=log.facts | _first_line(log, kinds),
    )


def _first_line(log: _Log, kinds: set[str]) -> dict[str, str]:
    if "yearless" not in kinds or not log.times:
        return {}
    return {YEARLESS: min(when for when, _ in log.times).isoformat()}


def _keep(log: _Log, good: list[bool], reason: str) -> None:
    lost = good.count(False)
    if not lost:
        return
    log.ledger.drop(reason, lost, f"sample {good.index(False) + 1}")
    log.samples = [s for s, ok in zip(log.samples, good, strict=True) if ok]
    log.times = [t for t, ok in zip(log.times, good, strict=True) if ok]
    log.hit_rates = []


def _drop_dated(log: _Log) -> None:
    good = [kind == "yearless" for _, kind in log.times]
    _keep(log, good, "statistics line dated unlike the others")


def _drop_far(log: _Log, stamps: list[float]) -> None:
    if not stamps:
        return
    kept = [when.timestamp() for when, _ in log.times]
    middle = sorted(kept)[len(kept) // 2]
    _keep(log, [abs(t - middle) <= MAX_SPREAD_S for t in kept], "line more than a year off")
