"""Labelled scenes: small systems whose bottleneck is known because it was put there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sojourn.config import Config
from sojourn.interval import Interval, Provenance
from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.profile_records import Arrivals, PrefixReuse, Profile, Window

CALM = {"retrieval": 0.3, "rerank": 0.1, "tool": 0.3, "front": 0.01, "net": 0.01}
ENGINE = {"queue": 0.01, "prefill": 0.2, "decode": 1.0}


@dataclass(frozen=True)
class Scene:
    """Mean seconds per stage when calm, factors at the peak, and the state of the engine."""

    seed: int = 1
    duration_s: float = 600.0
    rate: float = 0.8
    peak_rate: float = 4.0
    peak: tuple[float, float] = (240.0, 320.0)
    stages: dict[str, float] = field(default_factory=lambda: {**CALM, **ENGINE})
    peak_factor: dict[str, float] = field(default_factory=dict)
    cv: float = 0.5
    timeout_s: float | None = None
    max_attempts: int = 1
    samples: dict[str, float] | None = field(
        default_factory=lambda: {"running": 3, "waiting": 0, "gpu_busy": 0.3, "kv_usage": 0.3}
    )
    input_tokens: int = 500
    long_share: float = 0.0
    detail: bool = True
    spans: bool = True
    forgets_cut_calls: bool = False

    def but(self, **changes) -> Scene:
        """This scene with other values; `stages` and `peak_factor` are merged."""
        for name in ("stages", "peak_factor"):
            if name in changes:
                changes[name] = {**getattr(self, name), **changes[name]}
        return replace(self, **changes)


def tables(scene: Scene) -> Tables:
    rng = np.random.default_rng(scene.seed)
    rows: dict[str, list[dict]] = {"requests": [], "calls": [], "spans": []}
    for k, arrival in enumerate(_arrivals(scene, rng)):
        _request(scene, rng, f"r{k}", float(arrival), rows)
    made = {name: from_rows(name, data) for name, data in rows.items()}
    if not scene.spans:
        made["spans"] = made["spans"].slice(0, 0)
    if scene.samples is not None:
        made["engine_samples"] = from_rows("engine_samples", _samples(scene, rng))
    return Tables.of(made)


def _arrivals(scene: Scene, rng) -> np.ndarray:
    low, high = scene.peak
    outside = scene.duration_s - (high - low)
    calm = rng.uniform(0, scene.duration_s, int(scene.rate * outside))
    busy = rng.uniform(low, high, int(scene.peak_rate * (high - low)))
    return np.sort(np.r_[calm, busy])


def _samples(scene: Scene, rng) -> list[dict]:
    out = []
    for t in np.arange(0.0, scene.duration_s):
        at_peak = scene.peak[0] <= t < scene.peak[1]
        state = dict(scene.samples)
        if not at_peak:
            state |= {"running": 1, "waiting": 0}
            if "gpu_busy" in state:
                state["gpu_busy"] = min(0.2, state["gpu_busy"])
        out.append({"t_s": float(t), "replica": "0", **{k: float(v) for k, v in state.items()}})
    return out


def _draw(scene: Scene, rng, stage: str, at_peak: bool) -> float:
    mean = scene.stages.get(stage, 0.0) * (scene.peak_factor.get(stage, 1.0) if at_peak else 1.0)
    sigma = np.sqrt(np.log(1 + scene.cv**2))
    return float(mean * np.exp(sigma * rng.standard_normal() - sigma**2 / 2))


def _request(scene: Scene, rng, name: str, arrival: float, rows: dict) -> None:
    at_peak = scene.peak[0] <= arrival < scene.peak[1]
    root = f"{name} root"
    now, status, attempt = arrival, "timeout", 0
    while attempt < scene.max_attempts:
        start = now
        now, status = _attempt(scene, rng, (name, attempt, at_peak), start, rows)
        if status == "ok":
            break
        attempt += 1
        if attempt < scene.max_attempts:
            now += 0.05
    rows["spans"].append(
        {
            "span_id": root,
            "request_id": name,
            "attempt": 0,
            "name": "POST /ask",
            "start_s": arrival,
            "end_s": now,
            "status": status,
        }
    )
    rows["requests"].append(
        {
            "request_id": name,
            "arrival_s": arrival,
            "end_s": now,
            "status": status,
            "attempts": min(attempt + 1, scene.max_attempts),
            "bucket": "short_chat",
        }
    )


def _attempt(scene: Scene, rng, who, start: float, rows: dict) -> tuple[float, str]:
    name, attempt, at_peak = who
    box = f"{name} attempt {attempt}"
    limit = start + scene.timeout_s if scene.timeout_s is not None else np.inf
    now, spans = start, []

    def add(stage: str | None, label: str, end: float, parent: str, call: str | None = None):
        nonlocal now
        if now >= limit:
            return None
        at = {
            "span_id": f"{box} {label}",
            "request_id": name,
            "attempt": attempt,
            "call_id": call,
            "stage": stage,
            "name": label,
            "parent": parent,
            "start_s": now,
            "end_s": min(end, limit),
            "status": "timeout" if end > limit else "ok",
        }
        spans.append(at)
        now = min(end, limit)
        return at

    for stage, label in (
        ("retrieval", "retrieval kb"),
        ("rerank", "rerank small"),
        ("tool", "tool web"),
    ):
        if scene.stages.get(stage):
            add(stage, label, now + _draw(scene, rng, stage, at_peak), box)
    if now < limit:
        _call(scene, rng, (box, name, attempt, at_peak), (now, limit), rows, (spans, add))
    end = min(now, limit)
    status = "timeout" if now >= limit else "ok"
    spans.append(
        {
            "span_id": box,
            "request_id": name,
            "attempt": attempt,
            "name": f"attempt {attempt}",
            "parent": f"{name} root",
            "start_s": start,
            "end_s": end,
            "status": status,
        }
    )
    rows["spans"].extend(spans)
    return end, status


def _call(scene, rng, who, when, rows, made) -> None:
    box, name, attempt, at_peak = who
    start, limit = when
    spans, add = made
    call, chat = f"{box} call", f"{box} chat m"
    tokens = scene.input_tokens
    if scene.long_share and rng.random() < scene.long_share:
        tokens *= 40
    cuts = [start]
    for stage in ("net", "front", "queue", "prefill", "decode"):
        length = _draw(scene, rng, stage, at_peak)
        if stage == "prefill":
            length *= tokens / scene.input_tokens
        cuts.append(cuts[-1] + length)
    told = scene.detail and not (scene.forgets_cut_calls and cuts[-1] > limit)
    if told:
        offset = cuts[1]
        for (stage, label), end in zip(
            (
                ("gateway", "engine front"),
                ("queue", "queue"),
                ("prefill", "prefill"),
                ("decode", "decode"),
            ),
            cuts[2:],
            strict=True,
        ):
            if offset < limit:
                spans.append(
                    {
                        "span_id": f"{call} {label}",
                        "request_id": name,
                        "attempt": attempt,
                        "call_id": call,
                        "stage": stage,
                        "name": label,
                        "parent": chat,
                        "start_s": offset,
                        "end_s": min(end, limit),
                        "status": "ok",
                    }
                )
            offset = end
    end = min(cuts[-1], limit)
    add(None, "chat m", cuts[-1], box, call)
    rows["calls"].append(
        {
            "call_id": call,
            "request_id": name,
            "attempt": attempt,
            "turn": 0,
            "model": "m",
            "replica": "0" if scene.detail else None,
            "input_tokens": tokens,
            "cached_tokens": None,
            "output_tokens": 50,
            "arrival_s": cuts[1] if cuts[1] < limit else limit,
            "scheduled_s": cuts[3] if told and cuts[3] < limit else None,
            "first_token_s": cuts[4] if cuts[4] < limit and (told or not scene.detail) else None,
            "end_s": end,
            "ttft_origin": "server_arrival",
            "status": "timeout" if cuts[-1] > limit else "ok",
        }
    )


def profile(hit: float | None = None, ideal: float | None = None) -> Profile:
    window = Window(start_s=0, length_s=60, requests=100)
    prefix = None
    if hit is not None:
        prefix = PrefixReuse(hit_share=hit, provenance=Provenance.MEASURED, ideal=ideal)
    return Profile(
        arrivals=Arrivals(
            requests=100,
            duration_s=600,
            rate_per_s=1,
            peak=window,
            cv_interarrival=1,
            dispersion={},
            windows=(window,),
        ),
        buckets={},
        stations={},
        models={},
        routes={},
        tenants={},
        long_context_share=0,
        multimodal_share=0,
        attempts_per_request=Interval.exact(1),
        prefix=prefix,
        concentration=(),
    )


def config(**deployment) -> Config:
    return Config.from_dict({"deployment": deployment} if deployment else {})


INCIDENT = Scene().but(
    stages={"retrieval": 0.6, "tool": 0.8, "rerank": 0.2},
    peak_factor={
        "retrieval": 6,
        "tool": 5,
        "rerank": 4,
        "queue": 40,
        "prefill": 1.2,
        "decode": 1.3,
    },
    timeout_s=8.0,
    max_attempts=3,
    samples={"running": 4, "waiting": 0.3, "gpu_busy": 0.45, "kv_usage": 0.4},
)
SATURATED = Scene().but(
    stages={"retrieval": 0.05, "tool": 0.05, "rerank": 0.02},
    peak_factor={"queue": 500, "prefill": 3, "decode": 3},
    samples={"running": 16, "waiting": 20, "gpu_busy": 0.97, "kv_usage": 0.7},
)
