"""The state of a run: the records of its arrays, and the `World` that knows where they are.

`w` is everywhere the World of the run. Links between rows are row numbers, `NIL` for none. Times
are ticks. Rows of `calls`, `visits` and `tries` are taken from and given back to free lists.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sojourn.sim import log

NIL: Final = -1
ARRIVE, STEP_END, WORK, TIMER, CONTROL, SAMPLE, STEP_BEGIN = range(7)


def _row(fields: list[tuple[str, str]]) -> np.dtype[np.void]:
    """A kind of row; every field begins at a multiple of its size."""
    return np.dtype(fields, align=True)


EVENT: Final = _row([("time", "i8"), ("key", "i8"), ("slot", "i4"), ("stamp", "i4")])
"""`key`: see `events.key_of`. An event whose stamp is not its slot's any more is void."""

REQUEST: Final = _row(
    [
        ("arrival", "i8"),
        ("identity", "u8"),
        ("session", "u8"),
        ("priority", "i8"),
        ("level", "i4"),  # rank of the priority among all that occur
        ("first_step", "i4"),
        ("steps", "i4"),
        ("client", "i4"),  # closed loop: whose it is
    ]
)
STEP: Final = _row(
    [
        ("service", "i8"),
        ("image", "i8"),
        ("first_hash", "i8"),
        ("hashes", "i4"),
        ("group", "i4"),
        ("kind", "i4"),
        ("station", "i4"),
        ("pool", "i4"),
        ("prompt", "i4"),
        ("cached", "i4"),
        ("output", "i4"),
        ("image_tokens", "i4"),
    ]
)

# One request being tried
TRY: Final = _row(
    [
        ("started", "i8"),
        ("row", "i4"),
        ("attempt", "i4"),
        ("next_step", "i4"),  # number of the step with which the next group begins
        ("first", "i4"),  # list of its visits and calls under way, by place: see under_way.py
        ("last", "i4"),
        ("stamp", "i4"),
        ("free", "i4"),
    ]
)

# A visit to a station, or a delay. `orphan`: its caller has gone, its server works on.
VISIT: Final = _row(
    [
        ("entered", "i8"),
        ("started", "i8"),
        ("service", "i8"),
        ("try_", "i4"),
        ("row", "i4"),
        ("attempt", "i4"),
        ("place", "i4"),
        ("station", "i4"),
        ("queue", "i4"),
        ("state", "i4"),
        ("before", "i4"),  # in the station's queue
        ("after", "i4"),
        ("sibling", "i4"),  # next and last in the attempt's list: see under_way.py
        ("elder", "i4"),
        ("stamp", "i4"),
    ]
)
DELAYED, VISIT_WAITS, SERVED, ORPHAN, VISIT_REFUSED = range(5)

# A model call. What the engine changes comes last.
CALL: Final = _row(
    [
        ("arrival", "i8"),
        ("encode", "i8"),
        ("encode_start", "i8"),
        ("queued", "i8"),
        ("scheduled", "i8"),
        ("first", "i8"),
        ("moved", "i8"),
        ("resumed", "i8"),
        ("first_hash", "i8"),
        ("luck", "u8"),  # ACCEPT draw
        ("try_", "i4"),  # NIL: its caller has gone
        ("row", "i4"),
        ("attempt", "i4"),
        ("place", "i4"),
        ("step", "i4"),
        ("pool", "i4"),
        ("replica", "i4"),
        ("state", "i4"),
        ("sibling", "i4"),
        ("elder", "i4"),
        ("stamp", "i4"),
        ("prompt", "i4"),
        ("recorded", "i4"),  # cached tokens as recorded
        ("output", "i4"),  # tokens to write in all
        ("target", "i4"),  # tokens to write where it is now (1 in a prefill pool)
        ("hashes", "i4"),
        ("cached", "i4"),  # hit when first scheduled
        ("preemptions", "i4"),
        ("level", "i4"),
        # the engine's
        ("before", "i4"),  # in waiting or running
        ("after", "i4"),
        ("prompt_before", "i4"),  # among the unfinished prompts
        ("prompt_after", "i4"),
        ("number", "i8"),  # queue number
        ("turn", "i8"),  # admission number
        ("computed", "i8"),  # decodes without draft: less the replica's `done`
        ("written", "i8"),  # likewise
        ("ends_at", "i8"),  # value of the replica's `done` at which it has written its target
        ("heap_place", "i4"),
        ("taken", "i4"),  # tokens in the step under way
        ("blocks", "i4"),  # held; decodes without draft: only what differs from the rule
        ("leaving", "i4"),
        ("held", "i4"),  # prefix hashes used
        ("registered", "i4"),  # hashes held when it was preempted
        ("registering", "i4"),  # 1 while it may register hashes
        ("tail", "i4"),  # kept tail, a node of the prefix cache
        ("verified", "i4"),  # verifications of drafts so far
        ("at_hand", "i4"),  # prompt tokens whose KV was moved here
    ]
)
IN_FRONT, ENCODER_WAITS, ENCODED, WAITING, PROMPTING, DECODING, MOVING, CALL_REFUSED = range(8)

POOL: Final = _row(
    [
        # the plan
        ("base", "i8"), ("slope", "i8"), ("prompt", "i8"),  # places in `tables`
        ("front", "i8"), ("fronts", "i8"), ("accept", "i8"), ("drafts", "i8"),
        ("front_load", "i8"), ("front_loads", "i8"), ("front_factor", "i8"),  # as a drift
        ("context", "i8"), ("block", "i8"), ("blocks", "i8"), ("watermark", "i8"),
        ("seqs", "i8"), ("budget", "i8"), ("cap", "i8"), ("unit", "i8"),
        ("transfer", "i8"), ("transfer_token", "i8"), ("load_weight", "i8"),
        ("encode_base", "i8"), ("encode_token", "i8"), ("encoders", "i8"), ("images", "i8"),
        ("first", "i4"), ("room", "i4"), ("order", "i4"), ("full_input", "i4"),
        ("router", "i4"), ("prefill_pool", "i4"), ("abort", "i4"),
        ("scale_metric", "i8"), ("scale_target", "i8"), ("scale_every", "i8"),
        ("cold_start", "i8"), ("scale_least", "i8"), ("scale_most", "i8"),
        ("scale_after", "i8"), ("scale_tolerance", "i8"),
        # what changes
        ("last_routed", "i4"),  # replica last chosen in turn; NIL at first
        ("waiting", "i4"),  # sequences, over its replicas
        ("less_since", "i8"),  # NIL: not less
        ("gap", "i8"),  # NIL at first
        ("last_scheduled", "i8"),  # NIL at first
    ]
)  # fmt: skip

REPLICA: Final = _row(
    [
        ("began", "i8"),  # of the step under way
        ("first", "i8"),  # its length
        ("growth", "i8"),  # what each further step of the leap takes more
        ("steps", "i8"),  # of the leap
        ("done", "i8"),  # decode steps since the start: decodes without draft count by it
        ("context", "i8"),  # sum over decodes of computed + 1
        ("free", "i8"),  # blocks
        ("clean", "i8"),  # of these, not kept in the prefix cache
        ("busy", "i8"), ("prompt_tokens", "i8"), ("written_tokens", "i8"),
        ("hit_tokens", "i8"), ("query_tokens", "i8"), ("preemptions", "i8"),
        ("numbers", "i8"), ("turns", "i8"),  # last given
        ("pool", "i4"), ("state", "i4"), ("load", "i4"),
        ("stepping", "i4"),  # 1: a step is under way
        ("pending", "i4"),  # 1: a step begins at this instant
        ("decoded", "i4"),  # 1: decodes take part in the step under way
        ("running", "i4"), ("decodes", "i4"), ("waiting", "i4"), ("leaving", "i4"),
        ("run_first", "i4"), ("run_last", "i4"),
        ("prompt_first", "i4"), ("prompt_last", "i4"),
        ("heap_size", "i4"),
        ("nodes_used", "i4"), ("node_free", "i4"), ("kept_first", "i4"), ("kept_last", "i4"),
        ("left", "i8"),  # tokens of the budget, while a step is made
        ("cap", "i8"),  # most tokens of a prompt in this step
        ("calm", "i4"),  # 1: nothing was preempted in this step
        ("image_count", "i4"), ("image_first", "i4"), ("image_last", "i4"),
        ("encoding", "i4"), ("encode_first", "i4"), ("encode_last", "i4"),
    ]
)  # fmt: skip
ACTIVE, STARTING, DRAINING, STOPPED = range(4)

STATION: Final = _row(
    [
        ("timeout", "i8"), ("interval", "i8"), ("burst", "i8"), ("tat", "i8"),
        ("samples", "i8"), ("sample_count", "i8"),  # in `tables`
        ("drift", "i8"), ("drifts", "i8"),  # starts in `tables`, factors in `factors`
        ("factor", "i8"),
        ("queue", "i4"), ("stops", "i4"), ("optional", "i4"), ("queue_limit", "i4"),
    ]
)  # fmt: skip
QUEUE: Final = _row(
    [("servers", "i4"), ("busy", "i4"), ("waiting", "i4"), ("first", "i4"), ("last", "i4")]
)
RUNG: Final = _row(
    [("above", "f8"), ("below", "f8"), ("skip", "u8"), ("shed_from", "i8"), ("output", "i4"),
     ("attempts", "i4")]
)  # fmt: skip

# An entry of a replica's prefix cache: a hash (`blocks` = unit), or the kept tail of a call.
NODE: Final = _row(
    [("hash", "i8"), ("users", "i4"), ("blocks", "i4"), ("before", "i4"), ("after", "i4"),
     ("owner", "i4"), ("chain", "i4")]
)  # fmt: skip
HASH_NODE, TAIL_NODE = -2, -1
"""`owner` of a hash, and of a tail that nobody returns to."""

ARRAYS: Final = {
    "requests": REQUEST,
    "steps": STEP,
    "hashes": np.dtype("i4"),  # block hashes as numbers, in the order in which they first occur
    "holders": np.dtype("u8"),  # by hash: bit r if replica r has it (see `with_holders`)
    "tables": np.dtype("i8"),
    "factors": np.dtype("f8"),
    "pools": POOL,
    "replicas": REPLICA,
    "stations": STATION,
    "queues": QUEUE,
    "rungs": RUNG,
    "events": EVENT,
    "tries": TRY,
    "visits": VISIT,
    "calls": CALL,
    "turns": np.dtype("i8"),  # tree over replicas: 2 x time of the next event, + 1 if STEP_BEGIN
    "finish": np.dtype("i4"),  # per replica a heap of decoding calls
    "phases": np.dtype("i4"),  # per replica, by done mod block: decodes that then need a block
    "levels": np.dtype("i4"),  # per replica and priority level: first and last that wait
    "ended": np.dtype("i4"),  # calls that ended with the step
    "nodes": NODE,
    "buckets": np.dtype("i4"),
    "images": NODE,
    "image_buckets": np.dtype("i4"),
    "waiting_rows": np.dtype("i4"),  # ring: requests held back at the client
    "ends": log.ENDS,
    "call_log": log.CALLS,
    "visit_log": log.VISITS,
    "attempt_log": log.ATTEMPTS,
    "sample_log": log.SAMPLES,
    "change_log": log.CHANGES,
}
_SCALARS: Final = (
    "now", "kind", "replica_now",  # the event under way: its time, kind, and replica if of one
    "status", "how",  # how a step or an attempt has ended: see chain.py
    "seed", "rows", "next_row", "in_flight", "event_count",
    "free_try", "free_visit", "free_call", "live_tries", "live_visits", "live_calls",
    "pool_count", "replica_count", "tree_base", "level_count", "seqs_most", "block_most",
    "rung_count", "level",
    # retry, client, admission, sampling: the plan
    "timeout", "attempts_most", "backoff", "on_timeout", "on_error", "degrade",
    "budget_gain", "budget_most", "budget", "closed", "cap", "think", "thinks",
    "ladder_metric", "ladder_every", "admission", "admission_metric", "admission_wait",
    "sample_every", "held_back", "held_first", "let_go", "ended_count",
    "skipped", "output_most", "attempts_now", "shed_from",  # the rungs in force
    "call_logs", "visit_logs", "attempt_logs", "sample_logs", "change_logs",
    "successor", "prompt_successor", "margin", "with_holders",
    "nodes_each", "buckets_each", "images_each", "image_buckets_each",  # of a replica
)  # fmt: skip
WORLD: Final = np.dtype(
    [(name, "i8") for name in _SCALARS]
    + [("jitter", "f8"), ("admission_low", "f8"), ("admission_high", "f8")]
    + [(f"{name}_at", "i8") for name in ARRAYS]
    + [(f"{name}_room", "i8") for name in ARRAYS]
)
