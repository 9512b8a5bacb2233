"""From `Lowered` to the arrays of a run, and from those to its `Log`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sojourn.capacity.policies import Order, RouterPolicy
from sojourn.errors import UsageError
from sojourn.sim.kernel.compiled import Array
from sojourn.sim.kernel.events import MOST_ATTEMPTS, MOST_PLACES, MOST_REQUESTS
from sojourn.sim.kernel.memory import machine_bytes, too_much, zeros
from sojourn.sim.kernel.state import ACTIVE, ARRAYS, NIL, STOPPED, WORLD
from sojourn.sim.kernel.turns import IDLE
from sojourn.sim.log import NONE, Log
from sojourn.sim.lowered import CALL, ORDERS, ROUTERS, Lowered, PoolPlan, StationPlan

_COUNTS: Final = {
    "events": "event_count", "tries": "live_tries", "visits": "live_visits",
    "calls": "live_calls", "call_log": "call_logs", "visit_log": "visit_logs",
    "attempt_log": "attempt_logs", "sample_log": "sample_logs", "change_log": "change_logs",
}  # fmt: skip
GROWING: Final = tuple(_COUNTS)
"""Arrays that are made larger when they are full."""
_PREFIX_AWARE: Final = ROUTERS.index(RouterPolicy.PREFIX_AWARE)
_BITS: Final = 64
_PRIORITY: Final = ORDERS.index(Order.PRIORITY)


@dataclass
class Run:
    """A run's arrays, and the record of where they are."""

    world: Array
    arrays: dict[str, Array] = field(default_factory=dict)

    def put(self, name: str, array: Array) -> None:
        """Set an array, and where it is."""
        self.arrays[name] = array
        self.world[f"{name}_at"] = array.ctypes.data
        self.world[f"{name}_room"] = len(array)

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def make(self, name: str, rows: int) -> Array:
        """A new array, all zero, set."""
        array = zeros(name, rows, self.bytes)
        self.put(name, array)
        return array

    def make_room(self, name: str) -> None:
        """Make an array larger, by a quarter at least, if it has no room for what one event may
        need. It grows where it is if the system can do that.

        Raises:
            UsageError: the machine has no memory for that.
        """
        array, margin = self.arrays[name], int(self.world[0]["margin"])
        if self.world[0][_COUNTS[name]] + margin <= len(array):
            return
        rows = len(array) + max(2 * margin, len(array) // 4)
        needed, beside = rows * array.itemsize, self.bytes - array.nbytes
        if needed + beside > machine_bytes():
            raise too_much(name, needed, beside)
        try:
            array.resize(rows, refcheck=False)
        except MemoryError as error:
            raise too_much(name, needed, beside) from error
        self.put(name, array)

    def log(self) -> Log:
        """What was written down so far."""
        world = self.world[0]
        return Log(
            ends=self.arrays["ends"],
            calls=self.arrays["call_log"][: world["call_logs"]],
            visits=self.arrays["visit_log"][: world["visit_logs"]],
            attempts=self.arrays["attempt_log"][: world["attempt_logs"]],
            samples=self.arrays["sample_log"][: world["sample_logs"]],
            changes=self.arrays["change_log"][: world["change_logs"]],
        )


class _Tables:
    """Whole-number tables, laid end to end."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._size = 0

    def add(self, values: Array) -> int:
        """Where these values begin."""
        place = self._size
        self._parts.append(np.asarray(values, dtype=np.int64))
        self._size += len(values)
        return place

    def joined(self) -> Array:
        """All of them; never empty."""
        return np.concatenate([*self._parts, np.zeros(1, np.int64)])


def pack(lowered: Lowered) -> Run:
    """The state of a run at its beginning.

    Raises:
        UsageError: more requests, attempts or steps of one request than an event's key can hold.
    """
    _check(lowered)
    run = Run(np.zeros(1, WORLD))
    tables = _Tables()
    _scalars(run.world[0], lowered, tables)
    _pack_input(run, lowered)
    _pack_stations(run, lowered, tables)
    _pack_pools(run, lowered, tables)
    _pack_engines(run, lowered)
    _pack_room(run, lowered)
    run.put("tables", tables.joined())
    return run


def _check(lowered: Lowered) -> None:
    most_steps = int(np.diff(lowered.requests.first_step).max(initial=0))
    for count, most, what in (
        (len(lowered.requests.arrival), MOST_REQUESTS, "requests in a run"),
        (lowered.retry.most, MOST_ATTEMPTS, "attempts of a request"),
        (most_steps, MOST_PLACES, "steps of a request"),
    ):
        if count >= most:
            raise UsageError(f"{count:,} {what}: the kernel takes fewer than {most:,}")


def _scalars(world: Array, lowered: Lowered, tables: _Tables) -> None:
    retry, client, ladder, gate = lowered.retry, lowered.client, lowered.ladder, lowered.admission
    values: dict[str, float] = {
        "seed": lowered.seed,
        "rows": len(lowered.requests.arrival),
        "free_try": NIL, "free_visit": NIL, "free_call": NIL,
        "pool_count": len(lowered.pools),
        "replica_count": lowered.replicas,
        "timeout": retry.timeout,
        "attempts_most": retry.most,
        "backoff": tables.add(retry.backoff),
        "on_timeout": retry.on_timeout,
        "on_error": retry.on_error,
        "degrade": retry.degrade,
        "jitter": retry.jitter,
        "budget_gain": retry.budget_gain,
        "budget_most": retry.budget_most,
        "budget": retry.budget_most,
        "closed": client.closed,
        "cap": client.cap,
        "think": tables.add(client.think),
        "thinks": len(client.think),
        "sample_every": lowered.sample_every,
        "admission": NIL,
    }  # fmt: skip
    if gate is not None:
        values |= {
            "admission": gate.policy,
            "admission_metric": gate.metric,
            "admission_low": gate.low,
            "admission_high": gate.high,
            "admission_wait": gate.wait,
        }
    if ladder is not None:
        values |= {
            "ladder_metric": ladder.metric,
            "ladder_every": ladder.every,
            "rung_count": len(ladder.rungs),
        }
    for name, value in values.items():
        world[name] = value


def _pack_input(run: Run, lowered: Lowered) -> None:
    requests, steps = lowered.requests, lowered.steps
    rows = np.zeros(len(requests.arrival), ARRAYS["requests"])
    rows["arrival"] = requests.arrival
    rows["identity"] = requests.identity
    rows["session"] = requests.session
    rows["priority"] = requests.priority
    rows["first_step"] = requests.first_step[:-1]
    rows["steps"] = np.diff(requests.first_step)
    run.world["level_count"] = 1
    if any(pool.order == _PRIORITY for pool in lowered.pools):
        known, level = np.unique(requests.priority, return_inverse=True)
        rows["level"] = level
        run.world["level_count"] = max(1, len(known))
    run.put("requests", rows)
    table = np.zeros(len(steps.kind), ARRAYS["steps"])
    for name in ("service", "image", "group", "kind", "station", "pool", "prompt", "cached",
                 "output", "image_tokens"):  # fmt: skip
        table[name] = getattr(steps, name)
    table["first_hash"] = steps.first_hash[:-1]
    table["hashes"] = np.diff(steps.first_hash)
    run.put("steps", table)
    _pack_hashes(run, lowered)
    ends = np.zeros(len(rows), ARRAYS["ends"])
    ends["arrival"] = ends["end"] = ends["status"] = NONE
    run.put("ends", ends)
    held = len(rows) if lowered.client.cap >= 0 else 0
    run.put("waiting_rows", np.zeros(held + 1, np.int32))


def _pack_hashes(run: Run, lowered: Lowered) -> None:
    """Hashes of blocks; and who holds each, where a router asks for it."""
    numbers = lowered.steps.hashes if any(pool.unit >= 0 for pool in lowered.pools) else ()
    run.put("hashes", np.ascontiguousarray(numbers if len(numbers) else [0], np.int32))
    asked = any(pool.router == _PREFIX_AWARE and pool.unit >= 0 for pool in lowered.pools)
    run.world["with_holders"] = asked and lowered.replicas <= _BITS
    count = int(np.max(numbers, initial=0)) + 1 if run.world[0]["with_holders"] else 1
    run.put("holders", np.zeros(count, np.uint64))


def _pack_stations(run: Run, lowered: Lowered, tables: _Tables) -> None:
    plans = np.zeros(len(lowered.stations) + 1, ARRAYS["stations"])
    drifts = 0
    for row, plan in zip(plans, lowered.stations, strict=False):
        _pack_station(row, plan, tables)
        row["factor"] = drifts
        drifts += len(plan.drift_factor)
    run.put("stations", plans)
    queues = np.zeros(len(lowered.servers) + 1, ARRAYS["queues"])
    queues["servers"][:-1] = lowered.servers
    queues["first"] = queues["last"] = NIL
    run.put("queues", queues)
    ladder = lowered.ladder
    rungs = np.zeros(len(ladder.rungs) + 1 if ladder else 1, ARRAYS["rungs"])
    for row, rung in zip(rungs, ladder.rungs if ladder else (), strict=False):
        for name in ("above", "below", "skip", "output", "attempts", "shed_from"):
            row[name] = getattr(rung, name)
    run.put("rungs", rungs)


def _pack_station(row: Array, plan: StationPlan, tables: _Tables) -> None:
    for name in ("timeout", "interval", "burst", "queue", "stops", "optional", "queue_limit"):
        row[name] = getattr(plan, name)
    row["samples"] = tables.add(plan.samples)
    row["sample_count"] = len(plan.samples)
    row["drift"] = tables.add(plan.drift_start)
    row["drifts"] = len(plan.drift_start)


def _pack_pools(run: Run, lowered: Lowered, tables: _Tables) -> None:
    rows = np.zeros(len(lowered.pools), ARRAYS["pools"])
    factors: list[float] = [factor for s in lowered.stations for factor in s.drift_factor.tolist()]
    for row, plan in zip(rows, lowered.pools, strict=True):
        _pack_pool(row, plan, tables)
        row["front_factor"] = len(factors)
        factors.extend(plan.front_factor.tolist())
    run.put("pools", rows)
    run.put("factors", np.array([*factors, 1.0]))


def _pack_pool(row: Array, plan: PoolPlan, tables: _Tables) -> None:
    for name in (
        "context", "block", "blocks", "watermark", "seqs", "budget", "cap", "unit", "transfer",
        "transfer_token", "load_weight", "first", "room", "order", "full_input", "router",
        "prefill_pool", "abort",
    ):  # fmt: skip
        row[name] = getattr(plan, name)
    for name in ("base", "slope", "prompt", "front", "accept", "front_load"):
        row[name] = tables.add(getattr(plan, name))
    row["fronts"] = len(plan.front)
    row["front_loads"] = len(plan.front_load)
    row["drafts"] = len(plan.accept)
    for name in ("last_routed", "less_since", "gap", "last_scheduled"):
        row[name] = NIL
    if plan.encoder is not None:
        row["encoders"] = plan.encoder.servers
        row["encode_base"] = plan.encoder.base
        row["encode_token"] = plan.encoder.per_token
        row["images"] = plan.encoder.cache
    if plan.scaler is not None:
        scaler = plan.scaler
        row["scale_metric"], row["scale_target"] = scaler.metric, scaler.target
        row["scale_every"], row["cold_start"] = scaler.every, scaler.cold_start
        row["scale_least"], row["scale_most"] = scaler.least, scaler.most
        row["scale_after"], row["scale_tolerance"] = scaler.after, scaler.tolerance


def _pack_engines(run: Run, lowered: Lowered) -> None:
    world, count = run.world[0], lowered.replicas
    rows = np.zeros(count, ARRAYS["replicas"])
    for number, pool in enumerate(lowered.pools):
        mine = rows[pool.first : pool.first + pool.room]
        mine["pool"] = number
        mine["free"] = mine["clean"] = pool.blocks
        mine["state"][: pool.replicas] = ACTIVE
        mine["state"][pool.replicas :] = STOPPED
    for name in (
        "run_first", "run_last", "prompt_first", "prompt_last", "node_free", "kept_first",
        "kept_last", "image_first", "image_last", "encode_first", "encode_last",
    ):  # fmt: skip
        rows[name] = NIL
    run.put("replicas", rows)
    base = 1 << max(0, count - 1).bit_length()
    world["tree_base"] = base
    run.put("turns", np.full(2 * base, IDLE, np.int64))
    calls = int((lowered.steps.kind == CALL).sum()) * lowered.retry.most
    seqs = max(min(pool.seqs, pool.blocks) for pool in lowered.pools)
    world["seqs_most"] = max(1, min(seqs, calls))  # each that runs has a block of its own
    world["block_most"] = max(pool.block for pool in lowered.pools)
    run.make("finish", count * int(world["seqs_most"]))
    run.make("phases", count * int(world["block_most"]))
    run.make("levels", 2 * count * int(world["level_count"])).fill(NIL)
    run.make("ended", int(world["seqs_most"]) + 1)
    _pack_cache(run, "nodes", "buckets", count, _most_kept(lowered))
    kept = max((pool.encoder.cache for pool in lowered.pools if pool.encoder), default=0)
    if kept:
        kept = min(kept, max(1, len(np.unique(lowered.steps.image))))
    _pack_cache(run, "images", "image_buckets", count, kept)


def _most_kept(lowered: Lowered) -> int:
    """Most entries of a replica's prefix cache: each has a block. Where no replica could run out of
    blocks, even if every call came to it, no block is taken twice."""
    steps = lowered.steps
    called = steps.kind == CALL
    tokens = steps.prompt[called] + steps.output[called]
    most = 0
    for pool in lowered.pools:
        if pool.unit >= 0:
            blocks = -(-(tokens + len(pool.accept)) // pool.block)
            most = max(most, min(pool.blocks, int(blocks.sum()) * lowered.retry.most))
    return most


def _pack_cache(run: Run, nodes: str, buckets: str, replicas: int, most: int) -> None:
    """Room for `most` entries a replica, and twice as many buckets; none if there are none."""
    room = most + 1 if most else 0
    heads = 1 << (2 * room).bit_length() if most else 1
    run.world[f"{nodes}_each"] = room
    run.world[f"{buckets}_each"] = heads
    run.make(nodes, max(1, replicas * room))
    run.make(buckets, replicas * heads).fill(NIL)


def _pack_room(run: Run, lowered: Lowered) -> None:
    """Rows that one event may need at most, and room to begin with."""
    world, steps = run.world[0], lowered.steps
    margin = _margin(lowered, int(world["seqs_most"]))
    world["margin"] = margin
    calls = int((steps.kind == CALL).sum())
    rows = {
        "events": max(0, lowered.client.closed) + len(lowered.pools),  # set before the first
        "call_log": calls,
        "visit_log": len(steps.kind) - calls,
        "attempt_log": len(lowered.requests.arrival),
        "sample_log": 1024,
    }
    for name in GROWING:
        run.make(name, 2 * margin + rows.get(name, 0))


def _margin(lowered: Lowered, seqs: int) -> int:
    """Rows that one event may need of an array at most.

    The end of a step may end a call of each of `seqs` requests, each of which begins a group (two
    events a step) or ends (a backoff, or a think time and one let go). Any other event begins or
    gives up the group of one request. A controller or a sample may touch every replica twice.
    """
    requests, steps = lowered.requests, lowered.steps
    new = np.zeros(len(steps.group) + 1, np.bool_)
    new[requests.first_step] = True
    new[1:-1] |= np.diff(steps.group) != 0
    begins = np.flatnonzero(new)
    largest = np.zeros(len(requests.arrival), np.int64)
    owner = np.searchsorted(requests.first_step, begins[:-1], side="right") - 1
    np.maximum.at(largest, owner, np.diff(begins))
    count = min(seqs, len(largest))
    groups = int(np.sort(largest)[len(largest) - count :].sum())
    return 2 * groups + 4 * count + 2 * lowered.replicas + 64
