"""Single published figures (prefill rates, latency against context, small closed loops), and KV
pools as engines print them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from sojourn.capacity import catalogue
from sojourn.capacity.memory import kv_bytes_per_token, kv_value_bytes
from sojourn.config import Deployment
from sojourn.errors import SojournError
from sojourn.units import GIB

from .rows import Arrivals, Ints, Load, Loaded, Row
from .sets_closed_reading import (
    LeftOut,
    Record,
    collect,
    gpu_name,
    model_name,
    records,
    same,
    weight_dtype,
)

CONTEXTS: Final = (1024, 65_536)
"""Where a published line ITL = intercept + slope x context is read off, tokens."""
PROXIED: Final = 4096
"""Tokens from which a prompt takes longer than the hops through a proxy (about 25 ms) do."""
TOKENS: Final = 128
"""Tokens written where only a latency per token is told."""


def anchors(folder: Path) -> Loaded:
    """Anchors of step times, one or two rows each."""
    loaded = Loaded()
    return collect(records(folder / "step_time_anchors.csv", loaded), _anchor_rows, loaded)


def _anchor_rows(record: Record) -> list[Row]:
    kind = record.text("kind")
    if kind not in KINDS:
        raise LeftOut(f"kind {kind!r} is not known")
    card = record.text("gpu")
    if not card or card.casefold() in ("not named", "see doc"):
        raise LeftOut("the card is not named")
    return KINDS[kind](record)


def _note_number(record: Record, pattern: str) -> float:
    """The number a note tells.

    Raises:
        LeftOut: it tells none.
    """
    found = re.search(pattern, record.text("note"))
    if found is None:
        raise LeftOut("the note does not tell the load")
    return float(found[1].replace(",", ""))


def _row(record: Record, load: Load, measured: dict[str, float], *notes: str) -> Row:
    """A row of an anchor; an unknown TP is taken for 1, and said."""
    named, told = record.text("model"), record.text("dtype")
    tp = record.count_or("tp", 1)
    if record.number("tp") is None:
        notes = (*notes, "tensor parallelism not told, 1 assumed")
    model, gpu = model_name(named), gpu_name(record.text("gpu").split(" (")[0])
    kv = "fp8" if "fp8 KV" in told or "skip-SW" in told else "bf16"
    weights = "" if "KV" in told or "skip-SW" in told else told
    engine = record.text("engine").casefold().split(" (")[0]
    deployment = Deployment(
        tensor_parallel=tp,
        engine=engine or "vllm",
        weight_dtype=weight_dtype(named, weights),
        kv_dtype=kv,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        prefix_caching=False,
    )
    size = int(load.inputs.max())
    return Row(
        set="anchors",
        id=f"{record.text('kind')} {named} {gpu} {told} {size} x {len(load.inputs)}",
        model=model,
        gpu=gpu,
        deployment=deployment,
        load=load,
        measured=measured,
        notes=notes,
        server=f"{model}|{gpu}|{tp}|{engine}|{told}",
    )


def _alone(tokens: int, output: int = 1) -> Load:
    return Load(Arrivals.STATIC, same(tokens, 1), same(output, 1))


def _prefill_rate(record: Record) -> list[Row]:
    """A peak is that of many prompts at once; a fit of single requests, that of one; ten prompts
    one after the other, the median TTFT."""
    rate, note = record.positive("value"), record.text("note")
    if "~32k" in note:
        load = Load(Arrivals.CLOSED, same(32_000, 10), same(1, 10), concurrency=1)
        ttft = _note_number(record, r"TTFT ([\d.]+) s")
        return [_row(record, load, {"ttft_p50_s": ttft}, "drafts do not touch the prompt")]
    if "single-request" in note:
        note = "8,192 tokens assumed; the page measures 22% less on the same path"
        return [_row(record, _alone(8192), {"prefill_tokens_per_s": rate}, note)]
    load = Load(Arrivals.BURST, same(8192, 32), same(1, 32))
    return [_row(record, load, {"prefill_tokens_per_s": rate}, "32 prompts of 8,192 assumed")]


def _prefill_time(record: Record) -> list[Row]:
    tokens = int(_note_number(record, r"(\d+) tokens"))
    return [_row(record, _alone(tokens), {"ttft_p50_s": record.positive("value") / 1e3})]


def _line(record: Record) -> list[Row]:
    """ITL at two contexts of a published line."""
    if record.text("kind").endswith("intercept_ms"):
        start = record.positive("value")
        slope = _note_number(record, r"slope ([\d.eE+-]+)")
    else:
        slope = record.positive("value")
        low = _note_number(record, r"intercepts ([\d.]+)")
        start = (low + _note_number(record, r"intercepts [\d.]+-([\d.]+)")) / 2
    return [
        _row(record, _alone(context, TOKENS),
             {"itl_mean_s": (start + slope * (context + TOKENS / 2)) / 1e3})
        for context in CONTEXTS
    ]  # fmt: skip


def _long_loop(record: Record) -> list[Row]:
    """150 requests of about 20k in and 2k out, 8 at a time."""
    rng = np.random.default_rng(0)

    def about(mean: int) -> Ints:
        return rng.integers(int(0.85 * mean), int(1.15 * mean) + 1, 150, dtype=np.int64)

    load = Load(Arrivals.CLOSED, about(20_000), about(2000), concurrency=8)
    measured = {
        "output_tokens_per_s": record.positive("value"),
        "ttft_p50_s": _note_number(record, r"median TTFT ([\d.]+) ms") / 1e3,
        "itl_p50_s": _note_number(record, r"median ITL ([\d.]+) ms") / 1e3,
    }
    return [_row(record, load, measured)]


def _moved(record: Record) -> list[Row]:
    """Prompt and decode in pools of their own, one request: TTFT less the transfer is a prompt."""
    tokens = int(_note_number(record, r"(\d+) tokens"))
    if tokens < PROXIED:
        raise LeftOut("the proxy before two pools weighs more than the prompt")
    moved = _note_number(record, r"transfer ([\d.]+) ms")
    ttft = (record.positive("value") - moved) / 1e3
    return [_row(record, _alone(tokens), {"ttft_mean_s": ttft}, "KV transfer taken off")]


def _batch(record: Record) -> list[Row]:
    inputs = int(_note_number(record, r"(\d+) in"))
    outputs = int(_note_number(record, r"(\d+) out"))
    batch = int(_note_number(record, r"batch (\d+)"))
    load = Load(Arrivals.STATIC, same(inputs, batch), same(outputs, batch))
    return [_row(record, load, {"e2e_mean_s": record.positive("value")})]


KINDS: Final[dict[str, Callable[[Record], list[Row]]]] = {
    "prefill_tok_s": _prefill_rate,
    "prefill_ms_at_prefix_tokens": _prefill_time,
    "decode_itl_bs1_intercept_ms": _line,
    "decode_itl_bs1_slope_ms_per_token": _line,
    "closed_loop_c8_20k_2k": _long_loop,
    "pd_ttft_ms": _moved,
    "static_batch_latency_s": _batch,
}


def kv_pools(folder: Path) -> Loaded:
    """KV pools: five that vLLM 0.11.0 printed in GiB, and blocks that vLLM 0.15.1 logged."""
    loaded = Loaded()
    collect(records(folder / "kv_capacity_h100_vllm0110.csv", loaded),
            lambda record: [_pool_row(record)], loaded)  # fmt: skip
    blocks = records(folder / "blis" / "blis_kv_blocks_and_workloads.csv", loaded)
    return collect(blocks, lambda record: [_blocks_row(record)], loaded)


def _pool_row(record: Record) -> Row:
    """GiB a GPU, in tokens by the bytes of one (no window closed). Flags of its source: context
    16,000, blocks of 128, vLLM's defaults of an 80 GB card."""
    named, tp = record.text("model"), record.count_or("tp", 1)
    name = model_name(named)
    deployment = Deployment(
        tensor_parallel=tp,
        engine="vllm 0.11.0",
        weight_dtype=weight_dtype(named),
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=16_000,
        block_size=128,
        gpu_memory_utilization=record.positive("gpu_mem_util"),
    )
    pool = record.positive("kv_cache_gib_per_gpu") * tp * GIB
    try:
        per_token = kv_bytes_per_token(catalogue.model(name), kv_value_bytes(deployment), tp)
    except SojournError:
        raise LeftOut("a model the catalogue has not: its GiB cannot be told in tokens") from None
    return Row(
        set="KV pools",
        id=f"{named} TP{tp} vllm 0.11.0",
        model=name,
        gpu=gpu_name(record.text("gpu") or "H100"),
        deployment=deployment,
        load=_alone(1),
        measured={"kv_tokens": pool / per_token},
        notes=("max_num_seqs and the token budget are the engine's defaults",),
    )


def _blocks_row(record: Record) -> Row:
    named = record.text("model")
    deployment = Deployment(
        tensor_parallel=record.count("tp"),
        engine="vllm 0.15.1",
        weight_dtype=weight_dtype(named),
        max_num_seqs=record.count("max_num_seqs"),
        max_num_batched_tokens=record.count("max_num_batched_tokens"),
        block_size=record.count_or("block_size", 16),
    )
    return Row(
        set="KV pools",
        id=f"{named} {record.text('id')} vllm 0.15.1",
        model=model_name(named),
        gpu=gpu_name(record.text("hardware")),
        deployment=deployment,
        load=_alone(1),
        measured={"kv_tokens": record.positive("gpu_kv_tokens")},
        notes=("memory share of 0.9 assumed",),
    )
