"""Streams and fleets of the simulator's benchmarks.

The traffic is the Azure conversation trace (2023) tiled to any length, the engine a Llama-3.1-8B
on an H100 from the project's own catalogue and roofline. Where the trace is not there, gamma
lengths and gaps with its mean and deviation take its place, and `Traffic.source` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sojourn.capacity import catalogue, roofline
from sojourn.capacity.memory import memory
from sojourn.capacity.policies import (
    Client,
    Order,
    PrefixCache,
    Router,
    RouterPolicy,
    Scheduler,
)
from sojourn.capacity.records import EngineModel, Fleet, StationModel
from sojourn.config import Deployment, Retry
from sojourn.sim.scenario import Scenario
from sojourn.workload.hashing import combine
from sojourn.workload.profile_records import Summary
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_REQUESTS, STREAM_STEPS, Stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TRACE: Final = (
    Path(__file__).resolve().parents[2]
    / "shared/data/traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
)
GAP_S, PROMPT, OUTPUT = (0.180827, 1.09417), (1154.70, 0.960246), (211.126, 0.771418)
"""Mean and coefficient of variation of the trace: time between arrivals, prompt and output tokens.
From its 19,366 rows (Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv, CC-BY-4.0)."""
MODEL, CARD = "Llama-3.1-8B", "H100-SXM"
PRIORITIES: Final = 3
SESSIONS: Final = 100
"""Sessions under way at a time; a session has `TURNS` requests."""
TURNS: Final = 4
SYSTEM_PROMPTS: Final = 16
SYSTEM_TOKENS: Final = 512
"""Tokens that the requests of one system prompt share."""
TOOL_TOKENS: Final = 200
"""Tokens that the tool's answer adds to the second call's prompt."""


@dataclass(frozen=True)
class Traffic:
    """Arrivals (seconds, ascending, from 0), prompt and output tokens, and where they are from."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    source: str

    def at_rate(self, rate_per_s: float) -> Traffic:
        """The same requests, time compressed or stretched to this mean rate."""
        factor = len(self.arrival_s) / rate_per_s / (self.arrival_s[-1] + _gap(self.arrival_s))
        return Traffic(self.arrival_s * factor, self.prompt, self.output, self.source)

    def first(self, count: int) -> Traffic:
        """The first `count` requests."""
        return Traffic(
            self.arrival_s[:count], self.prompt[:count], self.output[:count], self.source
        )


def _gap(arrival_s: Floats) -> float:
    return float(arrival_s[-1] - arrival_s[0]) / max(len(arrival_s) - 1, 1)


def azure(count: int, path: Path = TRACE) -> Traffic:
    """`count` requests of the trace, tile after tile.

    A tile is followed by the next after one mean gap, as if the trace were a circle, and each
    starts further along the circle (by the golden section of its length), so that no tile begins
    where another does and neither its first nor its last minute is special.
    """
    if not path.exists():
        return _like_azure(count)
    table = csv.read_csv(path)
    stamp = table["TIMESTAMP"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() / 1e6
    gaps = np.diff(stamp, append=stamp[-1] + _gap(stamp))
    size = len(stamp)
    tile, place = np.divmod(np.arange(count), size)
    row = (place + (tile * (size * (math.sqrt(5) - 1) / 2)).astype(np.int64)) % size
    arrival = np.concatenate([[0.0], np.cumsum(gaps[row])[:-1]])
    prompt, output = (table[name].to_numpy() for name in ("ContextTokens", "GeneratedTokens"))
    tiles = -(-count // size)
    return Traffic(
        arrival, prompt[row], output[row], f"{path.name}, {size} requests, {tiles} tile(s)"
    )


def _like_azure(count: int) -> Traffic:
    rng = np.random.default_rng(0)

    def gamma(moments: tuple[float, float]) -> Floats:
        mean, cv = moments
        return rng.gamma(1 / cv**2, mean * cv**2, count)

    prompt, output = (np.maximum(np.rint(gamma(m)), 1).astype(np.int64) for m in (PROMPT, OUTPUT))
    arrival = np.concatenate([[0.0], np.cumsum(gamma(GAP_S))[:-1]])
    return Traffic(
        arrival, prompt, output, "synthetic (no trace found): gamma, the Azure conv trace's moments"
    )


def poisson(count: int, *, prompt: int, output: int, seed: int = 0) -> Traffic:
    """Poisson arrivals at one a second, constant lengths."""
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    arrival = np.cumsum(gaps) - gaps[0]
    lengths = (np.full(count, n, dtype=np.int64) for n in (prompt, output))
    return Traffic(arrival, *lengths, f"Poisson arrivals, {prompt} + {output} tokens")


@dataclass(frozen=True)
class Part:
    """One step of every request: a station's service seconds, or a call's tokens."""

    kind: str
    stage: str
    name: str
    group: int
    service_s: Floats | float = 0.0
    prompt: Ints | int = 0
    output: Ints | int = 0


def stream(
    arrival_s: Floats,
    parts: list[Part],
    *,
    session: Ints | None = None,
    priority: Ints | None = None,
    tokens_per_hash: int | None = None,
) -> Stream:
    """Requests that all have these parts. Block hashes follow from the session where asked for."""
    count, per = len(arrival_s), len(parts)
    text = pa.array(np.arange(count)).cast(pa.string())
    none = pa.nulls(count, pa.string())
    requests = pa.table(
        {
            "request_id": pc.binary_join_element_wise("r", text, ""),
            "arrival_s": arrival_s,
            "session_id": none if session is None else pa.array(session).cast(pa.string()),
            "tenant": none,
            "route": none,
            "priority": np.zeros(count, np.int64) if priority is None else priority,
            "bucket": _same("short_chat", count),
        },
        schema=STREAM_REQUESTS,
    )
    place = pa.array(np.tile(np.arange(per), count))
    prompt, output = (
        _woven([np.broadcast_to(np.asarray(getattr(p, name), np.int64), count) for p in parts])
        for name in ("prompt", "output")
    )
    service = _woven([np.broadcast_to(np.asarray(p.service_s, np.float64), count) for p in parts])
    columns = {
        "request": np.repeat(np.arange(count), per),
        "group": np.tile([p.group for p in parts], count),
        **{n: pa.array([getattr(p, n) for p in parts]).take(place) for n in ("kind", "stage")},
        "name": pa.array([p.name for p in parts]).take(place),
        "service_s": service,
        "pool": _same("default", count * per),
        "input_tokens": prompt,
        "cached_tokens": np.zeros(count * per, np.int64),
        "output_tokens": output,
        "image_tokens": np.zeros(count * per, np.int64),
    }
    steps = pa.table(columns, schema=STREAM_STEPS)
    if tokens_per_hash is not None and session is not None:
        lists = _hashes(
            (prompt + output) // tokens_per_hash, np.repeat(session, per), tokens_per_hash
        )
        steps = steps.append_column(STREAM_IDENTITIES.field("block_hashes"), lists)
    return Stream(requests, steps)


def _woven(columns: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return np.stack(columns, axis=1).ravel()


def _same(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _hashes(blocks: Ints, session: Ints, tokens: int) -> pa.ListArray:
    """Block i of a call is its session's block i; the first ones are those of its system prompt."""
    first = np.concatenate([[0], np.cumsum(blocks)])
    block = np.arange(first[-1]) - np.repeat(first[:-1], blocks)
    owner = np.repeat(session, blocks)
    system = block < SYSTEM_TOKENS // tokens
    owner = np.where(system, -1 - owner % SYSTEM_PROMPTS, owner)
    values = (combine(owner, block) >> np.uint64(1)).astype(np.int64)
    return pa.ListArray.from_arrays(pa.array(first.astype(np.int32)), pa.array(values))


def h100(traffic: Traffic, *, replicas: int = 1, **options: object) -> EngineModel:
    """Llama-3.1-8B on H100s: step times by roofline, KV blocks by the memory account, vLLM's
    default flags; no front end. `options` are further fields of `EngineModel`."""
    deployment = Deployment(model=MODEL, accelerator=CARD)
    model, gpu = catalogue.model(MODEL), catalogue.gpu(CARD)
    context = float(np.mean(traffic.prompt + traffic.output / 2))
    step = roofline.step_model(model, gpu, deployment, mean_context=context)
    held = memory(model, gpu, deployment, mean_context=context).kv_tokens
    fields: dict[str, object] = {
        "step": step.model_copy(update={"front_s": 0.0}),
        "replicas": replicas,
        "max_num_seqs": deployment.max_num_seqs,
        "max_num_batched_tokens": deployment.max_num_batched_tokens,
        "block_size": deployment.block_size,
        "kv_blocks": held // deployment.block_size,
    }
    return EngineModel(**(fields | options))


def plain(traffic: Traffic, *, replicas: int = 1, engine: EngineModel | None = None) -> Scenario:
    """One call a request and nothing else; several replicas share by least load."""
    router = Router(policy=RouterPolicy.LEAST_LOADED)
    part = Part("call", "decode", MODEL, 0, prompt=traffic.prompt, output=traffic.output)
    found = engine or h100(traffic, replicas=replicas, router=router)
    return Scenario(stream(traffic.arrival_s, [part]), Fleet(engine=found))


def station(
    name: str, stage: str, samples_s: Floats, servers: int | None, *, stops: bool = False
) -> StationModel:
    """A station whose retries draw from at most 500 of these samples."""
    p50, p90, p95, p99 = (float(v) for v in np.quantile(samples_s, [0.5, 0.9, 0.95, 0.99]))
    mean = float(samples_s.mean())
    cv2 = float(samples_s.var()) / mean**2
    count, most = len(samples_s), float(samples_s.max())
    summary = Summary(count=count, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=most, cv2=cv2)
    samples = tuple(samples_s[:500].tolist())
    return StationModel(
        name=name, stage=stage, servers=servers, service_s=summary,
        service_samples_s=samples, stops_on_cancel=stops,
    )  # fmt: skip


STATIONS: Final = (
    ("gateway", "gateway", 0.004, 0.5),
    ("guardrail", "guardrail", 0.03, 0.5),
    ("retrieval", "retrieval", 0.15, 1.0),
    ("tool", "tool", 0.4, 1.5),
    ("postprocess", "postprocess", 0.01, 0.5),
)
"""Stations of the full chain: name, stage, mean service seconds, coefficient of variation."""
GROUPS: Final = {"gateway": 0, "guardrail": 1, "retrieval": 1, "tool": 3, "postprocess": 5}
USE: Final = 0.7
"""Utilisation of each station at the chain's rate."""


def chain(
    traffic: Traffic,
    *,
    replicas: int = 8,
    tokens_per_hash: int = 64,
    timeout_s: float | None = None,
) -> Scenario:
    """The whole chain: gateway; guardrail and retrieval at once; a call; a tool; a call that
    knows the first one's tokens and the tool's answer; postprocessing. Eight replicas behind a
    prefix-aware router, prefix cache, priorities, sessions, and with `timeout_s` retries."""
    count = len(traffic.arrival_s)
    rng = np.random.default_rng(1)
    rate = count / (traffic.arrival_s[-1] + _gap(traffic.arrival_s)) if count > 1 else 1.0
    parts, stations = [], {}
    for name, stage, mean, cv in STATIONS:
        sigma2 = math.log(1 + cv**2)
        service = rng.lognormal(math.log(mean) - sigma2 / 2, math.sqrt(sigma2), count)
        stations[name] = station(name, stage, service, math.ceil(rate * mean / USE))
        parts.append(Part("station", stage, name, GROUPS[name], service_s=service))
    second = traffic.prompt + traffic.output + TOOL_TOKENS
    parts.append(Part("call", "decode", MODEL, 2, prompt=traffic.prompt, output=traffic.output))
    parts.append(Part("call", "decode", MODEL, 4, prompt=second, output=traffic.output))
    parts.sort(key=lambda part: part.group)
    at_once = SESSIONS * TURNS
    session = np.arange(count) // at_once * SESSIONS + rng.integers(SESSIONS, size=count)
    engine = h100(
        traffic,
        replicas=replicas,
        router=Router(policy=RouterPolicy.PREFIX_AWARE),
        prefix_cache=PrefixCache(tokens_per_hash=tokens_per_hash),
        scheduler=Scheduler(order=Order.PRIORITY),
    )
    retry = Retry(attempt_timeout_s=timeout_s, max_attempts=3, backoff_s=0.5, jitter=0.5)
    fleet = Fleet(
        engine=engine,
        stations=stations,
        retry=Retry() if timeout_s is None else retry,
        client=Client(retry_budget_per_success=0.2),
    )
    made = stream(
        traffic.arrival_s, parts, session=session,
        priority=rng.integers(PRIORITIES, size=count), tokens_per_hash=tokens_per_hash,
    )  # fmt: skip
    return Scenario(made, fleet)


def queue(arrival_s: Floats, service_s: Floats, servers: list[int | None]) -> Scenario:
    """Stations in a row without any engine: `service_s` is requests x stations, seconds."""
    names = [f"station {i}" for i in range(len(servers))]
    parts = [
        Part("station", "tool", name, i, service_s=service_s[:, i]) for i, name in enumerate(names)
    ]
    stations = {
        name: station(name, "tool", service_s[:, i], servers[i]) for i, name in enumerate(names)
    }
    one = poisson(1, prompt=1, output=1)
    return Scenario(stream(arrival_s, parts), Fleet(engine=h100(one), stations=stations))
