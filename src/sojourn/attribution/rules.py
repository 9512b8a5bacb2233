"""Every rule, as a table. Thresholds and their reasons stand in `facts`, beside the rules that
read them, and the weights in `scoring`.

| rule | for | against |
|---|---|---|
| queue_admission | queue carries the P99; requests wait in the engine most of the peak; device busy | outside carries more; queue only inferred; device idle |
| batch_slots | all slots taken most of the peak; queue; device idle; decode hardly grows with the batch | device busy; decode stretched by the batch; slots free |
| prefill_compute | prefill carries it, more than decode; engine full; prefill stretched; queue stands before it | outside carries more; engine has slack |
| decode_bandwidth | decode carries it, more than prefill; engine full; stretched by the batch | outside carries more; engine has slack |
| kv_capacity | KV use P95 >= 95%; preemptions; waiting although slots are free; queue | KV use < 80%; no preemption |
| cache_miss | recurring prompt tokens that the cache did not hold >= 20%; prefill carries it | gap < 10% |
| head_of_line | long prefills cover short calls' time to first token, more than by chance | no more than by chance |
| host_cpu | a host core full; device idle | device busy; core has room; engine carries little |
| gateway, retrieval, rerank, tool, network, encoder, interconnect | the stage carries the P99, is the largest, grows into the tail and at the peak; engine has slack; its visits wait for workers or are cut by a timer | under 10% of the P99; engine full and larger; few requests |
| retry_amplification | attempts per request at the peak >= 1.15 x calm; >= 10% retries; failed attempts carry the P99; durations pile up at a timeout; the engine is reached late; queues carry the P99 | attempts near 1; hardly any waiting, so that retries repeat work but lengthen no queue; a full engine explains the timeouts |
| timeout_too_short | >= 5% of attempts fail when calm; successes take >= 80% of the timeout | failures come with load |
| client_limit | a plateau of calls in flight, nothing waits, slots free | queue or full slots |
| none | SLO met; no queue, no stretch, no retries, no waiting | SLO missed; any of those; one stage outside >= 50% |
| insufficient_evidence | unexplained time carries the P99; fewer than 30 requests | every stage is known |
"""  # noqa: E501  a Markdown table has one line per row

from __future__ import annotations

from typing import Final

from sojourn.attribution import engine_rules, outside_rules, request_rules
from sojourn.records import Bottleneck

RULES: Final = (*engine_rules.RULES, *outside_rules.RULES, *request_rules.RULES)

CONFIRM: Final[dict[Bottleneck, tuple[str, ...]]] = {
    Bottleneck.QUEUE_ADMISSION: (
        "admit at most what the engine finishes and see the wait move outside, unchanged in sum",
        "device busy share at the peak (DCGM or nvidia-smi dmon)",
    ),
    Bottleneck.BATCH_SLOTS: (
        "raise max_num_seqs on one replica: the queue shrinks and the gap between tokens holds",
        "device busy share at the peak (DCGM or nvidia-smi dmon)",
    ),
    Bottleneck.PREFILL_COMPUTE: (
        "time to first token over computed prompt tokens on an idle replica: a straight line",
        "tensor active share during prefill (DCGM)",
    ),
    Bottleneck.DECODE_BANDWIDTH: (
        "gap between tokens over the batch size: a line with a large base",
        "memory active share during decode (DCGM)",
    ),
    Bottleneck.KV_CAPACITY: (
        "KV use and preemptions per replica at 1 s through the peak (engine /metrics)",
    ),
    Bottleneck.CACHE_MISS: (
        "prefix hit rate per replica, and per route: scattered or evicted (engine /metrics)",
    ),
    Bottleneck.HEAD_OF_LINE: (
        "cap prompt tokens per step, or send long prompts to one replica: short calls recover",
    ),
    Bottleneck.HOST_CPU: ("per-core use of the engine's host, and a profile of its main thread",),
    Bottleneck.GATEWAY: ("the same calls sent directly to the engine, beside the gateway",),
    Bottleneck.RETRIEVAL: ("the retriever's own timings at the peak, wait and work apart",),
    Bottleneck.RERANK: ("a window with reranking switched off for a share of requests",),
    Bottleneck.TOOL: ("the tool's own timings by endpoint, wait and work apart",),
    Bottleneck.NETWORK: ("client send and server receive times of the same calls",),
    Bottleneck.ENCODER: ("encoder time per image, on the host and on the device",),
    Bottleneck.INTERCONNECT: ("bytes and time of each KV transfer",),
    Bottleneck.RETRY_AMPLIFICATION: (
        "a window with retries on timeout switched off: load falls more than successes do",
    ),
    Bottleneck.TIMEOUT_TOO_SHORT: (
        "a longer timeout for a share of requests when calm: they succeed at the first attempt",
    ),
    Bottleneck.CLIENT_LIMIT: ("twice the client's connections: throughput rises at once",),
}

OPENS: Final[dict[Bottleneck, tuple[str, ...]]] = {
    Bottleneck.QUEUE_ADMISSION: ("more engine replicas", "admission control", "shorter work"),
    Bottleneck.BATCH_SLOTS: ("more batch slots", "more engine replicas"),
    Bottleneck.PREFILL_COMPUTE: (
        "shorter prompts",
        "prefix caching",
        "split prefill",
        "more engine",
    ),
    Bottleneck.DECODE_BANDWIDTH: (
        "quantisation",
        "speculative decoding",
        "output limits",
        "more engine",
    ),
    Bottleneck.KV_CAPACITY: ("smaller KV data type", "shorter contexts", "more KV memory"),
    Bottleneck.CACHE_MISS: ("prefix-aware routing", "stable prefix first", "larger cache"),
    Bottleneck.HEAD_OF_LINE: ("chunked prefill limits", "a pool for long prompts", "priority"),
    Bottleneck.HOST_CPU: ("faster cores", "more API processes", "newer engine"),
    Bottleneck.GATEWAY: ("more gateway workers", "bypass or thin the gateway"),
    Bottleneck.RETRIEVAL: ("more retrieval workers", "a time limit for retrieval", "result cache"),
    Bottleneck.RERANK: ("skip reranking at the peak", "fewer candidates", "more workers"),
    Bottleneck.TOOL: (
        "a time limit per tool",
        "tool result cache",
        "parallel tools",
        "more workers",
    ),
    Bottleneck.NETWORK: ("keep connections open", "move client and engine together"),
    Bottleneck.ENCODER: ("an encoder pool", "smaller images", "encoder cache"),
    Bottleneck.INTERCONNECT: ("less transfer", "faster links", "smaller parallel groups"),
    Bottleneck.RETRY_AMPLIFICATION: (
        "no blind retry on timeout",
        "retry budget",
        "partial answers",
    ),
    Bottleneck.TIMEOUT_TOO_SHORT: ("a longer timeout", "time limits per stage", "smaller work"),
    Bottleneck.CLIENT_LIMIT: ("raise the client's connection limit, then measure again",),
}
