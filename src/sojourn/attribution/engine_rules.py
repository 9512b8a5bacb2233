"""Rules for bottlenecks inside the engine. The table of all rules is in `rules`.

A long engine stage is the engine's fault only when the engine is really occupied, and only when
the stages outside do not carry more of the tail.
"""

from __future__ import annotations

from typing import Final

from sojourn.attribution.facts import (
    DEVICE_BUSY,
    DEVICE_SLACK,
    OCCASIONAL,
    PERSISTENT,
    SHARE_HIGH,
    Facts,
)
from sojourn.attribution.scoring import (
    DIRECT,
    HINT,
    SIGN,
    Finding,
    Reading,
    above,
    below,
    carries,
    finding,
    holds,
    only_against,
    only_for,
)
from sojourn.records import ENGINE_HOST_SPANS, Bottleneck, Stage

STRETCHED: Final = 0.5
"""More than half of a decode step is the other requests' share: a larger batch slows everybody."""
ALONE: Final = 0.2
"""A fifth or less: the step costs the same with more requests in it (memory-bound, slots free)."""
KV_FULL: Final = 0.95
KV_ROOM: Final = 0.80
"""Blocks are taken as outputs grow: at 95% the next growth preempts; at 80% whole prompts fit."""
HIT_GAP: Final = 0.20
HIT_NEAR: Final = 0.10
"""A fifth of all prompt tokens computed in vain; any finite cache loses a tenth to eviction."""
LIFT_HIGH: Final = 1.5
LIFT_LOW: Final = 1.1
"""Short calls meet a long prefill half as often again as chance (1.0) would have it."""
CPU_FULL: Final = 0.95
CPU_ROOM: Final = 0.80
"""The busiest core of the engine's host: one thread of the engine feeds the device."""


def _waiting(facts: Facts, weight: float) -> Reading | None:
    value = facts.engine.waiting_share
    text = f"requests wait in the engine during {value or 0:.0%} of the peak"
    return above(text, value, PERSISTENT, OCCASIONAL, weight)


def _slots_full(facts: Facts, weight: float) -> Reading | None:
    value = facts.engine.slots_full_share
    text = f"every batch slot is taken during {value or 0:.0%} of the peak"
    return above(text, value, PERSISTENT, OCCASIONAL, weight)


def _busy(facts: Facts, weight: float) -> Reading | None:
    value = facts.device_busy
    return above(
        f"the device is busy {value or 0:.0%} of the peak", value, DEVICE_BUSY, DEVICE_SLACK, weight
    )


def _idle(facts: Facts, weight: float) -> Reading | None:
    read = _busy(facts, weight)
    return None if read is None else Reading(read.statement, read.value, -read.weight)


def _outside_larger(facts: Facts) -> Reading | None:
    """Against every engine bottleneck: the chain outside carries more of the tail."""
    outside, engine = facts.outside_share, facts.engine_share
    if outside <= engine:
        return None
    text = f"stages outside the engine carry {outside:.0%} of the P99, the engine {engine:.0%}"
    return Reading(text, outside, -SIGN)


def _part_of(facts: Facts, name: str, stage: str) -> float | None:
    """A tail fact as a part of its stage; None where the stage carries nothing to speak of."""
    whole = facts.share(stage)
    part = facts.extra.get(name)
    return None if part is None or whole < 0.02 else min(part / whole, 1.0)


def _inferred(facts: Facts) -> Reading | None:
    if facts.extra.get("inferred", 0.0) < SHARE_HIGH:
        return None
    return Reading("queue and prefill are inferred, not measured", None, -HINT)


def queue_admission(facts: Facts) -> Finding | None:
    """More work is let in than the engine can do."""
    share = facts.share(Stage.QUEUE)
    return finding(
        "queue_admission",
        Bottleneck.QUEUE_ADMISSION,
        (
            carries("waiting in the engine's queue", share),
            only_for(holds("the queue carries more than half", share >= PERSISTENT, SIGN)),
            _waiting(facts, SIGN),
            _busy(facts, SIGN),
            _outside_larger(facts),
            _inferred(facts),
        ),
        share=share,
    )


def batch_slots(facts: Facts) -> Finding | None:
    """The batch is full by its limit, not by the device's."""
    share = facts.share(Stage.QUEUE)
    full = _slots_full(facts, DIRECT)
    if full is None:
        return None
    stretched = _part_of(facts, "decode_stretch", Stage.DECODE)
    text = f"{stretched or 0:.0%} of decode time comes from sharing the batch"
    return finding(
        "batch_slots",
        Bottleneck.BATCH_SLOTS,
        (
            full,
            carries("waiting in the engine's queue", share, SIGN),
            _idle(facts, SIGN if (facts.device_busy or 0) < DEVICE_SLACK else DIRECT),
            below(text, stretched, ALONE, STRETCHED, SIGN),
            _outside_larger(facts),
        ),
        share=share,
    )


def _waited_for(facts: Facts, stage: str, other: str) -> Reading | None:
    """Requests queue behind this stage's work rather than the other's."""
    if facts.occupied is not True or facts.share(Stage.QUEUE) < SHARE_HIGH:
        return None
    if facts.share(stage) <= facts.share(other):
        return None
    return Reading(
        f"the queue stands before {stage}, the larger part of the engine's work", None, HINT
    )


def prefill_compute(facts: Facts) -> Finding | None:
    """Prompts are computed as fast as the device can, and that is too slow."""
    share = facts.share(Stage.PREFILL)
    stretched = _part_of(facts, "prefill_stretch", Stage.PREFILL)
    text = f"{stretched or 0:.0%} of prefill time comes from sharing the engine"
    return finding(
        "prefill_compute",
        Bottleneck.PREFILL_COMPUTE,
        (
            carries("prefill", share),
            holds("prefill carries more than decode", share > facts.share(Stage.DECODE), HINT),
            holds("the engine is full at the peak", facts.occupied, SIGN),
            only_for(above(text, stretched, STRETCHED, ALONE, HINT)),
            _waited_for(facts, Stage.PREFILL, Stage.DECODE),
            _outside_larger(facts),
        ),
        share=share,
    )


def decode_bandwidth(facts: Facts) -> Finding | None:
    """Output tokens come as fast as memory can be read, and that is too slow."""
    share = facts.share(Stage.DECODE)
    stretched = _part_of(facts, "decode_stretch", Stage.DECODE)
    text = f"{stretched or 0:.0%} of decode time comes from sharing the batch"
    occupied = holds("the engine is full at the peak", facts.occupied, SIGN)
    if occupied is not None and occupied.weight < 0:
        occupied = Reading("the engine has slack at the peak", None, -HINT)
    return finding(
        "decode_bandwidth",
        Bottleneck.DECODE_BANDWIDTH,
        (
            carries("decode", share),
            holds("decode carries more than prefill", share > facts.share(Stage.PREFILL), HINT),
            occupied,
            above(text, stretched, STRETCHED, ALONE, HINT),
            _waited_for(facts, Stage.DECODE, Stage.PREFILL),
            _outside_larger(facts),
        ),
        share=share,
    )


def kv_capacity(facts: Facts) -> Finding | None:
    """The KV memory is full: requests wait for blocks, or lose theirs."""
    usage, preempted = facts.engine.kv_usage_p95, facts.engine.preemptions
    if usage is None and not preempted:
        return None
    share = facts.share(Stage.QUEUE)
    waiting, full = facts.engine.waiting_share, facts.engine.slots_full_share
    slots_free = None
    if waiting is not None and full is not None and waiting >= PERSISTENT:
        slots_free = full < OCCASIONAL
    taken = (1.0 if preempted > 0 else 0.0) if preempted is not None else None
    return finding(
        "kv_capacity",
        Bottleneck.KV_CAPACITY,
        (
            above(f"KV use P95 {usage or 0:.0%} at the peak", usage, KV_FULL, KV_ROOM, DIRECT),
            above(f"{preempted or 0:.0f} preemptions at the peak", taken, 1.0, 0.0, SIGN),
            holds("requests wait although batch slots are free", slots_free, SIGN),
            carries("waiting in the engine's queue", share, SIGN),
            _outside_larger(facts),
        ),
        share=share,
    )


def cache_miss(facts: Facts) -> Finding | None:
    """Prompts that a prefix cache could have held are computed again."""
    hit, ideal = facts.hit_share, facts.ideal_hit_share
    if hit is None or ideal is None:
        return None
    gap = max(ideal - hit, 0.0)
    prefill = facts.share(Stage.PREFILL)
    behind = facts.share(Stage.QUEUE) if facts.occupied else 0.0
    saved = gap / (1.0 - hit) if hit < 1 else 0.0
    text = f"{hit:.0%} of prompt tokens are found in the cache, {ideal:.0%} recur"
    return finding(
        "cache_miss",
        Bottleneck.CACHE_MISS,
        (
            above(text, gap, HIT_GAP, HIT_NEAR, DIRECT),
            carries("prefill and the queue behind it", prefill + behind),
            _outside_larger(facts),
        ),
        share=(prefill + behind * prefill / max(prefill + facts.share(Stage.DECODE), 1e-9)) * saved,
    )


def head_of_line(facts: Facts) -> Finding | None:
    """Short requests wait while a long prompt is prefilled."""
    part, lift = facts.engine.head_of_line_share, facts.engine.head_of_line_lift
    if part is None or lift is None:
        return None
    before_first = facts.share(Stage.QUEUE, Stage.PREFILL)
    covered = f"a long prompt is prefilled during {part:.0%} of short calls' time to first token"
    return finding(
        "head_of_line",
        Bottleneck.HEAD_OF_LINE,
        (
            above(covered, part, PERSISTENT, OCCASIONAL, DIRECT),
            above(f"{lift:.1f} times as often as by chance", lift, LIFT_HIGH, LIFT_LOW, SIGN),
            carries("queue and prefill", before_first, SIGN),
            _outside_larger(facts),
        ),
        share=before_first * part * max(1.0 - 1.0 / lift, 0.0) if lift > 0 else 0.0,
    )


def host_cpu(facts: Facts) -> Finding | None:
    """The engine's host, not its device, is the slow part."""
    core = facts.engine.host_cpu_p95
    if core is None:
        return None
    idle = 1.0 - (facts.device_busy if facts.device_busy is not None else 1.0)
    front = facts.share(Stage.GATEWAY) if _front_is_engine(facts) else 0.0
    share = front + facts.engine_share * idle
    return finding(
        "host_cpu",
        Bottleneck.HOST_CPU,
        (
            above(f"the host's busiest core runs at {core:.0%}", core, CPU_FULL, CPU_ROOM, DIRECT),
            _idle(facts, DIRECT),
            only_for(carries("the engine's own front and back", front, SIGN)),
            only_against(carries("stages of the engine and its host", facts.engine_share + front)),
            _outside_larger(facts),
        ),
        share=share,
    )


def _front_is_engine(facts: Facts) -> bool:
    names = facts.names_of(Stage.GATEWAY)
    return bool(names) and names[0] in ENGINE_HOST_SPANS


RULES: Final = (
    queue_admission,
    batch_slots,
    prefill_compute,
    decode_bandwidth,
    kv_capacity,
    cache_miss,
    head_of_line,
    host_cpu,
)
