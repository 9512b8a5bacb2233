"""The tables' one schema. Readers fill it, the store writes it, the docs are generated from it.

Times are seconds as float64 relative to the table set's own origin (`Clock.origin_epoch_s`);
tokens are int64; any column may be null unless it says `required`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column: name, Arrow type, unit (empty where none), meaning, whether it may be null."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    required: bool = False


_S, _F, _I, _B = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_STRINGS, _INTS = pa.list_(pa.string()), pa.list_(pa.int64())

REQUESTS: Final = (
    Column("request_id", _S, "", "Identity of what a user waits for.", required=True),
    Column("session_id", _S, "", "Conversation or session the request belongs to."),
    Column("tenant", _S, "", "Customer, team or key that is charged."),
    Column("route", _S, "", "Endpoint or model group asked for."),
    Column("priority", _I, "", "Larger is more important; below 0: may wait or be shed."),
    Column("risk", _S, "", "Risk class of the task, as the team names it."),
    Column("arrival_s", _F, "s", "Arrival at the outermost observed point.", required=True),
    Column("end_s", _F, "s", "Last byte, or the moment it failed."),
    Column("status", _S, "", "ok, error, timeout, cancelled or shed."),
    Column("degraded", _STRINGS, "", "Degrade steps applied to it."),
    Column("success", _B, "", "Whether the task succeeded."),
    Column("quality", _F, "0..1", "Quality score of the answer."),
    Column("attempts", _I, "", "Attempts made, the first included."),
    Column("cost_usd", _F, "USD", "Cost booked on the request."),
    Column(
        "bucket", _S, "", "Request bucket; assigned from the thresholds where a source has none."
    ),
)
CALLS: Final = (
    Column("call_id", _S, "", "Identity of one model call.", required=True),
    Column("request_id", _S, "", "Request it serves.", required=True),
    Column("attempt", _I, "", "Attempt it belongs to, from 0."),
    Column("turn", _I, "", "Order of the call within the attempt, from 0."),
    Column("model", _S, "", "Model that answered."),
    Column("pool", _S, "", "Pool of replicas."),
    Column("replica", _S, "", "Replica that served it."),
    Column("input_tokens", _I, "tokens", "Prompt, cached tokens included."),
    Column("cached_tokens", _I, "tokens", "Part of the prompt found in the prefix cache."),
    Column("output_tokens", _I, "tokens", "Tokens written, reasoning included."),
    Column("reasoning_tokens", _I, "tokens", "Part of the output that was reasoning."),
    Column("image_tokens", _I, "tokens", "Part of the input that came from images."),
    Column("images", _I, "", "Images in the input."),
    Column(
        "block_hashes", _INTS, "", "Prefix block hashes, a chain: equal leading runs are shared."
    ),
    Column("block_tokens", _I, "tokens", "Tokens one block hash stands for."),
    Column("arrival_s", _F, "s", "Arrival where the call was observed.", required=True),
    Column("scheduled_s", _F, "s", "First scheduled by the engine."),
    Column("first_token_s", _F, "s", "First token."),
    Column("end_s", _F, "s", "Last token, or the moment it failed."),
    Column("ttft_origin", _S, "", "client_send, gateway, server_arrival or first_scheduled."),
    Column("preemptions", _I, "", "Times it was preempted."),
    Column("status", _S, "", "ok, error, timeout, cancelled or shed."),
)
SPANS: Final = (
    Column("span_id", _S, "", "Identity of the span.", required=True),
    Column("request_id", _S, "", "Request it belongs to.", required=True),
    Column("attempt", _I, "", "Attempt it belongs to, from 0."),
    Column("call_id", _S, "", "Model call it belongs to."),
    Column("stage", _S, "", "Stage; null for spans that only hold others (root, attempt, agent)."),
    Column("name", _S, "", "Name as recorded; a station is known by it."),
    Column("start_s", _F, "s", "Start.", required=True),
    Column("end_s", _F, "s", "End.", required=True),
    Column("wait_s", _F, "s", "Part of the span spent waiting for a worker, where recorded."),
    Column("parent", _S, "", "span_id of the parent."),
    Column("status", _S, "", "ok, error, timeout or cancelled."),
    Column("provenance", _S, "", "measured, inferred or simulated."),
)
ENGINE_SAMPLES: Final = (
    Column("t_s", _F, "s", "Time of the sample.", required=True),
    Column("replica", _S, "", "Replica sampled."),
    Column("running", _F, "requests", "Requests in the batch."),
    Column("waiting", _F, "requests", "Requests waiting in the engine."),
    Column("kv_usage", _F, "0..1", "Share of KV blocks in use."),
    Column("preemptions_total", _F, "", "Preemptions since start."),
    Column(
        "prefix_hit_tokens_total", _F, "tokens", "Prompt tokens found in the cache since start."
    ),
    Column("prefix_query_tokens_total", _F, "tokens", "Prompt tokens looked up since start."),
    Column("prompt_tokens_total", _F, "tokens", "Prompt tokens processed since start."),
    Column("generation_tokens_total", _F, "tokens", "Tokens written since start."),
    Column(
        "prompt_tokens_per_s", _F, "tokens/s", "Prompt throughput, where the source gives a rate."
    ),
    Column(
        "generation_tokens_per_s",
        _F,
        "tokens/s",
        "Output throughput, where the source gives a rate.",
    ),
    Column("gpu_busy", _F, "0..1", "Share of time the device that runs the model was busy."),
    Column("sm_active", _F, "0..1", "Share of SMs active."),
    Column("tensor_active", _F, "0..1", "Share of cycles with tensor cores active."),
    Column("dram_active", _F, "0..1", "Share of cycles with memory active."),
    Column("host_cpu", _F, "0..1", "Busiest engine-host core."),
)
GPU_ACTIVITY: Final = (
    Column("device", _S, "", "Device.", required=True),
    Column("start_s", _F, "s", "Start.", required=True),
    Column("end_s", _F, "s", "End.", required=True),
    Column("kind", _S, "", "gemm, attention, norm, communication, copy, sampling or other."),
    Column("range", _S, "", "Innermost annotated range."),
)
AGGREGATES: Final = (
    Column("source", _S, "", "File or endpoint.", required=True),
    Column(
        "metric",
        _S,
        "",
        "What is summarised, with its unit: ttft_s, tpot_s, request_rate_per_s.",
        required=True,
    ),
    Column("statistic", _S, "", "mean, median, p99, sum, count, bucket_le ...", required=True),
    Column("value", _F, "", "The value, in the metric's unit.", required=True),
    Column("bound", _F, "", "Upper bound of a histogram bucket, in the metric's unit."),
    Column("t_s", _F, "s", "When it was taken."),
    Column("labels", _S, "", "Labels as sorted JSON."),
    Column("meaning", _S, "", "What the number covers, in words."),
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "requests": REQUESTS,
    "calls": CALLS,
    "spans": SPANS,
    "engine_samples": ENGINE_SAMPLES,
    "gpu_activity": GPU_ACTIVITY,
    "aggregates": AGGREGATES,
}
TIME_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    table: tuple(c.name for c in columns if c.unit == "s" and c.name != "wait_s")
    for table, columns in TABLES.items()
}


def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a table; every field may be null, `quality.clean` sees to required ones.

    Raises:
        KeyError: no such table.
    """
    return pa.schema([pa.field(c.name, c.type) for c in TABLES[table]])
