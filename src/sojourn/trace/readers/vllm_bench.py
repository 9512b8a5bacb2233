"""`vllm bench serve --save-result` JSON, detailed or not; SGLang's bench lines share its keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.progress import Progress, silent
from sojourn.records import Status, TtftOrigin
from sojourn.trace.ledger import Ledger
from sojourn.trace.merge import merge
from sojourn.trace.quality import MAX_SPREAD_S, MAX_TOKENS, far_off
from sojourn.trace.sources import Head, json_values
from sojourn.trace.tables import Clock, Tables, from_rows

NAME: Final = "vllm_bench"
LATENCIES: Final = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s",
                    "e2e_latency": "e2e_s"}  # fmt: skip
TOTALS: Final[dict[str, tuple[str, str, str]]] = {
    "request_throughput": ("request_rate_per_s", "mean", "completed requests over the duration"),
    "output_throughput": ("output_tokens_per_s", "mean", "output tokens over the duration"),
    "total_token_throughput": ("tokens_per_s", "mean", "input and output tokens over the duration"),
    "duration": ("duration_s", "sum", "first send to last answer"),
    "completed": ("completed_requests", "count", "requests that ended well"),
    "failed": ("failed_requests", "count", "requests that failed"),
    "total_input_tokens": ("input_tokens", "sum", "prompt tokens of completed requests"),
    "total_output_tokens": ("output_tokens", "sum", "tokens written by completed requests"),
    "max_concurrent_requests": ("concurrent_requests", "max", "requests in flight"),
}
LABELS: Final = ("backend", "model_id", "request_rate", "max_concurrency", "burstiness", "label",
                 "num_prompts", "date")  # fmt: skip
ARRAYS: Final = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")


def sniff(head: Head) -> bool:
    """A run's keys: throughput with latency percentiles or with the arrays of a detailed file."""
    keys = head.keys
    return (
        head.is_json
        and {"request_throughput", "completed"} <= keys
        and bool({"mean_ttft_ms", "input_lens", "num_prompts", "total_input_tokens"} & keys)
    )


def read(paths: Sequence[Path], config: Config, progress: Progress = silent) -> Tables:
    """Requests of detailed runs that recorded when they were sent; aggregates of every run."""
    del config
    return merge([run for path in paths for run in _runs(path, progress)])


def _runs(path: Path, progress: Progress) -> list[Tables]:
    ledger = Ledger(str(path))
    parts: list[Tables] = []
    for row, run in json_values(path, ledger, progress):
        if not isinstance(run, dict) or "request_throughput" not in run:
            ledger.read += 1
            ledger.drop("entry is no benchmark run", 1, f"row {row}")
            continue
        parts.append(_run(run, f"{path.name}#{row}", ledger))
    if not parts:
        raise InputError("holds no benchmark run", path=path, todo="Pass a --save-result file")
    parts[-1] = Tables.of(
        {name: parts[-1].table(name) for name in ("requests", "calls", "aggregates")},
        clock=parts[-1].clock,
        quality=ledger.quality(),
        meta=parts[-1].meta,
    )
    return parts


def _run(run: dict[str, Any], source: str, ledger: Ledger) -> Tables:
    labels = {key: run[key] for key in LABELS if isinstance(run.get(key), str | int | float)}
    if str(run.get("request_rate")) == "inf":
        ledger.add("noted", "request_rate inf: all requests were sent at once", 1, source)
    rows = _aggregates(run, source, orjson.dumps(labels, option=orjson.OPT_SORT_KEYS).decode())
    tables = {"aggregates": from_rows("aggregates", rows)}
    meta = {f"vllm_bench.{key}": str(value) for key, value in labels.items()}
    arrays = {key: run[key] for key in ARRAYS if isinstance(run.get(key), list)}
    if "input_lens" not in arrays or "output_lens" not in arrays:
        ledger.read += 1
        ledger.add("noted", "run saved without --save-detailed: aggregates only", 1, source)
        return Tables.of(tables, clock=Clock(kind="monotonic"), meta=meta)
    return _detailed(run, arrays, tables, ledger, (source, meta))


def _detailed(
    run: dict[str, Any],
    arrays: dict[str, list[Any]],
    tables: dict[str, pa.Table],
    ledger: Ledger,
    about: tuple[str, dict[str, str]],
) -> Tables:
    source, meta = about
    count = len(arrays["input_lens"])
    ledger.read += count
    clock = Clock(kind="monotonic")
    if "start_times" in arrays:
        start = _numbers(arrays["start_times"], count)
    elif str(run.get("request_rate")) == "inf" and run.get("max_concurrency") is None:
        start = np.zeros(count)
        ledger.add("noted", "no start_times, but all were sent at once: arrivals are zero", count)
    else:
        ledger.drop("no start_times recorded: latencies are in the aggregates only", count, source)
        extra = from_rows("aggregates", _from_arrays(arrays, source, count))
        tables["aggregates"] = pa.concat_tables([tables["aggregates"], extra])
        return Tables.of(tables, clock=clock, meta=meta)
    bad = ~np.isfinite(start) | far_off(start, MAX_SPREAD_S)
    ledger.drop_where("start time missing or no number", bad)
    tables |= _rows(arrays, start, ~bad, ledger, str(run.get("model_id") or "") or None)
    return Tables.of(tables, clock=clock, meta=meta)


def _rows(
    arrays: dict[str, list[Any]],
    start: np.ndarray,
    good: np.ndarray,
    ledger: Ledger,
    model: str | None,
) -> dict[str, pa.Table]:
    count = len(start)
    ttft, latency = _latencies(arrays, count)
    failed = np.array([bool(text) for text in _padded(arrays.get("errors"), count)], dtype=bool)
    ttft = np.where(failed | (ttft <= 0), np.nan, ttft)
    latency = np.where(failed & (latency <= 0), np.nan, latency)
    ledger.add_where("noted", "request failed", failed & good)
    tokens = {
        name: _tokens(arrays[key], count, ledger, key)[good]
        for name, key in (("input_tokens", "input_lens"), ("output_tokens", "output_lens"))
    }
    origin = float(start[good].min()) if good.any() else 0.0
    arrival = (start - origin)[good]
    ids = pa.array([str(i + 1) for i in np.flatnonzero(good)], pa.string())
    status = pa.array(
        [str(Status.ERROR) if bad else str(Status.OK) for bad in failed[good]], pa.string()
    )
    end = pa.array(arrival + latency[good], from_pandas=True)
    first = pa.array(arrival + ttft[good], from_pandas=True)
    requests = pa.table({"request_id": ids, "arrival_s": arrival, "end_s": end, "status": status})
    zeros = np.zeros(len(arrival), dtype=np.int64)
    calls = pa.table(
        {
            "call_id": ids,
            "request_id": ids,
            "attempt": zeros,
            "turn": zeros,
            "model": pa.array([model] * len(arrival), pa.string()),
            "arrival_s": arrival,
            "first_token_s": first,
            "end_s": end,
            "ttft_origin": pa.array(
                [None if np.isnan(v) else str(TtftOrigin.CLIENT_SEND) for v in ttft[good]],
                pa.string(),
            ),
            "status": status,
        }
        | {name: pa.array(v, from_pandas=True).cast(pa.int64()) for name, v in tokens.items()}
    )
    return {"requests": requests, "calls": calls}


def _latencies(arrays: dict[str, list[Any]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Time to first token and whole latency; old files give the latter as TTFT + sum of gaps."""
    ttft = _numbers(arrays.get("ttfts"), count)
    if "latencies" in arrays:
        return ttft, _numbers(arrays["latencies"], count)
    gaps = [
        float(np.nansum(_numbers(gap, len(gap)))) if isinstance(gap, list) else np.nan
        for gap in _padded(arrays.get("itls"), count)
    ]
    return ttft, ttft + np.array(gaps, dtype=np.float64)


def _padded(values: list[Any] | None, count: int) -> list[Any]:
    given = (values or [])[:count]
    return given + [None] * (count - len(given))


def _numbers(values: list[Any] | None, count: int) -> np.ndarray:
    """A list as float64, NaN where an entry is missing or no number."""
    return np.array(
        [
            float(v) if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300
            else np.nan
            for v in _padded(values, count)
        ],
        dtype=np.float64,
    )  # fmt: skip


def _tokens(values: list[Any], count: int, ledger: Ledger, name: str) -> np.ndarray:
    numbers = _numbers(values, count)
    bad = ~((numbers >= 0) & (numbers <= MAX_TOKENS))
    ledger.add_where("repaired", f"{name} missing, negative or absurd: removed", bad)
    return np.where(bad, np.nan, np.rint(numbers))


def _aggregates(run: dict[str, Any], source: str, labels: str) -> list[dict[str, Any]]:
    rows = []
    for key, value in run.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300:
            continue
        if key in TOTALS:
            metric, statistic, meaning = TOTALS[key]
            rows.append((metric, statistic, float(value), meaning))
            continue
        statistic, _, rest = key.partition("_")
        name = rest.removesuffix("_ms")
        if rest.endswith("_ms") and name in LATENCIES:
            meaning = "of completed requests, measured at the client"
            rows.append((LATENCIES[name], statistic, float(value) / 1e3, meaning))
    return [
        {"source": source, "metric": m, "statistic": s, "value": v, "labels": labels, "meaning": w}
        for m, s, v, w in rows
        if np.isfinite(v)
    ]


def _from_arrays(arrays: dict[str, list[Any]], source: str, count: int) -> list[dict[str, Any]]:
    """Quantiles of what was measured per request, where no arrivals were."""
    ttft, latency = _latencies(arrays, count)
    output = _numbers(arrays["output_lens"], count)
    tpot = np.divide(latency - ttft, output - 1, out=np.full(count, np.nan), where=output > 1)
    measures = {"ttft_s": ttft, "e2e_s": latency, "tpot_s": tpot, "output_tokens": output,
                "input_tokens": _numbers(arrays["input_lens"], count)}  # fmt: skip
    rows = []
    for metric, values in measures.items():
        values = values[np.isfinite(values)]  # noqa: PLW2901  the finite ones of the same measure
        if not values.size:
            continue
        found = {
            f"p{round(q * 100)}": float(np.quantile(values, q)) for q in (0.5, 0.9, 0.95, 0.99)
        }
        found |= {"mean": float(values.mean()), "count": float(values.size)}
        meaning = f"computed from {values.size} requests of the file"
        rows += [
            {"source": source, "metric": metric, "statistic": s, "value": v, "meaning": meaning}
            for s, v in found.items()
        ]
    return rows
